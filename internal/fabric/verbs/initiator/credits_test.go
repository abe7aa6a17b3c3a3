package initiator

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// taker takes credits as a path does: it waits on its channel until it got some.
func taker(c *credits, t *ticket, want int, wake chan struct{}) int {
	for {
		if n := c.take(t, want, wake); n > 0 {
			return n
		}
		<-wake
	}
}

// TestCreditsAreNeverMoreThanThereAre counts what is out beside the credits themselves, while many take and give.
func TestCreditsAreNeverMoreThanThereAre(t *testing.T) {
	for _, total := range []int{1, 3, 40, 1000} {
		c := newCredits(total)
		var out atomic.Int64
		var all sync.WaitGroup
		for range 32 {
			all.Go(func() {
				var tk ticket
				wake := make(chan struct{}, 1)
				for i := range 300 {
					n := taker(c, &tk, 1+i%20, wake)
					if now := out.Add(int64(n)); now > int64(total) {
						t.Errorf("%d credits are out of %d", now, total)
					}
					if i%3 == 0 {
						runtime.Gosched()
					}
					out.Add(int64(-n))
					c.give(n)
				}
				c.cancel(&tk)
			})
		}
		all.Wait()
		if c.now() != 0 || c.waiting.Load() != 0 || c.line.first != nil {
			t.Fatalf("total %d: %d are out at the end, %d in line", total, c.now(), c.waiting.Load())
		}
	}
}

// TestCreditsGoInTurns: with all credits out, each one that comes back goes to who waits longest, a batch at most.
func TestCreditsGoInTurns(t *testing.T) {
	c := newCredits(64)
	if n := c.take(&ticket{}, 64, nil); n != 64 {
		t.Fatalf("took %d of 64", n)
	}
	tickets := make([]ticket, 4)
	wakes := make([]chan struct{}, 4)
	for i := range tickets {
		wakes[i] = make(chan struct{}, 1)
		if n := c.take(&tickets[i], 60, wakes[i]); n != 0 {
			t.Fatalf("took %d of none", n)
		}
	}
	c.cancel(&tickets[1])
	for _, i := range []int{0, 2, 3} {
		c.give(batchWork)
		for j := range tickets {
			select {
			case <-wakes[j]:
				if j != i {
					t.Fatalf("ticket %d was served in the turn of %d", j, i)
				}
			default:
				if j == i {
					t.Fatalf("ticket %d was not served in its turn", i)
				}
			}
		}
		if n := c.take(&tickets[i], 60, wakes[i]); n != batchWork {
			t.Fatalf("ticket %d got %d", i, n)
		}
	}
	// Whoever comes now finds nobody in line.
	c.give(64)
	if n := c.take(&tickets[1], 60, wakes[1]); n != 60 {
		t.Fatalf("took %d of 64 free ones", n)
	}
}

// TestCreditsOfACancelledTicketComeBack: also those that were granted and never fetched.
func TestCreditsOfACancelledTicketComeBack(t *testing.T) {
	c := newCredits(8)
	c.take(&ticket{}, 8, nil)
	var first, second ticket
	wake := make(chan struct{}, 1)
	c.take(&first, 8, make(chan struct{}, 1))
	c.take(&second, 8, wake)
	c.give(8) // all to the first
	c.cancel(&first)
	<-wake
	if n := c.take(&second, 8, wake); n != 8 {
		t.Fatalf("got %d", n)
	}
	c.give(8)
	if c.now() != 0 {
		t.Fatalf("%d are out", c.now())
	}
}

// TestCreditsDoNotPassTheLine: a path that comes while another waits takes nothing of what comes back, and a path that
// waits gets a batch at most, however many are free.
func TestCreditsDoNotPassTheLine(t *testing.T) {
	c := newCredits(4 * batchWork)
	c.take(&ticket{}, 4*batchWork, nil)
	var first, late ticket
	wake := make(chan struct{}, 1)
	if n := c.take(&first, 3*batchWork, wake); n != 0 {
		t.Fatalf("took %d of none", n)
	}
	c.mu.Lock() // what comes back now is free, and not handed out yet
	c.free.Add(4 * batchWork)
	c.mu.Unlock()
	c.take(&late, 4*batchWork, make(chan struct{}, 1))
	if n := c.take(&first, 3*batchWork, wake); n != batchWork {
		t.Fatalf("the first in line got %d", n)
	}
}
