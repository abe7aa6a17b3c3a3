package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/penstock-store/penstock/client"
)

// errTouched says that a transfer changed memory that it must not.
var errTouched = errors.New("memory outside the window has changed")

// memory is a region of one client whose bytes are compared with a pattern after every operation.
type memory struct {
	region  *client.Region
	pattern []byte
	random  *rand.Rand
}

func newMemory(t *testing.T, c *client.Client, pattern []byte, seed uint64) *memory {
	t.Helper()
	r, err := c.Alloc(int64(len(pattern)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Errorf("close region: %v", err)
		}
	})
	copy(r.Bytes(), pattern)
	return &memory{r, pattern, rand.New(rand.NewPCG(seed, 2))}
}

// window is n bytes (0: at least one) at a random offset.
func (m *memory) window(n int) client.Window {
	n = max(n, 1)
	return m.region.Window(m.random.Int64N(int64(len(m.pattern)-n)+1), int64(n))
}

// wider is a window of at least n bytes.
func (m *memory) wider(n int) client.Window {
	return m.window(n + m.random.IntN(min(len(m.pattern)-n, 1<<16)))
}

// load fills a window with the payload.
func (m *memory) load(p []byte) client.Window {
	w := m.window(len(p))
	w.Bytes = int64(len(p))
	copy(m.region.Bytes()[w.Offset:], p)
	return w
}

// settle checks everything but the first n bytes of the window, and restores the pattern there.
func (m *memory) settle(w client.Window, n int64) error {
	b := m.region.Bytes()
	if !bytes.Equal(b[:w.Offset], m.pattern[:w.Offset]) || !bytes.Equal(b[w.Offset+n:], m.pattern[w.Offset+n:]) {
		return fmt.Errorf("window of %d bytes at %d, %d written: %w", w.Bytes, w.Offset, n, errTouched)
	}
	copy(b[w.Offset:w.Offset+n], m.pattern[w.Offset:])
	return nil
}

// put sends the payload that load placed; afterwards the memory must be what it was.
func (m *memory) sent(w client.Window, p []byte) error {
	if !bytes.Equal(m.region.Bytes()[w.Offset:w.Offset+w.Bytes], p) {
		return fmt.Errorf("payload in the window: %w", errTouched)
	}
	return m.settle(w, w.Bytes)
}
