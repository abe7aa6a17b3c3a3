package verbs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"testing"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// What a principal with a valid key can take from others: tests of its bounds.

// TestConnectsOfOnePrincipal: queue pairs that a kernel takes its time to connect, of as many sessions as a principal
// likes, leave turns for others.
func TestConnectsOfOnePrincipal(t *testing.T) {
	b := newBench(t, fakeverbs.Options{})
	slow := b.nic.Inject(fakeverbs.Rule{
		At: fakeverbs.AtReceive, Do: fakeverbs.Hold, Device: rail0, Times: fakeverbs.Always,
	})
	var attackers []*rawClient
	for range maxConnects + 8 {
		c := b.connect("h", device0)
		c.propose(0)
		c.alive("its path waits")
		attackers = append(attackers, c)
	}
	slow.Await(maxConnects / connectShare)
	if n := slow.Hits(); n > maxConnects/connectShare {
		t.Errorf("%d connect at once", n)
	}
	slow.Remove() // the others would connect at once, had they a turn
	honest := b.connect("p", device1)
	honest.path(0)
	honest.works(honest.region(4096))
	_ = attackers[0].conn.Close() // one that has a turn, and one that waits
	_ = attackers[maxConnects].conn.Close()
	honest.alive("sessions ended")
	slow.Release()
	for i, c := range attackers {
		if i != 0 && i != maxConnects {
			c.want(frame.PathOK, 1)
		}
	}
}

// propose offers a new queue pair to a rail and does not wait for the answer.
func (c *rawClient) propose(rail uint64) (id uint64) {
	c.t.Helper()
	q, _, body := c.makePair()
	c.last++
	c.pairs[c.last] = q
	c.send(frame.Header{Type: frame.Path, ID: c.last, Region: rail}, encode(body))
	return c.last
}

// TestOnePrincipalEjectsNothing: a client breaks its own paths, says FENCED to all of them at once, from several
// sessions and devices, and would have two rails ejected while another client moves bytes by them.
func TestOnePrincipalEjectsNothing(t *testing.T) {
	b := newBench(t, fakeverbs.Options{})
	l := b.load(b.client("p"))
	defer l.end()
	var attackers []*rawClient
	var memories [][]byte
	for i := range lapsesToEject {
		c := b.connect("h", []string{device0, device1}[i%2])
		attackers, memories = append(attackers, c), append(memories, c.region(4096))
	}
	for round := range 4 {
		l.more(t, "honest transfers")
		rail := uint64(round % 2)
		var moves sync.WaitGroup
		ids := make([]uint64, len(attackers))
		for i, c := range attackers {
			ids[i] = c.breaks(rail, &moves)
		}
		for i, c := range attackers {
			c.fence(ids[i])
		}
		for i, c := range attackers {
			ids[i], _ = c.path(1 - rail) // another rail reaches the client
		}
		moves.Wait()
		for i, c := range attackers {
			c.works(memories[i])
			c.fence(ids[i])
		}
	}
	l.more(t, "honest transfers")
	for i := range 2 {
		if r := b.rail(i); r.Ejections != 0 || !r.Up || r.Engine.Lost < 2*lapsesToEject {
			t.Errorf("rail %d: %+v", i, r)
		}
	}
}

// breaks makes a path whose queue pair fails without a word, and lets the node lose it by a transfer, which waits for
// FENCED and another path.
func (c *rawClient) breaks(rail uint64, moves *sync.WaitGroup) (id uint64) {
	c.t.Helper()
	id, _ = c.path(rail)
	if err := c.pairs[id].Fail(); err != nil {
		c.t.Fatal(err)
	}
	r := c.mustOpen(fabric.ForGet, 4096, patience)
	buf := c.b.buffer(4096)
	moves.Go(func() {
		defer buf.Release()
		if err := errors.Join(r.Write(context.Background(), 0, buf), r.Close()); err != nil {
			c.t.Error(err)
		}
	})
	c.want(frame.Lost, id)
	return id
}

// TestPathStorm makes and fences paths as fast as it can, in many sessions, while another client moves bytes.
func TestPathStorm(t *testing.T) {
	b := newBench(t, fakeverbs.Options{})
	l := b.load(b.client("p", device1))
	defer l.end()
	l.more(t, "transfers")
	const sessions, cycles = 8, 150
	var storm sync.WaitGroup
	for i := range sessions {
		c := b.connect("h", device0)
		q, _, body := c.makePair()
		c.pairs[1] = q
		storm.Go(func() {
			answers := make(chan error, 1)
			go func() {
				_, err := io.Copy(io.Discard, c.conn)
				answers <- err
			}()
			for n := range uint64(cycles) {
				raw := bytes.NewBuffer(nil)
				_ = frame.WriteFrame(raw, frame.Header{Type: frame.Path, ID: n + 1, Region: uint64(i % 2)}, encode(body))
				_ = frame.WriteFrame(raw, frame.Header{Type: frame.Fenced, ID: n + 1}, nil)
				if _, err := c.conn.Write(raw.Bytes()); err != nil {
					c.t.Errorf("session %d: %v", i, err)
					break
				}
			}
			_ = c.conn.CloseWrite()
			<-answers
		})
	}
	l.more(t, "transfers in the storm")
	storm.Wait()
	l.more(t, "transfers after it")
	soon(t, "the rails are as before", func() bool { return b.rail(0).Engine.Paths+b.rail(1).Engine.Paths <= 2 })
}

// TestRegionsOfASession: a session has its limit of regions, however many it forgets and announces.
func TestRegionsOfASession(t *testing.T) {
	const most = 5
	b := newBench(t, fakeverbs.Options{}, func(o *setup) {
		o.Ledger = fabric.NewLedger(fabric.Limits{RegionsPerSession: most})
	})
	c := b.connect("p", device0)
	c.path(0)
	memory := c.region(4096) // number 1
	announce := func(number uint64) frame.Header {
		c.send(frame.Header{Type: frame.Keyed, Region: number, Size: 4096}, frame.EncodeKeys([]uint32{7}))
		h, _ := c.receive()
		return h
	}
	for n := range uint64(10 * most) {
		h := announce(n + 2)
		switch {
		case n+1 < most && h.Type != frame.RegionOK:
			t.Fatalf("region %d: %+v", n+2, h)
		case n+1 >= most && (h.Type != frame.RegionRefused || h.Status != frame.StatusLimit):
			t.Fatalf("region %d beyond the limit: %+v", n+2, h)
		}
	}
	c.send(frame.Header{Type: frame.Forget, Region: 2}, nil)
	if h, _ := c.want(frame.Forgotten, 0); h.Status != frame.StatusOK {
		t.Errorf("forgotten: %+v", h)
	}
	if h := announce(900); h.Type != frame.RegionOK {
		t.Errorf("after one was forgotten: %+v", h)
	}
	c.works(memory)
}

// TestFlood asks and does not read: the session ends, however much the other end's kernel holds.
func TestFlood(t *testing.T) {
	b := newBench(t, fakeverbs.Options{})
	witness := b.connect("p", device1)
	witness.path(0)
	memory := witness.region(4096)
	for name, h := range map[string]frame.Header{
		"pings": {Type: frame.Ping}, "forgets": {Type: frame.Forget, Region: 9}, "paths": {Type: frame.Path, Region: 99},
	} {
		c := b.connect("h", device0)
		q, _, body := c.makePair()
		c.pairs[1] = q
		go func() { // until the node closes the connection
			for {
				raw := bytes.NewBuffer(nil)
				for range 100 {
					if h.Type == frame.Path {
						h.ID++
						_ = frame.WriteFrame(raw, h, encode(body))
					} else {
						_ = frame.WriteFrame(raw, h, nil)
					}
				}
				if _, err := c.conn.Write(raw.Bytes()); err != nil {
					return
				}
			}
		}()
		soon(t, name+": the session ends", func() bool {
			_, err := b.fabric.roster.Find(c.offer.ID)
			return err != nil
		})
		witness.works(memory)
	}
}

// TestQueuePairsOfOthers names queue pairs of other users of the client's machine, and of the node, as if they were its
// own: paths to them are refused, or fail when the queue pair has answered to its owner, who notices nothing.
func TestQueuePairsOfOthers(t *testing.T) {
	b := newBench(t, fakeverbs.Options{})
	victim := b.connect("q", device0)
	first, answer := victim.path(0)
	memory := victim.region(4096)
	attacker := b.connect("h", device0)
	attacker.region(4096)
	early := attacker.names(victim.pairs[first].Number(), attacker.gid)
	attacker.want(frame.PathOK, early)
	attacker.send(frame.Header{Type: frame.PathUp, ID: early}, nil)
	attacker.alive("a path to another's queue pair, which has not answered yet")
	victim.works(memory)
	attacker.want(frame.Lost, early)
	attacker.send(frame.Header{Type: frame.Fenced, ID: early}, nil)

	for name, end := range map[string]frame.PathBody{
		"another client's": {QPN: victim.pairs[first].Number(), GID: attacker.gid},
		"the node's":       {QPN: answer.QPN, GID: answer.GID},
	} {
		late := attacker.names(end.QPN, end.GID)
		if h, _ := attacker.want(frame.PathRefused, late); h.Status != frame.StatusDuplicate {
			t.Errorf("%s queue pair: %v", name, h.Status)
		}
	}
	same := b.connect("q", device0)
	same.want(frame.PathOK, same.names(victim.pairs[first].Number(), same.gid)) // its machine may have started again
	victim.works(memory)
	soon(t, "the victim's path and its namesake are left", func() bool { return b.paths() == 2 })
	if r := b.rail(0); r.Engine.Lost != 0 || r.Engine.Denied != 0 {
		t.Errorf("a path was lost: %+v", r.Engine)
	}
	victim.fence(first)
	soon(t, "its namesake is left", func() bool { return b.paths() == 1 })
}

// names offers a path to any queue pair.
func (c *rawClient) names(qpn uint32, gid [16]byte) (id uint64) {
	c.t.Helper()
	c.last++
	body := frame.PathBody{QPN: qpn, PSN: 7, GID: gid, MTU: 3, Reads: 4}
	c.send(frame.Header{Type: frame.Path, ID: c.last}, encode(body))
	return c.last
}
