//go:build cgo

package initiator

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"math/big"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/internal/rail"
	"github.com/penstock-store/penstock/native"
)

// wait bounds every wait of these tests: what takes longer hangs.
const wait = 60 * time.Second

// mapped is memory outside Go's heap, filled with random bytes.
func mapped(t testing.TB, n int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(b); err != nil {
			t.Error(err)
		}
	})
	return b
}

// peer is a client's end: memory that others may read and write, and queue pairs that do.
type peer struct {
	t      testing.TB
	rail   rail.Rail
	dev    *native.Device
	pd     *native.PD
	cq     *native.CQ
	mr     *native.MR
	memory []byte
	mu     sync.Mutex
	qps    []*native.QP
	psns   map[*native.QP]uint32 // the first that each sends
}

func newPeer(t testing.TB, l *native.Library, r rail.Rail, n int) *peer {
	t.Helper()
	p := &peer{t: t, rail: r, memory: mapped(t, n), psns: map[*native.QP]uint32{}}
	var err error
	if p.dev, err = l.OpenDevice(r.Device); err != nil {
		t.Fatal(err)
	}
	if p.pd, err = p.dev.NewPD(); err != nil {
		t.Fatal(err)
	}
	if p.cq, err = p.dev.NewCQ(16); err != nil {
		t.Fatal(err)
	}
	if p.mr, err = p.pd.Register(p.memory, native.LocalWrite|native.RemoteWrite|native.RemoteRead); err != nil {
		t.Fatal(err)
	}
	return p
}

// answer makes a queue pair that answers to another one.
func (p *peer) answer(to Endpoint) (Endpoint, *native.QP, error) {
	qp, err := p.pd.NewQP(p.cq, native.PairOptions{Depth: 1, Receives: 2})
	if err != nil {
		return Endpoint{}, nil, err
	}
	psn, err := rand.Int(rand.Reader, big.NewInt(1<<24))
	if err != nil {
		return Endpoint{}, nil, errors.Join(err, qp.Close())
	}
	p.mu.Lock()
	p.qps = append(p.qps, qp)
	p.psns[qp] = uint32(psn.Uint64())
	p.mu.Unlock()
	own := Endpoint{
		QPN: qp.Number(), PSN: uint32(psn.Uint64()), GID: p.rail.GID, LID: p.rail.LID, MTU: p.rail.MTU,
		Reads: max(1, min(16, p.dev.Info().MaxReads)),
	}
	path := native.Path{
		Port: p.rail.Port, GIDIndex: p.rail.GIDIndex, HopLimit: 64, Access: native.RemoteWrite | native.RemoteRead,
		PSN: own.PSN, Timeout: 14, Retries: 7, RNRRetries: 6, MinRNRTimer: 12,
	}
	err = qp.Init(path)
	if err == nil {
		err = qp.Receive(path, native.Peer{
			QPN: to.QPN, PSN: to.PSN, GID: to.GID, LID: to.LID, MTU: min(own.MTU, to.MTU), Reads: own.Reads,
		})
	}
	return own, qp, err
}

// join connects a path to a new queue pair of this peer.
func (p *peer) join(path *Path) (*native.QP, error) {
	own, qp, err := p.answer(path.Local())
	if err != nil {
		return nil, err
	}
	return qp, path.Connect(own)
}

func (p *peer) close() {
	p.t.Helper()
	for _, qp := range p.qps {
		if err := qp.Close(); err != nil {
			p.t.Errorf("close of a peer's queue pair: %v", err)
		}
	}
	for _, end := range []func() error{p.mr.Close, p.cq.Close, p.pd.Close, p.dev.Close} {
		if err := end(); err != nil {
			p.t.Errorf("close of a peer: %v", err)
		}
	}
}

// at is the address of the peer's memory at an offset.
func (p *peer) at(off int) uint64 { return p.mr.Addr() + uint64(off) }

// ended waits for a channel.
func ended(t testing.TB, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(wait):
		t.Fatalf("%s: not within %v", what, wait)
	}
}

// isOpen tells whether a channel is not closed.
func isOpen(c <-chan struct{}) bool {
	select {
	case <-c:
		return false
	default:
		return true
	}
}

// mustMove moves and expects success.
func mustMove(t testing.TB, p *Path, m Move) {
	t.Helper()
	if err := p.Move(m); err != nil {
		t.Fatalf("move: %v", err)
	}
}

// moving starts a Move; its error comes on the channel.
func moving(p *Path, m Move) <-chan error {
	got := make(chan error, 1)
	go func() { got <- p.Move(m) }()
	return got
}

func result(t testing.TB, c <-chan error) error {
	t.Helper()
	select {
	case err := <-c:
		return err
	case <-time.After(wait):
		t.Fatalf("a move did not return within %v", wait)
		return nil
	}
}

func fillRandom(b []byte) {
	if _, err := rand.Read(b); err != nil {
		panic(err)
	}
}

// sameOutside compares all but [from, to).
func sameOutside(a, b []byte, from, to int) error {
	if !bytes.Equal(a[:from], b[:from]) || !bytes.Equal(a[to:], b[to:]) {
		return fmt.Errorf("bytes outside [%d, %d) of %d differ", from, to, len(a))
	}
	return nil
}

func wantError(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got %v, want %v", err, want)
	}
	for _, other := range []error{ErrDenied, ErrLost, ErrLocal} {
		if other != want && errors.Is(err, other) {
			t.Fatalf("%v is also %v", err, other)
		}
	}
}

// onDevice tells whether these tests must use the adapters of this machine.
func onDevice() bool { return os.Getenv("PENSTOCK_TEST_VERBS") == "device" }
