package checksum_test

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/penstock-store/penstock/internal/checksum"
)

// reference is the definition, bit by bit: the oracle of this package. The polynomial is written
// as in the NVM Command Set specification and reflected here.
func reference(p []byte) uint64 {
	const normal uint64 = 0xAD93D23594C93659
	var reflected uint64
	for bit := range 64 {
		if normal>>bit&1 != 0 {
			reflected |= 1 << (63 - bit)
		}
	}
	crc := ^uint64(0)
	for _, b := range p {
		crc ^= uint64(b)
		for range 8 {
			if crc&1 != 0 {
				crc = crc>>1 ^ reflected
			} else {
				crc >>= 1
			}
		}
	}
	return ^crc
}

func random(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	return p
}

func TestPublishedCheckValue(t *testing.T) {
	// The check value that the CRC catalogues give for CRC-64/NVME.
	const want = 0xAE8B14860A799888
	if got := checksum.Sum([]byte("123456789")); got != want {
		t.Fatalf("got %#x, want %#x", got, uint64(want))
	}
	if got := reference([]byte("123456789")); got != want {
		t.Fatalf("the oracle itself gives %#x, want %#x", got, uint64(want))
	}
}

func TestSumAgainstReference(t *testing.T) {
	for n := range 600 {
		p := random(uint64(n), n)
		if got, want := checksum.Sum(p), reference(p); got != want {
			t.Fatalf("%d bytes: got %#x, want %#x", n, got, want)
		}
		cut := n / 3
		if got, want := checksum.Update(checksum.Sum(p[:cut]), p[cut:]), reference(p); got != want {
			t.Fatalf("%d bytes continued at %d: got %#x, want %#x", n, cut, got, want)
		}
	}
}

func TestCombine(t *testing.T) {
	p := random(7, 300<<10)
	r := rand.New(rand.NewPCG(2, 2))
	cuts := []int{0, 1, 7, 8, 9, 4095, 4096, 65535, 65536, 65537, len(p) - 1, len(p)}
	for range 200 {
		cuts = append(cuts, r.IntN(len(p)+1))
	}
	want := checksum.Sum(p)
	for _, cut := range cuts {
		a, b := p[:cut], p[cut:]
		if got := checksum.Combine(checksum.Sum(a), checksum.Sum(b), int64(len(b))); got != want {
			t.Fatalf("cut at %d: got %#x, want %#x", cut, got, want)
		}
		shift := checksum.NewShift(int64(len(b)))
		if got := shift.Combine(checksum.Sum(a), checksum.Sum(b)); got != want {
			t.Fatalf("shift, cut at %d: got %#x, want %#x", cut, got, want)
		}
	}
}

func TestCombineBlocks(t *testing.T) {
	const block = 1 << 10
	for _, n := range []int{0, 1, block - 1, block, block + 1, 2 * block, 2*block + 1, 17*block - 3, 64 * block} {
		p := random(uint64(n), n)
		var crcs []uint64
		for off := 0; off < n; off += block {
			crcs = append(crcs, reference(p[off:min(off+block, n)]))
		}
		if got, want := checksum.CombineBlocks(crcs, block, int64(n)), reference(p); got != want {
			t.Fatalf("%d bytes: got %#x, want %#x", n, got, want)
		}
	}
}

func TestCombineBlocksRefusesWrongCounts(t *testing.T) {
	for _, c := range []struct {
		sums  int
		total int64
	}{{0, 1}, {1, 0}, {1, 11}, {2, 10}, {1, -1}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%d sums for %d bytes did not panic", c.sums, c.total)
				}
			}()
			checksum.CombineBlocks(make([]uint64, c.sums), 10, c.total)
		}()
	}
}

func TestBase64(t *testing.T) {
	// The text was computed with coreutils: printf '\xae\x8b\x14\x86\x0a\x79\x98\x88' | base64
	const text = "rosUhgp5mIg="
	if got := checksum.Base64(0xAE8B14860A799888); got != text {
		t.Fatalf("got %s, want %s", got, text)
	}
	got, err := checksum.ParseBase64(text)
	if err != nil || got != 0xAE8B14860A799888 {
		t.Fatalf("got %#x, %v", got, err)
	}
	for _, bad := range []string{
		"", "rosUhgp5mIg", "rosUhgp5mI==", "rosUhgp5mIh=", "rosUhgp5mIgA",
		"ros!hgp5mIg=", "rosUhgp5mIg=\n", "rosUhgp5\nIg=", "-_sUhgp5mIg=",
	} {
		if _, err := checksum.ParseBase64(bad); !errors.Is(err, checksum.ErrFormat) {
			t.Errorf("%q: got %v, want ErrFormat", bad, err)
		}
	}
}

func FuzzParseBase64(f *testing.F) {
	f.Add("rosUhgp5mIg=")
	f.Add("AAAAAAAAAAA=")
	f.Add("")
	f.Add("rosUhgp5mIh=")
	f.Fuzz(func(t *testing.T, s string) {
		crc, err := checksum.ParseBase64(s)
		if err != nil {
			return
		}
		if again := checksum.Base64(crc); again != s {
			t.Fatalf("%q parsed, but is written as %q", s, again)
		}
	})
}

func TestNothingAllocates(t *testing.T) {
	p := random(1, 4<<10)
	crcs := make([]uint64, 1024)
	if n := testing.AllocsPerRun(100, func() {
		c := checksum.Update(checksum.Sum(p), p)
		c = checksum.Combine(c, c, 64<<10)
		crcs[0] = c
		checksum.CombineBlocks(crcs, 64<<10, 64<<20)
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func BenchmarkCombineBlocks64MiB(b *testing.B) {
	crcs := make([]uint64, 1024)
	for i := range crcs {
		crcs[i] = rand.Uint64()
	}
	for b.Loop() {
		checksum.CombineBlocks(crcs, 64<<10, 64<<20)
	}
}
