package rdma

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/penstock-store/penstock/client/target"
	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/fabrictest"
	"github.com/penstock-store/penstock/internal/fabric/verbs"
	"github.com/penstock-store/penstock/internal/fabric/verbs/rails"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/token"
	"github.com/penstock-store/penstock/native"
)

const (
	mover       = "mover" // the principal
	pieceBytes  = 1 << 20 // of the arena's buffers, as a node has them
	tokensAhead = 2048    // that a client grants for one measurement
)

// target grants windows of its memory: "get" and "put" print tokens for so many, "end" takes them back.
func (w *worker) target() error {
	offer, err := frame.DecodeSessionReply(bytes.NewReader(w.Offer))
	if err != nil {
		return err
	}
	devices, err := target.OpenDevices(nil, []string{w.Device})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience())
	defer cancel()
	c, err := target.Dial(ctx, offer, target.Options{Devices: devices})
	if err != nil {
		return errors.Join(err, devices.Close())
	}
	m, err := target.NewMemory(int(w.Bytes) * w.Flight)
	if err != nil {
		return errors.Join(err, c.Close(), devices.Close())
	}
	r, err := c.Register(ctx, m)
	if err == nil {
		newPattern(w.Seed).fill(m.Bytes(), 0)
		err = w.grants(c, r)
	}
	return errors.Join(err, c.Fence(context.Background()), m.Free(), devices.Close())
}

func (w *worker) grants(c *target.Conn, r *target.Region) error {
	var open []*target.Grant
	return w.orders(func(o order) error {
		answer := report{What: "done"}
		if o.Verb == "end" {
			for _, g := range open {
				if err := g.End(); err != nil {
					return err
				}
			}
			open = nil
			return w.out.Encode(answer)
		}
		d := target.ForGet
		if o.Verb == "put" {
			d = target.ForPut
		}
		for i := range tokensAhead {
			g, err := c.Expect(r, int64(i%w.Flight)*w.Bytes, w.Bytes, d)
			if err != nil {
				return err
			}
			open = append(open, g)
			answer.Tokens = append(answer.Tokens, g.Token())
		}
		return w.out.Encode(answer)
	})
}

// engine is the server's data path without HTTP and drives: the rc fabric and an arena, in this process.
type engine struct {
	t      *testing.T
	fabric *verbs.Fabric
	arena  *arena.Arena
	client *process
	size   int64
}

func newEngine(t *testing.T, device string, size int64) *engine {
	t.Helper()
	a, err := arena.New(arena.Options{Shares: []arena.ShareOption{
		{Name: "fabric", Buffers: speedFlight * int(size/pieceBytes), BufferBytes: pieceBytes},
	}})
	if err != nil {
		t.Fatal(err)
	}
	library, err := native.Open(native.Options{})
	if err != nil {
		t.Fatal(err)
	}
	opened, err := rails.Open(rails.Options{Library: library, Devices: []string{device}, Memory: a.Memory()})
	if err != nil {
		t.Fatal(err)
	}
	set, err := rails.New(opened, nil)
	if err != nil {
		t.Fatal(err)
	}
	f, err := verbs.New(verbs.Options{
		Ledger: fabric.NewLedger(fabric.Limits{}), Address: "127.0.0.1:0", Rails: set,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(f.Close(), set.Close(), a.Close(), library.Close()); err != nil {
			t.Error(err)
		}
	})
	offer, err := f.NewSession(t.Context(), mover)
	if err != nil {
		t.Fatal(err)
	}
	body, err := fabrictest.TargetOffer(offer).Encode()
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{t: t, fabric: f, arena: a, size: size}
	e.client = spawn(t, job{
		Kind: kindTarget, Offer: json.RawMessage(body), Device: device, Bytes: size, Flight: speedFlight, Seed: objectSeed,
	})
	return e
}

// rate moves windows, as many at once as perftest has messages under way, and returns MiB per second.
func (e *engine) rate(verb string) float64 {
	e.t.Helper()
	e.client.tell(order{Verb: verb})
	tokens := e.client.hears("done", patience()).Tokens
	d := fabric.ForGet
	if verb == "put" {
		d = fabric.ForPut
	}
	var mu sync.Mutex
	var moved int64
	start := time.Now()
	var tasks sync.WaitGroup
	for slot := range speedFlight {
		tasks.Go(func() {
			buffers := make([]arena.Buffer, e.size/pieceBytes)
			for i := range buffers {
				b, err := e.arena.Share("fabric").Alloc(context.Background())
				if err != nil {
					e.t.Error(err)
					return
				}
				defer b.Release()
				buffers[i] = b
			}
			for i := slot; i < len(tokens) && time.Since(start) < speedSpan; i += speedFlight {
				if err := e.move(tokens[i], d, buffers); err != nil {
					e.t.Error(err)
					return
				}
				mu.Lock()
				moved += e.size
				mu.Unlock()
			}
		})
	}
	tasks.Wait()
	took := time.Since(start)
	e.client.tell(order{Verb: "end"})
	e.client.hears("done", patience())
	return float64(moved) / (1 << 20) / took.Seconds()
}

// move is one transfer: open the window, move its bytes, close it, after which nothing of it is under way.
func (e *engine) move(text string, d fabric.Direction, buffers []arena.Buffer) error {
	desc, err := token.Parse(text)
	if err != nil {
		return err
	}
	r, err := e.fabric.Open(context.Background(), desc, fabric.Grant{
		Principal: mover, Direction: d, Bytes: e.size, Deadline: time.Now().Add(patience()),
	})
	if err != nil {
		return err
	}
	if d == fabric.ForGet {
		err = r.Write(context.Background(), 0, buffers...)
	} else {
		err = r.Read(context.Background(), 0, buffers...)
	}
	return errors.Join(err, r.Close())
}

// checks that what a PUT brought is what the client has.
func (e *engine) checks() error {
	e.client.tell(order{Verb: "put"})
	tokens := e.client.hears("done", patience()).Tokens
	buffers := make([]arena.Buffer, e.size/pieceBytes)
	for i := range buffers {
		b, err := e.arena.Share("fabric").Alloc(context.Background())
		if err != nil {
			return err
		}
		defer b.Release()
		buffers[i] = b
	}
	err := e.move(tokens[0], fabric.ForPut, buffers)
	e.client.tell(order{Verb: "end"})
	e.client.hears("done", patience())
	if err != nil {
		return err
	}
	for i, b := range buffers {
		if !newPattern(objectSeed).is(b.Bytes(), int64(i)*pieceBytes) {
			return fmt.Errorf("other bytes in buffer %d of process %d", i, os.Getpid())
		}
	}
	return nil
}
