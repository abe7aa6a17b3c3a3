package rdma

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-store/penstock/client"
)

// victim obeys "get" and "put" of one object in the middle of which, as the order says, a signal goes to this process
// or to the node; "still" paints the memory, and after "watch" it must be as painted: nobody writes late; "renew" takes
// other memory in the place of what was given up.
func (w *worker) victim() error {
	m, err := w.join()
	if err != nil {
		return err
	}
	p := newPattern(w.Seed)
	mem := m.region.Bytes()
	err = w.orders(func(o order) error {
		r := report{What: "done"}
		fail := func(err error) {
			if err != nil {
				r.Failures = append(r.Failures, err.Error())
			}
		}
		start := time.Now()
		switch o.Verb {
		case "get":
			paint(mem, 0x5A)
			stop := w.trigger(o, mem)
			res, err := m.client.GetInto(context.Background(), m.region.All(), bucket, o.Key, client.GetOptions{})
			stop()
			if err == nil && !p.is(mem[:res.Bytes], 0) || errors.Is(err, client.ErrChecksum) {
				err = errors.Join(err, errors.New("other bytes: "+p.differs(mem, 0, 0x5A)))
			}
			fail(errors.Join(err, w.went(err, res)))
			r.Path = res.Path
		case "put":
			p.fill(mem, 0)
			stop := w.trigger(o, nil)
			res, err := m.client.PutFrom(context.Background(), m.region.All(), bucket, o.Key, client.PutOptions{})
			stop()
			fail(errors.Join(err, w.went(err, res)))
			r.Path = res.Path
		case "still":
			paint(mem, 0xC3)
		case "watch":
			if !during(o.For, func() bool { return painted(mem, 0xC3) }) {
				fail(errors.New("memory changed after the request had ended"))
			}
		case "renew": // memory that was given up is never used again
			r.Abandoned = m.region.Abandoned()
			if r.Abandoned {
				if m.region, err = m.client.Alloc(w.Bytes); err != nil {
					return err
				}
				mem = m.region.Bytes()
			}
		}
		r.Took = time.Since(start)
		return w.out.Encode(r)
	})
	return errors.Join(err, m.leave())
}

// trigger sends the order's signal: at the arrival of byte At in mem, or, without memory to look at, after For. stop
// ends it.
func (w *worker) trigger(o order, mem []byte) (stop func()) {
	if o.Signal == 0 {
		return func() {}
	}
	var over atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		before := byte(0)
		if mem != nil {
			before = mem[o.At]
		}
		for start := time.Now(); ; {
			if mem != nil && mem[o.At] != before || mem == nil && time.Since(start) >= o.For {
				break
			}
			if over.Load() {
				return
			}
			pause()
		}
		_ = w.out.Encode(report{What: "at"}) // the pipe holds it
		pid := os.Getpid()
		if o.ToServer {
			pid = w.ServerPID
		}
		_ = syscall.Kill(pid, o.Signal) // the node may have ended meanwhile, then the transfer fails all the same
	}()
	return func() {
		over.Store(true)
		<-done
	}
}

// pause lets others run, for less than any transfer takes.
func pause() {
	timer := time.NewTimer(20 * time.Microsecond)
	<-timer.C
}

// TestManyTransfers: one client reads and stores one object again and again. Each byte is compared each time.
func TestManyTransfers(t *testing.T) {
	each(t, "tcp", func(t *testing.T, fabric string) {
		s := newStage(t, fabric)
		p := s.victim(slow(30 * time.Second))
		rounds := 4
		if long() {
			rounds = 40
		}
		for range rounds {
			for _, o := range []order{{Verb: "get", Key: object}, {Verb: "put", Key: "again"}, {Verb: "get", Key: "again"}} {
				p.tell(o)
				fine(t, p.hears("done", patience()))
			}
		}
		p.leave()
		s.settled(s.before, "afterwards")
	})
}
