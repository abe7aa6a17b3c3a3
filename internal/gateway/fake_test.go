package gateway_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/token"
)

// fakeFabric is a fabric whose client memory is a byte slice, with a log of every access. It stands
// for the client's side of a transfer, which these tests are not about.
type fakeFabric struct {
	mu      sync.Mutex
	memory  []byte
	events  []string // "open", "write", "read", "abort", "close"
	grants  []fabric.Grant
	openErr error
	moveErr error
	endErr  error         // of Close
	gate    chan struct{} // not nil: moves wait for it or for their context
	entered chan struct{} // not nil: told when a move begins
	offered func()        // not nil: runs after a session was offered
	opening func()        // not nil: runs before a window is opened
	claimed int           // tokens whose number was taken
	claims  error         // of Claim
}

func newFakeFabric() *fakeFabric { return &fakeFabric{memory: make([]byte, 16<<20)} }

func (f *fakeFabric) Name() string { return "tcp" }
func (f *fakeFabric) Rails() []fabric.Rail {
	return []fabric.Rail{{Fabric: "tcp", Name: "fake", Up: true}}
}
func (f *fakeFabric) Close() error { return nil }

func (f *fakeFabric) NewSession(context.Context, string) (fabric.SessionOffer, error) {
	if f.offered != nil {
		defer f.offered()
	}
	return fabric.SessionOffer{Secret: token.NewSecret(), Network: "tcp", Address: "127.0.0.1:1"}, nil
}
func (f *fakeFabric) RevokePrincipal(who string) { f.note("revoke " + who) }

func (f *fakeFabric) Claim(token.Descriptor, string) (*fabric.Claim, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.claimed++
	return nil, f.claims
}

func (f *fakeFabric) note(event string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, event)
}

// log returns and forgets what happened.
func (f *fakeFabric) log() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.events
	f.events = nil
	return e
}

func (f *fakeFabric) lastGrant() fabric.Grant {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.grants[len(f.grants)-1]
}

func (f *fakeFabric) Open(_ context.Context, d token.Descriptor, g fabric.Grant) (fabric.Remote, error) {
	if f.opening != nil {
		f.opening()
	}
	if f.openErr != nil {
		return nil, f.openErr
	}
	if d.Addr > uint64(len(f.memory)) || d.Size > int64(len(f.memory))-int64(d.Addr) {
		return nil, fabric.ErrWindow
	}
	f.note("open")
	f.mu.Lock()
	defer f.mu.Unlock()
	f.grants = append(f.grants, g)
	return &fakeRemote{f: f, base: int64(d.Addr), n: g.Bytes}, nil
}

type fakeRemote struct {
	f    *fakeFabric
	base int64
	n    int64

	closed bool // guarded by f.mu
	moves  sync.WaitGroup
}

func (r *fakeRemote) Size() int64 { return r.n }

// begin notes an access. After Close there is none, as the contract of fabric.Remote says.
func (r *fakeRemote) begin(event string) error {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	if r.closed {
		return fabric.ErrFenced
	}
	r.f.events = append(r.f.events, event)
	r.moves.Add(1)
	return nil
}

func (r *fakeRemote) wait(ctx context.Context) error {
	if r.f.entered != nil {
		select {
		case r.f.entered <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if r.f.gate != nil {
		select {
		case <-r.f.gate:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return r.f.moveErr
}

func (r *fakeRemote) Write(ctx context.Context, off int64, src ...arena.Buffer) error {
	if err := r.begin("write"); err != nil {
		return err
	}
	defer r.moves.Done()
	if err := r.wait(ctx); err != nil {
		return err
	}
	for _, b := range src {
		if off+int64(b.Len()) > r.n {
			return fmt.Errorf("write of %d at %d: %w", b.Len(), off, fabric.ErrTransfer)
		}
		off += int64(copy(r.f.memory[r.base+off:], b.Bytes()))
	}
	return nil
}

func (r *fakeRemote) Read(ctx context.Context, off int64, dst ...arena.Buffer) error {
	if err := r.begin("read"); err != nil {
		return err
	}
	defer r.moves.Done()
	if err := r.wait(ctx); err != nil {
		return err
	}
	for _, b := range dst {
		off += int64(copy(b.Bytes(), r.f.memory[r.base+off:r.base+r.n]))
	}
	return nil
}

func (r *fakeRemote) Abort() { r.f.note("abort") }

func (r *fakeRemote) Close() error {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	if r.closed {
		panic("window closed twice")
	}
	r.closed = true
	r.f.mu.Unlock()
	r.moves.Wait() // the moves' contexts have ended, or they have
	r.f.mu.Lock()
	r.f.events = append(r.f.events, "close")
	return r.f.endErr
}

// tokenFor is a ps1 token for [off, off+n) of the fake's memory.
func tokenFor(off, n int64) string {
	return fmt.Sprintf("ps1:tcp:%032x:%016x:%016x:%016x", 7, 1, off, n)
}
