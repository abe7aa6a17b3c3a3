package verbs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/token"
	"github.com/penstock-store/penstock/native"
)

// step sends a frame, or begins a transfer.
func (g *garbage) step() {
	switch g.rng.IntN(20) {
	case 0, 1:
		g.put(frame.Header{Type: frame.Ping}, nil)
	case 2, 3, 4:
		g.put(g.region())
	case 5:
		g.put(frame.Header{Type: frame.Forget, Region: g.number()}, nil)
	case 6, 7, 8, 9:
		g.propose(false)
	case 10:
		g.propose(true)
	case 11, 12, 13:
		g.goOn()
	case 14:
		typ := []frame.Type{frame.PathUp, frame.Fenced}[g.rng.IntN(2)]
		g.put(frame.Header{Type: typ, ID: g.rng.Uint64N(g.last + 2)}, nil)
	case 15, 16, 17:
		g.move()
	case 18:
		g.changed()
	default:
		if g.rng.IntN(4) == 0 {
			g.senseless()
		}
	}
}

// one picks an element.
func one[T any](g *garbage, of ...T) T { return of[g.rng.IntN(len(of))] }

// number is that of a region, seldom one that nobody may have.
func (g *garbage) number() uint64 {
	if g.rng.IntN(10) == 0 {
		return one(g, uint64(garbageRegions+1), 1<<32, 1<<63)
	}
	return 1 + g.rng.Uint64N(garbageRegions)
}

// base is where a region of that number begins in the window.
func base(number uint64) uint64 { return number * 4096 }

// region is a KEYED: of a part of the window, or one that lies.
func (g *garbage) region() (frame.Header, []byte) {
	n := g.number()
	window := g.key.Addr() + spanBytes
	h := frame.Header{Type: frame.Keyed, Region: n, Offset: window + base(n%16), Size: 1 + g.rng.Uint64N(spanBytes/2)}
	keys := []uint32{g.key.RKey()}
	switch g.rng.IntN(8) {
	case 0:
		h.Offset = g.theirs.Addr()
	case 1:
		h.Offset, keys[0] = g.theirs.Addr(), g.theirs.RKey()
	case 2:
		keys[0] ^= 1 << g.rng.IntN(32)
	case 3:
		h.Size = one(g, uint64(0), 2*spanBytes, frame.MaxRegionBytes, frame.MaxRegionBytes+1, frame.MaxNumber)
	case 4:
		keys = append(keys, g.rng.Uint32(), g.rng.Uint32())
	}
	return h, frame.EncodeKeys(keys)
}

// propose sends a PATH; a strange one has a good form, and names what the server must refuse or what leads nowhere.
func (g *garbage) propose(strange bool) {
	pair, own, body := g.kept()
	h := frame.Header{Type: frame.Path, ID: g.last + 1, Region: g.rng.Uint64N(2)}
	if strange {
		switch g.rng.IntN(8) {
		case 0:
			h.Region = one(g, uint64(2), 255, 1<<32, 1<<64-1)
		case 1:
			body.GID = mapped(one(g, "192.0.2.7", "127.0.0.1", "::", "fe80::7", "ff02::1"))
		case 2:
			body.QPN = one(g, uint32(0), 1, 1<<24-1, g.rng.Uint32N(1<<24))
		case 3:
			body.PSN, body.LID = one(g, uint32(0), 1<<24-1), uint16(g.rng.Uint32())
		case 4:
			body.MTU, body.Reads = one(g, uint8(1), 5), one(g, uint8(1), 255)
		case 5:
			body.Device = frame.MaxDevices - 1
		case 6:
			h.ID += g.rng.Uint64N(1000)
		case 7:
			h.ID = g.rng.Uint64N(g.last + 1) // again
		}
	}
	g.put(h, encode(body))
	g.mu.Lock()
	defer g.mu.Unlock()
	if p := g.paths[h.ID]; p != nil && p.pair == nil {
		p.pair, p.own = pair, own
	}
}

// goOn does with a path that the server has answered what clients do, or do not.
func (g *garbage) goOn() {
	g.mu.Lock()
	var p *proposed
	id := uint64(0)
	for n := g.last; n > 0 && n+8 > g.last; n-- { // the newest first: who is answered is a matter of time
		if q := g.paths[n]; q != nil && q.answer != nil && !q.ended && q.pair != nil && g.rng.IntN(2) == 0 {
			p, id = q, n
			break
		}
	}
	g.mu.Unlock()
	if p == nil {
		return
	}
	up, fenced := frame.Header{Type: frame.PathUp, ID: id}, frame.Header{Type: frame.Fenced, ID: id}
	switch g.rng.IntN(6) {
	case 0, 1, 2:
		_ = p.pair.Receive(p.own, peerOf(p.answer)) // refused when it was failed or connected before
		if !p.up {
			g.put(up, nil)
		}
	case 3:
		_ = p.pair.Fail()
		g.put(fenced, nil)
	case 4:
		g.put(one(g, up, fenced), nil) // neither is true
	case 5:
		_ = p.pair.Fail() // and not a word
	}
}

// changed sends a good frame with one bit changed.
func (g *garbage) changed() {
	h, body := frame.Header{Type: frame.Ping}, []byte(nil)
	switch g.rng.IntN(3) {
	case 0:
		h, body = g.region()
	case 1:
		_, _, p := g.kept()
		h, body = frame.Header{Type: frame.Path, ID: g.last + 1}, encode(p)
	}
	h.Length = uint32(len(body))
	raw := make([]byte, frame.HeaderBytes, frame.HeaderBytes+len(body))
	h.Encode(raw)
	raw = append(raw, body...)
	raw[g.rng.IntN(len(raw))] ^= 1 << g.rng.IntN(8)
	g.write(raw)
}

// kept is makePair with a queue pair that the client closes at its end.
func (g *garbage) kept() (*native.QP, native.Path, frame.PathBody) {
	pair, own, body := g.makePair()
	g.made++
	g.pairs[g.made] = pair
	return pair, own, body
}

// senseless ends the session in one of the ways that have no sense.
func (g *garbage) senseless() {
	switch g.rng.IntN(5) {
	case 0:
		g.put(frame.Header{Type: frame.Close}, nil)
	case 1:
		h := frame.Header{
			Type: frame.Type(g.rng.Uint32N(40)), Status: frame.Status(g.rng.Uint32N(25)), ID: g.rng.Uint64N(20),
			Region: g.number(), Offset: g.rng.Uint64N(frame.MaxNumber), Size: g.rng.Uint64N(spanBytes),
		}
		g.put(h, make([]byte, one(g, 0, 4, 40, 64)))
	case 2:
		raw := make([]byte, 1+g.rng.IntN(200))
		for i := range raw {
			raw[i] = byte(g.rng.Uint32())
		}
		g.write(raw)
	case 3:
		g.write([]byte("GET / HTTP/1.1\r\nHost: penstock.example\r\nAccept: */*\r\n\r\n"))
	case 4: // ends within a header, or a body
		raw := make([]byte, frame.HeaderBytes+frame.PathBytes)
		frame.Header{Type: frame.Path, ID: g.last + 1, Length: frame.PathBytes}.Encode(raw)
		g.judge(over)
		_, _ = g.conn.Write(raw[:1+g.rng.IntN(len(raw)-1)])
		_ = g.conn.CloseWrite()
	}
}

// put sends a frame.
func (g *garbage) put(h frame.Header, body []byte) {
	h.Length = uint32(len(body))
	raw := make([]byte, frame.HeaderBytes, frame.HeaderBytes+len(body))
	h.Encode(raw)
	g.write(append(raw, body...))
}

// write sends what may be a frame, and notes before what the server has to make of it.
func (g *garbage) write(raw []byte) {
	if len(raw) < frame.HeaderBytes {
		g.judge(over) // and there it ends
		_, _ = g.conn.Write(raw)
		_ = g.conn.CloseWrite()
		return
	}
	h, err := frame.Decode(raw)
	body := raw[frame.HeaderBytes:]
	switch {
	case err != nil:
		g.judge(broken)
	case int(h.Length) > len(body):
		g.judge(over)
		_, _ = g.conn.Write(raw)
		_ = g.conn.CloseWrite()
		return
	case g.reveals(h, body):
		return
	default:
		g.judge(g.note(h, body[:h.Length]))
		if len(body) > int(h.Length) {
			g.judge(doubtful) // the rest begins another header
		}
	}
	_, _ = g.conn.Write(raw) // an error means that the session has ended
}

func (g *garbage) judge(v verdict) {
	g.worst = max(g.worst, v)
	g.unsure = g.unsure || v == doubtful
}

// reveals tells whether a KEYED grants, by a bit that was changed, what the checks take for not granted.
func (g *garbage) reveals(h frame.Header, body []byte) bool {
	if h.Type != frame.Keyed || h.Length < frame.KeyBytes || binary.LittleEndian.Uint32(body) != g.key.RKey() {
		return false
	}
	start := g.key.Addr()
	return h.Offset != start+spanBytes+base(h.Region%16) && h.Offset < start+2*spanBytes && h.Offset+h.Size > start
}

// note notes what a frame of good form asks for.
func (g *garbage) note(h frame.Header, body []byte) verdict {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch h.Type {
	case frame.Ping:
		g.pings++
	case frame.Keyed:
		if _, err := frame.DecodeKeys(body); err != nil {
			return broken
		}
		g.announced[h.Region]++
	case frame.Forget:
		g.forgets[h.Region]++
	case frame.Path:
		if _, err := frame.DecodePath(body); err != nil || h.ID <= g.last {
			return broken
		}
		g.last = h.ID
		g.paths[h.ID] = &proposed{}
	case frame.Fenced:
		if h.ID == 0 || h.ID > g.last {
			return broken
		}
		if p := g.paths[h.ID]; p != nil {
			p.ended = true
		}
	case frame.PathUp:
		return g.noteUp(g.paths[h.ID])
	case frame.Close:
		return over
	default:
		return broken
	}
	return fine
}

// noteUp judges a PATH_UP. mu is held.
func (g *garbage) noteUp(p *proposed) verdict {
	switch {
	case p == nil || p.ended || p.answered && p.answer == nil:
		return broken
	case p.answer == nil || p.up: // may be answered by now; may be lost by now
		p.up = true
		return doubtful
	}
	p.up = true
	return fine
}

// move begins a transfer of the session.
func (g *garbage) move() {
	if g.begun == garbageMoves {
		return
	}
	number, d := uint32(1+g.rng.IntN(garbageRegions)), one(g, fabric.ForGet, fabric.ForPut)
	off, size := g.rng.Int64N(spanBytes/2), 1+g.rng.Int64N(spanBytes/2)
	wait := patience
	if g.rng.IntN(10) == 0 {
		wait = shortly
		g.judge(doubtful) // it may cost the session
	}
	r, err := g.open(number, off, fabric.Grant{
		Principal: g.owner, Direction: d, Bytes: size, Deadline: time.Now().Add(wait),
	})
	if err != nil {
		if !documented(err) {
			g.t.Errorf("open: %v", err)
		}
		return
	}
	g.begun++
	buf := g.b.buffer(int(size))
	from := int64(base(uint64(number))) + off
	target := g.window()[from : from+size]
	g.moves.Go(func() {
		defer buf.Release()
		g.carry(r, d, buf.Bytes(), target, func() error {
			if d == fabric.ForGet {
				return r.Write(context.Background(), 0, buf)
			}
			return r.Read(context.Background(), 0, buf)
		})
	})
}

// open opens a window of a region, as long as the grant is for.
func (g *garbage) open(number uint32, off int64, grant fabric.Grant) (fabric.Remote, error) {
	g.tokens++
	return g.b.fabric.Open(context.Background(), token.Descriptor{
		Kind: token.Session, Fabric: Name, SessionID: g.offer.ID, Region: frame.JoinRegion(number, g.tokens),
		Addr: uint64(off), Size: grant.Bytes,
	}, grant)
}

// lose begins the session with a path that is lost for a fault of the client: its only region has a key that its
// adapter does not know. The client is told once; take sees when it is told again.
func (g *garbage) lose() {
	const region = garbageRegions + 2 // of no other frame
	pair, own, body := g.kept()
	g.put(frame.Header{Type: frame.Path, ID: g.last + 1}, encode(body))
	p := g.paths[g.last]
	state := func(ok func() bool) func() bool {
		return func() bool {
			g.mu.Lock()
			defer g.mu.Unlock()
			return ok()
		}
	}
	soon(g.t, "a path", state(func() bool { return p.answer != nil }))
	if err := pair.Receive(own, peerOf(p.answer)); err != nil {
		g.t.Fatal(err)
	}
	g.put(frame.Header{Type: frame.PathUp, ID: g.last}, nil)
	h := frame.Header{Type: frame.Keyed, Region: region, Offset: g.key.Addr() + spanBytes, Size: 4096}
	g.put(h, frame.EncodeKeys([]uint32{g.key.RKey() ^ 1}))
	soon(g.t, "a region", state(func() bool { return g.announced[region] == 0 }))
	r, err := g.open(region, 0, fabric.Grant{
		Principal: g.owner, Direction: fabric.ForGet, Bytes: 4096, Deadline: time.Now().Add(patience),
	})
	if err != nil {
		g.t.Fatal(err)
	}
	buf := g.b.buffer(4096)
	defer buf.Release()
	moved := make(chan error, 1)
	go func() { moved <- errors.Join(r.Write(context.Background(), 0, buf), r.Close()) }()
	soon(g.t, "word of the lost path", state(func() bool { return p.lost }))
	g.put(frame.Header{Type: frame.Ping}, nil)
	soon(g.t, "an answer behind that word", state(func() bool { return g.pings == 0 }))
	_ = pair.Fail()
	g.put(frame.Header{Type: frame.Fenced, ID: g.last}, nil)
	if err := <-moved; err == nil {
		g.t.Error("moved by a key that the adapter does not know")
	}
}

// peerOf is the server's queue pair.
func peerOf(a *frame.PathBody) native.Peer {
	return native.Peer{
		QPN: a.QPN, PSN: a.PSN, GID: a.GID, LID: a.LID, MTU: frame.MTUBytes(a.MTU), Reads: int(a.Reads),
	}
}

// carry moves, closes, and looks at the bytes when both went well.
func (g *garbage) carry(r fabric.Remote, d fabric.Direction, buf, target []byte, move func() error) {
	before := byte(wroteByte)
	if d == fabric.ForPut {
		before = guardByte
	}
	copy(buf, bytes.Repeat([]byte{before}, len(buf)))
	moved, closed := move(), r.Close()
	if !documented(moved) || !documented(closed) {
		g.t.Errorf("direction %d: %v, %v", d, moved, closed)
	}
	if moved != nil || closed != nil {
		return
	}
	n := strange(target, wroteByte)
	if d == fabric.ForPut {
		n = strange(buf, wroteByte, freshByte)
	}
	if n > 0 {
		g.t.Errorf("direction %d: %d strange bytes", d, n)
	}
}
