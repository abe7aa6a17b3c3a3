package verbs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/token"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

const (
	lateBytes  = 40_000 // of a window, with as much of its region before it and behind
	patientNIC = 1000   // TimeoutScale: no acknowledgement timeout passes in a test
)

// lateCase is a packet that is held in the network until the transfer was cut.
type lateCase struct {
	direction fabric.Direction
	at        fakeverbs.Point
	ofClient  bool // the client's adapter sends it
	cause     error
	unfenced  bool // the client breaks its promise
}

// cut ends the transfer of the case; the deadline comes by itself.
func (l lateCase) cut(c *rawClient) {
	switch l.cause {
	case fabric.ErrRevoked:
		c.b.fabric.RevokePrincipal(c.owner)
	case fabric.ErrPeerGone:
		_ = c.conn.Close()
	case fabric.ErrShutdown:
		if err := c.b.fabric.Close(); err != nil {
			c.t.Errorf("close: %v", err)
		}
	}
}

func (l lateCase) deadline() time.Duration {
	if l.cause == fabric.ErrOverdue {
		return shortly
	}
	return patience
}

// openAt opens a window inside region 1.
func (c *rawClient) openAt(off uint64, d fabric.Direction, n int64, wait time.Duration) fabric.Remote {
	c.t.Helper()
	c.tokens++
	r, err := c.b.fabric.Open(context.Background(), token.Descriptor{
		Kind: token.Session, Fabric: Name, SessionID: c.offer.ID, Region: frame.JoinRegion(1, c.tokens), Addr: off, Size: n,
	}, fabric.Grant{Principal: c.owner, Direction: d, Bytes: n, Deadline: time.Now().Add(wait)})
	if err != nil {
		c.t.Fatal(err)
	}
	return r
}

// moving starts to move a buffer.
func moving(r fabric.Remote, d fabric.Direction, b *bench, n int) (buf []byte, moved <-chan error, done func()) {
	buffer := b.buffer(n)
	move := r.Write
	if d == fabric.ForPut {
		move = r.Read
	}
	fill(buffer.Bytes(), 9)
	got := make(chan error, 1)
	go func() { got <- move(context.Background(), 0, buffer) }()
	return buffer.Bytes(), got, buffer.Release
}

// TestRF_35_LatePacketsOfACut holds each kind of packet of a transfer in the network until the transfer was cut in
// each of the ways there are, and then lets it go. The answer is the documented one; the arena's buffer is the node's
// again from the return of Write or Read on; and no byte of the client's memory changes that is outside the window,
// or, once the client has done what the protocol asks of it, any at all. A client that does not do it shows that the
// packets would have arrived. Oracles: the memory, and the adapter's list of who touched what.
func TestRF_35_LatePacketsOfACut(t *testing.T) {
	points := []lateCase{
		{direction: fabric.ForGet, at: fakeverbs.AtWritePacket},
		{direction: fabric.ForGet, at: fakeverbs.AtReadRequest}, // of the proof
		{direction: fabric.ForGet, at: fakeverbs.AtReadResponse, ofClient: true},
		{direction: fabric.ForPut, at: fakeverbs.AtReadRequest},
		{direction: fabric.ForPut, at: fakeverbs.AtReadResponse, ofClient: true},
	}
	causes := []error{fabric.ErrOverdue, fabric.ErrRevoked, fabric.ErrPeerGone, fabric.ErrShutdown}
	for _, l := range points {
		for _, l.cause = range causes {
			for _, l.unfenced = range []bool{false, true} {
				for _, impatient := range []bool{false, true} { // the adapter has given the client up before the cut
					name := fmt.Sprintf("%d/%d/%v/unfenced %v/impatient %v", l.direction, l.at, l.cause, l.unfenced, impatient)
					t.Run(name, func(t *testing.T) { l.run(t, impatient) })
				}
			}
		}
	}
}

func (l lateCase) run(t *testing.T, impatient bool) {
	o := fakeverbs.Options{Poison: true}
	if !impatient {
		o.TimeoutScale = patientNIC
	}
	b := newBench(t, o)
	c := b.connect("p", device0)
	id, answer := c.path(0)
	memory := c.region(3 * lateBytes)
	fill(memory, 5)
	rule := fakeverbs.Rule{At: l.at, Do: fakeverbs.Hold, QPN: answer.QPN, Times: fakeverbs.Always}
	if l.ofClient {
		rule.QPN = c.pairs[id].Number()
	}
	held := b.nic.Inject(rule)
	r := c.openAt(lateBytes, l.direction, lateBytes, l.deadline())
	buf, moved, done := moving(r, l.direction, b, lateBytes)
	defer done()
	held.Await(1)
	if impatient && l.cause != fabric.ErrOverdue { // a deadline may come first
		c.want(frame.Lost, id)
	}
	l.cut(c)
	err := r.Close()
	if !errors.Is(err, fabric.ErrFenced) || !errors.Is(err, l.cause) || errors.Is(err, fabric.ErrLingering) {
		t.Errorf("close: %v", err)
	}
	if err := <-moved; !errors.Is(err, fabric.ErrFenced) {
		t.Errorf("moved: %v", err)
	}
	if b.nic.Owned(buf) {
		t.Fatal("the adapter owns the buffer that was given back")
	}
	fill(buf, 77)

	outside := func() []byte { return append(bytes.Clone(memory[:lateBytes]), memory[2*lateBytes:]...) }
	want := make([]byte, len(memory))
	fill(want, 5)
	if !bytes.Equal(outside(), append(bytes.Clone(want[:lateBytes]), want[2*lateBytes:]...)) {
		t.Error("memory outside the window changed")
	}
	if !l.unfenced { // the request had no answer, or one that is an error
		if err := c.pairs[id].Fail(); err != nil {
			t.Fatal(err)
		}
	}
	fill(memory, 6)
	before, mark := bytes.Clone(memory), b.nic.Mark()
	dropped := b.nic.Counters().Dropped
	held.Release()
	b.nic.Await("the network to be empty", func() bool { return !b.nic.Busy() })

	if touched := b.nic.Touched(buf, mark); len(touched) > 0 {
		t.Errorf("the buffer was touched after it was given back: %+v", touched[0])
	}
	pattern := make([]byte, len(buf))
	if fill(pattern, 77); !bytes.Equal(buf, pattern) {
		t.Error("the buffer changed after it was given back")
	}
	touched := b.nic.Touched(memory, mark)
	for _, a := range touched {
		if !l.unfenced || a.Write && l.direction == fabric.ForPut {
			t.Errorf("client memory was touched after the answer: %+v", a)
		}
	}
	fill(want, 6)
	if !bytes.Equal(outside(), append(bytes.Clone(want[:lateBytes]), want[2*lateBytes:]...)) {
		t.Error("memory outside the window changed after the answer")
	}
	changed := !bytes.Equal(memory, before)
	if shows := l.unfenced && l.at == fakeverbs.AtWritePacket; changed != shows {
		t.Errorf("memory changed after the answer: %v", changed)
	}
	if l.unfenced && l.at == fakeverbs.AtReadRequest && l.direction == fabric.ForPut && len(touched) == 0 {
		t.Error("no late request arrived: the test proves nothing")
	}
	if l.ofClient && b.nic.Counters().Dropped == dropped {
		t.Error("no late answer arrived: the test proves nothing")
	}
}

// TestLateCopy: a packet that is late was sent again meanwhile, and the transfer is done. Its copy changes nothing,
// though the path lives.
func TestLateCopy(t *testing.T) {
	for _, skip := range []int{0, 7, lateBytes/1024 - 1} {
		b := newBench(t, fakeverbs.Options{Poison: true})
		c := b.connect("p", device0)
		_, answer := c.path(0)
		memory := c.region(lateBytes)
		held := b.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtWritePacket, Do: fakeverbs.Hold, QPN: answer.QPN, Skip: skip})
		r := c.openAt(0, fabric.ForGet, lateBytes, patience)
		buf, moved, done := moving(r, fabric.ForGet, b, lateBytes)
		held.Await(1)
		if err := errors.Join(<-moved, r.Close()); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(buf, memory) {
			t.Error("the bytes differ")
		}
		done()
		fill(memory, 6)
		before, mark := bytes.Clone(memory), b.nic.Mark()
		held.Release()
		b.nic.Await("the network to be empty", func() bool { return !b.nic.Busy() })
		if touched := b.nic.Touched(memory, mark); len(touched) > 0 || !bytes.Equal(memory, before) {
			t.Errorf("a copy changed memory after the answer: %+v", touched)
		}
		c.works(memory)
	}
}

// TestLatePacketsMeetTheNextPair: adapters give the numbers of queue pairs again. What is late for an old pair meets
// new ones of the same numbers, at both ends, in the middle of a transfer, and changes nothing.
func TestLatePacketsMeetTheNextPair(t *testing.T) {
	for _, l := range []lateCase{
		{direction: fabric.ForGet, at: fakeverbs.AtWritePacket},
		{direction: fabric.ForPut, at: fakeverbs.AtReadRequest},
		{direction: fabric.ForPut, at: fakeverbs.AtReadResponse, ofClient: true},
	} {
		b := newBench(t, fakeverbs.Options{Poison: true, ReuseNumbers: true, TimeoutScale: patientNIC})
		c := b.connect("p", device0)
		id, answer := c.path(0)
		memory := c.region(lateBytes)
		own := c.pairs[id].Number()
		rule := fakeverbs.Rule{At: l.at, Do: fakeverbs.Hold, QPN: answer.QPN, Times: fakeverbs.Always}
		if l.ofClient {
			rule.QPN = own
		}
		held := b.nic.Inject(rule)
		r := c.openAt(0, l.direction, lateBytes, patience)
		_, moved, done := moving(r, l.direction, b, lateBytes)
		held.Await(1)
		b.fabric.RevokePrincipal("p")
		if err := errors.Join(<-moved, r.Close()); !errors.Is(err, fabric.ErrRevoked) {
			t.Errorf("cut: %v", err)
		}
		done()
		held.Remove()
		c.ended("revoked")
		// The number that was given back last is the next one's: the client's, who makes its pair first.
		soon(t, "the server's pair is gone", func() bool { return b.nic.Counters().QPs == 1 })
		if err := c.pairs[id].Close(); err != nil {
			t.Fatal(err)
		}
		delete(c.pairs, id)

		c.last = 0
		c.dial()
		id, again := c.path(0)
		if again.QPN != answer.QPN || c.pairs[id].Number() != own {
			t.Fatalf("numbers %d and %d after %d and %d", again.QPN, c.pairs[id].Number(), answer.QPN, own)
		}
		c.announce(1, c.keys[0].Addr(), lateBytes, c.keys[0].RKey())
		pause := b.nic.Inject(fakeverbs.Rule{
			At: fakeverbs.AtWork, Do: fakeverbs.Hold, QPN: again.QPN, Times: fakeverbs.Always,
		})
		r = c.openAt(0, fabric.ForGet, lateBytes, patience)
		buf, moved, done := moving(r, fabric.ForGet, b, lateBytes)
		pause.Await(1)
		held.Release()
		b.nic.Await("the late packets to arrive", func() bool { return !b.nic.Busy() })
		pause.Release()
		if err := errors.Join(<-moved, r.Close()); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(buf, memory) {
			t.Error("the bytes differ")
		}
		done()
		c.works(memory)
	}
}
