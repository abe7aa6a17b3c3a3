//go:build cgo

package native_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// TestWriteAndRead: bytes of odd lengths and offsets move both ways, and no others change.
func TestWriteAndRead(t *testing.T) {
	p := newPair(t, all)
	near, far := p.near.memory, p.far.memory
	sizes := []int{0, 1, 3, 4095, 4096, 65537, memoryBytes - 7}
	for i, size := range sizes {
		for _, op := range []native.Opcode{native.OpWrite, native.OpRead} {
			fill(near, byte(2*i))
			fill(far, byte(2*i+1))
			wantNear, wantFar := bytes.Clone(near), merged(far, near, 7, size)
			if op == native.OpRead {
				wantNear, wantFar = merged(near, far, 7, size), bytes.Clone(far)
			}
			p.near.post(p.work(uint64(i), op, 7, size))
			c := p.near.want(uint64(i), native.StatusOK)
			if op == native.OpRead && int(c.Bytes) != size {
				t.Errorf("READ of %d: %d bytes", size, c.Bytes)
			}
			if op == native.OpWrite {
				// An acknowledged WRITE need not have reached memory; a READ behind it is answered from there.
				p.near.post(p.work(99, native.OpRead, 0, 1))
				p.near.want(99, native.StatusOK)
				wantNear[0] = wantFar[0]
			}
			wantBytes(t, "near", near, wantNear)
			wantBytes(t, "far", far, wantFar)
		}
	}
}

// TestBatch: a slice longer than a chain is posted by one call; only the last asks for a completion, and gets the only
// one.
func TestBatch(t *testing.T) {
	p := newPair(t, all)
	fill(p.near.memory, 1)
	works := make([]native.Work, depth)
	const piece = memoryBytes / depth
	for i := range works {
		works[i] = p.work(uint64(i), native.OpWrite, i*piece, piece)
		works[i].Signal = i == depth-1
	}
	for range 3 {
		clear(p.far.memory)
		p.near.post(works...)
		p.near.want(depth-1, native.StatusOK)
		p.near.post(p.work(99, native.OpRead, 0, 1))
		p.near.want(99, native.StatusOK)
		wantBytes(t, "far", p.far.memory, p.near.memory)
	}
	p.near.take()
	if len(p.near.pending) != 0 {
		t.Errorf("completions of works that asked for none: %v", p.near.pending)
	}
}

// TestPostBeyondDepth: what Post says was posted completes, in order, and nothing else moves.
func TestPostBeyondDepth(t *testing.T) {
	l := openWith(t, fakeverbs.Options{Lenient: true, Poison: true, PacketTime: time.Microsecond})
	d, port, gid := deviceOf(t, l)
	p := newPairOn(t, d, port, gid, all)
	const size = 4
	works := make([]native.Work, 40*depth)
	for i := range works {
		works[i] = p.work(uint64(i), native.OpWrite, i*size, size)
		works[i].Signal = i%(depth/2) == 0
	}
	fill(p.near.memory, 1)
	n, err := p.near.qp.Post(works)
	if err == nil && n == len(works) && onDevice() {
		t.Skip("the adapter was as fast as the posts")
	}
	if !errors.Is(err, syscall.ENOMEM) || n < depth || n == len(works) {
		t.Fatalf("%d of %d posted, depth %d: %v", n, len(works), depth, err)
	}
	for i := 0; i < n; i += depth / 2 {
		p.near.want(uint64(i), native.StatusOK)
	}
	p.near.post(p.work(9999, native.OpRead, memoryBytes-8, 1))
	p.near.want(9999, native.StatusOK)
	want := merged(make([]byte, memoryBytes), p.near.memory, 0, n*size)
	wantBytes(t, "far", p.far.memory, want)
}

// TestRemoteAccess: the peer's adapter refuses what was not granted; not a byte changes, and the queue pair is dead
// until it is reset.
func TestRemoteAccess(t *testing.T) {
	cases := []struct {
		name   string
		grant  native.Access
		op     native.Opcode
		damage func(*native.Work)
	}{
		{"wrong key", all, native.OpWrite, func(w *native.Work) { w.RKey ^= 0x5a5a00 }},
		{"behind the end", all, native.OpWrite, func(w *native.Work) { w.Remote += memoryBytes }},
		{"across the end", all, native.OpWrite, func(w *native.Work) { w.Remote += memoryBytes - 50 }},
		{"READ across the end", all, native.OpRead, func(w *native.Work) { w.Remote += memoryBytes - 50 }},
		{"before the beginning", all, native.OpRead, func(w *native.Work) { w.Remote -= 50 }},
		{"WRITE without the right", native.LocalWrite | native.RemoteRead, native.OpWrite, func(*native.Work) {}},
		{"READ without the right", native.LocalWrite | native.RemoteWrite, native.OpRead, func(*native.Work) {}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t, c.grant)
			fill(p.near.memory, 1)
			fill(p.far.memory, 2)
			near, far := bytes.Clone(p.near.memory), bytes.Clone(p.far.memory)
			bad := p.work(1, c.op, 0, 100)
			c.damage(&bad)
			p.near.post(bad, p.work(2, native.OpWrite, 200, 100))
			got := p.near.completion()
			// Without a right some adapters call the request invalid, as the architecture allows at the queue pair.
			without := c.grant != all && got.Status == native.StatusRemoteOther
			if got.ID != 1 || got.Status != native.StatusRemoteAccess && !without {
				t.Fatalf("completion of %d with status %d", got.ID, got.Status)
			}
			p.near.want(2, native.StatusFlushed)
			if c.op == native.OpWrite { // what a READ leaves that failed is not defined
				wantBytes(t, "near", p.near.memory, near)
			}
			wantBytes(t, "far", p.far.memory, far)
			if state, err := p.near.qp.State(); err != nil || state != native.QPError {
				t.Errorf("state %d %v", state, err)
			}
			if c.grant != all {
				return
			}
			p.near.change(native.QPReset, p.near.qp.Reset())
			p.far.change(native.QPReset, p.far.qp.Reset())
			p.connect(t)
			p.near.post(p.work(3, native.OpWrite, 0, 100))
			p.near.want(3, native.StatusOK)
		})
	}
}

// TestRevoked: a region that was closed is as if it had never been.
func TestRevoked(t *testing.T) {
	p := newPair(t, all)
	w := p.work(1, native.OpWrite, 0, 100)
	closes(t, p.far.mr.Close())
	p.near.post(w)
	p.near.want(1, native.StatusRemoteAccess)
	wantBytes(t, "far", p.far.memory, make([]byte, memoryBytes))
}

// TestLocalError: a local key that does not cover the memory is this end's fault.
func TestLocalError(t *testing.T) {
	p := newPair(t, all)
	w := p.work(1, native.OpWrite, 0, 100)
	w.Local += memoryBytes
	n, err := p.near.qp.Post([]native.Work{w})
	if err != nil {
		if n != 0 || !errors.Is(err, native.ErrVerbs) {
			t.Errorf("post: %d %v", n, err)
		}
		return // refused at once: as good
	}
	p.near.want(1, native.StatusLocal)
}

// TestFail: what is posted to a failed queue pair is flushed, what the peer sends to it is not acknowledged.
func TestFail(t *testing.T) {
	p := newPair(t, all)
	p.near.change(native.QPError, p.near.qp.Fail())
	p.near.post(p.work(1, native.OpWrite, 0, 100))
	p.near.want(1, native.StatusFlushed)
	p.near.change(native.QPError, p.near.qp.Fail())
}

// TestRetry: a peer that is gone is given up after the retries.
func TestRetry(t *testing.T) {
	p := newPair(t, all)
	for _, e := range []*end{p.near, p.far} {
		e.change(native.QPReset, e.qp.Reset())
		e.path.Timeout, e.path.Retries = 14, 1
	}
	p.connect(t)
	fill(p.near.memory, 1)
	p.far.change(native.QPError, p.far.qp.Fail())
	p.near.post(p.work(1, native.OpWrite, 0, 100), p.work(2, native.OpRead, 200, 100))
	p.near.want(1, native.StatusRetry)
	p.near.want(2, native.StatusFlushed)
	wantBytes(t, "far", p.far.memory, make([]byte, memoryBytes))
}

// TestReset: reset ends what is under way: afterwards the peer's answer finds nobody, and local memory stays as it is.
// The pair then connects again.
func TestReset(t *testing.T) {
	p := newPair(t, all)
	for round := range 5 {
		fill(p.far.memory, byte(round))
		works := make([]native.Work, depth)
		for i := range works {
			works[i] = p.work(uint64(i), native.OpRead, i*1024, 1024)
			works[i].Signal = i == depth-1
		}
		p.near.post(works...)
		p.near.change(native.QPReset, p.near.qp.Reset())
		before := bytes.Clone(p.near.memory)
		p.far.change(native.QPReset, p.far.qp.Reset())
		p.connect(t)
		p.near.post(p.work(1000, native.OpWrite, memoryBytes-64, 64))
		for p.near.completion().ID != 1000 { // others of before the reset may still come
		}
		wantBytes(t, "near after the reset", p.near.memory, before)
	}
}

// TestWaitEnds: Wait ends with its context, also one that has ended before, and with the CQ.
func TestWaitEnds(t *testing.T) {
	d, _, _ := device(t)
	cq, err := d.NewCQ(8)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	for range 100 {
		ctx, cancel := context.WithCancel(t.Context())
		go func() { ended <- cq.Wait(ctx) }()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Fatalf("cancelled: %v", err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 1)
	defer cancel()
	if err := cq.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("deadline: %v", err)
	}
	go func() { ended <- cq.Wait(context.Background()) }()
	closes(t, cq.Close())
	if err := <-ended; !errors.Is(err, native.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// TestWait: an armed CQ wakes for each completion, many times, also after waits that were cancelled.
func TestWait(t *testing.T) {
	p := newPair(t, all)
	for i := range 200 {
		if err := p.near.cq.Arm(); err != nil {
			t.Fatal(err)
		}
		if i%3 == 0 {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := p.near.cq.Wait(ctx); !errors.Is(err, context.Canceled) {
				t.Fatalf("cancelled: %v", err)
			}
		}
		p.near.post(p.work(uint64(i), native.OpWrite, 0, 64))
		ctx, cancel := context.WithTimeout(t.Context(), enough)
		if err := p.near.cq.Wait(ctx); err != nil {
			t.Fatalf("wait %d: %v", i, err)
		}
		cancel()
		p.near.want(uint64(i), native.StatusOK)
	}
}

// TestHotPathDoesNotAllocate: posting and polling, of any number of works, makes no garbage.
func TestHotPathDoesNotAllocate(t *testing.T) {
	p := newPair(t, all)
	works := []native.Work{p.work(1, native.OpWrite, 0, 64), p.work(2, native.OpWrite, 64, 64)}
	var got [16]native.Completion
	count := testing.AllocsPerRun(100, func() {
		if n, err := p.near.qp.Post(works); n != 2 || err != nil {
			t.Errorf("post: %d %v", n, err)
		}
		for left := 2; left > 0; {
			n, err := p.near.cq.Poll(got[:])
			if err != nil {
				t.Error(err)
			}
			left -= n
			if err := p.near.cq.Arm(); err != nil {
				t.Error(err)
			}
		}
	})
	if count != 0 {
		t.Errorf("%v allocations", count)
	}
}

// TestTwoPDs: a queue pair reaches no region of another protection domain, with the right key.
func TestTwoPDs(t *testing.T) {
	p := newPair(t, all)
	pd, err := p.device.NewPD()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { closes(t, pd.Close()) }()
	memory := mapMemory(t, 8192)
	mr, err := pd.Register(memory, all)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { closes(t, mr.Close()) }()
	fill(p.near.memory, 1)
	w := p.work(1, native.OpWrite, 0, 100)
	w.Remote, w.RKey = mr.Addr(), mr.RKey()
	p.near.post(w)
	if c := p.near.completion(); !slices.Contains([]native.Status{native.StatusRemoteAccess, native.StatusRemoteOther},
		c.Status) {
		t.Errorf("status %d", c.Status)
	}
	wantBytes(t, "other domain", memory, make([]byte, len(memory)))
}

// TestDMABuf: where the adapter takes dma-bufs a file that is none is refused.
func TestDMABuf(t *testing.T) {
	d, _, _ := device(t)
	pd, err := d.NewPD()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { closes(t, pd.Close()) }()
	_, err = pd.RegisterDMABuf(0, 0, 4096, 0x10000, all)
	var call *native.CallError
	if !errors.As(err, &call) || call.Call != "ibv_reg_dmabuf_mr" || call.Errno == 0 {
		t.Errorf("register: %v", err)
	}
	if errors.Is(err, syscall.EAGAIN) {
		t.Errorf("register: %v", err)
	}
}

// TestRF_48_PartOfADMABuf: a buffer that begins inside of a dma-buf is registered from its own offset on: what is
// written to its first address lands there, and nowhere else.
func TestRF_48_PartOfADMABuf(t *testing.T) {
	if onDevice() {
		t.Skip("no dma-buf without a device that exports one")
	}
	p := newPair(t, all)
	fd, err := unix.MemfdCreate("dma-buf", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "dma-buf")
	defer func() { closes(t, file.Close()) }()
	const size, offset, length, iova = 64 << 10, 12<<10 + 256, 20 << 10, 0x7000_0000_0000 + 256
	if err := file.Truncate(size); err != nil {
		t.Fatal(err)
	}
	mr, err := p.pd.RegisterDMABuf(fd, offset, length, iova, all)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { closes(t, mr.Close()) }()
	if mr.Addr() != iova {
		t.Errorf("address %#x", mr.Addr())
	}
	fill(p.near.memory, 1)
	w := p.work(1, native.OpWrite, 0, length)
	w.Remote, w.RKey = iova, mr.RKey()
	p.near.post(w)
	p.near.want(1, native.StatusOK)
	w.ID, w.Op, w.Length, w.Local = 2, native.OpRead, 1, w.Local+memoryBytes-1
	p.near.post(w)
	p.near.want(2, native.StatusOK)
	want := make([]byte, size)
	copy(want[offset:], p.near.memory[:length])
	got := make([]byte, size)
	if _, err := file.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	wantBytes(t, "dma-buf", got, want)
	w.ID, w.Op, w.Remote = 3, native.OpWrite, iova+length
	p.near.post(w)
	p.near.want(3, native.StatusRemoteAccess)
}
