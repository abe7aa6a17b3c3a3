package fabric_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/token"
)

// stub is a fabric that only has a name.
type stub struct {
	name   string
	opened []token.Descriptor
}

func (s *stub) Name() string { return s.name }
func (s *stub) Open(_ context.Context, d token.Descriptor, _ fabric.Grant) (fabric.Remote, error) {
	s.opened = append(s.opened, d)
	return nil, fabric.ErrNoSession
}
func (s *stub) Rails() []fabric.Rail { return []fabric.Rail{{Fabric: s.name, Name: "host", Up: true}} }
func (s *stub) Close() error         { return nil }

const (
	dcText  = "00007f7c80000000:00400000:01f2e973:0000:007a03:1:00000000000000000000ffff0a000102"
	rcText  = "rc:00112233445566778899aabbccddeeff:00007f7c80000000:00400000:01f2e973"
	hipText = "0104030201" + "00000000000000000000ffff0a000102" + "d0c0b0a0" + "8877665544332211" +
		"ffffff7f00000000" + "010302"
	shmText = "ps1:shm:00112233445566778899aabbccddeeff:0000000000000003:0000000000001000:0000000000400000"
	tcpText = "ps1:tcp:00112233445566778899aabbccddeeff:0000000000000003:0000000000001000:0000000000400000"
	rc1Text = "ps1:rc:00112233445566778899aabbccddeeff:0000000000000003:0000000000001000:0000000000400000"
)

func TestManagerRoutes(t *testing.T) {
	shm := &stub{name: "shm"}
	m := fabric.NewManager(fabric.NewLedger(fabric.Limits{}), shm)
	cases := []struct {
		text   string
		bytes  int64
		want   error
		reason string
	}{
		{shmText, 10, fabric.ErrNoSession, "no-session"},
		{tcpText, 10, fabric.ErrNoFabric, "no-rail"},
		{rc1Text, 10, fabric.ErrNoFabric, "no-rail"},
		{dcText, 10, fabric.ErrNoFabric, "no-rail"},
		{rcText, 10, fabric.ErrNoFabric, "no-rail"},
		{hipText, 10, fabric.ErrUnsupportedToken, "unsupported-token"},
		{"1000:10:ofi1:verbs:0a0b:0c", 10, fabric.ErrUnsupportedToken, "unsupported-token"},
		{shmText, 4<<20 + 1, fabric.ErrTooLarge, "too-large"},
		{"nonsense", 10, token.ErrInvalid, ""},
	}
	for _, c := range cases {
		_, err := m.Open(t.Context(), c.text, fabric.Grant{Bytes: c.bytes})
		if !errors.Is(err, c.want) {
			t.Errorf("%.6s: %v", c.text, err)
		}
		if reason, ok := fabric.Reason(err); reason != c.reason || ok != (c.reason != "") {
			t.Errorf("%.6s: reason %q, %v", c.text, reason, ok)
		}
	}
	if len(shm.opened) != 1 {
		t.Errorf("opened %d times", len(shm.opened))
	}
	for _, err := range []error{
		fabric.ErrNotGranted, fabric.ErrWindow, fabric.ErrLimit, fabric.ErrTransfer, fabric.ErrFenced, nil,
	} {
		if _, ok := fabric.Reason(err); ok {
			t.Errorf("%v counts as a decline", err)
		}
	}
	// The name of a fabric is for session tokens: no token of another grammar reaches a fabric by it.
	rc, dc, hip := &stub{name: "rc"}, &stub{name: "dc"}, &stub{name: "hipobj"}
	named := fabric.NewManager(fabric.NewLedger(fabric.Limits{}), rc, dc, hip, &stub{})
	for _, text := range []string{dcText, rcText, hipText} {
		d, err := token.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if f, err := named.Route(d); !errors.Is(err, fabric.ErrNoFabric) {
			t.Errorf("%.6s goes to %v: %v", text, f, err)
		}
		if _, err := named.OpenDescriptor(t.Context(), d, fabric.Grant{Bytes: 5 << 20}); !errors.Is(err, fabric.ErrNoFabric) {
			t.Errorf("%.6s of a short window: %v", text, err)
		}
	}
	if _, err := named.Open(t.Context(), rc1Text, fabric.Grant{Bytes: 10}); !errors.Is(err, fabric.ErrNoSession) ||
		len(rc.opened) != 1 || len(dc.opened)+len(hip.opened) != 0 {
		t.Errorf("session token of rc: %v, opened %v %v %v", err, rc.opened, dc.opened, hip.opened)
	}
	takersRoute(t)
	if _, err := m.NewSession(t.Context(), "shm", "p"); !errors.Is(err, fabric.ErrNoFabric) { // the stub has no sessions
		t.Errorf("session: %v", err)
	}
	if _, err := m.NewSession(t.Context(), "none", "p"); !errors.Is(err, fabric.ErrNoFabric) {
		t.Errorf("session of an unknown fabric: %v", err)
	}
	if rails := m.Rails(); len(rails) != 1 || rails[0].Fabric != "shm" {
		t.Errorf("rails %+v", rails)
	}
	if m.Limits().Sessions != fabric.DefaultSessions || m.Stats() != nil || m.Close() != nil {
		t.Error("limits, stats or close")
	}
}

// taker is a stub that takes tokens of one kind, whatever its name.
type taker struct {
	stub
	kind  token.Kind
	asked []token.Kind
}

func (f *taker) Takes(d token.Descriptor) bool {
	f.asked = append(f.asked, d.Kind)
	return d.Kind == f.kind
}

// revoker is a stub that ends what principals have, without sessions.
type revoker struct {
	stub
	revoke func(principal string)
}

func (f *revoker) RevokePrincipal(principal string) { f.revoke(principal) }

// TestManagerRevokes: every fabric that ends what principals have is asked, whether it has sessions or not. One that
// waits for an adapter does not let the others go on meanwhile, and is waited for.
func TestManagerRevokes(t *testing.T) {
	var mu sync.Mutex
	var told []string
	tell := func(who string) func(string) {
		return func(p string) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, who+" "+p)
		}
	}
	others := make(chan struct{})
	m := fabric.NewManager(fabric.NewLedger(fabric.Limits{}),
		&revoker{stub{name: "slow"}, func(p string) {
			<-others
			tell("slow")(p)
		}},
		&stub{name: "neither"},
		&revoker{stub{name: "last"}, func(p string) {
			tell("last")(p)
			close(others)
		}})
	m.RevokePrincipal("p")
	if want := []string{"last p", "slow p"}; !slices.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
}

// takersRoute: tokens of other grammars go to the first fabric that says it takes them, those of sessions by name to
// one that is not asked, and those that no object request takes to nobody.
func takersRoute(t *testing.T) {
	t.Helper()
	named, dc := &stub{name: "dc"}, &taker{stub: stub{name: "x"}, kind: token.DC}
	rc, second := &taker{stub: stub{name: "rc"}, kind: token.RC}, &taker{stub: stub{name: "shm"}, kind: token.RC}
	m := fabric.NewManager(fabric.NewLedger(fabric.Limits{}), named, dc, rc, second)
	for text, want := range map[string]fabric.Fabric{
		dcText: dc, rcText: rc, rc1Text: rc, shmText: second, hipText: nil, tcpText: nil,
	} {
		d, err := token.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		f, err := m.Route(d)
		if f != want || (err == nil) != (want != nil) {
			t.Errorf("%.6s goes to %v: %v", text, f, err)
		}
	}
	for _, f := range []*taker{dc, rc, second} {
		if slices.Contains(f.asked, token.Session) || slices.Contains(f.asked, token.HipObj) {
			t.Errorf("%s was asked for %v", f.name, f.asked)
		}
	}
}

func TestLedger(t *testing.T) {
	l := fabric.NewLedger(fabric.Limits{Sessions: 3, SessionsPerPrincipal: 2, MappedBytes: 100})
	for _, step := range []struct {
		who string
		err error
	}{{"a", nil}, {"a", nil}, {"a", fabric.ErrLimit}, {"b", nil}, {"b", fabric.ErrLimit}} {
		if err := l.AddSession(step.who); !errors.Is(err, step.err) {
			t.Errorf("session of %s: %v", step.who, err)
		}
	}
	for _, step := range []struct {
		n   int64
		err error
	}{
		{60, nil}, {41, fabric.ErrLimit}, {-1, fabric.ErrLimit}, {1<<63 - 1, fabric.ErrLimit}, {40, nil},
		{1, fabric.ErrLimit}, {0, nil},
	} {
		if err := l.AddBytes("a", step.n); !errors.Is(err, step.err) {
			t.Errorf("%d bytes: %v", step.n, err)
		}
	}
	if s, b := l.Held("a"); s != 2 || b != 100 {
		t.Errorf("a holds %d sessions and %d bytes", s, b)
	}
	l.DropBytes("a", 100)
	l.DropSession("a")
	l.DropSession("a")
	l.DropSession("b")
	for _, p := range []string{"a", "b", "never"} {
		if s, b := l.Held(p); s != 0 || b != 0 {
			t.Errorf("%s holds %d sessions and %d bytes", p, s, b)
		}
	}
}

// carrier counts hang-ups.
type carrier struct {
	mu     sync.Mutex
	hangup int
}

func (c *carrier) Hangup() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hangup++
}

// memory is a backing that knows when it was severed.
type memory struct{ severed int }

func (m *memory) Sever() { m.severed++ }

type scene struct {
	t       *testing.T
	ledger  *fabric.Ledger
	roster  *fabric.Roster
	session *fabric.Session
	carrier *carrier
	memory  *memory
	tokens  uint32 // numbers given out
}

func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{t: t, ledger: fabric.NewLedger(fabric.Limits{}), carrier: &carrier{}, memory: &memory{}}
	s.roster = fabric.NewRoster("test", s.ledger)
	offer, err := s.roster.Offer(context.Background(), "p")
	if err != nil {
		t.Fatal(err)
	}
	if s.session, err = s.roster.Admit(offer.ID, s.carrier); err != nil {
		t.Fatal(err)
	}
	if _, err := s.roster.Admit(offer.ID, s.carrier); !errors.Is(err, fabric.ErrNoSession) {
		t.Errorf("offer admitted twice: %v", err)
	}
	g, err := s.session.Reserve(1, 1000, 1000)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.session.Publish(g, s.memory); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *scene) open(wait time.Duration) *fabric.Window {
	s.t.Helper()
	s.tokens++
	w, err := s.session.Open(token.Descriptor{Region: uint64(s.tokens)<<32 | 1, Size: 1000}, fabric.Grant{
		Principal: "p", Direction: fabric.ForGet, Bytes: 1000, Deadline: time.Now().Add(wait),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return w
}

func (s *scene) left(severed int) {
	s.t.Helper()
	if n, b := s.ledger.Held("p"); n != 0 || b != 0 {
		s.t.Errorf("ledger holds %d sessions, %d bytes", n, b)
	}
	if s.memory.severed != severed || s.carrier.hangup == 0 {
		s.t.Errorf("severed %d times, hung up %d times", s.memory.severed, s.carrier.hangup)
	}
	st := s.roster.Counters.Read("test")
	if st.Sessions != 0 || st.Regions != 0 || st.MappedBytes != 0 || st.OpenWindows != 0 {
		s.t.Errorf("counters %+v", st)
	}
}

// TestDeadline runs in fake time: an operation under way at the deadline costs the session, and Close
// returns at that moment.
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		w := s.open(8 * time.Second)
		if err := w.Enter(); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if err := w.Close(nil); !errors.Is(err, fabric.ErrFenced) || !errors.Is(err, fabric.ErrOverdue) {
			t.Errorf("close: %v", err)
		}
		if took := time.Since(begin); took != 8*time.Second {
			t.Errorf("close took %v", took)
		}
		if err := w.Leave(10, nil); !errors.Is(err, fabric.ErrFenced) {
			t.Errorf("late operation: %v", err)
		}
		s.left(1)
	})
}

// TestExpired: nothing is under way at the deadline, so only the window dies.
func TestExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		w, other := s.open(time.Second), s.open(time.Hour)
		time.Sleep(2 * time.Second) // fake time
		if err := w.Enter(); !errors.Is(err, fabric.ErrFenced) {
			t.Errorf("enter: %v", err)
		}
		if err := w.Close(nil); !errors.Is(err, fabric.ErrFenced) {
			t.Errorf("close: %v", err)
		}
		if s.session.Err() != nil {
			t.Errorf("session: %v", s.session.Err())
		}
		if err := other.Enter(); err != nil {
			t.Error(err)
		}
		if err := errors.Join(other.Leave(5, nil), other.Close(nil)); err != nil {
			t.Error(err)
		}
		s.session.Cut(fabric.ErrPeerGone)
		s.session.Cut(fabric.ErrRevoked)
		if err := s.session.Err(); !errors.Is(err, fabric.ErrPeerGone) || errors.Is(err, fabric.ErrRevoked) {
			t.Errorf("cause: %v", err)
		}
		s.left(1)
	})
}

// TestPause: an operation that touches nothing at the deadline costs its own window. Resume says whether it may go on.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		w, other := s.open(time.Second), s.open(2*time.Second)
		for _, w := range []*fabric.Window{w, other} {
			if err := w.Enter(); err != nil {
				t.Fatal(err)
			}
			w.Pause()
		}
		if err := other.Resume(); err != nil {
			t.Errorf("resume in time: %v", err)
		}
		closed := make(chan error, 1)
		go func() { closed <- w.Close(nil) }()
		time.Sleep(time.Second) // fake time
		synctest.Wait()
		if err := s.session.Err(); err != nil {
			t.Errorf("session: %v", err)
		}
		select {
		case err := <-closed:
			t.Errorf("closed with an operation that has not ended: %v", err)
		default:
		}
		late := w.Resume()
		if !errors.Is(late, fabric.ErrOverdue) || !errors.Is(late, fabric.ErrFenced) {
			t.Errorf("resume: %v", late)
		}
		_ = w.LeavePaused(late)
		if err := <-closed; !errors.Is(err, fabric.ErrOverdue) {
			t.Errorf("close: %v", err)
		}
		time.Sleep(time.Second) // fake time: the other one is under way at its deadline
		synctest.Wait()
		if err := s.session.Err(); !errors.Is(err, fabric.ErrOverdue) {
			t.Errorf("session: %v", err)
		}
		other.Pause()
		if err := other.Resume(); !errors.Is(err, fabric.ErrOverdue) {
			t.Errorf("resume of a session that has ended: %v", err)
		}
		_ = other.LeavePaused(nil)
		if err := other.Close(nil); !errors.Is(err, fabric.ErrFenced) {
			t.Errorf("close: %v", err)
		}
		s.left(1)
	})
}

// TestPauseEndsAtTheDeadline: an operation that wakes from its pause in the moment of its deadline, before or after the
// window's timer, costs its own window.
func TestPauseEndsAtTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		for range 200 {
			w := s.open(time.Second)
			if err := w.Enter(); err != nil {
				t.Fatal(err)
			}
			w.Pause()
			time.Sleep(time.Second) // fake time
			late := w.Resume()
			synctest.Wait() // the timer has run
			if err := s.session.Err(); err != nil {
				t.Fatalf("session: %v", err)
			}
			if err := w.LeavePaused(late); !errors.Is(err, fabric.ErrOverdue) {
				t.Errorf("left: %v", err)
			}
			if err := w.Close(nil); !errors.Is(err, fabric.ErrOverdue) {
				t.Errorf("close: %v", err)
			}
		}
		s.session.Cut(fabric.ErrPeerGone)
		s.left(1)
	})
}

// meeting is memory whose Sever returns when all of a number have begun.
type meeting struct{ begun *sync.WaitGroup }

func (m meeting) Sever() {
	m.begun.Done()
	m.begun.Wait()
}

// TestCutsAtOnce: sessions that are ended together wait together, so that what hangs costs them one wait.
func TestCutsAtOnce(t *testing.T) {
	for name, end := range map[string]func(*fabric.Roster){
		"revoke": func(r *fabric.Roster) { r.Revoke("p") },
		"close":  func(r *fabric.Roster) { r.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // one after another would be a deadlock, which it finds
				const sessions = 50
				ledger := fabric.NewLedger(fabric.Limits{})
				roster := fabric.NewRoster("test", ledger)
				m := meeting{new(sync.WaitGroup)}
				m.begun.Add(sessions)
				for range sessions {
					offer, err := roster.Offer(t.Context(), "p")
					if err != nil {
						t.Fatal(err)
					}
					s, err := roster.Admit(offer.ID, &carrier{})
					if err != nil {
						t.Fatal(err)
					}
					g, err := s.Reserve(1, 1, 1)
					if err != nil {
						t.Fatal(err)
					}
					if err := s.Publish(g, m); err != nil {
						t.Fatal(err)
					}
				}
				end(roster)
				if n, bytes := ledger.Held("p"); n != 0 || bytes != 0 {
					t.Errorf("%d sessions and %d bytes are held", n, bytes)
				}
			})
		})
	}
}

// TestDrain waits for open windows, but not for ever.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		w := s.open(time.Hour)
		begin := time.Now()
		s.session.Drain(2 * time.Second)
		if took := time.Since(begin); took != 2*time.Second {
			t.Errorf("drained in %v", took)
		}
		_, err := s.session.Open(token.Descriptor{Region: 1, Size: 1}, fabric.Grant{
			Principal: "p", Bytes: 1, Deadline: time.Now().Add(time.Hour),
		})
		if !errors.Is(err, fabric.ErrNoSession) {
			t.Errorf("open while closing: %v", err)
		}
		time.AfterFunc(time.Second, func() { _ = w.Close(nil) })
		begin = time.Now()
		s.session.Drain(time.Hour)
		if took := time.Since(begin); took != time.Second {
			t.Errorf("drained in %v", took)
		}
		s.session.Cut(fabric.ErrPeerGone)
		s.left(1)
	})
}

// TestOfferLapses runs in fake time.
func TestOfferLapses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := fabric.NewLedger(fabric.Limits{})
		r := fabric.NewRoster("test", l)
		offer, err := r.Offer(context.Background(), "p")
		if err != nil {
			t.Fatal(err)
		}
		if wait := time.Until(offer.Expires); wait != fabric.DefaultOfferWait {
			t.Errorf("expires in %v", wait)
		}
		time.Sleep(fabric.DefaultOfferWait - time.Millisecond) // fake time
		if _, ok := r.OfferSecret(offer.ID); !ok {
			t.Error("lapsed too early")
		}
		time.Sleep(time.Millisecond) // fake time
		synctest.Wait()
		if _, ok := r.OfferSecret(offer.ID); ok {
			t.Error("did not lapse")
		}
		if n, _ := l.Held("p"); n != 0 {
			t.Errorf("%d sessions held", n)
		}
	})
}

// TestFailureSticks: the first error of an operation comes back from later ones and from Close.
func TestFailureSticks(t *testing.T) {
	s := newScene(t)
	w := s.open(time.Hour)
	if err := w.Enter(); err != nil {
		t.Fatal(err)
	}
	first := fmt.Errorf("%w: first", fabric.ErrTransfer)
	if err := w.Leave(0, first); !errors.Is(err, first) {
		t.Errorf("leave: %v", err)
	}
	if err := w.Enter(); !errors.Is(err, first) {
		t.Errorf("enter: %v", err)
	}
	var seen error
	final := func(failure error) error { seen = failure; return errors.New("final") }
	if err := w.Close(final); !errors.Is(err, first) {
		t.Errorf("close: %v", err)
	}
	if !errors.Is(seen, first) {
		t.Errorf("final saw %v", seen)
	}
	s.session.Cut(fabric.ErrPeerGone)
	s.left(1)
}

// TestUnreserve gives numbers and bytes back, also when the session ends in between.
func TestUnreserve(t *testing.T) {
	s := newScene(t)
	for range 2 {
		g, err := s.session.Reserve(2, 500, 500)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.session.Reserve(2, 1, 1); !errors.Is(err, fabric.ErrRegion) {
			t.Errorf("number in use: %v", err)
		}
		if s.session.Forget(2) != nil {
			t.Error("forgot a region that was not published")
		}
		s.session.Unreserve(g)
	}
	if _, b := s.ledger.Held("p"); b != 1000 {
		t.Errorf("%d bytes held", b)
	}
	g, err := s.session.Reserve(2, 500, 500)
	if err != nil {
		t.Fatal(err)
	}
	s.session.Cut(fabric.ErrPeerGone)
	late := &memory{}
	if err := s.session.Publish(g, late); !errors.Is(err, fabric.ErrFenced) || late.severed != 0 {
		t.Errorf("publish after the end: %v", err)
	}
	s.session.Unreserve(g)
	s.left(1)
}

// TestRevoke ends only the sessions and offers of one principal.
func TestRevoke(t *testing.T) {
	l := fabric.NewLedger(fabric.Limits{})
	r := fabric.NewRoster("test", l)
	var sessions []*fabric.Session
	for i := range 6 {
		offer, err := r.Offer(context.Background(), []string{"a", "b"}[i%2])
		if err != nil {
			t.Fatal(err)
		}
		if i < 4 {
			s, err := r.Admit(offer.ID, &carrier{})
			if err != nil {
				t.Fatal(err)
			}
			sessions = append(sessions, s)
		}
	}
	r.Revoke("a")
	ended := slices.IndexFunc(sessions, func(s *fabric.Session) bool {
		return (s.Principal == "a") != (s.Err() != nil)
	})
	if ended >= 0 {
		t.Errorf("session %d: %v", ended, sessions[ended].Err())
	}
	if n, _ := l.Held("a"); n != 0 {
		t.Errorf("a holds %d", n)
	}
	if n, _ := l.Held("b"); n != 3 {
		t.Errorf("b holds %d", n)
	}
	r.Close()
	if n, _ := l.Held("b"); n != 0 {
		t.Errorf("b holds %d after close", n)
	}
	if _, err := r.Offer(context.Background(), "c"); !errors.Is(err, fabric.ErrShutdown) {
		t.Errorf("offer after close: %v", err)
	}
}
