package target

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/token"
)

// Conn is one session, with all its data connections. It is safe for concurrent use.
type Conn struct {
	fabric  string
	session [frame.SessionBytes]byte
	limits  frame.ReadyBody
	links   []*link
	ended   chan struct{}
	tasks   sync.WaitGroup
	attach  attachment
	paths   *paths // of rc

	mu         sync.Mutex
	idle       sync.Cond // on mu: a receiver has left a window
	err        error     // not nil once ended
	fencing    bool
	closed     chan struct{} // closed when the server confirmed the fence
	confirmed  bool
	lastNumber uint32
	lastToken  uint32 // number of the last token
	regions    map[uint32]*Region
	last       []*Region                     // those that are still held when the session ends
	grants     map[uint32]*Grant             // by number of the token
	waits      map[waitKey]chan frame.Header // replies that a caller waits for
}

// waitKey names a reply: which question, about which region.
type waitKey struct {
	question frame.Type
	number   uint32
}

// Region is memory announced on a session.
type Region struct {
	conn   *Conn
	memory *Memory
	number uint32
	gone   bool // guarded by Conn.mu: forgotten, or the session has ended
}

func newConn(offer frame.SessionReply) *Conn {
	c := &Conn{
		fabric:  offer.Fabric,
		session: offer.Session,
		ended:   make(chan struct{}),
		closed:  make(chan struct{}),
		regions: make(map[uint32]*Region),
		grants:  make(map[uint32]*Grant),
		attach:  attachment{turn: make(chan struct{}, 1)},
		waits:   make(map[waitKey]chan frame.Header),
	}
	c.idle.L = &c.mu
	return c
}

func (c *Conn) start() {
	for _, l := range c.links {
		c.tasks.Go(func() { c.end(l.receive()) })
	}
	c.tasks.Go(c.ping)
}

// ping keeps the session from being idle for too long.
func (c *Conn) ping() {
	const perIdle = 3 // two pings may be lost
	interval := max(time.Duration(c.limits.IdleMillis)*time.Millisecond/perIdle, time.Millisecond)
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-c.ended:
			return
		case <-ticker.C:
			if err := c.links[0].send(frame.Header{Type: frame.Ping}); err != nil {
				c.end(err)
				return
			}
		}
	}
}

// end closes everything, once. Done comes last: whoever waits for it finds the memory released or
// abandoned. A second caller does not wait for the first.
func (c *Conn) end(cause error) {
	if c.begin(cause) {
		c.finish()
	}
}

// begin notes the end and closes the connections, without waiting for anything. True: the caller must finish it.
func (c *Conn) begin(cause error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return false
	}
	c.err = fmt.Errorf("%w: %w", ErrClosed, cause)
	for _, l := range c.links {
		_ = l.conn.Close() // ends its reader; the cause is in c.err
	}
	c.last = slices.Collect(maps.Values(c.regions))
	for _, r := range c.last {
		r.gone = true
	}
	clear(c.regions)
	c.idle.Broadcast()
	return true
}

// finish ends what reaches the memory, and lets it go.
func (c *Conn) finish() {
	if c.paths != nil {
		c.paths.close()
	}
	c.mu.Lock()
	fenced := c.confirmed || c.fabric == "tcp" // on tcp only our own receivers touch the memory
	regions := c.last
	c.last = nil
	c.mu.Unlock()
	for _, r := range regions {
		r.memory.release(fenced || c.unreachable(r))
	}
	close(c.ended)
}

// unreachable tells, after the end of an rc session, whether no adapter can reach the region.
func (c *Conn) unreachable(r *Region) bool { return c.paths != nil && c.paths.reachesNot(r) }

// Fabric is "shm", "tcp" or "rc".
func (c *Conn) Fabric() string { return c.fabric }

// Done is closed when the session has ended, for whatever reason.
func (c *Conn) Done() <-chan struct{} { return c.ended }

// Err is why the session ended, an ErrClosed; nil while it lives.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Register announces the memory and waits for the server's answer. On rc it is pinned first, on each device of the
// session. Errors: ErrMemory, ErrPinned, ErrClosed, ErrRefused (it wraps a *frame.RefusedError with the status), ctx's
// error (the memory then counts as announced until the session ends).
func (c *Conn) Register(ctx context.Context, m *Memory) (*Region, error) {
	if err := m.announce(); err != nil {
		return nil, err
	}
	foreign := c.fabric == "shm" && m.Foreign()
	if foreign {
		if err := c.attachMemory(ctx); err != nil {
			m.release(true)
			return nil, err
		}
	}
	c.mu.Lock()
	if err := c.err; err != nil {
		c.mu.Unlock()
		m.release(true)
		return nil, err
	}
	c.lastNumber++
	r := &Region{conn: c, memory: m, number: c.lastNumber}
	c.regions[r.number] = r
	c.mu.Unlock()
	h := frame.Header{Type: frame.Region, Region: uint64(r.number), Size: uint64(len(m.bytes))}
	with := extra{memory: m}
	switch {
	case foreign:
		h.Status, h.Offset, with = frame.StatusForeign, address(m.bytes), extra{}
	case c.paths != nil:
		keys, err := c.paths.register(r)
		if err != nil {
			c.drop(r)
			return nil, err
		}
		h.Type, h.Offset, with = frame.Keyed, address(m.bytes), extra{body: frame.EncodeKeys(keys)}
	}
	reply, err := c.ask(ctx, h, with)
	if err != nil {
		return nil, err
	}
	if reply.Status != frame.StatusOK || reply.Type == frame.RegionRefused {
		c.drop(r)
		return nil, refusal("region", reply.Status)
	}
	return r, nil
}

func refusal(what string, status frame.Status) error {
	return fmt.Errorf("%w: %s: %w", ErrRefused, what, &frame.RefusedError{Status: status})
}

// ask sends a question about a region and waits for the reply.
func (c *Conn) ask(ctx context.Context, h frame.Header, with extra) (frame.Header, error) {
	key := waitKey{question: h.Type, number: uint32(h.Region)}
	switch h.Type {
	case frame.Present:
		key.question = frame.Attach // both are answered by Attached
	case frame.Keyed:
		key.question = frame.Region // as above, by RegionOK
	}
	wait := make(chan frame.Header, 1)
	c.mu.Lock()
	c.waits[key] = wait
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.waits, key)
		c.mu.Unlock()
	}()
	if err := c.links[0].sendWith(h, with); err != nil {
		c.end(err)
		return frame.Header{}, c.Err()
	}
	select {
	case reply := <-wait:
		return reply, nil
	case <-c.ended:
		return frame.Header{}, c.Err()
	case <-ctx.Done():
		return frame.Header{}, context.Cause(ctx)
	}
}

func (c *Conn) drop(r *Region) {
	c.mu.Lock()
	if r.gone {
		c.mu.Unlock()
		return
	}
	r.gone = true
	delete(c.regions, r.number)
	c.mu.Unlock()
	if c.paths != nil && !c.paths.unregister(r) {
		c.end(errAdapter)
		<-c.ended
		r.memory.release(c.unreachable(r))
		return
	}
	r.memory.release(true)
}

// Bytes is the region's memory.
func (r *Region) Bytes() []byte { return r.memory.bytes }

// Memory is what was registered.
func (r *Region) Memory() *Memory { return r.memory }

// Forget takes the region back; when it returns nil the server cannot touch it. Transfers of the
// region that are under way finish first. Errors: ErrClosed, ctx's error.
func (r *Region) Forget(ctx context.Context) error {
	reply, err := r.conn.ask(ctx, frame.Header{Type: frame.Forget, Region: uint64(r.number)}, extra{})
	if err != nil {
		return err
	}
	if reply.Status != frame.StatusOK {
		return refusal("forget", reply.Status)
	}
	r.conn.drop(r)
	return nil
}

// Direction of a granted window, named by the S3 operation.
type Direction int

// Directions.
const (
	ForGet Direction = iota + 1 // the server writes the window
	ForPut                      // the server reads it
)

// Grant allows one request's transfer into or out of a window, until End.
type Grant struct {
	conn       *Conn
	descriptor token.Descriptor
	window     []byte
	direction  Direction
	number     uint32 // of the token

	// guarded by Conn.mu
	begun    bool // the server named it in a Start
	finished bool // Done came, or the session ended
	touching int  // receivers that are inside the window
}

// Expect grants a window for one request. Tokens are numbered in the order of their grants, and the
// server takes each number once: a token is good for one attempt of one request. Errors: ErrMemory
// (bounds, forgotten), ErrClosed, ErrSpent.
func (c *Conn) Expect(r *Region, off, size int64, d Direction) (*Grant, error) {
	whole := int64(len(r.memory.bytes))
	if off < 0 || size < 0 || size > token.MaxWindow || off > whole || size > whole-off {
		return nil, fmt.Errorf("%w: window [%d, %d+%d) of %d bytes", ErrMemory, off, off, size, whole)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return nil, c.err
	}
	if r.gone || r.conn != c {
		return nil, fmt.Errorf("%w: region is not announced", ErrMemory)
	}
	if c.lastToken == math.MaxUint32 {
		return nil, ErrSpent
	}
	c.lastToken++
	g := &Grant{
		conn: c,
		descriptor: token.Descriptor{
			Kind: token.Session, Fabric: c.fabric, SessionID: c.session,
			Region: frame.JoinRegion(r.number, c.lastToken), Addr: uint64(off), Size: size,
		},
		window:    r.memory.bytes[off : off+size : off+size],
		direction: d,
		number:    c.lastToken,
	}
	c.grants[g.number] = g
	return g, nil
}

// Token is the secret text for x-amz-rdma-token.
func (g *Grant) Token() string { return g.descriptor.Encode() }

// Descriptor is the grant as the server will see it.
func (g *Grant) Descriptor() token.Descriptor { return g.descriptor }

// endWait bounds how long End waits for a transfer under way: the server closes it before it answers,
// so a transfer that outlives the answer belongs to a request that was given up.
const endWait = time.Second

// End takes the grant back, after the request was answered or given up. It must be called once. On
// tcp nothing of the window is touched after it has returned: a transfer that is under way may finish
// for a second, then the session ends. On shm and rc a request that was not answered needs Fence; on rc one that failed
// does too, since an adapter cannot tell windows apart. Errors:
// ErrClosed, when the session ended before the transfer.
func (g *Grant) End() error {
	ctx, cancel := context.WithTimeout(context.Background(), endWait)
	defer cancel()
	return g.EndContext(ctx)
}

// EndContext is End with the caller's bound.
func (g *Grant) EndContext(ctx context.Context) error {
	c := g.conn
	stop := context.AfterFunc(ctx, func() { c.giveUp(g, context.Cause(ctx)) })
	defer stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.grants, g.number)
	for g.touching > 0 || (g.begun && !g.finished && c.err == nil) {
		c.idle.Wait()
	}
	if g.begun && !g.finished {
		return c.err
	}
	return nil
}

// giveUp ends the session when the transfer of g is still under way.
func (c *Conn) giveUp(g *Grant, cause error) {
	c.mu.Lock()
	underWay := g.touching > 0 || (g.begun && !g.finished)
	c.mu.Unlock()
	if underWay {
		c.end(cause)
	}
	c.mu.Lock()
	c.idle.Broadcast()
	c.mu.Unlock()
}

// Fence ends the session and makes late access impossible. On shm the server must confirm that it
// has no mapping left; on rc the own adapters must end the queue pairs, or give up the keys. Errors: ErrNotFenced (shm:
// no confirmation before ctx ended, or the session had ended before; rc: an adapter refused all of it, or its driver
// did not return); the memory of the session's regions is then abandoned, or stays announced while a driver has it.
func (c *Conn) Fence(ctx context.Context) error {
	switch c.fabric {
	case "rc":
		return c.fenceByAdapters(ctx)
	case "tcp":
		c.end(errFenced)
		<-c.ended
		c.tasks.Wait()
		return nil
	}
	c.mu.Lock()
	first := !c.fencing && c.err == nil
	c.fencing = true
	c.mu.Unlock()
	if first {
		_ = c.links[0].send(frame.Header{Type: frame.Close}) // without effect, no confirmation comes
	}
	select {
	case <-c.closed:
	case <-c.ended:
	case <-ctx.Done():
	}
	c.end(errFenced)
	c.tasks.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.confirmed {
		return ErrNotFenced
	}
	return nil
}

// driverWait is what drivers get beyond ctx: they end a queue pair in microseconds, and some dozens in milliseconds.
const driverWait = 2 * time.Second

// fenceByAdapters waits for the adapters no longer than ctx and a little: a call of a driver may hang, or take long, as
// pinning memory does. What it waits for goes on by itself then, and Done is closed at its end.
func (c *Conn) fenceByAdapters(ctx context.Context) error {
	first := c.begin(errFenced)
	over := make(chan struct{})
	go func() {
		defer close(over)
		if first {
			c.finish()
		}
		<-c.ended
		c.tasks.Wait()
	}()
	if !returned(ctx, over) {
		if c.paths.ended() { // what is left to do cannot bring a queue pair back
			return nil
		}
		return ErrNotFenced
	}
	if c.paths.leaky() {
		return ErrNotFenced
	}
	return nil
}

// returned waits for over, no longer than ctx and driverWait.
func returned(ctx context.Context, over <-chan struct{}) bool {
	select {
	case <-over:
		return true
	case <-ctx.Done():
	}
	timer := time.NewTimer(driverWait)
	defer timer.Stop()
	select {
	case <-over:
		return true
	case <-timer.C:
		return false
	}
}

var errFenced = errors.New("target: ended by this side")

// Close ends the session without waiting for the server: on shm the memory of its regions is then
// abandoned, unless Fence came before. Errors: ErrNotFenced, on rc only, as Fence.
func (c *Conn) Close() error {
	if c.paths != nil {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		return c.fenceByAdapters(ctx)
	}
	c.end(errFenced)
	<-c.ended
	c.tasks.Wait()
	return nil
}
