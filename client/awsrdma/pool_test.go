package awsrdma

import (
	"testing"
)

// A region fits what it was made for, wastes at most a quarter, and regions of near lengths are alike.
func TestClasses(t *testing.T) {
	classes := map[int64]bool{}
	for n := int64(1); n < 300<<20; n += n/97 + 1 {
		size := classOf(n)
		if size < n || size < minRegion || (n > minRegion && size > n+n/4+1) {
			t.Errorf("%d bytes: class %d", n, size)
		}
		if again := classOf(size); again != size {
			t.Errorf("class %d is in class %d", size, again)
		}
		classes[size] = true
	}
	if len(classes) > 40 {
		t.Errorf("%d classes", len(classes))
	}
	for _, n := range []int64{5 << 20, 8 << 20, 64 << 20} { // parts of the transfer managers, chunks
		if classOf(n) != n {
			t.Errorf("%d bytes: class %d", n, classOf(n))
		}
	}
}
