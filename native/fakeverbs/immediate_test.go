package fakeverbs_test

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// listener makes two connected ends, b with so many receives at most.
func listener(t testing.TB, nic *fakeverbs.NIC, receives int, tune func(a, b *end)) (a, b *end) {
	t.Helper()
	a = newEnd(t, nic, endOptions{memAccess: native.LocalWrite, psn: 0xfffffe})
	b = newEnd(t, nic, endOptions{memAccess: all, qpAccess: qpAll, receives: receives})
	if tune != nil {
		tune(a, b)
	}
	connect(a, b)
	return a, b
}

// told is a WRITE with an immediate.
func told(id uint64, a, b *end, n int, imm uint32) native.Work {
	w := write(id, a, b, n)
	w.Op, w.Imm = native.OpWriteImm, imm
	return w
}

func (e *end) receive(ids ...uint64) {
	e.t.Helper()
	for _, id := range ids {
		if err := e.qp.PostReceive(id); err != nil {
			e.t.Fatal(err)
		}
	}
}

// heard compares the completions of receives with what must have been received.
func (e *end) heard(want ...native.Completion) {
	e.t.Helper()
	got := e.poll()
	for i := range want {
		want[i].QPN, want[i].Received, want[i].HasImm = e.qp.Number(), true, true
	}
	if !slices.Equal(got, want) {
		e.t.Errorf("received %+v, want %+v", got, want)
	}
}

// TestImmediates: each is heard once, in order, with the bytes of its WRITE, which are there then; WRITEs without one
// use up no receive.
func TestImmediates(t *testing.T) {
	nic := fakeverbs.New(t, stepped())
	a, b := listener(t, nic, 8, nil)
	for i, n := range []int{0, 1, 1024, 1025, 5000, 65536} {
		fill(a.mem, i)
		clear(b.mem)
		b.receive(uint64(2*i), uint64(2*i+1))
		a.post(write(1, a, b, n), told(2, a, b, n, 0x01020304+uint32(i)), told(3, a, b, 0, 0xffffffff))
		nic.Run()
		a.expect(a.poll(), ok(1), ok(2), ok(3))
		b.heard(native.Completion{ID: uint64(2 * i), Bytes: uint32(n), Imm: 0x01020304 + uint32(i)},
			native.Completion{ID: uint64(2*i + 1), Imm: 0xffffffff})
		if !bytes.Equal(b.mem[:n], a.mem[:n]) {
			t.Errorf("%d bytes: they differ", n)
		}
	}
	if n := nic.Counters().NotReady; n != 0 {
		t.Errorf("told to wait %d times", n)
	}
}

// TestImmediateWaitsForItsReceive: a WRITE with an immediate that finds no receive is sent again after the peer's time,
// however often, and its bytes arrive once; with a limit it fails after so many.
func TestImmediateWaitsForItsReceive(t *testing.T) {
	const wait = 640 * time.Microsecond // of code 12
	for _, n := range []int{0, 100, 1024, 5000} {
		nic := fakeverbs.New(t, stepped())
		a, b := listener(t, nic, 2, nil) // seven retries: for ever
		fill(a.mem, n)
		start := nic.Now()
		a.post(told(1, a, b, n, 7), read(2, a, b, 1))
		nic.Advance(100*wait + wait/2)
		if got := nic.Counters().NotReady; got < 90 || got > 101 {
			t.Errorf("%d bytes: told to wait %d times in %v", n, got, nic.Now()-start)
		}
		if got := append(a.poll(), b.poll()...); len(got) != 0 {
			t.Errorf("%d bytes: completed without a receive: %+v", n, got)
		}
		before := nic.Counters().WriteBytes
		b.receive(9)
		nic.Advance(2 * wait)
		a.expect(a.poll(), ok(1), ok(2))
		b.heard(native.Completion{ID: 9, Bytes: uint32(n), Imm: 7})
		if got := nic.Counters().WriteBytes; got != uint64(n) || before > got {
			t.Errorf("%d bytes: %d were written, %d before the receive", n, got, before)
		}
		if !bytes.Equal(b.mem[1:max(n, 1)], a.mem[1:max(n, 1)]) {
			t.Errorf("%d bytes: they differ", n)
		}
	}
	for _, retries := range []uint8{0, 1, 6} {
		nic := fakeverbs.New(t, stepped())
		a, b := listener(t, nic, 1, func(a, _ *end) { a.path.RNRRetries = retries })
		a.post(told(1, a, b, 100, 7), write(2, a, b, 1))
		nic.Run()
		a.expect(a.poll(), ended(1, native.StatusRetry), ended(2, native.StatusFlushed))
		if got := nic.Counters().NotReady; got != uint64(retries) {
			t.Errorf("%d retries: waited %d times", retries, got)
		}
		if !bytes.Equal(b.mem[:100], make([]byte, 100)) {
			t.Error("bytes arrived")
		}
	}
}

// TestRetriesOfReceiversBeginAgain: they count from the last progress on, and lost packets count by themselves.
func TestRetriesOfReceiversBeginAgain(t *testing.T) {
	nic := fakeverbs.New(t, stepped())
	a, b := listener(t, nic, 1, func(a, _ *end) { a.path.Retries, a.path.RNRRetries = 1, 1 })
	for i := range uint64(5) {
		a.post(told(i, a, b, 3000, uint32(i)))
		nic.Advance(300 * time.Microsecond) // told to wait
		nic.Inject(fakeverbs.Rule{At: fakeverbs.AtWritePacket, Do: fakeverbs.Fail})
		b.receive(i)
		nic.Run()
		a.expect(a.poll(), ok(i))
		b.heard(native.Completion{ID: i, Bytes: 3000, Imm: uint32(i)})
	}
	if c := nic.Counters(); c.NotReady != 5 || c.Retries != 5 {
		t.Errorf("waited %d times, sent again %d times", c.NotReady, c.Retries)
	}
}

// TestReceivesEnd: what is posted and not used is flushed by the error state, also what is posted in it, is forgotten
// by a reset, and more than there is room for is refused.
func TestReceivesEnd(t *testing.T) {
	nic := fakeverbs.New(t, stepped())
	a, b := listener(t, nic, 3, nil)
	b.receive(1, 2, 3)
	if err := b.qp.PostReceive(4); err == nil {
		t.Error("more receives than there is room for")
	}
	a.post(told(1, a, b, 10, 5))
	nic.Run()
	b.heard(native.Completion{ID: 1, Bytes: 10, Imm: 5})
	if err := b.qp.Fail(); err != nil {
		t.Fatal(err)
	}
	nic.Run()
	b.receive(5)
	nic.Run()
	b.expect(b.poll(), ended(2, native.StatusFlushed), ended(3, native.StatusFlushed), ended(5, native.StatusFlushed))
	b.receive(6)
	if err := b.qp.Reset(); err != nil {
		t.Fatal(err)
	}
	nic.Run()
	if got := b.poll(); len(got) != 0 {
		t.Errorf("after the reset: %+v", got)
	}
	a.expect(a.poll(), ok(1))
}

// TestImmediateOfARefusedWrite: memory that the key does not reach is refused as for any WRITE, and no receive is used.
func TestImmediateOfARefusedWrite(t *testing.T) {
	nic := fakeverbs.New(t, stepped())
	a, b := listener(t, nic, 1, nil)
	b.receive(1)
	w := told(2, a, b, 10, 5)
	w.RKey ^= 0x5a5a
	a.post(w)
	nic.Run()
	a.expect(a.poll(), ended(2, native.StatusRemoteAccess))
	b.expect(b.poll(), ended(1, native.StatusFlushed))
}
