package checksum

// poly is the polynomial in reflected form: bit 63 is the coefficient of x^0, bit 0 that of x^63.
const poly = 0x9A6C9329AC4BC9B5

// one is the polynomial 1 in reflected form.
const one = 1 << 63

// timesX multiplies v by x modulo the polynomial. There is no branch on v: the bits of a CRC are
// random, so every second branch would be predicted wrongly.
func timesX(v uint64) uint64 { return v>>1 ^ poly&-(v&1) }

// times multiplies a by b modulo the polynomial.
func times(a, b uint64) uint64 {
	var product uint64
	for range 64 {
		product ^= b & -(a >> 63)
		a <<= 1
		b = timesX(b)
	}
	return product
}

// power is x^(8·n) modulo the polynomial, by repeated squaring; n ≥ 0.
func power(n int64) uint64 {
	result := uint64(one)
	square := uint64(one >> 8) // x^8
	for ; n > 0; n >>= 1 {
		if n&1 != 0 {
			result = times(result, square)
		}
		square = times(square, square)
	}
	return result
}

// Combine is the CRC64NVME of the concatenation of a piece with sum a and a piece of lenB bytes with
// sum b. It costs two GF(2) multiplications for every bit of lenB (about 2 µs for 64 MiB); for many
// pieces of one length use a Shift.
func Combine(a, b uint64, lenB int64) uint64 {
	if lenB < 0 {
		panic("checksum: negative length")
	}
	return times(power(lenB), a) ^ b
}

// Shift combines with pieces of one length, fast (about 10 ns each). Making one costs a few
// microseconds; it is a value of 2 KiB and is never changed afterwards.
type Shift struct {
	// nibbles[i][v] is the product of the multiplier and the 4 bits v at bit position 4·i.
	nibbles [16][16]uint64
}

// NewShift prepares combining with pieces of n bytes, n ≥ 0.
func NewShift(n int64) Shift {
	if n < 0 {
		panic("checksum: negative length")
	}
	var s Shift
	product := power(n) // times 2^bit, for bit from 63 (x^0) down to 0 (x^63)
	for bit := 63; bit >= 0; bit-- {
		row, weight := &s.nibbles[bit/4], 1<<(bit%4)
		row[weight] = product
		product = timesX(product)
	}
	for i := range s.nibbles {
		row := &s.nibbles[i]
		for v := range row {
			low := v & -v // lowest set bit
			row[v] = row[low] ^ row[v^low]
		}
	}
	return s
}

// Combine is Combine(a, b, n) with the n of NewShift.
func (s *Shift) Combine(a, b uint64) uint64 {
	for i := range s.nibbles {
		b ^= s.nibbles[i][a&15]
		a >>= 4
	}
	return b
}

// CombineBlocks is the CRC64NVME of a payload of total bytes that was cut into blocks of
// blockBytes (the last one may be shorter) with the sums crcs. It panics when the number of sums
// does not fit the lengths, since the result would vouch for bytes nobody summed.
func CombineBlocks(crcs []uint64, blockBytes, total int64) uint64 {
	if blockBytes <= 0 || total < 0 || int64(len(crcs)) != (total+blockBytes-1)/blockBytes {
		panic("checksum: number of blocks does not fit the length")
	}
	if len(crcs) == 0 {
		return 0
	}
	sum := crcs[0]
	last := len(crcs) - 1
	if last > 1 {
		shift := NewShift(blockBytes)
		for _, c := range crcs[1:last] {
			sum = shift.Combine(sum, c)
		}
	}
	if last > 0 {
		sum = Combine(sum, crcs[last], total-int64(last)*blockBytes)
	}
	return sum
}
