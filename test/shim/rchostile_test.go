package shim_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/frame"
)

// rcPath is a path that the client has offered.
type rcPath struct {
	id   uint64
	rail uint64
	own  frame.PathBody
}

// theirs is the rail of a played server.
func theirs() frame.Rail {
	return frame.Rail{Index: 3, Up: true, MTU: 3, GID: netip.MustParseAddr("::ffff:10.99.0.9").As16()}
}

func (p *peer) rails(rails ...frame.Rail) {
	p.send(frame.Header{Type: frame.Rails}, frame.EncodeRails(rails)...)
}

// offered waits for a path.
func (p *peer) offered() (rcPath, bool) {
	for {
		h, body, err := p.next()
		if err != nil {
			return rcPath{}, false
		}
		if h.Type != frame.Path {
			continue
		}
		own, err := frame.DecodePath(body)
		return rcPath{h.ID, h.Region, own}, err == nil
	}
}

// next is the next frame of the client.
func (p *peer) next() (frame.Header, []byte, error) {
	var b [frame.HeaderBytes]byte
	h, err := frame.ReadHeader(p, &b)
	if err != nil {
		return h, nil, err
	}
	body := make([]byte, h.Length)
	_, err = io.ReadFull(p, body)
	return h, body, err
}

// ok accepts a path, after a change.
func (p *peer) ok(path rcPath, change ...func(*frame.PathBody)) {
	body := frame.PathBody{QPN: 77, PSN: 5, GID: theirs().GID, MTU: 3, Device: path.own.Device, Reads: 1}
	for _, f := range change {
		f(&body)
	}
	b := make([]byte, frame.PathBytes)
	body.Encode(b)
	p.send(frame.Header{Type: frame.PathOK, ID: path.id}, b...)
}

// opened is a session with one path.
func (p *peer) opened() rcPath {
	p.rails(theirs())
	path, _ := p.offered()
	p.ok(path)
	p.await(frame.PathUp)
	return path
}

// keyed takes the memory of a token, and waits until the client has it.
func (p *peer) keyed() {
	h, _ := p.await(frame.Keyed)
	p.send(frame.Header{Type: frame.RegionOK, Region: h.Region})
	select {
	case <-p.issued:
	case <-time.After(patience):
	}
}

// settles waits until the adapter has what it shall: a receiver that ends lets its session go by itself.
func (d *driver) settles(want string) {
	d.t.Helper()
	got := ""
	for end := time.Now().Add(patience / 6); got != want && time.Now().Before(end); {
		got = d.ask("nic counters")
	}
	if got != want {
		d.t.Errorf("%s, want %s", got, want)
	}
}

func isIn(t *testing.T, text, words string) {
	t.Helper()
	if !strings.Contains(text, words) {
		t.Errorf("%s, want %s", text, words)
	}
}

func rcLies() map[string]func(*peer, rcPath) {
	send := func(h frame.Header, body ...byte) func(*peer, rcPath) {
		return func(p *peer, _ rcPath) { p.send(h, body...) }
	}
	about := func(typ frame.Type, id uint64) func(*peer, rcPath) { return send(frame.Header{Type: typ, ID: id}) }
	next := func(change func(*frame.PathBody)) func(*peer, rcPath) { // of the path after the first one's loss
		return func(p *peer, first rcPath) {
			p.send(frame.Header{Type: frame.Lost, ID: first.id})
			path, _ := p.offered()
			p.ok(path, change)
		}
	}
	return map[string]func(*peer, rcPath){
		"accepts an unknown path":  func(p *peer, path rcPath) { path.id = 99; p.ok(path) },
		"accepts path 0":           func(p *peer, path rcPath) { path.id = 0; p.ok(path) },
		"accepts a path twice":     func(p *peer, path rcPath) { p.ok(path) },
		"refuses an unknown path":  about(frame.PathRefused, 99),
		"refuses an accepted path": func(p *peer, path rcPath) { about(frame.PathRefused, path.id)(p, path) },
		"loses an unknown path":    about(frame.Lost, 99),
		"loses path 0":             about(frame.Lost, 0),
		"loses an offered path": func(p *peer, path rcPath) {
			p.send(frame.Header{Type: frame.Lost, ID: path.id})
			if path, ok := p.offered(); ok {
				p.send(frame.Header{Type: frame.Lost, ID: path.id})
			}
		},
		"another device":       next(func(b *frame.PathBody) { b.Device++ }),
		"more reads":           next(func(b *frame.PathBody) { b.Reads = 200 }),
		"no reads":             next(func(b *frame.PathBody) { b.Reads = 0 }),
		"no queue pair":        next(func(b *frame.PathBody) { b.QPN = 1 }),
		"everybody's pair":     next(func(b *frame.PathBody) { b.QPN = 1<<24 - 1 }),
		"a long PSN":           next(func(b *frame.PathBody) { b.PSN = 1 << 24 }),
		"no MTU":               next(func(b *frame.PathBody) { b.MTU = 0 }),
		"a large MTU":          next(func(b *frame.PathBody) { b.MTU = 6 }),
		"names a rail twice":   func(p *peer, _ rcPath) { p.rails(theirs(), theirs()) },
		"names a broken rail":  send(frame.Header{Type: frame.Rails}, make([]byte, frame.RailBytes)...),
		"half a rail":          send(frame.Header{Type: frame.Rails}, make([]byte, frame.RailBytes/2)...),
		"nine rails":           send(frame.Header{Type: frame.Rails}, make([]byte, 9*frame.RailBytes)...),
		"accepts nothing":      send(frame.Header{Type: frame.PathOK, ID: 1}, 1, 2, 3),
		"starts a transfer":    about(frame.Start, 1),
		"asks for a payload":   send(frame.Header{Type: frame.Read, ID: 1, Size: 10}),
		"closed unasked":       about(frame.Closed, 0),
		"sends a client frame": about(frame.PathUp, 1),
		"asks for memory":      send(frame.Header{Type: frame.Ask}), // nobody asked to be attached: it is passed over
		"ends":                 func(p *peer, _ rcPath) { _ = p.Close() },
		"half a frame":         func(p *peer, _ rcPath) { _, _ = p.Write(make([]byte, 20)); _ = p.Close() },
		"does not forget":      func(*peer, rcPath) {},
	}
}

// TestHostileRC: whatever a server sends, the memory comes back, and when the session ends no queue pair and no key is
// left. The oracle is the adapter's count of its objects, under the sanitizers.
func TestHostileRC(t *testing.T) {
	binary := fakedProgram(t, "address,undefined")
	for name, lie := range rcLies() {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			l := newLiar(t, "rc", true, func(p *peer) {
				path := p.opened()
				p.keyed()
				lie(p, path)
				p.acted()
				p.await(0) // until the client goes
			})
			d := l.driver(binary)
			d.memory(1, 10_000, 3)
			tok := d.token(1, 5000, 100, false)
			isIn(t, d.ask("nic counters"), "1 keys 1 pairs")
			close(l.issued)
			select {
			case <-l.acted:
			case <-time.After(patience):
				t.Error("the script hangs")
			}
			began := time.Now()
			d.want("0", "put %s", tok)
			if took := time.Since(began); took > putMost {
				t.Errorf("put took %v", took)
			}
			isIn(t, d.ask("nic counters"), "0 keys 0 pairs 0 violations")
			d.want("same", "check 1 0 10000 3")
			d.want("0", "deregister 1")
			d.want("0", "free 1")
			d.want("1 ", "available")
			d.settles("1 devices 1 domains 0 keys 1 pairs 0 violations") // of another session: nothing of the first is left
		})
	}
}

// TestRandomRC: a server of random frames, most of them well formed. Seeds name the runs; the oracle is as in
// TestHostileRC.
func TestRandomRC(t *testing.T) {
	binary := fakedProgram(t, "address,undefined")
	for seed := range uint64(40) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			t.Parallel()
			l := newLiar(t, "rc", true, func(p *peer) {
				path := p.opened()
				p.keyed()
				random := rand.New(rand.NewPCG(seed, 2))
				for range 1 + random.IntN(40) {
					h := frame.Header{
						Type: []frame.Type{frame.Rails, frame.PathOK, frame.PathRefused, frame.Lost, frame.Pong}[random.IntN(5)],
						ID:   []uint64{path.id, path.id + 1, path.id + 2, random.Uint64N(9)}[random.IntN(4)],
					}
					switch h.Type {
					case frame.Rails:
						rails := []frame.Rail{theirs(), {Index: 1, Up: random.IntN(2) == 0, MTU: 3, GID: theirs().GID}}
						p.rails(rails[:random.IntN(3)]...)
					case frame.PathOK:
						p.ok(rcPath{id: h.ID, own: frame.PathBody{Device: uint8(random.IntN(2))}},
							func(b *frame.PathBody) { b.QPN = uint32(random.IntN(50)) })
					default:
						p.send(h)
					}
				}
				p.acted()
				p.await(0)
			})
			d := l.driver(binary)
			d.memory(1, 10_000, 3)
			tok := d.token(1, 5000, 100, false)
			close(l.issued)
			<-l.acted
			d.want("0", "put %s", tok)
			isIn(t, d.ask("nic counters"), "0 keys 0 pairs 0 violations")
			d.want("same", "check 1 0 10000 3")
			d.want("0", "deregister 1")
		})
	}
}

// TestRCLost: after LOST comes FENCED, then another queue pair is offered; the token lives on.
func TestRCLost(t *testing.T) {
	for _, s := range sanitizers {
		t.Run(s.name, func(t *testing.T) {
			l := newLiar(t, "rc", true, func(p *peer) {
				path := p.opened()
				p.keyed()
				for range 3 {
					p.send(frame.Header{Type: frame.Lost, ID: path.id})
					if h, ok := p.await(frame.Fenced); !ok || h.ID != path.id {
						t.Errorf("fenced %d %v, want %d", h.ID, ok, path.id)
					}
					next, ok := p.offered()
					if !ok || next.id != path.id+1 || next.own.QPN == path.own.QPN && next.own.PSN == path.own.PSN {
						t.Errorf("path %+v after %+v", next, path)
					}
					p.send(frame.Header{Type: frame.Lost, ID: path.id}) // again: it is fenced already
					path = next
					p.ok(path)
					p.await(frame.PathUp)
				}
				p.acted()
				h, _ := p.await(frame.Forget)
				p.send(frame.Header{Type: frame.Forgotten, Region: h.Region})
				p.await(0)
			})
			d := l.driver(fakedProgram(t, s.flags))
			d.memory(1, 10_000, 3)
			tok := d.token(1, 5000, 100, false)
			close(l.issued)
			<-l.acted
			d.want("1 devices 1 domains 1 keys 1 pairs 0 violations", "nic counters")
			d.want("0", "put %s", tok)
			d.want("1 devices 1 domains 0 keys 1 pairs 0 violations", "nic counters")
			d.want("0", "deregister 1")
		})
	}
}

// TestRCThreads: many threads take and put back tokens while paths come and go. The sanitizers judge, and the adapter's
// count of keys.
func TestRCThreads(t *testing.T) {
	for _, s := range sanitizers {
		t.Run(s.name, func(t *testing.T) {
			l := newLiar(t, "rc", true, func(p *peer) {
				path := p.opened()
				for asked := 0; ; {
					h, body, err := p.next()
					if err != nil {
						return
					}
					switch h.Type {
					case frame.Keyed:
						p.send(frame.Header{Type: frame.RegionOK, Region: h.Region})
						if asked++; asked%7 == 0 {
							p.send(frame.Header{Type: frame.Lost, ID: path.id}) // also of one that is lost already
						}
					case frame.Forget:
						p.send(frame.Header{Type: frame.Forgotten, Region: h.Region})
					case frame.Path:
						own, err := frame.DecodePath(body)
						if err != nil {
							t.Error(err)
							return
						}
						p.ok(rcPath{h.ID, h.Region, own})
					case frame.PathUp:
						path.id = h.ID
					}
				}
			})
			d := l.driver(fakedProgram(t, s.flags))
			d.want("0 ", "threads 16 40")
			isIn(t, d.ask("nic counters"), "1 devices 1 domains 0 keys")
		})
	}
}

// TestRCAdapterFails: what an adapter refuses costs the session, and memory only when neither its queue pairs end nor
// the key is taken back.
func TestRCAdapterFails(t *testing.T) {
	binary := fakedProgram(t, "address,undefined")
	for name, c := range map[string]struct {
		before []string // the token
		after  []string
		token  bool
		spent  bool
	}{
		"no key":                {before: []string{"fail reg"}},
		"no queue pair":         {before: []string{"fail create"}},
		"no connection":         {before: []string{"fail receive"}},
		"no domain":             {before: []string{"fail pd"}},
		"does not open":         {before: []string{"fail open"}},
		"is killed":             {after: []string{"kill 0", "kill 1"}, token: true},
		"keeps its pair":        {after: []string{"fail error", "fail destroy"}, token: true},
		"keeps the key":         {after: []string{"fail dereg"}, token: true},
		"keeps a pair's object": {after: []string{"fail destroy", "fail dereg"}, token: true},
		"keeps all":             {after: []string{"fail error", "fail destroy", "fail dereg"}, token: true, spent: true},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			l := newLiar(t, "rc", true, func(p *peer) {
				p.opened()
				p.keyed()
				p.await(0) // it forgets nothing, so that the session is fenced
			})
			d := l.driver(binary, "ASAN_OPTIONS=detect_leaks=0") // what an adapter keeps stays
			for _, word := range c.before {
				d.want("0", "nic %s", word)
			}
			d.want("0", "alloc 1 10000")
			if got := d.ask("register 1"); got != "0" && c.token {
				t.Fatalf("register: %s", got)
			}
			tok := d.ask("token 1 5000 100 0")
			if strings.HasPrefix(tok, "ps1:rc:") != c.token {
				t.Fatalf("token: %.6s", tok)
			}
			close(l.issued)
			if !c.token {
				isIn(t, d.ask("nic counters"), "0 keys")
				return
			}
			for _, word := range c.after {
				d.want("0", "nic %s", word)
			}
			got := d.ask("put %s", tok)
			if lost := strings.Contains(got, "must not be reused"); lost != c.spent || (!lost && got != "0") {
				t.Errorf("put: %s", got)
			}
			if c.spent {
				isIn(t, d.ask("token 1 10 200 0"), "must not be reused")
				isIn(t, d.ask("register 1"), "must not be reused")
			}
		})
	}
}

// TestRCHangingDriver: a driver that does not come back costs the session's tokens one fence, not one each.
func TestRCHangingDriver(t *testing.T) {
	const tokens = 8
	l := newLiar(t, "rc", true, func(p *peer) {
		path := p.opened()
		for range tokens {
			h, _ := p.await(frame.Keyed)
			p.send(frame.Header{Type: frame.RegionOK, Region: h.Region})
		}
		select {
		case <-p.issued:
		case <-time.After(patience):
		}
		p.send(frame.Header{Type: frame.Lost, ID: path.id}) // the receiver destroys the queue pair
		p.acted()
		p.await(0)
	})
	d := l.driver(fakedProgram(t, "address,undefined"), "ASAN_OPTIONS=detect_leaks=0") // the receiver has them
	d.memory(1, 10_000, 3)
	for range tokens {
		d.token(1, 5000, 100, false)
	}
	d.want("0", "nic hold destroy")
	close(l.issued)
	<-l.acted
	began := time.Now()
	d.want("0", "deregister 1")
	if took := time.Since(began); took > putMost {
		t.Errorf("deregister took %v", took)
	}
	isIn(t, d.ask("nic counters"), "0 keys") // which is why the memory is free
}

// TestRCRefused: a server that takes none of the paths gets no memory, and the client says why.
func TestRCRefused(t *testing.T) {
	binary := fakedProgram(t, "address,undefined")
	for name, c := range map[string]struct {
		script func(*peer)
		words  string
	}{
		"no rail":   {func(p *peer) { p.rails() }, "no rail"},
		"rail down": {func(p *peer) { r := theirs(); r.Up = false; p.rails(r) }, "no rail"},
		"InfiniBand": {func(p *peer) {
			p.rails(frame.Rail{Index: 1, Up: true, MTU: 3, LID: 4, GID: [16]byte{0: 0xfe, 1: 0x80, 15: 1}})
		}, "no rail"},
		"not ours": {func(p *peer) {
			p.rails(theirs())
			for {
				path, ok := p.offered()
				if !ok {
					return
				}
				p.send(frame.Header{Type: frame.PathRefused, ID: path.id, Status: frame.StatusGID})
			}
		}, "status 20"},
		"silence": {func(*peer) {}, "in time"},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			l := newLiar(t, "rc", true, func(p *peer) {
				c.script(p)
				p.await(0)
			})
			d := l.driver(binary)
			isIn(t, d.ask("available"), c.words)
			d.settles("0 devices 0 domains 0 keys 0 pairs 0 violations")
		})
	}
}

// TestRCPathless: a session whose only path was lost and is not taken again ends, and the next token opens another one.
func TestRCPathless(t *testing.T) {
	l := newLiar(t, "rc", true, func(p *peer) {
		path := p.opened()
		p.send(frame.Header{Type: frame.Lost, ID: path.id})
		p.await(frame.Fenced)
		p.rails()
		for {
			path, ok := p.offered()
			if !ok {
				break
			}
			p.send(frame.Header{Type: frame.PathRefused, ID: path.id, Status: frame.StatusRail})
		}
		p.acted()
	})
	d := l.driver(fakedProgram(t, "thread"))
	d.want("1 ", "available")
	select {
	case <-l.acted:
	case <-time.After(patience):
		t.Error("the session lives without a path")
	}
	d.want("1 ", "available")
	d.want("1 ", "available") // the first session's are gone
	for strings.HasPrefix(d.ask("nic counters"), "2 devices") {
	}
	isIn(t, d.ask("nic counters"), "1 devices 1 domains 0 keys ")
}
