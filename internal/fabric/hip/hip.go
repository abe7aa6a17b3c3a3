// Package hip is the fabric of hipobj-rc-v2: a transfer between two messages, by a queue pair that was made for it
// alone. A GET is written into the client's memory, with an immediate behind it; a PUT is written by the client into
// staging memory of this node, and copied from there.
//
// Called by: gateway (the messages), by fabric.Exchange; sink (the bytes); opened by server.
//
// Words: the staging memory is one mapping of this node, and a run a piece of it; a session is prepared, then taken,
// and ends; to fence one is to begin the end of its queue pair, without waiting.
//
// Invariants:
//  1. A session's queue pair leads to a GID that Options.Permits for the HTTP peer, and is used for one transfer.
//  2. What is written of a GET lies in [Readiness.Addr, +Bytes), and in the token's window where that names one. The
//     immediate is sent once, behind all bytes, and only when each of them is acknowledged and proved; never after
//     Abort.
//  3. Nothing is under way to a client's memory when Close of its Remote has returned, and its queue pair is reset
//     where an operation did not end well; then Close waits linger for what the network may hold, too. The queue pair
//     is fenced Margin before the deadline. Where an adapter does not reset it, Close returns ErrLingering.
//  4. No byte of the staging memory is read before the client has said, by the immediate that is its cookie, that it
//     wrote exactly as many as it announced, and before its queue pair is reset after that: nobody changes them any
//     more. The client's key opens these bytes only, by this queue pair, for writing, until then.
//  5. A run is handed out again only when its stage is gone. One whose stage an adapter does not give back stays out.
//  6. A session ends once, by its time, Cancel, RevokePrincipal, Close or Finish; from Take on it ends with Finish.
//     Its Held is closed then, and its place is free. Another principal, or a wrong cookie, changes nothing.
//  7. No memory is allocated for payload: it is the staging memory, mapped once, and the caller's buffers.
//
// Lock order: Fabric.mu, remote.mu and staging.mu are leaves: none is held over a call of rails, of a Held, or of
// another lock.
//
// What it does not do: the messages and who may send them (gateway), choosing rails and their health (rails), tokens on
// requests for objects, checksums.
package hip

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/verbs/initiator"
	"github.com/penstock-store/penstock/internal/fabric/verbs/rails"
	"github.com/penstock-store/penstock/internal/token"
)

// Name of the fabric.
const Name = "hipobj"

const (
	// MaxBytes of a transfer, as the protocol has it.
	MaxBytes = math.MaxInt32
	// MaxDeadline is the most that a transfer may take from the second message to its answer.
	MaxDeadline = 8 * time.Second
	// Margin is what a reset may take at the end of a GET; of short deadlines it is an eighth.
	Margin = 500 * time.Millisecond

	// defaultPrepared is how long the second message may take to come: clients give the connection as long.
	defaultPrepared = 10 * time.Second
	// linger is how long a packet may live in the network after its queue pair was reset.
	linger = 100 * time.Millisecond
	// settleWait bounds the wait for a reset, which takes an adapter microseconds.
	settleWait = 2 * time.Second
	// closeWait bounds the wait for sessions whose requests are under way: they are told to end.
	closeWait = 5 * time.Second
	// maxMTU is beyond no port's, and so means the port's: the messages do not say what the client's end takes.
	maxMTU = 4096
	// fair is the part of the sessions that one principal may hold, at least one: a client that prepares and never
	// goes on keeps a place for as long as Prepared, again and again, and must not shut out everybody else.
	fair = 4
	// rnrForEver lets a client post its receive whenever it likes; the deadline bounds that.
	rnrForEver = 7
)

// Causes of a session's end.
var (
	errCanceled = errors.New("hip: canceled by the client")
	errClosing  = errors.New("hip: fabric is closing")
	errFinished = errors.New("hip: session is finished")
	errAborted  = errors.New("hip: given up by this node")
)

// Options of New.
type Options struct {
	Rails    *rails.Set
	Permits  func(gid [16]byte, peer netip.Addr) bool
	Sessions int           // at most; a quarter of them for one principal
	Staging  int           // bytes of the staging memory; half of them for several PUTs of one principal
	Prepared time.Duration // from Prepare to Take; 0 means 10 s
	Deadline time.Duration // from Take on; 0 means MaxDeadline, which is the most
	Logger   *slog.Logger
}

// Fabric keeps the sessions.
type Fabric struct {
	o       Options
	margin  time.Duration
	settle  time.Duration // settleWait
	closing time.Duration // closeWait
	staging *staging
	stat    fabric.Counters

	mu       sync.Mutex
	changed  *sync.Cond // a session is gone, or a run is back
	closed   bool
	sessions map[[16]byte]*session
	runs     int // that are out
}

var (
	_ fabric.Fabric        = (*Fabric)(nil)
	_ fabric.Exchange      = (*Fabric)(nil)
	_ fabric.Revoker       = (*Fabric)(nil)
	_ fabric.StatsReporter = (*Fabric)(nil)
)

// New maps the staging memory; the rails stay their owner's, and are closed after the fabric.
func New(o Options) (*Fabric, error) {
	o.Prepared = cmp.Or(o.Prepared, defaultPrepared)
	o.Deadline = min(cmp.Or(o.Deadline, MaxDeadline), MaxDeadline)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s, err := newStaging(o.Staging)
	if err != nil {
		return nil, err
	}
	f := &Fabric{o: o, margin: min(Margin, o.Deadline/8), settle: settleWait, closing: closeWait,
		staging: s, sessions: make(map[[16]byte]*session)}
	f.changed = sync.NewCond(&f.mu)
	return f, nil
}

// Name is "hipobj".
func (f *Fabric) Name() string { return Name }

// Open takes no token: a transfer needs both messages. Errors: ErrUnsupportedToken.
func (f *Fabric) Open(context.Context, token.Descriptor, fabric.Grant) (fabric.Remote, error) {
	return nil, fabric.ErrUnsupportedToken
}

// Rails are the node's.
func (f *Fabric) Rails() []fabric.Rail {
	var list []fabric.Rail
	for _, r := range f.o.Rails.Ports() {
		rail := fabric.Rail{Fabric: Name, Name: r.Name(), Up: r.Up}
		if !r.Up {
			rail.Reason = r.Reason
		}
		list = append(list, rail)
	}
	return list
}

// Stats reads the counters.
func (f *Fabric) Stats() fabric.Stats {
	s := f.stat.Read(Name)
	s.MappedBytes = int64(f.staging.taken())
	return s
}

// Prepare implements fabric.Exchange.
func (f *Fabric) Prepare(ctx context.Context, p fabric.Preparation) (fabric.Prepared, error) {
	s := &session{fabric: f, p: p, gone: make(chan struct{})}
	s.ctx, s.end = context.WithCancelCause(context.WithoutCancel(ctx)) // it outlives the request
	if err := f.prepare(ctx, s); err != nil {
		f.stat.Refused.Add(1)
		s.finish(errFinished)
		return fabric.Prepared{}, err
	}
	return s.offer, nil
}

// prepare makes the session's queue pair. After an error the session is the caller's to finish.
func (f *Fabric) prepare(ctx context.Context, s *session) error {
	if err := f.check(s.p); err != nil {
		return err
	}
	if err := f.enter(s); err != nil {
		return err
	}
	if s.p.Direction == fabric.ForPut {
		r, err := f.staging.take(s.p.Principal, int(s.p.Bytes))
		if err != nil {
			return fmt.Errorf("%w: %w", fabric.ErrLimit, err)
		}
		s.run = r
		f.countRun(1)
	}
	hurry := context.AfterFunc(ctx, func() { s.end(context.Cause(ctx)) })
	err := s.connect()
	hurry()
	if ctx.Err() != nil {
		s.end(context.Cause(ctx))
	}
	if err != nil {
		return s.refusal(err)
	}
	s.offer = s.prepared() // before anybody can end it
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.ctx.Err() != nil {
		return s.refusal(context.Cause(s.ctx))
	}
	s.state = prepared
	s.lapse = time.AfterFunc(f.o.Prepared, s.expire)
	f.stat.Offers.Add(1)
	return nil
}

// check looks at what can be told without the adapter.
func (f *Fabric) check(p fabric.Preparation) error {
	d := p.Token
	switch {
	case d.Kind != token.HipObj || !d.HipRC:
		return fabric.ErrUnsupportedToken
	case p.Bytes < 1:
		return fmt.Errorf("%w: %d bytes", fabric.ErrWindow, p.Bytes)
	case p.Bytes > MaxBytes, p.Direction == fabric.ForPut && p.Bytes > int64(f.staging.size),
		d.Size > 0 && p.Bytes > d.Size:
		return fmt.Errorf("%w: %d", fabric.ErrTooLarge, p.Bytes)
	case !f.o.Permits(d.GID, p.Peer.Addr()):
		return fmt.Errorf("%w: the token's address is not the client's", fabric.ErrNotGranted)
	}
	return nil
}

// enter gives the session its id and a place.
func (f *Fabric) enter(s *session) error {
	if _, err := rand.Read(s.id[:]); err != nil {
		return fmt.Errorf("hip: random number: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.closed:
		return fmt.Errorf("%w: %w", fabric.ErrNoFabric, errClosing)
	case len(f.sessions) >= f.o.Sessions:
		return fmt.Errorf("%w: %d sessions", fabric.ErrLimit, len(f.sessions))
	}
	own := 0
	for _, other := range f.sessions {
		if other.p.Principal == s.p.Principal {
			own++
		}
	}
	if own >= max(1, f.o.Sessions/fair) {
		return fmt.Errorf("%w: %d sessions of the principal", fabric.ErrLimit, own)
	}
	f.sessions[s.id] = s
	f.stat.Sessions.Add(1)
	return nil
}

// leave forgets the session, which has ended.
func (f *Fabric) leave(s *session) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sessions[s.id] == s {
		delete(f.sessions, s.id)
		f.stat.Sessions.Add(-1)
	}
	f.changed.Broadcast()
}

func (f *Fabric) countRun(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.runs += n
	f.changed.Broadcast()
}

// Take implements fabric.Exchange.
func (f *Fabric) Take(id [16]byte, principal string, r fabric.Readiness) (*fabric.Taken, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.sessions[id]
	if s == nil {
		return nil, fabric.ErrNoSession
	}
	if err := s.admits(principal, r); err != nil {
		return nil, err
	}
	if s.state != prepared {
		return nil, fabric.ErrNoSession
	}
	s.state = taken
	s.lapse.Stop()
	s.deadline = time.Now().Add(f.o.Deadline)
	return s.take(r), nil
}

// Cancel implements fabric.Exchange.
func (f *Fabric) Cancel(ctx context.Context, id [16]byte, principal string) error {
	f.mu.Lock()
	s := f.sessions[id]
	if s == nil || s.p.Principal != principal {
		f.mu.Unlock()
		return nil
	}
	mine := s.endsNow()
	f.mu.Unlock()
	s.fence(errCanceled)
	if mine {
		s.finish(errCanceled)
	}
	select {
	case <-s.gone:
		return s.stuck
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// RevokePrincipal ends the sessions of the principal. When it returns, their queue pairs are reset; what is taken ends
// with its Finish.
func (f *Fabric) RevokePrincipal(principal string) {
	f.endAll(fabric.ErrRevoked, func(s *session) bool { return s.p.Principal == principal })
}

// endAll ends what is prepared, and fences what is taken, and waits for the adapters.
func (f *Fabric) endAll(cause error, which func(*session) bool) {
	var ends, others []*session
	f.mu.Lock()
	for _, s := range f.sessions {
		switch {
		case !which(s):
		case s.state == preparing: // Prepare finds out, and finishes it
			s.fence(cause)
		case s.endsNow():
			ends = append(ends, s)
		default:
			others = append(others, s)
		}
	}
	f.mu.Unlock()
	var tasks sync.WaitGroup
	for _, s := range others {
		s.fence(cause)
		tasks.Go(func() { _ = s.settle() }) // an adapter that does not let go is in the log
	}
	for _, s := range ends {
		tasks.Go(func() { s.finish(cause) })
	}
	tasks.Wait()
}

// Close ends all sessions, and waits for the requests that have taken one. It may be called again after an error, which
// says what is left: then the staging memory stays mapped.
func (f *Fabric) Close() error {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.endAll(errClosing, func(*session) bool { return true })
	over := time.Now().Add(f.closing)
	timer := time.AfterFunc(f.closing, func() { f.countRun(0) })
	defer timer.Stop()
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.sessions)+f.runs > 0 && time.Now().Before(over) {
		f.changed.Wait()
	}
	if n := len(f.sessions); n+f.runs > 0 {
		return fmt.Errorf("hip: close: %d sessions and %d runs of staging memory are left", n, f.runs)
	}
	return f.staging.close()
}

// refusal is what the caller of Prepare is told.
func refusal(err error) error {
	kind := fabric.ErrNoFabric
	switch {
	case errors.Is(err, rails.ErrTaken), errors.Is(err, initiator.ErrLocal):
		kind = fabric.ErrNotGranted
	case errors.Is(err, rails.ErrShare), errors.Is(err, initiator.ErrLimit), errors.Is(err, syscall.ENOMEM):
		kind = fabric.ErrLimit
	}
	return fmt.Errorf("%w: %w", kind, err)
}
