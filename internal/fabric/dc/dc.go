// Package dc is the fabric of tokens that name a DCT: the client made it, and the token alone says what may be written
// or read. Bytes move by the pools of dynamic connections of the node's rails.
//
// Called by: gateway and sink, by the fabric contract; opened by server.
//
// Words: a stranger is a principal with a client's GID, since who aims at memory that is not his is told apart by both.
//
// Invariants:
//  1. A token's GID is one that Options.Permits for the request's HTTP peer: a signed user cannot aim the server at
//     somebody else's memory. A token without a GID cannot be compared, and is refused where zeros are not permitted.
//  2. Nothing outside the first Grant.Bytes of the window is posted, and nothing after Stop; what is under way Margin
//     before the deadline costs its DCI a reset. After an operation that went well nothing of it is in the network: a
//     READ came back from behind it. After one that failed a packet may be, which left before the reset, and nothing
//     calls it back: what protects the client's memory then is Linger (initiator), 100 ms, for which the operation
//     waits, and the client's own wait: 10 s, or until it has registered anew. A network that holds a packet up for
//     longer than Linger, by pause frames say, delivers it after the answer.
//  3. A Remote's Close returns when no operation is under way. Where an adapter resets no queue pair it returns
//     ErrLingering, and the request must not be answered.
//  4. Too many refusals by a client's adapter suspend the stranger for a while: they cost a DCI each.
//  5. When RevokePrincipal or Close has returned, the transfers that it ends have no operation under way; but for those
//     of an adapter that has reset no queue pair for so long, whose own Close says ErrLingering. None opens after
//     Close.
//
// Lock order: Fabric.mu and remote.mu are never held together, nor over a Move.
//
// What it does not do: sessions, the DCIs (initiator), cutting a client off: it has to wait until its deadline, or to
// register anew.
package dc

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/verbs/initiator"
	"github.com/penstock-store/penstock/internal/token"
	"github.com/penstock-store/penstock/native"
)

// Name of the fabric.
const Name = "dc"

const (
	// Stop is how long before its deadline the last work request of a transfer is posted: an adapter's retries of one
	// that meets a dead peer take less.
	Stop = 2 * time.Second
	// Margin is what a reset and the life of a packet may take at the end of a transfer.
	Margin = 500 * time.Millisecond

	// stuckWait is how long after the deadline, or a revocation, an adapter that does not reset is waited for.
	stuckWait = 2 * time.Second

	// A stranger with maxRefusals in refusalSpan is suspended for suspension: one wrong token is a mistake, and a DCI
	// is out for milliseconds each time.
	maxRefusals = 3
	refusalSpan = time.Minute
	suspension  = 30 * time.Second
	// maxStrangers bounds what is remembered: an entry is 100 bytes. Beyond it the oldest go first.
	maxStrangers = 4096
)

// Mover is a pool of a rail.
type Mover interface {
	Move(ctx context.Context, m initiator.DCMove) error
}

// Rail is one with a pool.
type Rail struct {
	Name string
	Up   func() bool
	// Reach tells whether the rail has an address of the GID's kind, and for a link-local one is on its link: local is
	// where the client's HTTP connection came in. LIDs reach from InfiniBand.
	Reach func(gid [16]byte, local netip.Addr) bool
	Pool  Mover
}

// Options of New.
type Options struct {
	Rails   []Rail
	Key     uint64 // the clients' DCTs have it. A secret, but for the one that everybody knows
	Permits func(gid [16]byte, peer netip.Addr) bool
}

// Fabric takes tokens of kind DC.
type Fabric struct {
	o    Options
	stat fabric.Counters

	mu        sync.Mutex
	next      int // rail
	strangers map[stranger]*record
	closed    bool
	open      map[*remote]struct{} // until they are closed and nothing of them is under way
}

type stranger struct {
	principal string
	gid       [16]byte
	lid       uint16
}

type record struct {
	first    time.Time // of the span
	refusals int
	until    time.Time // suspended
}

var (
	_ fabric.Fabric        = (*Fabric)(nil)
	_ fabric.Taker         = (*Fabric)(nil)
	_ fabric.Revoker       = (*Fabric)(nil)
	_ fabric.StatsReporter = (*Fabric)(nil)
)

// New makes the fabric; the rails stay their owner's.
func New(o Options) *Fabric {
	return &Fabric{o: o, strangers: map[stranger]*record{}, open: map[*remote]struct{}{}}
}

// Name is "dc".
func (f *Fabric) Name() string { return Name }

// Takes tells whether the token names a DCT.
func (f *Fabric) Takes(d token.Descriptor) bool { return d.Kind == token.DC }

// Rails are those with a pool.
func (f *Fabric) Rails() []fabric.Rail {
	var list []fabric.Rail
	for _, r := range f.o.Rails {
		rail := fabric.Rail{Fabric: Name, Name: r.Name, Up: r.Up()}
		if !rail.Up {
			rail.Reason = "down"
		}
		list = append(list, rail)
	}
	return list
}

// Stats reads the counters.
func (f *Fabric) Stats() fabric.Stats { return f.stat.Read(Name) }

// Close opens no window any more, and ends the transfers that run. It may be called again. Errors: ErrLingering, when
// an adapter has something of one under way all the same.
func (f *Fabric) Close() error {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	if n := f.end(fabric.ErrShutdown, func(*remote) bool { return true }); n > 0 {
		return fmt.Errorf("dc: %d transfers: %w", n, fabric.ErrLingering)
	}
	return nil
}

// RevokePrincipal ends the transfers of a principal.
func (f *Fabric) RevokePrincipal(principal string) {
	f.end(fabric.ErrRevoked, func(r *remote) bool { return r.grant.Principal == principal })
}

// end cuts transfers, and waits for what of them is under way, up to stuckWait. It returns how many have some then.
func (f *Fabric) end(cause error, match func(*remote) bool) (left int) {
	var list []*remote
	f.mu.Lock()
	for r := range f.open {
		if match(r) {
			list = append(list, r)
		}
	}
	f.mu.Unlock()
	for _, r := range list {
		r.end(cause)
	}
	over := time.Now().Add(stuckWait)
	for _, r := range list {
		r.mu.Lock()
		if !r.await(over) {
			left++
		}
		r.mu.Unlock()
	}
	return left
}

// enter counts a window in. False: the fabric is closed.
func (f *Fabric) enter(r *remote) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return false
	}
	f.open[r] = struct{}{}
	return true
}

func (f *Fabric) leave(r *remote) {
	r.cut(nil)
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.open, r)
}

// Open opens the window of a token. Errors: ErrNoFabric, when no rail reaches it, the principal is suspended or the
// fabric closed; ErrTooLarge; ErrNotGranted, when its GID is not the client's.
func (f *Fabric) Open(_ context.Context, d token.Descriptor, g fabric.Grant) (fabric.Remote, error) {
	switch {
	case d.Kind != token.DC:
		return nil, fabric.ErrUnsupportedToken
	case g.Bytes < 0 || g.Bytes > d.Size:
		return nil, fmt.Errorf("%w: %d of %d", fabric.ErrTooLarge, g.Bytes, d.Size)
	case !f.o.Permits(d.GID, g.Peer.Addr()):
		return nil, fmt.Errorf("%w: the token's address is not the client's", fabric.ErrNotGranted)
	}
	who := stranger{principal: g.Principal, gid: d.GID, lid: d.LID}
	if f.suspended(who) {
		return nil, fmt.Errorf("%w: too many refusals by the client's adapter", fabric.ErrNoFabric)
	}
	rail := f.choose(d, g.Local)
	if rail == nil {
		return nil, fmt.Errorf("%w: no rail reaches the client", fabric.ErrNoFabric)
	}
	r := &remote{fabric: f, rail: rail, token: d, grant: g, who: who}
	r.idle = sync.NewCond(&r.mu)
	r.life, r.cut = context.WithCancelCause(context.Background())
	if !f.enter(r) {
		r.cut(nil)
		return nil, fmt.Errorf("%w: %w", fabric.ErrNoFabric, fabric.ErrShutdown)
	}
	f.stat.Open.Add(1)
	return r, nil
}

// choose takes the rails that are up and reach the token's port in turns.
func (f *Fabric) choose(d token.Descriptor, local netip.Addr) *Rail {
	f.mu.Lock()
	defer f.mu.Unlock()
	for range f.o.Rails {
		r := &f.o.Rails[f.next%len(f.o.Rails)]
		f.next++
		if r.Up() && r.Reach(d.GID, local) {
			return r
		}
	}
	return nil
}

func (f *Fabric) suspended(who stranger) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.strangers[who]
	return s != nil && time.Now().Before(s.until)
}

// refused counts a refusal by the client's adapter.
func (f *Fabric) refused(who stranger) {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.strangers[who]
	if s == nil {
		f.forget(now)
		s = &record{}
		f.strangers[who] = s
	}
	if now.Sub(s.first) > refusalSpan {
		s.first, s.refusals = now, 0
	}
	if s.refusals++; s.refusals >= maxRefusals {
		s.until, s.refusals, s.first = now.Add(suspension), 0, time.Time{}
	}
}

// forget makes room for one more. Called with mu held.
func (f *Fabric) forget(now time.Time) {
	if len(f.strangers) < maxStrangers {
		return
	}
	var oldest stranger
	var at time.Time
	for who, s := range f.strangers {
		if now.Sub(s.first) > refusalSpan && now.After(s.until) {
			delete(f.strangers, who)
			continue
		}
		if last := s.first; at.IsZero() || last.Before(at) {
			oldest, at = who, last
		}
	}
	if len(f.strangers) >= maxStrangers {
		delete(f.strangers, oldest)
	}
}

// remote is one window.
type remote struct {
	fabric *Fabric
	rail   *Rail
	token  token.Descriptor
	grant  fabric.Grant
	who    stranger
	life   context.Context // ends with what cuts the transfer off, or Close
	cut    context.CancelCauseFunc

	mu      sync.Mutex
	idle    *sync.Cond // ops is 0
	ops     int
	closed  bool
	failure error // the first
}

// end cuts the transfer off: nothing of it begins any more, and what is under way is given up.
func (r *remote) end(cause error) {
	r.mu.Lock()
	if !r.closed && r.failure == nil {
		r.failure = fmt.Errorf("%w: %w", fabric.ErrFenced, cause)
		r.fabric.stat.Fenced.Add(1)
	}
	r.mu.Unlock()
	r.cut(cause)
}

// await waits until nothing is under way; false: something is, after that time. Called with mu held.
func (r *remote) await(over time.Time) bool {
	timer := time.AfterFunc(time.Until(over), func() {
		r.mu.Lock()
		r.idle.Broadcast()
		r.mu.Unlock()
	})
	defer timer.Stop()
	for r.ops > 0 && time.Now().Before(over) {
		r.idle.Wait()
	}
	return r.ops == 0
}

// Size is the part of the window that the request may touch.
func (r *remote) Size() int64 { return r.grant.Bytes }

// Write moves src into client memory.
func (r *remote) Write(ctx context.Context, off int64, src ...arena.Buffer) error {
	return r.operate(ctx, fabric.ForGet, off, src)
}

// Read fills dst from client memory.
func (r *remote) Read(ctx context.Context, off int64, dst ...arena.Buffer) error {
	return r.operate(ctx, fabric.ForPut, off, dst)
}

func (r *remote) operate(ctx context.Context, d fabric.Direction, off int64, buffers []arena.Buffer) error {
	n := int64(0)
	m := initiator.DCMove{
		Move:   initiator.Move{Op: native.OpWrite, RKey: r.token.RKey},
		Owner:  r.grant.Principal,
		Window: initiator.Window{Addr: r.token.Addr, Size: uint64(r.grant.Bytes)},
		Target: initiator.DCTarget{
			Port: native.PeerPort{GID: r.token.GID, HasGID: r.token.HasGID, LID: r.token.LID},
			DCT:  r.token.QPN, Key: r.fabric.o.Key,
		},
		Stop: r.grant.Deadline.Add(-Stop), Expire: r.grant.Deadline.Add(-Margin),
	}
	for _, b := range buffers {
		n += int64(b.Len())
		if b.Len() > 0 {
			m.Local = append(m.Local, b.Bytes())
		}
	}
	if r.grant.Direction != d {
		return fmt.Errorf("%w: wrong direction for this window", fabric.ErrTransfer)
	}
	if off < 0 || off > r.grant.Bytes || n > r.grant.Bytes-off {
		return fmt.Errorf("%w: [%d, %d+%d) is outside the window of %d bytes", fabric.ErrTransfer, off, off, n,
			r.grant.Bytes)
	}
	if n == 0 {
		return nil
	}
	if d == fabric.ForPut {
		m.Op = native.OpRead
	}
	m.Remote = r.token.Addr + uint64(off)
	if ctx.Err() != nil { // the pool may be faster than what watches it
		return context.Cause(ctx)
	}
	if err := r.enter(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(r.life, func() { cancel(context.Cause(r.life)) })()
	return r.leave(r.rail.Pool.Move(ctx, m))
}

func (r *remote) enter() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return fmt.Errorf("%w: window is closed", fabric.ErrTransfer)
	case r.failure != nil:
		return r.failure
	case !time.Now().Before(r.grant.Deadline.Add(-Stop)):
		r.failure = fmt.Errorf("%w: %w", fabric.ErrFenced, fabric.ErrOverdue)
		return r.failure
	}
	r.ops++
	return nil
}

// leave ends an operation: the first error of one is the transfer's.
func (r *remote) leave(err error) error {
	switch {
	case err == nil:
	case context.Cause(r.life) != nil:
		err = fmt.Errorf("%w: %w: %w", fabric.ErrFenced, context.Cause(r.life), err)
	case errors.Is(err, initiator.ErrExpired):
		err = fmt.Errorf("%w: %w: %w", fabric.ErrFenced, fabric.ErrOverdue, err)
	case errors.Is(err, initiator.ErrDenied):
		r.fabric.refused(r.who)
		err = fmt.Errorf("%w: %w", fabric.ErrTransfer, err)
	default:
		err = fmt.Errorf("%w: %w", fabric.ErrTransfer, err)
	}
	r.mu.Lock()
	if r.ops--; r.ops == 0 {
		r.idle.Broadcast()
	}
	if err != nil && r.failure == nil {
		r.failure = err
	}
	over := r.closed && r.ops == 0
	r.mu.Unlock()
	if over { // its Close did not wait for that
		r.fabric.leave(r)
	}
	return err
}

// Close waits for what is under way: its own times bound that, but where an adapter does not reset its queue pair.
// Errors: the first of an operation; ErrFenced, when the deadline has passed; ErrLingering.
func (r *remote) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return fmt.Errorf("%w: window is closed", fabric.ErrTransfer)
	}
	r.closed = true
	idle := r.await(r.grant.Deadline.Add(stuckWait))
	if !idle {
		r.failure = fmt.Errorf("%w: %w: the adapter resets no queue pair", fabric.ErrLingering, fabric.ErrFenced)
	}
	if r.failure == nil && !time.Now().Before(r.grant.Deadline) {
		r.failure = fmt.Errorf("%w: %w", fabric.ErrFenced, fabric.ErrOverdue)
	}
	err := r.failure
	r.mu.Unlock()
	if idle {
		r.fabric.leave(r)
	}
	c := &r.fabric.stat
	c.Open.Add(-1)
	switch {
	case err != nil:
		c.Failed.Add(1)
	case r.grant.Direction == fabric.ForGet:
		c.Gets.Add(1)
		c.GetBytes.Add(r.grant.Bytes)
	default:
		c.Puts.Add(1)
		c.PutBytes.Add(r.grant.Bytes)
	}
	return err
}
