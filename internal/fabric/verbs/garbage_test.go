package verbs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"testing"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

const (
	garbageSessions = 5
	garbageFrames   = 40
	garbageMoves    = 5 // of a session: they hold buffers until it ends
	garbageRegions  = 4

	spanBytes = 64 << 10
	guardByte = 0x11 // memory that nobody announced
	freshByte = 0x5a // announced memory that nothing was written to
	wroteByte = 0xa5 // what a GET brings
)

// TestGarbage sends random sequences of good, changed and senseless frames, with transfers of the same session under
// way, while an honest client moves bytes over the same rails. Oracles: the honest client's bytes; a model of what may
// be answered to what was asked, and of what ends a session; memory that was not announced, or whose key is another's,
// stays what it is; no rail is ejected; nothing is left, and the adapter saw nothing that a correct program does not
// do. `PENSTOCK_TEST_LONG=1 go test -run 'TestGarbage/4711$'` sends number 4711 again, as far as threads allow.
func TestGarbage(t *testing.T) {
	n := 20
	switch {
	case os.Getenv("PENSTOCK_TEST_LONG") != "":
		n = 5000
	case testing.Short():
		n = 5
	}
	for seed := range n {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { runGarbage(t, uint64(seed)) })
	}
}

func runGarbage(t *testing.T, seed uint64) {
	b := newBench(t, fakeverbs.Options{Seed: seed + 1, Poison: true, ReuseNumbers: seed%2 == 0}, func(o *setup) {
		o.StallWait = patience // what is not fenced lives to the end of its session
	})
	bystander := b.connect("p", device0)
	theirs := bytes.Repeat([]byte{guardByte}, spanBytes)
	key := bystander.register(theirs)
	honest := b.load(b.client("p", device1))
	defer honest.end()
	rng := rand.New(rand.NewPCG(seed, 6))
	for range garbageSessions {
		newGarbage(b, rng, key).run()
		honest.more(t, "honest transfers go on")
	}
	unchanged(t, "memory of another client", theirs)
	for i := range 2 {
		if r := b.rail(i); r.Ejections != 0 || !r.Up {
			t.Errorf("rail %d: %+v", i, r)
		}
	}
}

// unchanged compares memory with what guards are filled with.
func unchanged(t *testing.T, what string, memory []byte) {
	t.Helper()
	if n := strange(memory, guardByte); n > 0 {
		t.Errorf("%s: %d bytes changed", what, n)
	}
}

// strange is how many bytes are none of these.
func strange(memory []byte, known ...byte) int {
	n := len(memory)
	for _, b := range known {
		n -= bytes.Count(memory, []byte{b})
	}
	return n
}

// verdict is what a frame does to its session; of several the worst counts.
type verdict int

const (
	fine     verdict = iota
	doubtful         // depends on how far the server is
	over             // the session ends, in order
	broken           // it ends for breaking the protocol
)

// proposed is a path that the client has offered.
type proposed struct {
	pair      *native.QP
	own       native.Path
	answered  bool
	answer    *frame.PathBody // of PATH_OK
	up, ended bool            // PATH_UP, FENCED was sent
	lost      bool
}

// garbage is a session of a client that breaks the protocol, with a model of what the server may answer.
type garbage struct {
	*rawClient
	rng    *rand.Rand
	theirs *native.MR
	memory []byte // a guard, the window; then, beyond the key, another guard
	key    *native.MR
	ended  chan struct{} // closed when no frame of the server comes any more
	moves  sync.WaitGroup
	begun  int    // moves
	made   uint64 // queue pairs
	worst  verdict
	unsure bool // a frame was doubtful

	mu        sync.Mutex
	pings     int            // unanswered, as the following
	announced map[uint64]int // by region
	forgets   map[uint64]int
	paths     map[uint64]*proposed
	last      uint64 // path
}

func newGarbage(b *bench, rng *rand.Rand, theirs *native.MR) *garbage {
	g := &garbage{
		rawClient: b.connect("h", device0), rng: rng, theirs: theirs, ended: make(chan struct{}),
		announced: map[uint64]int{}, forgets: map[uint64]int{}, paths: map[uint64]*proposed{},
	}
	g.memory = bytes.Repeat([]byte{guardByte}, 3*spanBytes)
	copy(g.window(), bytes.Repeat([]byte{freshByte}, spanBytes))
	g.key = g.register(g.memory[:2*spanBytes])
	go g.listen()
	return g
}

func (g *garbage) window() []byte { return g.memory[spanBytes : 2*spanBytes] }

// run sends until the session ends or the frames are used up, and checks what is left.
func (g *garbage) run() {
	before := g.b.fabric.Stats().Violated
	if g.rng.IntN(2) == 0 {
		g.lose()
	}
	for range garbageFrames {
		if g.step(); g.worst >= over {
			break
		}
	}
	if g.worst == fine {
		g.put(frame.Header{Type: frame.Ping}, nil)
		soon(g.t, "everything is answered", g.answered)
	}
	if g.worst < over {
		_ = g.conn.Close()
	}
	<-g.ended // the connection's deadline bounds that
	g.moves.Wait()
	soon(g.t, "the session is gone", func() bool {
		_, err := g.b.fabric.roster.Find(g.offer.ID)
		return err != nil
	})
	n := g.b.fabric.Stats().Violated - before
	must, may := g.worst == broken && !g.unsure, g.worst == broken || g.unsure
	if n > 1 || must && n < 1 || n > 0 && !may {
		g.t.Errorf("verdict %d, unsure: %v, and %d violations counted", g.worst, g.unsure, n)
	}
	unchanged(g.t, "memory before what was announced", g.memory[:spanBytes])
	unchanged(g.t, "memory behind the key", g.memory[2*spanBytes:])
	if n := strange(g.window(), freshByte, wroteByte); n > 0 {
		g.t.Errorf("%d strange bytes in the window", n)
	}
}

// answered tells whether nothing is unanswered, but what waits for transfers.
func (g *garbage) answered() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	left := g.pings
	for _, n := range g.announced {
		left += n
	}
	for _, p := range g.paths {
		if !p.answered {
			left++
		}
	}
	for _, n := range g.forgets {
		if g.begun == 0 {
			left += n
		}
	}
	return left == 0
}

// listen takes the server's frames until there are none.
func (g *garbage) listen() {
	defer close(g.ended)
	for {
		var b [frame.HeaderBytes]byte
		h, err := frame.ReadHeader(g.conn, &b)
		body := make([]byte, h.Length)
		if err == nil {
			_, err = io.ReadFull(g.conn, body)
		}
		switch {
		case errors.Is(err, frame.ErrInvalid), errors.Is(err, os.ErrDeadlineExceeded):
			g.t.Errorf("the server sends: %v", err)
			return
		case err != nil:
			return
		}
		if err := g.take(h, body); err != nil {
			g.t.Errorf("%+v: %v", h, err)
		}
	}
}

var (
	errUnasked = errors.New("answer to nothing")
	errStrange = errors.New("undocumented answer")
)

// take compares a frame of the server with what was asked.
func (g *garbage) take(h frame.Header, body []byte) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	count := func(n *int) error {
		if *n--; *n < 0 {
			return errUnasked
		}
		return nil
	}
	byRegion := func(m map[uint64]int) error {
		if m[h.Region]--; m[h.Region] < 0 {
			return errUnasked
		}
		return nil
	}
	switch h.Type {
	case frame.Rails:
		_, err := frame.DecodeRails(body)
		return err
	case frame.Pong:
		return count(&g.pings)
	case frame.RegionOK:
		return byRegion(g.announced)
	case frame.RegionRefused:
		if h.Status != frame.StatusSize && h.Status != frame.StatusDuplicate && h.Status != frame.StatusLimit {
			return errStrange
		}
		return byRegion(g.announced)
	case frame.Forgotten:
		if h.Status != frame.StatusOK && h.Status != frame.StatusUnknown {
			return errStrange
		}
		return byRegion(g.forgets)
	case frame.PathOK, frame.PathRefused, frame.Lost:
		return g.takePath(h, body)
	}
	return errStrange
}

// takePath takes an answer about a path. mu is held.
func (g *garbage) takePath(h frame.Header, body []byte) error {
	p := g.paths[h.ID]
	if p == nil {
		return errUnasked
	}
	if h.Type == frame.Lost {
		if p.answer == nil || p.lost {
			return errUnasked
		}
		p.lost = true
		return nil
	}
	if p.answered {
		return errUnasked
	}
	p.answered = true
	if h.Type == frame.PathRefused {
		switch h.Status {
		case frame.StatusRail, frame.StatusGID, frame.StatusDevice, frame.StatusLimit, frame.StatusDuplicate:
			return nil
		}
		return errStrange
	}
	answer, err := frame.DecodePath(body)
	if err == nil {
		p.answer = &answer
	}
	return err
}

// documented tells whether opening or moving may end so.
func documented(err error) bool {
	for _, kind := range []error{
		fabric.ErrTransfer, fabric.ErrFenced, fabric.ErrNoSession, fabric.ErrNoFabric, fabric.ErrWindow, fabric.ErrLimit,
	} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return err == nil
}
