package verbs

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/fabrictest"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// TestDelayedPacketMeetsADeadPair holds a packet of a WRITE back in the network until its path was lost, its transfer
// went on by another path and was answered: the client's memory must not change any more. A client that says FENCED
// and is not shows that the packet would have arrived.
func TestDelayedPacketMeetsADeadPair(t *testing.T) {
	for _, fenced := range []bool{true, false} {
		t.Run(fmt.Sprint("fenced ", fenced), func(t *testing.T) {
			b := newBench(t, fakeverbs.Options{})
			c := b.connect("p", device0)
			first, answer := c.path(0)
			memory := c.region(bufBytes)
			held := b.nic.Inject(fakeverbs.Rule{
				At: fakeverbs.AtWritePacket, Do: fakeverbs.Hold, QPN: answer.QPN, Times: fakeverbs.Always,
			})
			r := c.mustOpen(fabric.ForGet, bufBytes, patience)
			buf := b.buffer(bufBytes)
			defer buf.Release()
			fill(buf.Bytes(), 1)
			wrote := make(chan error, 1)
			go func() { wrote <- r.Write(context.Background(), 0, buf) }()
			c.want(frame.Lost, first)
			c.path(1)
			select {
			case err := <-wrote:
				t.Fatalf("went on before FENCED: %v", err)
			default:
			}
			if fenced {
				c.fence(first)
			} else {
				c.send(frame.Header{Type: frame.Fenced, ID: first}, nil)
			}
			if err := errors.Join(<-wrote, r.Close()); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(memory, buf.Bytes()) {
				t.Error("the bytes differ")
			}
			fill(memory, 2) // the answer is out: it is the client's again
			before := bytes.Clone(memory)
			if held.Hits() == 0 {
				t.Fatal("no packet was held")
			}
			dropped := b.nic.Counters().Dropped
			held.Release()
			b.nic.Await("the packets have arrived", func() bool {
				return b.nic.Counters().Dropped > dropped || !bytes.Equal(memory, before)
			})
			if changed := !bytes.Equal(memory, before); changed == fenced {
				t.Errorf("memory changed after the answer: %v", changed)
			}
		})
	}
}

// load moves buffers both ways in several goroutines until stop, and counts what failed.
type load struct {
	b      *bench
	region fabrictest.Region
	moved  atomic.Int64
	failed atomic.Int64
	wrong  atomic.Int64 // said to be done, and the bytes differ

	lenient atomic.Bool // a transfer may fail
	tasks   sync.WaitGroup
	stop    chan struct{}
}

const loadBytes = 200_000

// client is a whole client with devices of its own.
func (b *bench) client(principal string, devices ...string) fabrictest.Client {
	b.t.Helper()
	offer, err := b.fabric.NewSession(b.t.Context(), principal)
	if err != nil {
		b.t.Fatal(err)
	}
	c, err := fabrictest.DialDevices(fakeDevices(b.t, b.nic, devices...))(b.t.Context(), offer)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		if err := c.Free(); err != nil {
			b.t.Error(err)
		}
	})
	return c
}

func (b *bench) load(c fabrictest.Client) *load {
	b.t.Helper()
	const workers = 4
	r, err := c.Register(b.t.Context(), workers*loadBytes)
	if err != nil {
		b.t.Fatal(err)
	}
	l := &load{b: b, region: r, stop: make(chan struct{})}
	for i := range int64(workers) {
		l.tasks.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-l.stop:
					return
				default:
				}
				d := fabric.ForGet
				if n%2 == 1 {
					d = fabric.ForPut
				}
				switch err := l.transfer(i*loadBytes, d); {
				case err == nil:
					l.moved.Add(1)
				case l.lenient.Load():
					l.failed.Add(1)
					soonOr(2*time.Millisecond, func() bool { return false }) // there may be no path for a second
				default:
					b.t.Errorf("direction %d: %v", d, err)
					l.failed.Add(1)
					return
				}
			}
		})
	}
	return l
}

func (l *load) transfer(at int64, d fabric.Direction) error {
	w, err := l.region.Grant(at, loadBytes, d)
	if err != nil {
		return err
	}
	r, err := l.b.fabric.Open(context.Background(), w.Descriptor(), fabric.Grant{
		Principal: "p", Direction: d, Bytes: loadBytes, Deadline: time.Now().Add(patience),
	})
	if err != nil {
		return err
	}
	buf, err := l.b.arena.Share("fabric").Alloc(context.Background())
	if err != nil {
		return err
	}
	defer buf.Release()
	part := buf.Slice(0, loadBytes)
	move, from, to := r.Write, part.Bytes(), l.region.Bytes()[at:at+loadBytes]
	if d == fabric.ForPut {
		move, from, to = r.Read, to, from
	}
	_, _ = rand.Read(from) // never fails
	err = errors.Join(move(context.Background(), 0, part), r.Close(), w.EndContext(context.Background()))
	if err == nil && !bytes.Equal(from, to) {
		l.wrong.Add(1)
		err = errors.New("the bytes differ")
	}
	return err
}

// more waits until some more transfers were done.
func (l *load) more(t *testing.T, what string) {
	t.Helper()
	const some = 20
	before := l.moved.Load()
	soon(t, what, func() bool { return l.moved.Load() > before+some || l.failed.Load() > 0 && !l.lenient.Load() })
}

func (l *load) end() {
	close(l.stop)
	l.tasks.Wait()
}

// bytesOf is what a rail has moved.
func (b *bench) bytesOf(index int) int64 {
	s := b.rail(index).Engine
	return s.Writes + s.Reads
}

// TestFailover takes each of two rails down under load and up again: no transfer fails, the bytes go by the other rail,
// and the rail comes back and carries bytes. Oracles: the bytes of each transfer, the adapter's counters.
func TestFailover(t *testing.T) {
	b := newBench(t, fakeverbs.Options{})
	l := b.load(b.client("p"))
	defer l.end()
	names := []string{rail0, rail1}
	for round := range 4 {
		down, other := round%2, 1-round%2
		l.more(t, "transfers on both rails")
		b.nic.PortDown(names[down])
		soon(t, "the rail is down", func() bool { return !b.rail(down).Up && b.rail(down).Reason != "" })
		soon(t, "its paths are gone", func() bool { return b.rail(down).Engine.Paths == 0 })
		before, still := b.bytesOf(other), b.bytesOf(down)
		l.more(t, "transfers on the other rail")
		if b.bytesOf(other) == before || b.bytesOf(down) != still {
			t.Error("the bytes did not go by the other rail")
		}
		returns := b.rail(down).Returns
		b.nic.PortUp(names[down])
		soon(t, "the rail is back", func() bool { return b.rail(down).Up && b.rail(down).Returns == returns+1 })
		soon(t, "it carries bytes", func() bool { return b.bytesOf(down) > still+loadBytes || l.failed.Load() > 0 })
	}
	if n := b.rail(0).Ejections + b.rail(1).Ejections; n != 0 {
		t.Errorf("%d ejections by ports that were down", n)
	}
}

// TestEjection lets all work requests of one rail fail while another works: the rail is ejected, transfers go on, and
// it comes back when a probe works, and not before.
func TestEjection(t *testing.T) {
	b := newBench(t, fakeverbs.Options{})
	l := b.load(b.client("p"))
	defer l.end()
	l.more(t, "transfers")
	fault := b.nic.Inject(fakeverbs.Rule{
		At: fakeverbs.AtWork, Do: fakeverbs.Fail, Device: rail0, Times: fakeverbs.Always, Status: fakeverbs.RetryExceeded,
	})
	soon(t, "the rail is ejected", func() bool { return b.rail(0).Ejections == 1 && !b.rail(0).Up })
	if r := b.rail(0); r.Reason != reasonEjected || r.Engine.Lost < lapsesToEject {
		t.Errorf("ejected: %+v", r)
	}
	hits := fault.Hits()
	soon(t, "a probe fails", func() bool { return fault.Hits() > hits })
	l.more(t, "transfers on the other rail")
	if r := b.rail(0); r.Up || r.Returns != 0 {
		t.Errorf("a rail came back that does not work: %+v", r)
	}
	fault.Remove()
	still := b.bytesOf(0)
	soon(t, "the rail is back", func() bool { return b.rail(0).Up && b.rail(0).Returns == 1 })
	soon(t, "it carries bytes", func() bool { return b.bytesOf(0) > still+loadBytes || l.failed.Load() > 0 })
	if b.rail(1).Ejections != 0 {
		t.Error("the rail that works was ejected too")
	}
}

// TestEjectionOfTheOnlyRail: failures of two principals on two devices are the rail's, those of one device are the
// device's, and those of one principal may be its own doing.
func TestEjectionOfTheOnlyRail(t *testing.T) {
	b := newBench(t, fakeverbs.Options{}, func(o *setup) { o.Devices = []string{rail0} })
	broken := fakeverbs.Rule{
		At: fakeverbs.AtWork, Do: fakeverbs.Fail, Device: rail0, Times: fakeverbs.Always, Status: fakeverbs.RetryExceeded,
	}
	fault := b.nic.Inject(broken)
	clients := []*rawClient{
		b.connect("p", device0), b.connect("q", device0), b.connect("p", device1), b.connect("q", device1),
	}
	memory := clients[0].region(4096)
	for _, c := range clients[1:] {
		c.region(4096)
	}
	clients[1].path(0) // another who has a path of the rail
	for range 2 * lapsesToEject {
		clients[0].lapse()
		clients[2].lapse()
	}
	if r := b.rail(0); r.Ejections != 0 || !r.Up {
		t.Fatalf("one principal ejected the rail: %+v", r)
	}
	fault.Remove()
	up, _ := clients[0].path(0)
	clients[0].works(memory) // what was before does not count
	clients[0].fence(up)
	fault = b.nic.Inject(broken)
	for range 2 * lapsesToEject {
		clients[0].lapse()
		clients[1].lapse()
	}
	if r := b.rail(0); r.Ejections != 0 || !r.Up {
		t.Fatalf("one device's trouble ejected the rail: %+v", r)
	}
	clients[3].lapse()
	soon(t, "the rail is ejected", func() bool { return b.rail(0).Ejections == 1 })
	if up, reason := b.fabric.rails.State(); up || reason != reasonEjected {
		t.Errorf("fabric: %v, %q", up, reason)
	}
	if _, err := clients[0].open(1, fabric.ForGet, 4096, patience); !errors.Is(err, fabric.ErrNoFabric) {
		t.Errorf("opened without a rail: %v", err)
	}
	fault.Remove()
	soon(t, "the rail is back", func() bool { return b.rail(0).Up })
	clients[0].path(0)
	clients[0].works(memory)
}

// TestEjectionWhereOnePrincipalIs: a rail that one principal has alone is ejected by what that one says, also the only
// rail, so that its requests do not pay for a rail that is dead.
func TestEjectionWhereOnePrincipalIs(t *testing.T) {
	b := newBench(t, fakeverbs.Options{}, func(o *setup) { o.Devices = []string{rail0} })
	b.nic.Inject(fakeverbs.Rule{
		At: fakeverbs.AtWork, Do: fakeverbs.Fail, Device: rail0, Times: fakeverbs.Always, Status: fakeverbs.RetryExceeded,
	})
	clients := []*rawClient{b.connect("p", device0), b.connect("p", device1)}
	for range lapsesToEject / 2 {
		clients[0].lapse()
		clients[1].lapse()
	}
	soon(t, "the rail is ejected", func() bool { return b.rail(0).Ejections == 1 })
}

// lapse loses a path by the server's adapter, and fences it as a client does that lives.
func (c *rawClient) lapse() {
	c.t.Helper()
	id, answer := c.path(0)
	server := c.session()
	server.mu.Lock()
	p := server.paths[id]
	server.mu.Unlock()
	c.b.nic.FailQP(answer.QPN)
	c.want(frame.Lost, id)
	c.fence(id)
	<-p.done
}

// TestDeadClientsEjectNothing: clients whose adapters are silent, and who do not answer LOST either, cost their
// sessions.
func TestDeadClientsEjectNothing(t *testing.T) {
	b := newBench(t, fakeverbs.Options{}, func(o *setup) { o.StallWait = shortly })
	var tasks sync.WaitGroup
	for i := range 4 * lapsesToEject {
		c := b.connect("p", []string{device0, device1}[i%2])
		c.path(uint64(i % 2))
		c.region(4096)
		for _, q := range c.pairs {
			if err := q.Fail(); err != nil { // its machine is gone
				t.Fatal(err)
			}
		}
		r := c.mustOpen(fabric.ForGet, 4096, patience)
		buf := b.buffer(4096)
		tasks.Go(func() {
			defer buf.Release()
			if err := r.Write(context.Background(), 0, buf); !errors.Is(err, fabric.ErrFenced) {
				t.Errorf("wrote to a dead client: %v", err)
			}
			if err := r.Close(); !errors.Is(err, fabric.ErrFenced) {
				t.Errorf("close: %v", err)
			}
		})
		if i%8 == 7 {
			tasks.Wait()
		}
	}
	tasks.Wait()
	for i := range 2 {
		if r := b.rail(i); r.Ejections != 0 || !r.Up || r.Engine.Lost == 0 {
			t.Errorf("rail %d: %+v", i, r)
		}
	}
}

// TestAdapterThatDoesNotReset: a queue pair that the adapter does not reset keeps its buffer out, and the transfer has
// no answer; other sessions go on, and the log tells of it.
func TestAdapterThatDoesNotReset(t *testing.T) {
	var log syncBuffer
	b := newBench(t, fakeverbs.Options{Lenient: true}, func(o *setup) {
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	c, other := b.connect("p", device0), b.connect("p", device1)
	_, answer := c.path(0)
	other.path(1)
	memory := other.region(4096)
	c.region(bufBytes)
	held := b.nic.Inject(fakeverbs.Rule{
		At: fakeverbs.AtWork, Do: fakeverbs.Hold, QPN: answer.QPN, Times: fakeverbs.Always,
	})
	reset := b.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtReset, Do: fakeverbs.Hold, Device: rail0})
	r := c.mustOpen(fabric.ForGet, bufBytes, shortly)
	buf := b.buffer(bufBytes)
	wrote := make(chan error, 1)
	go func() { wrote <- r.Write(context.Background(), 0, buf) }()
	held.Await(1)
	if err := r.Close(); !errors.Is(err, fabric.ErrLingering) || !errors.Is(err, fabric.ErrFenced) {
		t.Errorf("close: %v", err)
	}
	other.works(memory)
	soon(t, "the log tells of it", func() bool {
		text := log.String()
		return strings.Contains(text, "level=ERROR") && strings.Contains(text, "rail="+rail0+"/1")
	})
	select {
	case err := <-wrote:
		t.Errorf("the buffer came back before the reset: %v", err)
	default:
	}
	reset.Release()
	if err := <-wrote; !errors.Is(err, fabric.ErrFenced) {
		t.Errorf("write: %v", err)
	}
	buf.Release()
	other.works(memory)
}

// syncBuffer is a buffer for several writers.
type syncBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// TestContextDoesNotShortenAMove: a request that is given up waits for the adapter all the same, since the adapter has
// its buffer.
func TestContextDoesNotShortenAMove(t *testing.T) {
	b := newBench(t, fakeverbs.Options{Poison: true})
	c := b.connect("p", device0)
	_, answer := c.path(0)
	c.region(bufBytes)
	for _, d := range []fabric.Direction{fabric.ForGet, fabric.ForPut} {
		held := b.nic.Inject(fakeverbs.Rule{
			At: fakeverbs.AtWork, Do: fakeverbs.Hold, QPN: answer.QPN, Times: fakeverbs.Always,
		})
		r := c.mustOpen(d, bufBytes, patience)
		move := r.Write
		if d == fabric.ForPut {
			move = r.Read
		}
		buf := b.buffer(bufBytes)
		ctx, cancel := context.WithCancel(context.Background())
		moved := make(chan error, 1)
		go func() { moved <- move(ctx, 0, buf) }()
		held.Await(1)
		cancel()
		c.alive("after the request was given up")
		select {
		case err := <-moved:
			t.Errorf("direction %d: returned while the adapter has the buffer: %v", d, err)
		default:
		}
		if !b.nic.Owned(buf.Bytes()) {
			t.Errorf("direction %d: the adapter does not have the buffer", d)
		}
		held.Remove()
		held.Release()
		if err := <-moved; err != nil {
			t.Errorf("direction %d: %v", d, err)
		}
		if b.nic.Owned(buf.Bytes()) {
			t.Errorf("direction %d: returned too early", d)
		}
		buf.Release()
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}
