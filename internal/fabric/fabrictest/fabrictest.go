// Package fabrictest is the conformance suite of fabrics: what every implementation of
// fabric.Fabric must do, checked against a client that keeps its own view of the memory. A fabric
// without sessions says in its Bed which cases it cannot have, and why.
//
// Called by: the tests of fabric/shm, fabric/tcp and fabric/verbs; of fabric/hip, as far as it is about windows.
//
// The oracle is always the client's memory (or the arena buffer, for PUT) compared byte by byte with
// a pattern that a seed determines, guard bytes around the window included.
//
// A test binary that uses the suite calls Main in its TestMain, since the binary runs itself again as
// client processes.
//
// What it does not do: forged frames, which differ by fabric and are tested beside it.
package fabrictest

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/token"
)

// Fabric is what the suite needs of an implementation.
type Fabric interface {
	fabric.Fabric
	fabric.Revoker
	fabric.StatsReporter
}

// Bed is what an implementation brings to the suite.
type Bed struct {
	Name string
	// New starts one on a ledger. memory is all of the arena, for those that register it.
	New func(l *fabric.Ledger, memory []byte) (Fabric, error)
	// Dial makes a client of a fabric that is a fabric.SessionOpener.
	Dial func(ctx context.Context, o fabric.SessionOffer) (Client, error)
	// Attach makes one of a fabric without sessions.
	Attach func() (Client, error)
	// Without names the cases that cannot be, each with the reason.
	Without map[string]string
	// Stop is how long before a deadline nothing of a transfer begins any more.
	Stop time.Duration
	// Charged tells whether regions count against the principal's mapped bytes.
	Charged bool
	// OneProcess says that clients of other processes cannot reach it.
	OneProcess bool
}

// Client is a client's end of a session.
type Client interface {
	// Register announces size bytes of zeroed memory.
	Register(ctx context.Context, size int) (Region, error)
	// Fence ends the session in order: when it returns nil, no late access is possible.
	Fence(ctx context.Context) error
	// Drop ends the session without a word, as a client does that dies.
	Drop()
	Done() <-chan struct{}
	// Free drops the session, if it lives, and gives the memory back.
	Free() error
}

// Region is registered memory.
type Region interface {
	Bytes() []byte
	Grant(off, size int64, d fabric.Direction) (Window, error)
	Forget(ctx context.Context) error
}

// Window is a granted window.
type Window interface {
	Descriptor() token.Descriptor
	// EndContext takes the grant back; the context bounds the wait for a transfer under way.
	EndContext(ctx context.Context) error
}

// Limits of the suite's waits: generous, since they only matter when something hangs.
const (
	patience = 30 * time.Second
	shortly  = 150 * time.Millisecond // a deadline that is meant to pass
)

const principal = "tester"

// stage is one server with an arena, torn down and checked for leaks at the end of the test.
type stage struct {
	t      *testing.T
	bed    Bed
	ctx    context.Context
	ledger *fabric.Ledger
	fabric Fabric
	arena  *arena.Arena
	share  *arena.Share
}

func newStage(t *testing.T, bed Bed, limits fabric.Limits) *stage {
	t.Helper()
	before := takeInventory(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	a, err := arena.New(arena.Options{Shares: []arena.ShareOption{{Name: "fabric", Buffers: 16, BufferBytes: 1 << 20}}})
	if err != nil {
		t.Fatal(err)
	}
	ledger := fabric.NewLedger(limits)
	f, err := bed.New(ledger, a.Memory())
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{t: t, bed: bed, ctx: ctx, ledger: ledger, fabric: f, arena: a, share: a.Share("fabric")}
	t.Cleanup(func() {
		cancel()
		if err := f.Close(); err != nil {
			t.Errorf("close fabric: %v", err)
		}
		if err := a.Close(); err != nil { // refuses while a buffer is out
			t.Errorf("close arena: %v", err)
		}
		for _, p := range []string{principal, "other"} {
			if sessions, bytes := ledger.Held(p); sessions != 0 || bytes != 0 {
				t.Errorf("ledger holds %d sessions and %d bytes of %s", sessions, bytes, p)
			}
		}
		if st := f.Stats(); st.Sessions != 0 || st.Regions != 0 || st.MappedBytes != 0 || st.OpenWindows != 0 {
			t.Errorf("counters after close: %+v", st)
		}
		before.compare(t)
	})
	return s
}

// connect opens a session; it is dropped at the end of the test.
func (s *stage) connect(who string) Client {
	s.t.Helper()
	c, err := s.dial(who)
	if err != nil {
		s.t.Fatalf("dial: %v", err)
	}
	s.t.Cleanup(func() {
		if err := c.Free(); err != nil {
			s.t.Errorf("free client memory: %v", err)
		}
	})
	return c
}

func (s *stage) dial(who string) (Client, error) {
	if s.bed.Attach != nil {
		return s.bed.Attach()
	}
	offer, err := s.offer(who)
	if err != nil {
		return nil, err
	}
	return s.bed.Dial(s.ctx, offer)
}

// offer asks a fabric with sessions for one.
func (s *stage) offer(who string) (fabric.SessionOffer, error) { return offer(s.fabric, who) }

var errSessions = errors.New("fabrictest: fabric without sessions")

func offer(f Fabric, who string) (fabric.SessionOffer, error) {
	opener, ok := f.(fabric.SessionOpener)
	if !ok {
		return fabric.SessionOffer{}, errSessions
	}
	return opener.NewSession(context.Background(), who)
}

func (s *stage) register(c Client, size int) Region {
	s.t.Helper()
	r, err := c.Register(s.ctx, size)
	if err != nil {
		s.t.Fatalf("register %d bytes: %v", size, err)
	}
	return r
}

func (s *stage) grant(r Region, off, size int64, d fabric.Direction) Window {
	s.t.Helper()
	w, err := r.Grant(off, size, d)
	if err != nil {
		s.t.Fatalf("grant: %v", err)
	}
	return w
}

func (s *stage) open(w Window, d fabric.Direction, bytes int64) fabric.Remote {
	s.t.Helper()
	r, err := s.fabric.Open(s.ctx, w.Descriptor(), request(d, bytes))
	if err != nil {
		s.t.Fatalf("open: %v", err)
	}
	return r
}

// request is a Grant of the suite's principal with a deadline far away.
func request(d fabric.Direction, bytes int64) fabric.Grant {
	return fabric.Grant{Principal: principal, Direction: d, Bytes: bytes, Deadline: time.Now().Add(patience)}
}

// buffer takes an arena buffer filled with the pattern of seed from position off on.
func (s *stage) buffer(n int, seed uint64, off int64) arena.Buffer {
	s.t.Helper()
	b, err := s.share.Alloc(s.ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	b = b.Slice(0, n)
	copy(b.Bytes(), pattern(seed, off, n))
	return b
}

// pattern returns n bytes at position off of the endless pattern of seed. Every 8-byte word depends
// on its position, so that shifted or swapped pieces show.
func pattern(seed uint64, off int64, n int) []byte {
	first, last := uint64(off)/8, (uint64(off)+uint64(n)+7)/8
	out := make([]byte, 0, (last-first)*8)
	for at := first; at < last; at++ {
		out = binary.LittleEndian.AppendUint64(out, mix(seed, at))
	}
	skip := uint64(off) - first*8
	return out[skip : skip+uint64(n)]
}

// mix is one step of the splitmix64 generator.
func mix(seed, n uint64) uint64 {
	x := seed*0x9e3779b97f4a7c15 + n
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// sendAll writes n bytes of the pattern through r in pieces of at most piece bytes.
func (s *stage) sendAll(r fabric.Remote, seed uint64, n int64, piece int) error {
	for off := int64(0); off < n; {
		b := s.buffer(int(min(int64(piece), n-off)), seed, off)
		err := r.Write(s.ctx, off, b)
		off += int64(b.Len())
		b.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

// readAll reads n bytes through r in pieces and compares them with the pattern.
func (s *stage) readAll(r fabric.Remote, seed uint64, n int64, piece int) error {
	s.t.Helper()
	for off := int64(0); off < n; {
		b := s.buffer(int(min(int64(piece), n-off)), 0, 0)
		err := r.Read(s.ctx, off, b)
		if err == nil && string(b.Bytes()) != string(pattern(seed, off, b.Len())) {
			s.t.Errorf("read [%d,+%d): wrong bytes", off, b.Len())
		}
		off += int64(b.Len())
		b.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

// want compares memory with a pattern.
func want(t *testing.T, what string, got []byte, seed uint64, off int64) {
	t.Helper()
	expect := pattern(seed, off, len(got))
	if string(expect) == string(got) {
		return
	}
	for i := range got {
		if got[i] != expect[i] {
			t.Errorf("%s: first wrong byte at %d of %d: %#x instead of %#x", what, i, len(got), got[i], expect[i])
			return
		}
	}
}

// snapshot remembers memory by its hash.
type snapshot [sha256.Size]byte

func snap(b []byte) snapshot { return sha256.Sum256(b) }

// unchanged fails when memory differs from the snapshot.
func (s snapshot) unchanged(t *testing.T, what string, b []byte) {
	t.Helper()
	if snap(b) != s {
		t.Errorf("%s: memory changed", what)
	}
}

// Soon polls until ok or the suite's patience ends.
func Soon(t *testing.T, what string, ok func() bool) {
	t.Helper()
	if !eventually(ok) {
		t.Fatalf("%s: not within %v", what, patience)
	}
}

func eventually(ok func() bool) bool {
	limit := time.NewTimer(patience)
	defer limit.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-limit.C:
			return false
		case <-tick.C:
		}
	}
	return true
}
