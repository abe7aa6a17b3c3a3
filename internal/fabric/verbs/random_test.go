package verbs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/fabrictest"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

const (
	// trouble is how many transfers a run of random faults sees, and troubleBytes the length of each. A run in which all
	// rails were ejected, which come back after seconds and then minutes, ends with fewer.
	trouble      = 1000
	fewest       = 100
	troubleBytes = 90_000
)

// troubled is one run.
type troubled struct {
	*bench
	done, failed, sessions atomic.Int64
}

// TestRandomFaults lets the adapters of both ends do under load what adapters may do: work requests and packets that
// are lost, late, double or refused, completions that lie, calls, queue pairs and ports that fail. A transfer that is
// reported as done has moved its own bytes, its memory does not change afterwards, nor does any after a fence, and a
// buffer that came back is nobody else's. Oracle: the memory of both ends. PENSTOCK_TEST_LONG=1 takes more seeds.
func TestRandomFaults(t *testing.T) {
	seeds := uint64(3)
	switch {
	case os.Getenv("PENSTOCK_TEST_LONG") != "":
		seeds = 100
	case testing.Short():
		seeds = 1
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := &troubled{bench: newBench(t, fakeverbs.Options{
				Seed: seed + 1, Latency: 5 * time.Microsecond, Jitter: 20 * time.Microsecond,
				KeepCompletions: seed%2 == 0, ReuseNumbers: true,
			}, func(o *setup) { o.StallWait = time.Second })}
			stop := make(chan struct{})
			var workers, breaker sync.WaitGroup
			for i := range uint64(4) {
				workers.Go(func() { r.work(rand.New(rand.NewPCG(seed, i))) })
			}
			breaker.Go(func() { r.disturb(rand.New(rand.NewPCG(seed, 99)), stop) })
			workers.Wait()
			close(stop)
			breaker.Wait()
			t.Logf("%d transfers done, %d failed, %d sessions", r.done.Load(), r.failed.Load(), r.sessions.Load())
		})
	}
}

func (r *troubled) over() bool {
	n := r.done.Load()
	return n > trouble || n > fewest && !r.fabric.rails.AnyUp() || r.t.Failed()
}

// work opens one session after another.
func (r *troubled) work(rng *rand.Rand) {
	devices := fakeDevices(r.t, r.nic)
	for !r.over() {
		offer, err := r.fabric.NewSession(context.Background(), "p")
		if err != nil {
			r.t.Errorf("session: %v", err)
			return
		}
		c, err := fabrictest.DialDevices(devices)(context.Background(), offer)
		if err != nil {
			continue // a fault
		}
		r.sessions.Add(1)
		region, err := c.Register(context.Background(), 2*troubleBytes)
		if err == nil {
			r.serve(rng, region)
		}
		if err := c.Fence(context.Background()); err != nil {
			r.t.Errorf("fence: %v", err)
		}
		if region != nil {
			fenced := bytes.Clone(region.Bytes())
			_ = r.nic.Busy() // waits for the adapter's turn, so that it has gone on
			if !bytes.Equal(fenced, region.Bytes()) {
				r.t.Error("memory changed after the fence")
			}
		}
		if err := c.Free(); err != nil {
			r.t.Errorf("free: %v", err)
		}
	}
}

// serve moves two windows of the region at once, until a transfer fails.
func (r *troubled) serve(rng *rand.Rand, region fabrictest.Region) {
	var tasks sync.WaitGroup
	var broken atomic.Bool
	for w := range int64(2) {
		own := rand.New(rand.NewPCG(rng.Uint64(), 0))
		tasks.Go(func() {
			var last []byte
			window := region.Bytes()[w*troubleBytes:][:troubleBytes]
			for !r.over() && !broken.Load() {
				if last != nil && !bytes.Equal(window, last) {
					r.t.Error("memory changed after its transfer was done")
				}
				if err := r.transfer(own, region, w*troubleBytes); err != nil {
					r.failed.Add(1)
					broken.Store(true)
					return
				}
				r.done.Add(1)
				last = bytes.Clone(window)
			}
		})
	}
	tasks.Wait()
}

// transfer moves a window one way, in two operations at once.
func (r *troubled) transfer(rng *rand.Rand, region fabrictest.Region, at int64) error {
	d := fabric.ForGet
	if rng.IntN(2) == 0 {
		d = fabric.ForPut
	}
	w, err := region.Grant(at, troubleBytes, d)
	if err != nil {
		return err
	}
	remote, err := r.fabric.Open(context.Background(), w.Descriptor(), fabric.Grant{
		Principal: "p", Direction: d, Bytes: troubleBytes, Deadline: time.Now().Add(5 * time.Second),
	})
	if err != nil {
		return errors.Join(err, w.EndContext(context.Background()))
	}
	whole, err := r.arena.Share("fabric").Alloc(context.Background())
	if err != nil {
		return errors.Join(err, remote.Close())
	}
	defer whole.Release()
	buf := whole.Slice(0, troubleBytes)
	move, from, to := remote.Write, buf.Bytes(), region.Bytes()[at:at+troubleBytes]
	if d == fabric.ForPut {
		move, from, to = remote.Read, to, from
	}
	for i := 0; i < len(from); i += 64 {
		from[i] = byte(rng.Uint32())
	}
	const half = troubleBytes / 2
	first := make(chan error, 1)
	go func() { first <- move(context.Background(), 0, buf.Slice(0, half)) }()
	err = errors.Join(move(context.Background(), half, buf.Slice(half, troubleBytes)), <-first)
	err = errors.Join(err, remote.Close(), w.EndContext(context.Background()))
	if err == nil && !bytes.Equal(from, to) {
		r.t.Errorf("direction %d: the bytes differ", d)
	}
	if r.nic.Owned(buf.Bytes()) {
		r.t.Errorf("direction %d: the adapter has a buffer that came back", d)
	}
	fill(buf.Bytes(), 3) // which must not show anywhere
	return err
}

// disturb injects one fault after another, and lets go of what it holds a little later.
func (r *troubled) disturb(rng *rand.Rand, stop <-chan struct{}) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	var held []*fakeverbs.Fault
	ports := []string{rail0, rail1, device0, device1}
	down := ""
	for {
		if down != "" {
			r.nic.PortUp(down)
			down = ""
		}
		for len(held) > 5 || len(held) > 0 && rng.IntN(3) == 0 {
			held[0].Release()
			held = held[1:]
		}
		select {
		case <-tick.C:
		case <-stop:
			for _, f := range held {
				f.Release()
			}
			return
		}
		held = append(held, r.nic.Inject(randomFault(rng)))
		if rng.IntN(60) == 0 {
			down = ports[rng.IntN(len(ports))]
			r.nic.PortDown(down)
		}
	}
}

func randomFault(rng *rand.Rand) fakeverbs.Rule {
	rule := fakeverbs.Rule{
		Do: fakeverbs.Fail, Skip: rng.IntN(30), Times: 1 + rng.IntN(2), Errno: syscall.EIO, Bytes: 1024 * rng.IntN(20),
		Device: []string{rail0, rail1, device0, ""}[rng.IntN(4)],
		Status: []fakeverbs.Status{
			fakeverbs.RetryExceeded, fakeverbs.RemoteAccess, fakeverbs.LocalProtection, fakeverbs.Flushed,
			fakeverbs.GeneralError,
		}[rng.IntN(5)],
	}
	calls := []fakeverbs.Point{fakeverbs.AtInit, fakeverbs.AtReceive, fakeverbs.AtSend, fakeverbs.AtCreateQP}
	packets := []fakeverbs.Point{
		fakeverbs.AtWritePacket, fakeverbs.AtReadRequest, fakeverbs.AtReadResponse, fakeverbs.AtAck,
	}
	switch rng.IntN(10) {
	case 0:
		rule.At = calls[rng.IntN(len(calls))]
	case 1:
		rule.At, rule.Batch = fakeverbs.AtPost, rng.IntN(5)-1
	case 2, 3:
		rule.At = []fakeverbs.Point{fakeverbs.AtReset, fakeverbs.AtError}[rng.IntN(2)]
		rule.Do = []fakeverbs.Effect{fakeverbs.Fail, fakeverbs.Hold}[rng.IntN(2)]
	case 4, 5, 6:
		rule.At, rule.Times = packets[rng.IntN(len(packets))], 1+rng.IntN(60)
		rule.Do = []fakeverbs.Effect{fakeverbs.Fail, fakeverbs.Hold, fakeverbs.Twice}[rng.IntN(3)]
	default:
		rule.At = fakeverbs.AtWork
		rule.Do = []fakeverbs.Effect{
			fakeverbs.Fail, fakeverbs.Hold, fakeverbs.Short, fakeverbs.Lie, fakeverbs.Lose,
		}[rng.IntN(5)]
	}
	return rule
}
