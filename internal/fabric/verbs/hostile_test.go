package verbs

import (
	"context"
	"errors"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// TestFrames follows a session frame by frame. Oracle: docs/wire.md §10.
func TestFrames(t *testing.T) {
	b := newBench(t, fakeverbs.Options{})
	c := b.connect("p", device0)
	rails, err := frame.DecodeRails(b.fabric.railsBody())
	if err != nil || len(rails) != 2 || rails[0].GID != mapped("10.99.0.1") || rails[1].GID != mapped("10.99.0.2") ||
		!rails[0].Up || rails[0].MTU != 3 || rails[1].Index != 1 {
		t.Fatalf("rails %+v, %v", rails, err)
	}
	id, answer := c.path(1)
	if answer.GID != rails[1].GID || answer.Device != 0 || answer.MTU != 3 || answer.Reads == 0 || answer.Reads > 4 {
		t.Errorf("answer %+v", answer)
	}
	memory := c.region(100_000)
	c.works(memory)
	c.send(frame.Header{Type: frame.Forget, Region: 1}, nil)
	if h, _ := c.want(frame.Forgotten, 0); h.Region != 1 || h.Status != frame.StatusOK {
		t.Errorf("forgotten: %+v", h)
	}
	c.fence(id)
	soon(t, "the path is gone", func() bool { return b.rail(1).Engine.Paths == 0 })
	c.fence(id) // an answer to a LOST that crossed it would look like this
	c.alive("after a second FENCED")
	c.path(1)
	c.send(frame.Header{Type: frame.Close}, nil)
	c.ended("close")
}

// TestHostileFrames sends what breaks the protocol: the session ends, and costs nobody else anything.
func TestHostileFrames(t *testing.T) {
	b := newBench(t, fakeverbs.Options{})
	witness := b.connect("p", device1)
	witness.path(0)
	memory := witness.region(70_000)
	path := func(id uint64, change func([]byte)) func(*rawClient) {
		return func(c *rawClient) {
			q, _, body := c.makePair()
			c.pairs[1000+id] = q
			raw := encode(body)
			change(raw)
			c.send(frame.Header{Type: frame.Path, ID: id}, raw)
		}
	}
	plain := func(h frame.Header) func(*rawClient) {
		return func(c *rawClient) { c.send(h, make([]byte, h.Length)) }
	}
	cases := map[string]func(*rawClient){
		"path 0":         path(0, func([]byte) {}),
		"QPN too large":  path(1, func(b []byte) { b[3] = 1 }),
		"PSN too large":  path(1, func(b []byte) { b[7] = 1 }),
		"no MTU":         path(1, func(b []byte) { b[26] = 0 }),
		"MTU too large":  path(1, func(b []byte) { b[26] = 6 }),
		"device 8":       path(1, func(b []byte) { b[27] = 8 }),
		"no READs":       path(1, func(b []byte) { b[28] = 0 }),
		"reserved byte":  path(1, func(b []byte) { b[39] = 1 }),
		"PATH_UP first":  plain(frame.Header{Type: frame.PathUp, ID: 1}),
		"FENCED of none": plain(frame.Header{Type: frame.Fenced, ID: 1}),
		"FENCED of zero": plain(frame.Header{Type: frame.Fenced}),
		"REGION":         plain(frame.Header{Type: frame.Region, Region: 1, Size: 4096}),
		"a server's":     plain(frame.Header{Type: frame.PathOK, ID: 1, Length: frame.PathBytes}),
		"RAILS":          plain(frame.Header{Type: frame.Rails}),
		"LOST":           plain(frame.Header{Type: frame.Lost, ID: 1}),
		"ACK":            plain(frame.Header{Type: frame.Ack, ID: 1}),
		"key cut in two": plain(frame.Header{Type: frame.Keyed, Region: 1, Size: 4096, Length: 6}),
		"number again":   func(c *rawClient) { c.path(0); path(1, func([]byte) {})(c) },
		"PATH_UP twice":  func(c *rawClient) { id, _ := c.path(0); plain(frame.Header{Type: frame.PathUp, ID: id})(c) },
		"PATH_UP refused": func(c *rawClient) {
			c.refused(9, c.gid, frame.StatusRail)
			plain(frame.Header{Type: frame.PathUp, ID: 1})(c)
		},
		"PATH_UP late": func(c *rawClient) {
			id, _ := c.offerPath(0)
			c.fence(id)
			plain(frame.Header{Type: frame.PathUp, ID: id})(c)
		},
	}
	for name, attack := range cases {
		t.Run(name, func(t *testing.T) {
			inner := *b
			inner.t = t
			before := b.fabric.Stats().Violated
			c := inner.connect("p", device0)
			attack(c)
			c.ended(name)
			soon(t, "violation counted", func() bool { return b.fabric.Stats().Violated == before+1 })
		})
		witness.works(memory[:1000])
	}
	witness.works(memory)
}

// refused offers a path that must be refused.
func (c *rawClient) refused(rail uint64, gid [16]byte, want frame.Status) {
	c.t.Helper()
	q, _, body := c.makePair()
	body.GID = gid
	c.last++
	c.pairs[c.last] = q
	c.send(frame.Header{Type: frame.Path, ID: c.last, Region: rail}, encode(body))
	if h, _ := c.want(frame.PathRefused, c.last); h.Status != want {
		c.t.Errorf("rail %d, GID %v: status %v, want %v", rail, netip.AddrFrom16(gid), h.Status, want)
	}
}

// TestPathsOfAnotherLink: a link-local address is another machine's on another link, so a path leads to one only where
// the connection came in by that link; that the operator permits the network changes nothing.
func TestPathsOfAnotherLink(t *testing.T) {
	b := newBench(t, fakeverbs.Options{}, func(o *setup) {
		o.Networks = append(o.Networks, netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("169.254.0.0/16"))
	})
	c := b.connect("p", device0) // over the loopback device
	for _, rail := range []uint64{0, 1} {
		c.refused(rail, mapped("fe80::7"), frame.StatusGID)
		c.refused(rail, mapped("169.254.1.1"), frame.StatusGID)
	}
	c.path(0)
	c.works(c.region(4096))
}

// TestRefusedPaths: what cannot be had is refused, and the session lives on.
func TestRefusedPaths(t *testing.T) {
	b := newBench(t, fakeverbs.Options{})
	c := b.connect("p", device0)
	for _, rail := range []uint64{2, 7, 255, 256, 1 << 32, 1<<64 - 1} {
		c.refused(rail, c.gid, frame.StatusRail)
	}
	for _, third := range []string{
		"10.98.0.1", "192.0.2.1", "2001:db8::1", "fe80::1", "127.0.0.1", "::1", "0.0.0.0", "::", "224.0.0.1", "ff02::1",
		"::10.99.0.3", "64:ff9b::10.99.0.3",
	} {
		c.refused(0, mapped(third), frame.StatusGID)
	}
	refusal := b.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtReceive, Do: fakeverbs.Fail, Device: rail0, Errno: 110})
	c.refused(0, c.gid, frame.StatusDevice)
	refusal.Remove()
	refusal = b.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtCreateQP, Do: fakeverbs.Fail, Device: rail0, Errno: 12})
	c.refused(0, c.gid, frame.StatusDevice)
	refusal.Remove()
	for range maxPaths {
		c.path(0)
	}
	c.refused(0, c.gid, frame.StatusLimit)
	c.refused(1, c.gid, frame.StatusLimit)
	c.fence(c.last - 2)
	soon(t, "a place is free", func() bool { return b.paths() < maxPaths })
	c.path(1)
	c.works(c.region(4096))
	b.nic.PortDown(rail0)
	soon(t, "the rail is down", func() bool { return !b.rail(0).Up })
	for range maxPaths - 1 {
		h, _ := c.receive()
		for h.Type == frame.Rails {
			h, _ = c.receive()
		}
		if h.Type != frame.Lost {
			t.Fatalf("%+v instead of a LOST", h)
		}
		c.fence(h.ID)
	}
	soon(t, "the paths are gone", func() bool { return b.paths() == 1 })
	c.refused(0, c.gid, frame.StatusRail)
	if r := b.rail(0); r.Refused != 2 || r.Ejections != 0 {
		t.Errorf("counters %+v", r)
	}
}

// TestManyPaths takes ten thousand paths one after another, some never used, some never fenced in order.
func TestManyPaths(t *testing.T) {
	b := newBench(t, fakeverbs.Options{})
	c := b.connect("p", device0)
	paths := 10_000
	if testing.Short() {
		paths = 500
	}
	for i := range paths {
		c.last++
		q, _, body := c.makePair()
		c.send(frame.Header{Type: frame.Path, ID: c.last, Region: uint64(i % 2)}, encode(body))
		if i%3 == 0 { // before the answer
			c.send(frame.Header{Type: frame.Fenced, ID: c.last}, nil)
		}
		h, _ := c.receive()
		if i%3 != 0 && h.Type == frame.PathOK {
			c.send(frame.Header{Type: frame.Fenced, ID: c.last}, nil)
		}
		if h.ID != c.last || h.Type != frame.PathOK && h.Type != frame.PathRefused {
			t.Fatalf("path %d: %+v", c.last, h)
		}
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
	}
	soon(t, "no path is left", func() bool { return b.rail(0).Engine.Paths == 0 && b.rail(1).Engine.Paths == 0 })
	c.path(0)
	c.works(c.region(4096))
}

// TestPathsOfOnePrincipal: half of a rail's paths is all that one principal gets.
func TestPathsOfOnePrincipal(t *testing.T) {
	const pairs = 6 // of the adapter
	b := newBench(t, fakeverbs.Options{Devices: []fakeverbs.Device{
		{Name: rail0, MaxQP: pairs}, {Name: rail1}, {Name: device0}, {Name: device1},
	}})
	c, again, other := b.connect("p", device0), b.connect("p", device0), b.connect("q", device1)
	c.path(0)
	c.path(0)
	again.path(0)
	c.refused(0, c.gid, frame.StatusLimit)
	again.refused(0, c.gid, frame.StatusLimit)
	other.path(0)
	again.path(1)
}

// TestKeysOfOthers announces memory with keys that are not this client's, wrong or revoked, and sizes beyond what was
// registered: the transfer fails, nothing is touched, and the session lives on with a new path.
func TestKeysOfOthers(t *testing.T) {
	b := newBench(t, fakeverbs.Options{})
	victim := b.connect("q", device0)
	victim.path(0)
	theirs := make([]byte, 100_000)
	fill(theirs, 99)
	key := victim.register(theirs)
	victim.announce(1, key.Addr(), uint64(len(theirs)), key.RKey())

	c := b.connect("p", device0)
	own := make([]byte, 3*bufBytes)
	fill(own, 55)
	mine := c.register(own[bufBytes : 2*bufBytes])
	gone := c.register(make([]byte, 4096))
	c.keys = c.keys[:len(c.keys)-1]
	revoked, revokedAt := gone.RKey(), gone.Addr()
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	for i, attack := range []struct {
		name          string
		address, size uint64
		key           uint32
	}{
		{"key of another session", key.Addr(), uint64(len(theirs)), key.RKey()},
		{"own key, other memory", key.Addr(), uint64(len(theirs)), mine.RKey()},
		{"another's key, own memory", mine.Addr(), bufBytes, key.RKey()},
		{"a key that nobody has", mine.Addr(), bufBytes, mine.RKey() ^ 0x5a5a},
		{"revoked", revokedAt, 4096, revoked},
		{"before the memory", mine.Addr() - 4096, bufBytes, mine.RKey()},
		{"beyond the memory", mine.Addr() + 1, bufBytes, mine.RKey()},
		{"address zero", 0, bufBytes, mine.RKey()},
		{"last address", frame.MaxNumber, bufBytes, mine.RKey()},
	} {
		number := uint64(10 + i)
		c.announce(number, attack.address, attack.size, attack.key)
		for _, d := range []fabric.Direction{fabric.ForGet, fabric.ForPut} {
			id, _ := c.path(0)
			c.denied(attack.name, uint32(number), d, int64(attack.size), id)
		}
	}
	before, after := own[:bufBytes], own[2*bufBytes:]
	want := make([]byte, len(own))
	fill(want, 55)
	if string(before) != string(want[:bufBytes]) || string(after) != string(want[2*bufBytes:]) {
		t.Error("memory outside the key changed")
	}
	fill(want[:len(theirs)], 99)
	if string(theirs) != string(want[:len(theirs)]) {
		t.Error("another session's memory changed")
	}
	victim.works(theirs)
	if r := b.rail(0); r.Ejections != 0 || r.Engine.Denied == 0 {
		t.Errorf("a client's refusals count as the rail's: %+v", r)
	}
}

// denied runs one transfer that the client's adapter refuses.
func (c *rawClient) denied(name string, region uint32, d fabric.Direction, size int64, id uint64) {
	c.t.Helper()
	r, err := c.open(region, d, size, patience)
	if err != nil {
		c.t.Fatalf("%s: %v", name, err)
	}
	buf := c.b.buffer(int(min(size, bufBytes)))
	defer buf.Release()
	move := r.Write
	if d == fabric.ForPut {
		move = r.Read
	}
	moved := make(chan error, 1)
	go func() { moved <- move(context.Background(), 0, buf) }()
	c.want(frame.Lost, id)
	select {
	case err := <-moved:
		c.t.Errorf("%s: returned before FENCED: %v", name, err)
		moved <- err
	default:
	}
	c.fence(id)
	if err := <-moved; !errors.Is(err, fabric.ErrTransfer) {
		c.t.Errorf("%s: direction %d: %v", name, d, err)
	}
	if err := r.Close(); !errors.Is(err, fabric.ErrTransfer) {
		c.t.Errorf("%s: close: %v", name, err)
	}
}

// TestRefusedTransferEnds: operations of a transfer that share its path end with the one that the client's adapter
// refuses, and later ones at once. They do not wait for another path, which would keep the buffers of a client that
// forges keys.
func TestRefusedTransferEnds(t *testing.T) {
	b := newBench(t, fakeverbs.Options{})
	c := b.connect("p", device0)
	own := c.register(make([]byte, 4096))
	c.announce(1, own.Addr(), 8*bufBytes, own.RKey()) // far more than it has
	for _, d := range []fabric.Direction{fabric.ForGet, fabric.ForPut} {
		id, _ := c.path(0)
		r, err := c.open(1, d, 8*bufBytes, patience)
		if err != nil {
			t.Fatal(err)
		}
		move := r.Write
		if d == fabric.ForPut {
			move = r.Read
		}
		moved := make(chan error, 4)
		for i := range cap(moved) {
			buf := b.buffer(bufBytes)
			defer buf.Release()
			go func() { moved <- move(context.Background(), int64(2*i)*bufBytes, buf) }()
		}
		c.want(frame.Lost, id)
		began := time.Now()
		c.fence(id)
		for range cap(moved) {
			if err := <-moved; !errors.Is(err, fabric.ErrTransfer) {
				t.Errorf("direction %d: %v", d, err)
			}
		}
		late := b.buffer(bufBytes)
		defer late.Release()
		if err := move(context.Background(), 0, late); !errors.Is(err, fabric.ErrTransfer) {
			t.Errorf("direction %d, afterwards: %v", d, err)
		}
		if took := time.Since(began); took > pathWait/2 {
			t.Errorf("direction %d: operations end %v after the refused one", d, took)
		}
		if err := r.Close(); !errors.Is(err, fabric.ErrTransfer) {
			t.Errorf("direction %d: close: %v", d, err)
		}
	}
}

// TestFencedNeverComes: a transfer whose path was lost is not answered until the session has been cut, at its deadline
// or after the stall wait, whichever comes first.
func TestFencedNeverComes(t *testing.T) {
	for _, c := range []struct {
		name            string
		stall, deadline time.Duration
		cause           error
	}{
		{"deadline", patience, shortly, fabric.ErrOverdue},
		{"stall", shortly, patience, fabric.ErrStalled},
	} {
		for _, d := range []fabric.Direction{fabric.ForGet, fabric.ForPut} {
			t.Run(c.name+strconv.Itoa(int(d)), func(t *testing.T) {
				b := newBench(t, fakeverbs.Options{}, func(o *setup) { o.StallWait = c.stall })
				raw := b.connect("p", device0)
				raw.path(0)
				raw.path(1)
				raw.region(bufBytes)
				b.nic.Inject(fakeverbs.Rule{At: fakeverbs.AtWork, Do: fakeverbs.Fail, Status: fakeverbs.RetryExceeded})
				begin := time.Now()
				r := raw.mustOpen(d, bufBytes, c.deadline)
				move := r.Write
				if d == fabric.ForPut {
					move = r.Read
				}
				buf := b.buffer(bufBytes)
				defer buf.Release()
				if err := move(context.Background(), 0, buf); !errors.Is(err, fabric.ErrFenced) {
					t.Errorf("moved: %v", err)
				}
				if err := r.Close(); !errors.Is(err, fabric.ErrFenced) || !errors.Is(err, c.cause) {
					t.Errorf("close: %v", err)
				}
				if took := time.Since(begin); took < shortly/2 || took > patience/2 {
					t.Errorf("took %v", took)
				}
				raw.ended("no FENCED")
			})
		}
	}
}

// TestNeverUp: a path that the client leaves half made is taken back, and carries nothing; the transfer that waited for
// it goes by the next one.
func TestNeverUp(t *testing.T) {
	b := newBench(t, fakeverbs.Options{}, func(o *setup) { o.StallWait = shortly })
	c := b.connect("p", device0)
	id, _ := c.offerPath(0)
	c.region(4096)
	p := c.session().paths[id]
	r := c.mustOpen(fabric.ForGet, 4096, patience) // the path may still come up
	_, moved, done := moving(r, fabric.ForGet, b, 4096)
	defer done()
	c.want(frame.Lost, id)
	c.fence(id)
	<-p.done
	select {
	case err := <-moved:
		t.Fatalf("moved on a path that is not up: %v", err)
	default:
	}
	c.path(1)
	if err := errors.Join(<-moved, r.Close()); err != nil {
		t.Error(err)
	}
}

// session is the server's end.
func (c *rawClient) session() *session {
	c.t.Helper()
	core, err := c.b.fabric.roster.Find(c.offer.ID)
	if err != nil {
		c.t.Fatal(err)
	}
	return core.Carrier.(*session)
}
