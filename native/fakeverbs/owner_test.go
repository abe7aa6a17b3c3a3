package fakeverbs_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// TestOwned: a buffer is the adapter's from the post until the program has polled a completion at or behind it.
func TestOwned(t *testing.T) {
	nic := fakeverbs.New(t, stepped())
	a, b := pair(t, nic)
	quiet := write(1, a, b, 100)
	quiet.Signal = false
	second := write(2, a, b, 100)
	second.Local += 1000
	owned := func(first, second bool) {
		t.Helper()
		if nic.Owned(a.mem[50:60]) != first || nic.Owned(a.mem[1099:1200]) != second || nic.Owned(a.mem[100:1000]) ||
			nic.Owned(b.mem) {
			t.Errorf("owned %v %v %v", nic.Owned(a.mem[50:60]), nic.Owned(a.mem[1099:1200]), nic.Owned(a.mem[100:1000]))
		}
	}
	owned(false, false)
	a.post(quiet, second)
	owned(true, true)
	nic.Run()
	owned(true, true)
	a.expect(a.poll(), ok(2))
	owned(false, false)

	a.post(quiet, second)
	if err := a.qp.Fail(); err != nil {
		t.Fatal(err)
	}
	owned(true, true)
	nic.Run()
	owned(true, true)
	var one [1]native.Completion
	if n, err := a.cq.Poll(one[:]); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	owned(false, true)
	if err := a.qp.Reset(); err != nil {
		t.Fatal(err)
	}
	owned(false, false)
	a.expect(a.poll())
}

// killed lets a transfer run for some steps and cuts it; the adapter must not touch the requester's memory after.
func killed(t *testing.T, op native.Opcode, steps int, cut func(a, b *end)) (moved []byte, finished bool) {
	t.Helper()
	nic := fakeverbs.New(t, stepped())
	a, b := pair(t, nic)
	fill(a.mem, 3)
	fill(b.mem, 90)
	from, to, old := a.mem, b.mem, bytes.Clone(b.mem)
	w := write(1, a, b, 20000)
	if op == native.OpRead {
		from, to, old = b.mem, a.mem, bytes.Clone(a.mem)
		w = read(1, a, b, 20000)
	}
	a.post(w)
	for range steps {
		finished = !nic.Step()
	}
	mark, mine := nic.Mark(), bytes.Clone(a.mem)
	cut(a, b)
	nic.Run()
	if touched := nic.Touched(a.mem, mark); len(touched) > 0 {
		t.Errorf("touched after reset: %+v", touched)
	}
	if !bytes.Equal(a.mem, mine) {
		t.Error("memory changed after reset")
	}
	a.poll()
	n := 0
	for n < len(to) && to[n] == from[n] {
		n++
	}
	if !bytes.Equal(to[n:], old[n:]) {
		t.Error("bytes moved out of order")
	}
	return to[:n], finished
}

// TestKill: a reset of the requester in the middle leaves whole packets from the front, each number of them, and no
// access follows it.
func TestKill(t *testing.T) {
	cuts := map[string]func(a, b *end){
		"reset": func(a, _ *end) {
			if err := a.qp.Reset(); err != nil {
				a.t.Error(err)
			}
		},
		"fail and reset": func(a, _ *end) {
			if err := a.qp.Fail(); err != nil {
				a.t.Error(err)
			}
			if err := a.qp.Reset(); err != nil {
				a.t.Error(err)
			}
		},
		"device lost": func(a, _ *end) { a.nic.Kill("fake0") },
	}
	for name, cut := range cuts {
		for _, op := range []native.Opcode{native.OpWrite, native.OpRead} {
			t.Run(name, func(t *testing.T) {
				seen := map[int]bool{}
				for steps := 0; ; steps++ {
					moved, finished := killed(t, op, steps, cut)
					seen[len(moved)] = true
					if finished {
						break
					}
				}
				for n := 1024; n < 20000; n += 1024 {
					if !seen[n] {
						t.Errorf("op %d never left %d bytes", op, n)
					}
				}
				for n := range seen {
					if n%1024 != 0 && n != 20000 {
						t.Errorf("op %d left %d bytes", op, n)
					}
				}
			})
		}
	}
}

// TestRevoked: a region that is deregistered in the middle of a transfer is not touched any more; the requester is
// refused.
func TestRevoked(t *testing.T) {
	for _, op := range []native.Opcode{native.OpWrite, native.OpRead} {
		nic := fakeverbs.New(t, stepped())
		a, b := pair(t, nic)
		w := write(1, a, b, 30000)
		w.Op = op
		key := b.mr
		a.post(w)
		for len(nic.Touched(b.mem, 0)) < 5 {
			nic.Step()
		}
		if err := key.Close(); err != nil {
			t.Fatal(err)
		}
		mark, there := nic.Mark(), bytes.Clone(b.mem)
		nic.Run()
		a.expect(a.poll(), ended(1, native.StatusRemoteAccess))
		if len(nic.Touched(b.mem, mark)) > 0 || !bytes.Equal(b.mem, there) {
			t.Error("memory was touched after its region was closed")
		}
	}
}

// TestLinger: between Fail and the flushed completion the adapter may still use the buffer; not after.
func TestLinger(t *testing.T) {
	o := stepped()
	o.FlushTime = 50 * time.Microsecond
	nic := fakeverbs.New(t, o)
	a, b := pair(t, nic)
	a.post(read(1, a, b, 60000), write(2, a, b, 100))
	for len(nic.Touched(a.mem, 0)) < 3 {
		nic.Step()
	}
	mark := nic.Mark()
	if err := a.qp.Fail(); err != nil {
		t.Fatal(err)
	}
	for nic.Counters().Completions == 0 {
		nic.Step()
	}
	if len(nic.Touched(a.mem, mark)) == 0 {
		t.Error("the adapter stopped at once: tests would not find a buffer that is used too early")
	}
	mark = nic.Mark()
	nic.Run()
	if touched := nic.Touched(a.mem, mark); len(touched) > 0 {
		t.Errorf("touched after the flush: %+v", touched)
	}
	a.expect(a.poll(), ended(1, native.StatusFlushed), ended(2, native.StatusFlushed))
}

// TestErrorState: what is posted in the error state is flushed, and touches nothing.
func TestErrorState(t *testing.T) {
	nic := fakeverbs.New(t, stepped())
	a, b := pair(t, nic)
	if err := a.qp.Fail(); err != nil {
		t.Fatal(err)
	}
	nic.Run()
	fill(a.mem, 1)
	a.post(write(1, a, b, 3000), read(2, a, b, 3000))
	nic.Run()
	a.expect(a.poll(), ended(1, native.StatusFlushed), ended(2, native.StatusFlushed))
	if touched := append(nic.Touched(a.mem, 0), nic.Touched(b.mem, 0)...); len(touched) > 0 {
		t.Errorf("touched: %+v", touched)
	}
}

// TestRetriesBeginAgain: retries count from the last progress on, not over the life of the connection.
func TestRetriesBeginAgain(t *testing.T) {
	nic := fakeverbs.New(t, stepped())
	a := newEnd(t, nic, endOptions{memAccess: native.LocalWrite})
	b := newEnd(t, nic, endOptions{memAccess: all, qpAccess: qpAll})
	a.path.Retries = 1
	connect(a, b)
	fill(a.mem, 1)
	for i := range 6 {
		nic.Inject(fakeverbs.Rule{At: fakeverbs.AtWritePacket, Do: fakeverbs.Fail, Skip: 1})
		a.post(write(uint64(i), a, b, 2048))
		nic.Run()
		a.expect(a.poll(), ok(uint64(i)))
	}
	if n := nic.Counters().Retries; n != 6 {
		t.Errorf("%d retries", n)
	}
}

// TestFailAnywhere: wherever Fail cuts, the adapter keeps to the buffers that it has, and what is in them came from the
// peer, in order; each request ends.
func TestFailAnywhere(t *testing.T) {
	const n, apart = 3000, 4000
	for steps := 0; ; steps++ {
		o := stepped()
		o.FlushTime = 30 * time.Microsecond
		nic := fakeverbs.New(t, o)
		a, b := pair(t, nic)
		fill(a.mem, 1)
		fill(b.mem, 2)
		first, second, third := read(1, a, b, n), read(2, a, b, n), read(3, a, b, n)
		second.Local += apart
		third.Local += 2 * apart
		here := bytes.Clone(a.mem)
		a.post(first, second, third)
		finished := false
		for range steps {
			finished = !nic.Step()
		}
		if err := a.qp.Fail(); err != nil {
			t.Fatal(err)
		}
		nic.Run()
		if got := a.poll(); len(got) != 3 {
			t.Fatalf("completions %+v", got)
		}
		for i := range 3 {
			mine, old := a.mem[i*apart:][:apart], here[i*apart:][:apart]
			moved := 0
			for moved < n && mine[moved] == b.mem[moved] {
				moved++
			}
			if !bytes.Equal(mine[moved:], old[moved:]) {
				t.Fatalf("step %d: bytes of READ %d are not the peer's, or lie outside its buffer", steps, i+1)
			}
		}
		if finished {
			return
		}
	}
}

// TestFence: once Fail of the responder has returned, nothing of the network reaches its memory.
func TestFence(t *testing.T) {
	for steps := range 60 {
		nic := fakeverbs.New(t, stepped())
		a, b := pair(t, nic)
		fill(a.mem, 1)
		a.post(write(1, a, b, 30000), read(2, a, b, 30000))
		for range steps {
			nic.Step()
		}
		if err := b.qp.Fail(); err != nil {
			t.Fatal(err)
		}
		mark, there := nic.Mark(), bytes.Clone(b.mem)
		nic.Run()
		if len(nic.Touched(b.mem, mark)) > 0 || !bytes.Equal(b.mem, there) {
			t.Fatalf("memory was touched after the fence, at step %d", steps)
		}
		a.poll()
	}
}

// TestLateWrite: a packet that waits in the network outlives its sender's reset, and is taken if, and only if, the
// receiver is still as it was.
func TestLateWrite(t *testing.T) {
	again := func(b *end, psn uint32) {
		if err := b.qp.Reset(); err != nil {
			b.t.Fatal(err)
		}
		b.peer.PSN = psn
		b.ready()
	}
	for name, c := range map[string]struct {
		meanwhile func(b *end)
		arrives   bool
	}{
		"nothing":                  {func(*end) {}, true},
		"failed":                   {func(b *end) { _ = b.qp.Fail() }, false},
		"reset":                    {func(b *end) { _ = b.qp.Reset() }, false},
		"connected again":          {func(b *end) { again(b, 1234567) }, false},
		"connected with its PSN":   {func(b *end) { again(b, b.peer.PSN) }, true},
		"connected somewhere else": {func(b *end) { b.peer.GID[15]++; again(b, b.peer.PSN) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			nic := fakeverbs.New(t, stepped())
			a, b := pair(t, nic)
			fill(a.mem, 1)
			held := nic.Inject(fakeverbs.Rule{At: fakeverbs.AtWritePacket, Do: fakeverbs.Hold})
			a.post(write(1, a, b, 10))
			nic.Step()
			if held.Hits() != 1 {
				t.Fatal("no packet")
			}
			if err := a.qp.Reset(); err != nil {
				t.Fatal(err)
			}
			fill(a.mem, 2)
			c.meanwhile(b)
			held.Release()
			nic.Run()
			want := make([]byte, 10)
			if c.arrives {
				fill(want, 1)
			}
			if !bytes.Equal(b.mem[:10], want) {
				t.Errorf("memory %x, want %x", b.mem[:10], want)
			}
		})
	}
}

// TestLoss: with packets of every kind lost, doubled and late, what completes well has moved exactly its bytes.
func TestLoss(t *testing.T) {
	for seed := range uint64(100) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { lossy(t, seed) })
	}
}

func lossy(t *testing.T, seed uint64) {
	points := []fakeverbs.Point{fakeverbs.AtWritePacket, fakeverbs.AtReadRequest, fakeverbs.AtReadResponse,
		fakeverbs.AtAck}
	r := rand.New(rand.NewPCG(seed, 1))
	o := stepped()
	o.Seed, o.Jitter = seed+1, 5*time.Microsecond
	nic := fakeverbs.New(t, o)
	a, b := pair(t, nic)
	for range 6 {
		nic.Inject(fakeverbs.Rule{At: points[r.IntN(4)], Do: []fakeverbs.Effect{fakeverbs.Fail,
			fakeverbs.Twice}[r.IntN(2)], Skip: r.IntN(60)})
	}
	var works []native.Work
	var want []native.Completion
	fill(a.mem, int(seed))
	fill(b.mem, int(seed)+50)
	here, there := bytes.Clone(a.mem), bytes.Clone(b.mem)
	for i := range 12 {
		n := 1 + r.IntN(5000)
		w := write(uint64(i), a, b, n)
		w.Local += uint64(i * 5000)
		slot := i
		if i > 0 && r.IntN(2) == 0 {
			// A READ that is asked for again may see a WRITE behind it, but never misses one before it.
			w.Op, slot = native.OpRead, r.IntN(i)
		}
		w.Remote += uint64(slot * 5000)
		mine, its := here[i*5000:i*5000+n], there[slot*5000:slot*5000+n]
		if w.Op == native.OpRead {
			copy(mine, its)
		} else {
			copy(its, mine)
		}
		works, want = append(works, w), append(want, ok(uint64(i)))
	}
	a.post(works...)
	nic.Run()
	a.expect(a.poll(), want...)
	if !bytes.Equal(a.mem, here) || !bytes.Equal(b.mem, there) {
		t.Errorf("seed %d: memory differs", seed)
	}
}

// TestPoison: what the program does to memory that the adapter owns is found.
func TestPoison(t *testing.T) {
	for name, c := range map[string]struct {
		op    native.Opcode
		spoil func(a *end)
		found bool
	}{
		"write, changed":         {native.OpWrite, func(a *end) { a.mem[5]++ }, true},
		"write, not changed":     {native.OpWrite, func(*end) {}, false},
		"write, changed beside":  {native.OpWrite, func(a *end) { a.mem[9000]++ }, false},
		"read, changed":          {native.OpRead, func(a *end) { a.mem[5]++ }, true},
		"read, not changed":      {native.OpRead, func(*end) {}, false},
		"write, reset, changed":  {native.OpWrite, func(a *end) { a.mem[5]++; _ = a.qp.Reset() }, true},
		"write, reset, and then": {native.OpWrite, func(a *end) { _ = a.qp.Reset(); a.mem[5]++ }, false},
	} {
		t.Run(name, func(t *testing.T) {
			o := lenient(stepped())
			o.Poison = true
			nic := fakeverbs.New(t, o)
			a, b := pair(t, nic)
			w := write(1, a, b, 9000)
			w.Op = c.op
			a.post(w)
			c.spoil(a)
			nic.Run()
			a.poll()
			if found := len(nic.Violations()) > 0; found != c.found {
				t.Errorf("violations %q", nic.Violations())
			}
		})
	}
}

// TestReplay: the same seed gives the same accesses at the same times; seeds differ.
func TestReplay(t *testing.T) {
	run := func(seed uint64) (order []uint32, now time.Duration) {
		o := stepped()
		o.Seed, o.Jitter = seed, 20*time.Microsecond
		nic := fakeverbs.New(t, o)
		var ends []*end
		for range 4 {
			a, b := pair(t, nic)
			ends = append(ends, a)
			a.post(write(1, a, b, 30000), read(2, a, b, 30000))
		}
		nic.Run()
		for _, a := range ends {
			a.expect(a.poll(), ok(1), ok(2))
			base := ends[0].qp.Number()
			for _, x := range nic.Touched(a.mem, 0) {
				order = append(order, x.QPN-base)
			}
		}
		return order, nic.Now()
	}
	first, at := run(7)
	second, at2 := run(7)
	if !slices.Equal(first, second) || at != at2 {
		t.Error("the same seed ran otherwise")
	}
	if _, other := run(8); other == at {
		t.Error("another seed ran the same")
	}
}
