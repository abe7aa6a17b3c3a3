package target

import (
	"errors"
	"math"
	"testing"

	"github.com/penstock-store/penstock/internal/frame"
)

// TestSpent: numbers of tokens are never used again, not even when there are no more.
func TestSpent(t *testing.T) {
	c := newConn(frame.SessionReply{Fabric: "tcp"})
	r := &Region{conn: c, memory: WrapMemory(make([]byte, 10)), number: 1}
	c.lastToken = math.MaxUint32 - 2
	seen := map[uint32]bool{}
	for range 2 {
		g, err := c.Expect(r, 0, 10, ForGet)
		if err != nil {
			t.Fatal(err)
		}
		region, number := frame.SplitRegion(g.Descriptor().Region)
		if region != 1 || number == 0 || seen[number] {
			t.Errorf("region %d, number %d", region, number)
		}
		seen[number] = true
		if err := g.End(); err != nil {
			t.Error(err)
		}
	}
	for range 3 {
		if _, err := c.Expect(r, 0, 10, ForGet); !errors.Is(err, ErrSpent) {
			t.Errorf("after the last number: %v", err)
		}
	}
}
