package rcdial

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/verbs/initiator"
	"github.com/penstock-store/penstock/internal/fabric/verbs/rails"
	"github.com/penstock-store/penstock/internal/token"
	"github.com/penstock-store/penstock/native"
)

// stub is a link without an adapter. It resets at once, unless it is told to hang.
type stub struct {
	options rails.LinkOptions
	hangs   chan struct{} // nil: resets at once; else when it is closed
	do      func(s *stub, m initiator.Move) error

	mu            sync.Mutex
	moves         []initiator.Move
	once          sync.Once
	failed, reset chan struct{}
}

func (s *stub) Local() initiator.Endpoint {
	return initiator.Endpoint{QPN: 0x77, PSN: 0x99, GID: gid, LID: 5, MTU: 1024, Reads: 1}
}

func (s *stub) Port() int { return 3 }

func (s *stub) Move(m initiator.Move) error {
	select {
	case <-s.failed:
		return initiator.ErrLost
	default:
	}
	s.mu.Lock()
	s.moves = append(s.moves, m)
	s.mu.Unlock()
	if s.do == nil {
		return nil
	}
	return s.do(s, m)
}

// hold is a Move that ends with the reset.
func hold(s *stub, _ initiator.Move) error {
	<-s.reset
	return initiator.ErrLost
}

func (s *stub) Fail() {
	s.once.Do(func() {
		close(s.failed)
		go func() {
			if s.hangs != nil {
				<-s.hangs
			}
			close(s.reset)
		}()
	})
}

func (s *stub) Failed() <-chan struct{} { return s.failed }
func (s *stub) Done() <-chan struct{}   { return s.reset }

func (s *stub) Cut(wait time.Duration) error {
	s.Fail()
	limit := time.NewTimer(wait)
	defer limit.Stop()
	select {
	case <-s.reset:
		return nil
	case <-limit.C:
		return initiator.ErrStuck
	}
}

func (s *stub) got() []initiator.Move {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.moves
}

var (
	client = netip.MustParseAddr("10.0.1.2")
	gid    = client.As16()
)

// bed is a fabric of stubs.
type bed struct {
	t      *testing.T
	fabric *Fabric
	buffer arena.Buffer
	next   func(*stub) // changes those that are made
	refuse error       // instead of making one
	mu     sync.Mutex
	stubs  []*stub
}

func newBed(t *testing.T) *bed {
	t.Helper()
	b := &bed{t: t}
	permits := func(gid [16]byte, peer netip.Addr) bool { return netip.AddrFrom16(gid).Unmap() == peer }
	b.fabric = newFabric(Options{Permits: permits}, b.link)
	a, err := arena.New(arena.Options{Shares: []arena.ShareOption{{Name: "fabric", Buffers: 1,
		BufferBytes: max(arena.BlockSize, os.Getpagesize())}}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := a.Share("fabric").Reserve(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if b.buffer, err = r.Alloc(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.fabric.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		f := b.fabric
		if s := f.Stats(); s.Sessions != 0 || s.OpenWindows != 0 || len(f.all)+len(f.peers)+f.slots != 0 {
			t.Errorf("left over: %+v", s)
		}
		b.buffer.Release()
		r.Close()
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func (b *bed) link(o rails.LinkOptions, _ <-chan struct{}) (link, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.refuse != nil {
		return nil, b.refuse
	}
	s := &stub{options: o, failed: make(chan struct{}), reset: make(chan struct{})}
	if b.next != nil {
		b.next(s)
	}
	b.stubs = append(b.stubs, s)
	return s, nil
}

func request(principal string) fabric.ConnectRequest {
	return fabric.ConnectRequest{Principal: principal, Peer: netip.AddrPortFrom(client, 4711), PSN: 0xabc,
		Token: token.Descriptor{Kind: token.HipObj, HipRC: true, QPN: 0x55, GID: gid, Port: 1, LID: 9}}
}

// connect makes a connection, and returns this node's end of it.
func (b *bed) connect(principal string) ([16]byte, *stub) {
	b.t.Helper()
	c, err := b.fabric.Connect(b.t.Context(), request(principal))
	if err != nil {
		b.t.Fatal(err)
	}
	return c.ID, b.stubs[len(b.stubs)-1]
}

func descriptor(id [16]byte) token.Descriptor {
	return token.Descriptor{Kind: token.RC, SessionID: id, Addr: 0x7f7c80000000, Size: 1000, RKey: 7}
}

func (b *bed) open(id [16]byte, principal string) (fabric.Remote, error) {
	return b.fabric.Open(b.t.Context(), descriptor(id), fabric.Grant{Principal: principal, Direction: fabric.ForGet,
		Bytes: 600, Deadline: time.Now().Add(8 * time.Second)})
}

func (b *bed) opened(id [16]byte, principal string) fabric.Remote {
	b.t.Helper()
	r, err := b.open(id, principal)
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

// works fails unless the connection serves the principal.
func (b *bed) works(id [16]byte, principal string) {
	b.t.Helper()
	r := b.opened(id, principal)
	if err := errors.Join(r.Write(b.t.Context(), 0, b.buffer.Slice(0, 1)), r.Close()); err != nil {
		b.t.Error(err)
	}
}

// gone fails unless the connection serves nobody.
func (b *bed) gone(id [16]byte) {
	b.t.Helper()
	_, err := b.open(id, "alice")
	wantIs(b.t, "a connection that is gone", err, fabric.ErrNoSession)
	_, err = b.fabric.Claim(descriptor(id), "alice")
	wantIs(b.t, "its claim", err, fabric.ErrNoSession)
}

func wantIs(t *testing.T, what string, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Errorf("%s: got %v, want %v", what, err, w)
		}
	}
}

func wantNot(t *testing.T, what string, err, not error) {
	t.Helper()
	if errors.Is(err, not) {
		t.Errorf("%s: %v", what, err)
	}
}

// TestConnect: what the rails are asked for is what the client said, and it is told what its adapter must know.
func TestConnect(t *testing.T) {
	b := newBed(t)
	for _, principal := range []string{"alice", ""} {
		c, err := b.fabric.Connect(t.Context(), request(principal))
		if err != nil {
			t.Fatal(err)
		}
		s := b.stubs[len(b.stubs)-1]
		p := s.options.Peer
		if p.QPN != 0x55 || p.PSN != 0xabc || p.GID != gid || p.LID != 9 || p.Reads != 1 || p.MTU < 4096 {
			t.Errorf("asked for %+v", p)
		}
		if s.options.Session != c.ID || (s.options.Owner == "alice") != (principal == "alice") || s.options.Owner == "" {
			t.Errorf("as %q, %v of %v", s.options.Owner, s.options.Session, c.ID)
		}
		if c.QPN != 0x77 || c.PSN != 0x99 || c.GID != gid || c.Port != 3 || c.LID != 5 || c.ID == [16]byte{} {
			t.Errorf("told %+v", c)
		}
	}
}

// TestMoves: what the link is asked for is what the token and the grant say, and not a byte more; a connection serves
// one transfer after another.
func TestMoves(t *testing.T) {
	b := newBed(t)
	id, s := b.connect("alice")
	for _, d := range []fabric.Direction{fabric.ForGet, fabric.ForPut} {
		r, err := b.fabric.Open(t.Context(), descriptor(id), fabric.Grant{Principal: "alice", Direction: d, Bytes: 600,
			Deadline: time.Now().Add(8 * time.Second)})
		if err != nil {
			t.Fatal(err)
		}
		act, other, op := r.Write, r.Read, native.OpWrite
		if d == fabric.ForPut {
			act, other, op = r.Read, r.Write, native.OpRead
		}
		if err := act(t.Context(), 100, b.buffer.Slice(0, 200), b.buffer.Slice(300, 600)); err != nil {
			t.Error(err)
		}
		moves := s.got()
		m := moves[len(moves)-1]
		if m.Op != op || m.Remote != 0x7f7c80000064 || m.RKey != 7 || len(m.Local) != 2 || len(m.Local[1]) != 300 ||
			m.Imm != nil || r.Size() != 600 {
			t.Errorf("asked for %+v at %x", m, m.Remote)
		}
		wantIs(t, "other direction", other(t.Context(), 0, b.buffer.Slice(0, 1)), fabric.ErrTransfer)
		for _, off := range []int64{-1, 591, 601, 1 << 62} {
			wantIs(t, "outside", act(t.Context(), off, b.buffer.Slice(0, 10)), fabric.ErrTransfer)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		wantIs(t, "a request that ended", act(ended, 0, b.buffer.Slice(0, 1)), context.Canceled)
		if err := act(t.Context(), 600); err != nil {
			t.Errorf("nothing: %v", err)
		}
		if n := len(s.got()); n != len(moves) {
			t.Errorf("%d moves, want %d", n, len(moves))
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		wantIs(t, "after close", act(t.Context(), 0, b.buffer.Slice(0, 1)), fabric.ErrTransfer)
		wantIs(t, "closed twice", r.Close(), fabric.ErrTransfer)
	}
	if s := b.fabric.Stats(); s.Gets != 1 || s.Puts != 1 || s.GetBytes != 600 || s.PutBytes != 600 || s.OpenWindows != 0 ||
		s.Failed != 0 || s.Sessions != 1 {
		t.Errorf("%+v", s)
	}
}

// TestOwner: a connection is bound to the first principal whose authenticated request names it, whatever becomes of
// that, or to the one that made it.
func TestOwner(t *testing.T) {
	b := newBed(t)
	claimed, _ := b.connect("")
	opened, _ := b.connect("")
	made, _ := b.connect("alice")
	if c, err := b.fabric.Claim(descriptor(claimed), "alice"); c != nil || err != nil {
		t.Errorf("claim: %v, %v", c, err)
	}
	b.works(opened, "alice")
	for _, id := range [][16]byte{claimed, opened, made} {
		_, err := b.open(id, "bob")
		wantIs(t, "another principal", err, fabric.ErrNotGranted)
		_, err = b.fabric.Claim(descriptor(id), "bob")
		wantIs(t, "claim of another principal", err, fabric.ErrNotGranted)
		b.works(id, "alice")
	}
	nobodys, _ := b.connect("")
	_, err := b.open(nobodys, "")
	wantIs(t, "a request of nobody", err, fabric.ErrNotGranted)
	b.fabric.RevokePrincipal("alice")
	for _, id := range [][16]byte{claimed, opened, made} {
		b.gone(id)
	}
	b.works(nobodys, "bob")
}

// TestBusy: a second request finds the connection in use, without touching anything.
func TestBusy(t *testing.T) {
	b := newBed(t)
	id, s := b.connect("")
	r := b.opened(id, "alice")
	_, err := b.open(id, "alice")
	wantIs(t, "second", err, fabric.ErrBusy)
	_, err = b.open(id, "bob")
	wantIs(t, "second of another", err, fabric.ErrNotGranted)
	if len(s.got()) != 0 {
		t.Error("something moved")
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	b.works(id, "alice")
}

// TestRefused: each kind of request and token that is not taken, and that refusals leave nothing behind.
func TestRefused(t *testing.T) {
	b := newBed(t)
	foreign := request("alice")
	foreign.Token.GID[15]++
	_, err := b.fabric.Connect(t.Context(), foreign)
	wantIs(t, "foreign", err, fabric.ErrNotGranted)
	if len(b.stubs) != 0 {
		t.Error("an adapter was asked")
	}
	for _, c := range []struct{ err, want error }{
		{rails.ErrTaken, fabric.ErrNotGranted}, {rails.ErrShare, fabric.ErrLimit}, {initiator.ErrLimit, fabric.ErrLimit},
		{rails.ErrDown, fabric.ErrNoFabric}, {initiator.ErrUnreached, fabric.ErrNoFabric},
		{native.ErrVerbs, fabric.ErrNoFabric}, {rails.ErrGivenUp, fabric.ErrNoFabric},
	} {
		b.refuse = c.err
		_, err := b.fabric.Connect(t.Context(), request("alice"))
		wantIs(t, "link", err, c.want)
	}
	b.refuse = nil
	id, _ := b.connect("alice")
	grant := fabric.Grant{Principal: "alice", Direction: fabric.ForGet, Bytes: 600, Deadline: time.Now().Add(time.Minute)}
	for _, c := range []struct {
		what   string
		change func(*token.Descriptor, *fabric.Grant)
		want   error
	}{
		{"other kind", func(d *token.Descriptor, _ *fabric.Grant) { d.Kind = token.DC }, fabric.ErrUnsupportedToken},
		{"unknown", func(d *token.Descriptor, _ *fabric.Grant) { d.SessionID[0]++ }, fabric.ErrNoSession},
		{"too large", func(_ *token.Descriptor, g *fabric.Grant) { g.Bytes = 1001 }, fabric.ErrTooLarge},
		{"late", func(_ *token.Descriptor, g *fabric.Grant) { g.Deadline = time.Now().Add(Stop) }, fabric.ErrOverdue},
	} {
		d, g := descriptor(id), grant
		c.change(&d, &g)
		_, err := b.fabric.Open(t.Context(), d, g)
		wantIs(t, c.what, err, c.want)
	}
	b.works(id, "alice")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = b.fabric.Connect(ended, request("alice"))
	wantIs(t, "a client that hung up", err, context.Canceled)
	<-b.stubs[len(b.stubs)-1].reset
}

// TestLimits: connections are counted by address and in all, before an adapter is asked, until nothing is left of them.
func TestLimits(t *testing.T) {
	b := newBed(t)
	of := func(at string) (fabric.Connection, error) {
		r := request("")
		a := netip.MustParseAddr(at)
		r.Peer, r.Token.GID = netip.AddrPortFrom(a, 1), a.As16()
		return b.fabric.Connect(t.Context(), r)
	}
	for i := range maxPerPeer {
		if _, err := of("10.0.1.2"); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
	}
	asked := len(b.stubs)
	_, err := of("10.0.1.2")
	wantIs(t, "one more of an address", err, fabric.ErrLimit)
	if len(b.stubs) != asked {
		t.Error("an adapter was asked")
	}
	for i := range maxPerPeer { // all of one site
		if _, err := of("2001:db8::" + string(rune('1'+i%9))); err != nil {
			t.Fatal(err)
		}
	}
	_, err = of("2001:db8::a:1")
	wantIs(t, "one more of a site", err, fabric.ErrLimit)
	if _, err := of("fe80::1"); err != nil {
		t.Error(err)
	}
	if _, err := of("fe80::2"); err != nil {
		t.Error(err)
	}
	for i := 0; b.fabric.slots < maxConnections; i++ {
		if _, err := of(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}).String()); err != nil {
			t.Fatal(err)
		}
	}
	asked = len(b.stubs)
	_, err = of("10.2.2.2")
	wantIs(t, "one more of all", err, fabric.ErrLimit)
	if len(b.stubs) != asked {
		t.Error("an adapter was asked")
	}
	if s := b.fabric.Stats(); s.Refused != 3 || s.Sessions != maxConnections {
		t.Errorf("%+v", s)
	}
	hangs := make(chan struct{})
	last := b.stubs[asked-1]
	last.hangs = hangs
	last.Fail()
	_, err = of("10.2.2.2")
	wantIs(t, "one whose queue pair is not yet reset counts", err, fabric.ErrLimit)
	close(hangs)
	<-last.reset
	for end := time.Now().Add(10 * time.Second); err != nil && time.Now().Before(end); {
		_, err = of("10.2.2.2")
	}
	if err != nil {
		t.Errorf("after one has ended: %v", err)
	}
}

// TestIdle: a connection that is not used ends, counted from its last transfer; one in use does not.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		id, s := b.connect("")
		time.Sleep(DefaultIdleWait - time.Second)
		b.works(id, "alice")
		time.Sleep(DefaultIdleWait - time.Second)
		r, err := b.fabric.Open(t.Context(), descriptor(id), fabric.Grant{Principal: "alice", Direction: fabric.ForGet,
			Bytes: 600, Deadline: time.Now().Add(2 * DefaultIdleWait)})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(DefaultIdleWait + time.Second)
		if err := errors.Join(r.Write(t.Context(), 0, b.buffer.Slice(0, 1)), r.Close()); err != nil {
			t.Error(err)
		}
		time.Sleep(DefaultIdleWait - time.Second)
		b.works(id, "alice")
		time.Sleep(DefaultIdleWait)
		synctest.Wait()
		select {
		case <-s.reset:
		default:
			t.Error("it lives")
		}
		b.gone(id)
	})
}

// TestDeadline: nothing begins late; what hangs is cut at its time, and costs the connection; a transfer of which
// nothing is under way does not.
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		id, s := b.connect("")
		r := b.opened(id, "alice")
		time.Sleep(8*time.Second - Stop)
		wantIs(t, "late", r.Write(t.Context(), 0, b.buffer.Slice(0, 1)), fabric.ErrFenced, fabric.ErrOverdue)
		wantIs(t, "close", r.Close(), fabric.ErrFenced)
		r = b.opened(id, "alice")
		time.Sleep(8 * time.Second)
		wantIs(t, "close after the deadline", r.Close(), fabric.ErrFenced, fabric.ErrOverdue)
		if len(s.got()) != 0 {
			t.Error("something moved")
		}
		b.works(id, "alice")
		s.do = hold
		r = b.opened(id, "alice")
		deadline := time.Now().Add(8 * time.Second)
		ended := make(chan error, 1)
		go func() { ended <- r.Write(t.Context(), 0, b.buffer.Slice(0, 1)) }()
		synctest.Wait()
		wantIs(t, "close", r.Close(), fabric.ErrFenced, fabric.ErrOverdue)
		wantIs(t, "write", <-ended, fabric.ErrFenced, fabric.ErrOverdue)
		if left := time.Until(deadline); left != Margin-linger {
			t.Errorf("closed %v before the deadline", left)
		}
		b.gone(id)
		if s := b.fabric.Stats(); s.Fenced != 1 || s.Failed != 3 || s.Gets != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// TestCuts: a disconnect, a revocation and the end of the node, in the middle of a transfer: when they return, nothing
// is under way, and the transfer has failed.
func TestCuts(t *testing.T) {
	for what, c := range map[string]struct {
		cut   func(b *bed, id [16]byte) error
		cause error
	}{
		"disconnect": {func(b *bed, id [16]byte) error {
			return b.fabric.Disconnect(b.t.Context(), id)
		}, fabric.ErrPeerGone},
		"revoke": {func(b *bed, _ [16]byte) error { b.fabric.RevokePrincipal("alice"); return nil }, fabric.ErrRevoked},
		"close":  {func(b *bed, _ [16]byte) error { return b.fabric.Close() }, fabric.ErrShutdown},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBed(t)
			id, s := b.connect("")
			s.do = hold
			r := b.opened(id, "alice")
			ended := make(chan error, 1)
			go func() { ended <- r.Write(t.Context(), 0, b.buffer.Slice(0, 1)) }()
			synctest.Wait()
			began := time.Now()
			if err := c.cut(b, id); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			select {
			case <-s.reset:
			default:
				t.Errorf("%s returned before the reset", what)
			}
			if took := time.Since(began); took != linger {
				t.Errorf("%s returned after %v", what, took)
			}
			wantIs(t, what, <-ended, fabric.ErrFenced, c.cause)
			wantIs(t, what, r.Write(t.Context(), 0, b.buffer.Slice(0, 1)), fabric.ErrFenced)
			wantIs(t, what, r.Close(), fabric.ErrFenced, c.cause)
			synctest.Wait()
			b.gone(id)
			if err := b.fabric.Disconnect(t.Context(), id); err != nil {
				t.Errorf("%s: disconnected again: %v", what, err)
			}
		})
	}
	b := newBed(t)
	if err := b.fabric.Disconnect(t.Context(), [16]byte{1}); err != nil {
		t.Errorf("unknown: %v", err)
	}
}

// TestDisconnectAfterLoss: a queue pair that failed by itself is soon reset and gone, but packets of the WRITE that it
// carried may live as long as after any other reset: a disconnect, and the end of the node, wait for them. Where an
// operation outlives its request, they wait for that, too.
func TestDisconnectAfterLoss(t *testing.T) {
	for what, end := range map[string]func(b *bed, id [16]byte) error{
		"disconnect": func(b *bed, id [16]byte) error { return b.fabric.Disconnect(b.t.Context(), id) },
		"close":      func(b *bed, _ [16]byte) error { return b.fabric.Close() },
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBed(t)
			id, s := b.connect("alice")
			s.do = hold
			r := b.opened(id, "alice")
			ended := make(chan error, 1)
			go func() { ended <- r.Write(t.Context(), 0, b.buffer.Slice(0, 1)) }()
			synctest.Wait()
			began := time.Now()
			s.Fail()
			synctest.Wait() // all that the reset brings with it has happened
			if err := end(b, id); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			if took := time.Since(began); took != linger {
				t.Errorf("%s returned %v after the reset", what, took)
			}
			wantIs(t, what, <-ended, fabric.ErrTransfer)
			wantIs(t, what, r.Close(), fabric.ErrTransfer)
		})
		synctest.Test(t, func(t *testing.T) {
			b := newBed(t)
			id, s := b.connect("alice")
			release := make(chan struct{})
			s.do = func(*stub, initiator.Move) error { <-release; return initiator.ErrLost }
			r := b.opened(id, "alice")
			ended := make(chan error, 1)
			go func() { ended <- r.Write(t.Context(), 0, b.buffer.Slice(0, 1)) }()
			synctest.Wait()
			wantIs(t, what, r.Close(), fabric.ErrLingering)
			if err := end(b, id); err == nil {
				t.Errorf("%s: ended though a WRITE is under way", what)
			}
			close(release)
			<-ended
		})
	}
}

// TestFailures: a work request that fails costs the connection, and its transfer is no fence but a failure; one that
// the adapter reports well while the connection is cut counts as failed.
func TestFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		for _, failure := range []error{initiator.ErrDenied, initiator.ErrLost, initiator.ErrLocal} {
			id, s := b.connect("")
			s.do = func(*stub, initiator.Move) error { return failure }
			r := b.opened(id, "alice")
			err := r.Write(t.Context(), 0, b.buffer.Slice(0, 1))
			wantIs(t, "write", err, fabric.ErrTransfer, failure)
			wantNot(t, "write", err, fabric.ErrFenced)
			wantIs(t, "again", r.Write(t.Context(), 0, b.buffer.Slice(0, 1)), fabric.ErrTransfer)
			wantIs(t, "close", r.Close(), fabric.ErrTransfer, failure)
			if len(s.got()) != 1 {
				t.Error("moved after a failure")
			}
			synctest.Wait()
			b.gone(id)
		}
		if n := b.fabric.Stats().Fenced; n != 0 {
			t.Errorf("%d failures count as fences", n)
		}
		id, s := b.connect("")
		s.do = func(s *stub, _ initiator.Move) error {
			<-s.failed
			return nil
		}
		r := b.opened(id, "alice")
		ended := make(chan error, 1)
		go func() { ended <- r.Write(t.Context(), 0, b.buffer.Slice(0, 1)) }()
		synctest.Wait()
		b.fabric.RevokePrincipal("alice")
		wantIs(t, "cut", <-ended, fabric.ErrFenced)
		wantIs(t, "close", r.Close(), fabric.ErrFenced)
		if n := b.fabric.Stats().Fenced; n != 1 {
			t.Errorf("%d fences", n)
		}
		id, s = b.connect("")
		s.Fail() // its port went down
		synctest.Wait()
		b.gone(id)
	})
}

// TestStuck: where an adapter resets no queue pair, nothing is answered: not the request, nor the disconnect; and the
// node's end says so.
func TestStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		release := make(chan struct{})
		b.next = func(s *stub) { s.hangs, s.do = release, hold }
		id, _ := b.connect("")
		r := b.opened(id, "alice")
		deadline := time.Now().Add(8 * time.Second)
		ended := make(chan error, 1)
		go func() { ended <- r.Write(t.Context(), 0, b.buffer.Slice(0, 1)) }()
		synctest.Wait()
		wantIs(t, "disconnect", b.fabric.Disconnect(t.Context(), id), fabric.ErrLingering)
		b.fabric.RevokePrincipal("alice") // returns
		wantIs(t, "close", r.Close(), fabric.ErrLingering, fabric.ErrFenced)
		if late := time.Since(deadline); late != settleWait {
			t.Errorf("closed %v after the deadline", late)
		}
		wantIs(t, "end", b.fabric.Close(), fabric.ErrStuck)
		_, err := b.fabric.Connect(t.Context(), request("alice"))
		wantIs(t, "connect after the end", err, fabric.ErrNoFabric)
		close(release)
		wantIs(t, "write", <-ended, fabric.ErrFenced)
	})
}
