package fabrictest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/token"
)

// Run runs the suite.
func Run(t *testing.T, bed Bed) {
	cases := []struct {
		name string
		run  func(*testing.T, Bed)
	}{
		{"Shapes", testShapes},
		{"Vector", testVector},
		{"Disjoint", testDisjoint},
		{"ZeroLength", testZeroLength},
		{"Bounds", testBounds},
		{"ForgedTokens", testForgedTokens},
		{"RF_42_Principals", testPrincipals},
		{"SingleUse", testSingleUse},
		{"Offers", testOffers},
		{"Limits", testLimits},
		{"PartialFailure", testPartialFailure},
		{"CloseTwice", testCloseTwice},
		{"Forget", testForget},
		{"Ends", testEnds},
		{"RF_35_DeadlineBeforeUse", testDeadlineBeforeUse},
		{"DeadlineMapped", testDeadlineMapped},
		{"CloseWaitsForMapped", testCloseWaitsForMapped},
		{"IdleSession", testIdleSession},
		{"ServerClose", testServerClose},
		{"RF_17_Processes", testProcesses},
		{"KilledProcesses", testKilledProcesses},
	}
	left := maps.Clone(bed.Without)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if why := bed.Without[c.name]; why != "" {
				t.Skip(why)
			}
			c.run(t, bed)
		})
		delete(left, c.name)
	}
	for name := range left {
		t.Errorf("%s is no case of the suite", name)
	}
}

// RunWindows runs what holds for windows alone, of fabrics whose sessions are a transfer each.
func RunWindows(t *testing.T, bed Bed) {
	t.Run("Shapes", func(t *testing.T) { testShapes(t, bed) })
	t.Run("Vector", func(t *testing.T) { testVector(t, bed) })
	t.Run("Disjoint", func(t *testing.T) { testDisjoint(t, bed) })
}

// testShapes moves windows of awkward sizes at awkward offsets both ways; the bytes around the
// window must stay what they were.
func testShapes(t *testing.T, bed Bed) {
	s := newStage(t, bed, fabric.Limits{})
	const regionBytes = 3<<20 + 123
	r := s.register(s.connect(principal), regionBytes)
	sizes := []int64{1, 7, 4095, 4096, 4097, 64<<10 + 1, 1 << 20, 2<<20 + 77}
	for i, size := range sizes {
		for _, off := range []int64{0, 1, 4096, 65535, regionBytes - size} {
			seed := uint64(i)*1000 + uint64(off) + 1
			copy(r.Bytes(), pattern(9, 0, regionBytes))
			w := s.grant(r, off, size, fabric.ForGet)
			remote := s.open(w, fabric.ForGet, size)
			if err := s.sendAll(remote, seed, size, 1<<20); err != nil {
				t.Fatalf("write %d at %d: %v", size, off, err)
			}
			if err := remote.Close(); err != nil {
				t.Fatalf("close after %d at %d: %v", size, off, err)
			}
			_ = w.EndContext(s.ctx)
			want(t, "before the window", r.Bytes()[:off], 9, 0)
			want(t, "window", r.Bytes()[off:off+size], seed, 0)
			want(t, "behind the window", r.Bytes()[off+size:], 9, off+size)

			w = s.grant(r, off, size, fabric.ForPut)
			remote = s.open(w, fabric.ForPut, size)
			if err := s.readAll(remote, seed, size, 1<<20); err != nil {
				t.Fatalf("read %d at %d: %v", size, off, err)
			}
			if err := remote.Close(); err != nil {
				t.Fatalf("close: %v", err)
			}
			_ = w.EndContext(s.ctx)
		}
	}
	if st := s.fabric.Stats(); st.Gets != int64(len(sizes)*5) || st.Puts != st.Gets || st.PutBytes != st.GetBytes ||
		st.Failed != 0 {
		t.Errorf("counters: %+v", st)
	}
}

// testVector moves several buffers with views of different lengths in one call.
func testVector(t *testing.T, bed Bed) {
	s := newStage(t, bed, fabric.Limits{})
	r := s.register(s.connect(principal), 1<<20)
	const a, b, c = 10_000, 1, 70_001
	const total = a + b + c
	w := s.grant(r, 5, total, fabric.ForGet)
	remote := s.open(w, fabric.ForGet, total)
	b1, b2, b3 := s.buffer(a, 3, 0), s.buffer(b, 3, a), s.buffer(c, 3, a+b)
	if err := remote.Write(s.ctx, 0, b1, b2, b3); err != nil {
		t.Fatal(err)
	}
	if err := remote.Close(); err != nil {
		t.Fatal(err)
	}
	_ = w.EndContext(s.ctx)
	want(t, "window", r.Bytes()[5:5+total], 3, 0)

	w = s.grant(r, 5, total, fabric.ForPut)
	remote = s.open(w, fabric.ForPut, total)
	clear(b1.Bytes())
	clear(b2.Bytes())
	clear(b3.Bytes())
	if err := remote.Read(s.ctx, 0, b3, b1, b2); err != nil {
		t.Fatal(err)
	}
	want(t, "first buffer", b3.Bytes(), 3, 0)
	want(t, "second buffer", b1.Bytes(), 3, c)
	want(t, "third buffer", b2.Bytes(), 3, c+a)
	if err := remote.Close(); err != nil {
		t.Fatal(err)
	}
	b1.Release()
	b2.Release()
	b3.Release()
}

// testDisjoint runs several windows of one session, each with several goroutines.
func testDisjoint(t *testing.T, bed Bed) {
	s := newStage(t, bed, fabric.Limits{})
	const windows, parts, part = 6, 4, 200_003
	const size = parts * part
	r := s.register(s.connect(principal), windows*size)
	var wg sync.WaitGroup
	for i := range int64(windows) {
		w := s.grant(r, i*size, size, fabric.ForGet)
		remote := s.open(w, fabric.ForGet, size)
		wg.Go(func() {
			var inner sync.WaitGroup
			for p := range int64(parts) {
				b := s.buffer(part, uint64(i)+1, p*part)
				inner.Go(func() {
					if err := remote.Write(s.ctx, p*part, b); err != nil {
						t.Errorf("write: %v", err)
					}
					b.Release()
				})
			}
			inner.Wait()
			if err := remote.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
	wg.Wait()
	for i := range windows {
		want(t, fmt.Sprintf("window %d", i), r.Bytes()[i*size:(i+1)*size], uint64(i)+1, 0)
	}
	for i := range int64(windows) {
		w := s.grant(r, i*size, size, fabric.ForPut)
		remote := s.open(w, fabric.ForPut, size)
		wg.Go(func() {
			var inner sync.WaitGroup
			for p := range int64(parts) {
				b := s.buffer(part, 0, 0)
				inner.Go(func() {
					if err := remote.Read(s.ctx, p*part, b); err != nil {
						t.Errorf("read: %v", err)
					}
					want(t, "part", b.Bytes(), uint64(i)+1, p*part)
					b.Release()
				})
			}
			inner.Wait()
			if err := remote.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
	wg.Wait()
}

func testZeroLength(t *testing.T, bed Bed) {
	s := newStage(t, bed, fabric.Limits{})
	c := s.connect(principal)
	r := s.register(c, 4096)
	before := snap(r.Bytes())
	for _, d := range []fabric.Direction{fabric.ForGet, fabric.ForPut} {
		for _, off := range []int64{0, 17, 4096} {
			w := s.grant(r, off, 0, d)
			remote := s.open(w, d, 0)
			if err := remote.Write(s.ctx, 0); d == fabric.ForGet && err != nil {
				t.Errorf("empty write: %v", err)
			}
			if err := remote.Read(s.ctx, 0); d == fabric.ForPut && err != nil {
				t.Errorf("empty read: %v", err)
			}
			if err := remote.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
			_ = w.EndContext(s.ctx)
		}
	}
	before.unchanged(t, "zero length", r.Bytes())
	if region, err := c.Register(s.ctx, 0); err == nil {
		t.Errorf("region of zero bytes accepted: %v", region)
	}
}

// testBounds asks for ranges outside of what the request may touch, and in the wrong direction.
func testBounds(t *testing.T, bed Bed) {
	s := newStage(t, bed, fabric.Limits{})
	r := s.register(s.connect(principal), 64<<10)
	copy(r.Bytes(), pattern(9, 0, 64<<10))
	before := snap(r.Bytes())
	const window, bytes = 8192, 8000 // the answer is shorter than the window
	b := s.buffer(4096, 1, 0)
	defer b.Release()
	for _, d := range []fabric.Direction{fabric.ForGet, fabric.ForPut} {
		remote := s.open(s.grant(r, 4096, window, d), d, bytes)
		if remote.Size() != bytes {
			t.Errorf("size %d, want %d", remote.Size(), bytes)
		}
		move, wrong := remote.Write, remote.Read
		if d == fabric.ForPut {
			move, wrong = wrong, move
		}
		for _, off := range []int64{-1, -4096, bytes - 4095, bytes, bytes + 1, window, 1 << 40, 1<<63 - 1, -1 << 63} {
			if err := move(s.ctx, off, b); !errors.Is(err, fabric.ErrTransfer) {
				t.Errorf("direction %d, offset %d: %v", d, off, err)
			}
		}
		if err := wrong(s.ctx, 0, b); !errors.Is(err, fabric.ErrTransfer) {
			t.Errorf("wrong direction: %v", err)
		}
		if m, ok := remote.(fabric.Mapper); ok {
			for _, at := range [][2]int64{{-1, 10}, {0, bytes + 1}, {bytes, 1}, {10, -1}, {1 << 62, 1 << 62}} {
				if _, err := m.Map(at[0], at[1]); !errors.Is(err, fabric.ErrTransfer) {
					t.Errorf("map %v: %v", at, err)
				}
			}
		}
		if err := remote.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	before.unchanged(t, "out of bounds", r.Bytes())
}

func testForgedTokens(t *testing.T, bed Bed) {
	s := newStage(t, bed, fabric.Limits{})
	r := s.register(s.connect(principal), 10_000)
	cases := []struct {
		name  string
		forge func(*token.Descriptor)
		bytes int64
		want  error
	}{
		{"window behind the region", func(d *token.Descriptor) { d.Addr = 10_000 }, 1, fabric.ErrWindow},
		{"window over the end", func(d *token.Descriptor) { d.Addr = 8001 }, 1, fabric.ErrWindow},
		{"window larger than all", func(d *token.Descriptor) { d.Addr, d.Size = 0, 10_001 }, 1, fabric.ErrWindow},
		{"offset wraps", func(d *token.Descriptor) { d.Addr = 1<<64 - 1000 }, 1, fabric.ErrWindow},
		{"largest window", func(d *token.Descriptor) { d.Size = token.MaxWindow }, 1, fabric.ErrWindow},
		{"negative window", func(d *token.Descriptor) { d.Size = -1 }, 0, fabric.ErrTooLarge},
		{"unknown region", func(d *token.Descriptor) { d.Region++ }, 1, fabric.ErrWindow},
		{"unknown session", func(d *token.Descriptor) { d.SessionID[3] ^= 1 }, 1, fabric.ErrNoSession},
		{"other fabric", func(d *token.Descriptor) { d.Fabric = "dc" }, 1, fabric.ErrNoFabric},
		{"other kind", func(d *token.Descriptor) { d.Kind = token.DC }, 1, fabric.ErrNoFabric},
		{"more bytes than the window", func(*token.Descriptor) {}, 2001, fabric.ErrTooLarge},
		{"negative bytes", func(*token.Descriptor) {}, -1, fabric.ErrTooLarge},
	}
	for _, c := range cases {
		d := s.grant(r, 1000, 2000, fabric.ForGet).Descriptor()
		c.forge(&d)
		remote, err := s.fabric.Open(s.ctx, d, request(fabric.ForGet, c.bytes))
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if remote != nil {
			t.Errorf("%s: opened", c.name)
		}
	}
	late := request(fabric.ForGet, 1)
	late.Deadline = time.Now()
	w := s.grant(r, 1000, 2000, fabric.ForGet)
	if _, err := s.fabric.Open(s.ctx, w.Descriptor(), late); !errors.Is(err, fabric.ErrFenced) {
		t.Errorf("deadline passed: %v", err)
	}
}

// testPrincipals uses one principal's token in another's name.
func testPrincipals(t *testing.T, bed Bed) {
	s := newStage(t, bed, fabric.Limits{})
	r := s.register(s.connect("other"), 4096)
	w := s.grant(r, 0, 4096, fabric.ForGet)
	_, err := s.fabric.Open(s.ctx, w.Descriptor(), request(fabric.ForGet, 10))
	if !errors.Is(err, fabric.ErrNotGranted) {
		t.Errorf("other principal's token: %v", err)
	}
}

// testOffers checks that an offer counts once, needs its secret, and lapses.
func testOffers(t *testing.T, bed Bed) {
	s := newStage(t, bed, fabric.Limits{OfferWait: shortly})
	offer, err := s.offer(principal)
	if err != nil {
		t.Fatal(err)
	}
	wrong := offer
	wrong.Secret = token.NewSecret()
	if _, err := s.bed.Dial(s.ctx, wrong); err == nil {
		t.Error("wrong secret accepted")
	}
	Soon(t, "offer lapses", func() bool { return s.fabric.Stats().Lapsed == 1 })
	if _, err := s.bed.Dial(s.ctx, offer); err == nil {
		t.Error("lapsed offer accepted")
	}
	if n, _ := s.ledger.Held(principal); n != 0 {
		t.Errorf("%d sessions held after the offer lapsed", n)
	}
	revoked, err := s.offer(principal)
	if err != nil {
		t.Fatal(err)
	}
	s.fabric.RevokePrincipal(principal)
	if _, err := s.bed.Dial(s.ctx, revoked); err == nil {
		t.Error("revoked offer accepted")
	}
	if offer, err = s.offer(principal); err != nil {
		t.Fatal(err)
	}
	c, err := s.bed.Dial(s.ctx, offer)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.bed.Dial(s.ctx, offer); err == nil {
		t.Error("offer used twice")
	}
	s.register(c, 4096) // the session is not hurt by it
	if err := c.Fence(s.ctx); err != nil {
		t.Error(err)
	}
	if err := c.Free(); err != nil {
		t.Error(err)
	}
}

func testLimits(t *testing.T, bed Bed) {
	s := newStage(t, bed, fabric.Limits{
		Sessions: 4, SessionsPerPrincipal: 2, RegionsPerSession: 3, MappedBytes: 1 << 20,
	})
	c := s.connect(principal)
	if _, err := s.offer(principal); err != nil { // stays an offer, and counts
		t.Fatal(err)
	}
	if _, err := s.offer(principal); !errors.Is(err, fabric.ErrLimit) {
		t.Errorf("third session of a principal: %v", err)
	}
	s.connect("other")
	s.connect("other")
	if _, err := s.offer("third"); !errors.Is(err, fabric.ErrLimit) {
		t.Errorf("fifth session in all: %v", err)
	}
	a := s.register(c, 400<<10)
	s.register(c, 400<<10)
	_, err := c.Register(s.ctx, 400<<10)
	if bed.Charged == (err == nil) {
		t.Errorf("more mapped bytes than allowed: %v", err)
	}
	if bed.Charged {
		s.register(c, 4096)
	}
	if _, err := c.Register(s.ctx, 4096); err == nil {
		t.Error("fourth region accepted")
	}
	if err := a.Forget(s.ctx); err != nil {
		t.Fatal(err)
	}
	s.register(c, 400<<10) // both limits have room again
}

// testPartialFailure gives up in the middle of a transfer: the session lives on.
func testPartialFailure(t *testing.T, bed Bed) {
	s := newStage(t, bed, fabric.Limits{})
	c := s.connect(principal)
	const size = 300_000
	r := s.register(c, size)
	for _, d := range []fabric.Direction{fabric.ForGet, fabric.ForPut} {
		copy(r.Bytes(), pattern(9, 0, size))
		w := s.grant(r, 0, size, d)
		remote := s.open(w, d, size)
		ctx, cancel := context.WithCancel(s.ctx)
		b := s.buffer(100_000, 1, 0)
		move := remote.Write
		if d == fabric.ForPut {
			move = remote.Read
		}
		if err := move(ctx, 0, b); err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := move(ctx, 100_000, b); !errors.Is(err, context.Canceled) {
			t.Errorf("move after the request was given up: %v", err)
		}
		b.Release()
		if a, ok := remote.(fabric.Aborter); ok {
			a.Abort()
		}
		_ = remote.Close() // the caller knows that it gave up
		if err := w.EndContext(s.ctx); err != nil {
			t.Errorf("end: %v", err)
		}
		want(t, "beyond what was moved", r.Bytes()[100_000:], 9, 100_000)
	}
	w := s.grant(r, 0, size, fabric.ForGet)
	remote := s.open(w, fabric.ForGet, size)
	if err := s.sendAll(remote, 5, size, 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := remote.Close(); err != nil {
		t.Fatal(err)
	}
	want(t, "next transfer", r.Bytes(), 5, 0)
}

func testCloseTwice(t *testing.T, bed Bed) {
	s := newStage(t, bed, fabric.Limits{})
	r := s.register(s.connect(principal), 8192)
	before := snap(r.Bytes())
	remote := s.open(s.grant(r, 0, 8192, fabric.ForGet), fabric.ForGet, 8192)
	if err := remote.Close(); err != nil {
		t.Fatal(err)
	}
	b := s.buffer(4096, 1, 0)
	defer b.Release()
	if err := remote.Write(s.ctx, 0, b); err == nil {
		t.Error("write after close")
	}
	if m, ok := remote.(fabric.Mapper); ok {
		if _, err := m.Map(0, 10); err == nil {
			t.Error("map after close")
		}
	}
	before.unchanged(t, "write after close", r.Bytes())
}

// testForget takes a region back while a window is open: the window finishes, no new one opens.
func testForget(t *testing.T, bed Bed) {
	s := newStage(t, bed, fabric.Limits{})
	c := s.connect(principal)
	r := s.register(c, 100_000)
	w := s.grant(r, 0, 100_000, fabric.ForGet)
	remote := s.open(w, fabric.ForGet, 100_000)
	forgotten := make(chan error, 1)
	go func() { forgotten <- r.Forget(s.ctx) }()
	Soon(t, "new windows refused", func() bool {
		again, err := s.fabric.Open(s.ctx, s.grant(r, 0, 1, fabric.ForGet).Descriptor(), request(fabric.ForGet, 1))
		if err == nil {
			if err := again.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}
		return errors.Is(err, fabric.ErrWindow)
	})
	select {
	case err := <-forgotten:
		t.Fatalf("forgotten while a window is open: %v", err)
	default:
	}
	if err := s.sendAll(remote, 4, 100_000, 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := remote.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-forgotten; err != nil {
		t.Fatal(err)
	}
	want(t, "window", r.Bytes(), 4, 0)
	if st := s.fabric.Stats(); st.Regions != 0 || st.MappedBytes != 0 {
		t.Errorf("counters: %+v", st)
	}
	s.register(c, 4096) // the session lives on
}
