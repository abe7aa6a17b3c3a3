package checksum

import "testing"

// TestPowers derives the table by repeated squaring, from the definition of x^8.
func TestPowers(t *testing.T) {
	square := uint64(one)
	for range 8 {
		square = timesX(square)
	}
	for k, got := range powers {
		if got != square {
			t.Fatalf("powers[%d] is %#x, want %#x", k, got, square)
		}
		square = times(square, square)
	}
}

// TestPowerOfHugeLengths moves a sum by n one bits at a time: x^(8·(a+b)) = x^(8·a) · x^(8·b).
func TestPowerOfHugeLengths(t *testing.T) {
	for _, c := range [][2]int64{{1 << 62, 1<<62 - 1}, {1 << 40, 12345}, {0, 7}, {64 << 20, 5 << 40}} {
		if got, want := power(c[0]+c[1]), times(power(c[0]), power(c[1])); got != want {
			t.Errorf("%d + %d: got %#x, want %#x", c[0], c[1], got, want)
		}
	}
}
