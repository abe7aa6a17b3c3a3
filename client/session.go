package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/penstock-store/penstock/client/target"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/native"
)

// reopenDelay is how long a fabric that could not be opened is left alone: without it every request
// would pay a failed attempt.
const reopenDelay = 5 * time.Second

// conn is a session's data connections. target.Conn is the one; tests have others.
type conn interface {
	Announce(ctx context.Context, m *target.Memory) (announced, error)
	Fence(ctx context.Context) error
	Done() <-chan struct{}
}

// announced is a region on a conn.
type announced interface {
	Grant(off, n int64, d target.Direction) (grant, error)
	Forget(ctx context.Context) error
}

// fencer is an optional ability of an announced region: late access to it alone is made impossible, and the conn lives
// on. Afterwards it gives no grants any more.
type fencer interface {
	Fence(ctx context.Context) error
}

// grant lets one request use one window.
type grant interface {
	Token() string
	End() error
}

type targetConn struct{ *target.Conn }

func (t targetConn) Announce(ctx context.Context, m *target.Memory) (announced, error) {
	r, err := t.Conn.Register(ctx, m)
	if err != nil {
		return nil, err
	}
	return targetRegion{t.Conn, r}, nil
}

type targetRegion struct {
	conn   *target.Conn
	region *target.Region
}

func (t targetRegion) Grant(off, n int64, d target.Direction) (grant, error) {
	g, err := t.conn.Expect(t.region, off, n, d)
	if err != nil {
		return nil, err
	}
	return g, nil
}

func (t targetRegion) Forget(ctx context.Context) error { return t.region.Forget(ctx) }

func (f *fabricSet) dialTarget(ctx context.Context, offer frame.SessionReply) (conn, error) {
	var o target.Options
	if byAdapter(offer.Fabric) {
		devices, refused := f.adapters.ready() // a look was a moment ago, by locally
		if refused != nil {
			return nil, refused
		}
		if offer.Fabric == PathDC {
			return f.openDC(ctx, devices)
		}
		o.Devices = devices
	}
	tc, err := target.Dial(ctx, offer, o)
	if err != nil {
		return nil, err
	}
	return targetConn{tc}, nil
}

// byAdapter tells whether adapters of this machine let the node, or another server, at the memory.
func byAdapter(fabric string) bool { return fabric == PathRC || fabric == PathDC }

// locally tells why this machine rules a fabric out; nil: it does not. Nothing is asked of the node for that.
func (f *fabricSet) locally(fabric string) *DeclinedError {
	if !byAdapter(fabric) {
		return nil
	}
	_, refused := f.adapters.get()
	return refused
}

// session is one client–node relation over one fabric.
type session struct {
	name    string // fabric
	conn    conn
	limits  frame.ControlLimits
	slot    *slot
	foreign bool // takes memory that Alloc did not allocate

	once     sync.Once
	fenced   chan struct{} // closed when fenceErr is final
	fenceErr error
}

// over tells whether the session has ended or is being fenced.
func (s *session) over() bool {
	select {
	case <-s.conn.Done():
		return true
	case <-s.fenced:
		return true
	default:
		return false
	}
}

// fence ends the session and returns when late access to its regions is impossible (nil), or when
// the node did not acknowledge that in time. Requests in flight on the session fail or are declined;
// later ones get another session. Concurrent callers wait for one fence.
func (s *session) fence() error {
	s.once.Do(func() {
		s.slot.drop(s)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), fenceTimeout)
			defer cancel()
			s.fenceErr = s.conn.Fence(ctx)
			s.slot.set.client.cfg.Logger.Info("session fenced", "fabric", s.name, "acknowledged", s.fenceErr == nil)
			close(s.fenced)
		}()
	})
	<-s.fenced
	return s.fenceErr
}

// fenceFor is fence after a request on a region, or a fence of the region alone where the conn can do that.
func (s *session) fenceFor(r *Region, at announced) error {
	alone, ok := at.(fencer)
	if !ok {
		return s.fence()
	}
	r.retire(s, at)
	ctx, cancel := context.WithTimeout(context.Background(), fenceTimeout)
	defer cancel()
	err := alone.Fence(ctx)
	s.slot.set.client.cfg.Logger.Info("region fenced", "fabric", s.name, "acknowledged", err == nil)
	if err != nil { // what cannot be taken back may still be out of reach without the conn
		return s.fence()
	}
	return nil
}

// forget ends a session that the node does not know any more.
func (s *session) forget() { _ = s.fence() } // without an ack the target abandons the memory by itself

// slot holds the current session of one fabric.
type slot struct {
	set  *fabricSet
	name string

	mu      sync.Mutex
	current *session
	refused *DeclinedError // why there was none when last tried
	retryAt time.Time
	opening chan struct{} // closed when the opener is done; nil: none is under way
	openBy  time.Time     // nobody waits for it any longer
}

func (s *slot) drop(old *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == old {
		s.current = nil
	}
}

// get returns the slot's session. When there is none, one is opened; callers wait for it no longer
// than their context, but the opener goes on, so that an impatient caller spoils nothing.
func (s *slot) get(ctx context.Context) (*session, *DeclinedError) {
	s.mu.Lock()
	if s.current != nil && !s.current.over() {
		defer s.mu.Unlock()
		return s.current, nil
	}
	if s.opening == nil {
		if time.Now().Before(s.retryAt) {
			defer s.mu.Unlock()
			return nil, s.refused
		}
		if !s.set.start(s) {
			defer s.mu.Unlock()
			return nil, &DeclinedError{Reason: ReasonNoSession, Cause: ErrClosed}
		}
	}
	opened := s.opening
	tooLong := time.NewTimer(time.Until(s.openBy))
	s.mu.Unlock()
	defer tooLong.Stop()
	select {
	case <-opened:
	case <-ctx.Done():
		return nil, &DeclinedError{Reason: ReasonNoSession, Cause: ctx.Err()}
	case <-tooLong.C:
		return nil, &DeclinedError{Reason: ReasonNoSession, Cause: errOpenHangs}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil {
		return s.current, nil
	}
	if s.refused != nil {
		return nil, s.refused
	}
	return nil, &DeclinedError{Reason: ReasonNoSession} // opened and lost again meanwhile
}

// errOpenHangs is about what has no time limit of its own: a driver that does not return.
var errOpenHangs = errors.New("client: opening a session does not come to an end")

// fill is the opener.
func (s *slot) fill(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, sessionTimeout)
	defer cancel()
	sess, refused := s.open(ctx)
	log := s.set.client.cfg.Logger
	if refused != nil {
		log.Info("fabric not usable", "fabric", s.name, "reason", refused.Reason)
	} else {
		log.Debug("session opened", "fabric", s.name)
	}
	if sess != nil && s.set.life.Err() != nil { // nobody waits for it any more
		_ = sess.fence() // nothing is announced on it
		sess, refused = nil, &DeclinedError{Reason: ReasonNoSession, Cause: ErrClosed}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current, s.refused = sess, refused
	if refused != nil {
		s.retryAt = time.Now().Add(reopenDelay)
	}
	close(s.opening)
	s.opening = nil
}

// open asks the control plane and dials.
func (s *slot) open(ctx context.Context) (*session, *DeclinedError) {
	if refused := s.set.local(s.name); refused != nil {
		return nil, refused
	}
	if s.name == PathDC {
		return s.openAlone(ctx)
	}
	info, err := s.set.client.NodeInfo(ctx)
	if err != nil {
		return nil, &DeclinedError{Reason: ReasonNoFabric, Cause: err}
	}
	if reason := usable(info, s.name, LocalHostID()); reason != "" {
		return nil, &DeclinedError{Reason: reason}
	}
	offer, err := s.set.client.offer(ctx, s.name)
	if err != nil {
		return nil, &DeclinedError{Reason: ReasonNoSession, Cause: err}
	}
	cn, err := s.set.dial(ctx, offer)
	if err != nil {
		return nil, &DeclinedError{Reason: dialReason(s.name, err), Cause: err}
	}
	return &session{
		name: s.name, conn: cn, limits: info.Limits, slot: s, fenced: make(chan struct{}),
		foreign: s.name != PathSHM || takesForeign(info),
	}, nil
}

// openAlone opens what needs no word of the node, which may be a server that has no control plane.
func (s *slot) openAlone(ctx context.Context) (*session, *DeclinedError) {
	cn, err := s.set.dial(ctx, frame.SessionReply{Fabric: s.name})
	if refused := new(DeclinedError); errors.As(err, &refused) {
		return nil, refused
	}
	if err != nil {
		return nil, &DeclinedError{Reason: dialReason(s.name, err), Cause: err}
	}
	return &session{
		name: s.name, conn: cn, limits: frame.ControlLimits{MaxDeadlineMillis: dcDeadlineMS}, slot: s,
		fenced: make(chan struct{}), foreign: true,
	}, nil
}

// dialReason is the word for a session that was offered, or is not, and did not come about.
func dialReason(fabric string, err error) string {
	refused := new(frame.RefusedError)
	missing := new(native.UnavailableError)
	switch {
	case fabric == PathDC && errors.As(err, &missing):
		return missing.Reason
	case fabric == PathDC:
		return ReasonAdapter
	case fabric != PathRC || !errors.Is(err, target.ErrRefused):
		return ReasonNoSession
	case !errors.As(err, &refused):
		return ReasonNoPath
	case refused.Status == frame.StatusGID:
		return ReasonAddress
	case refused.Status == frame.StatusRail || refused.Status == frame.StatusDevice:
		return ReasonNoPath
	}
	return ReasonNoSession
}

// takesForeign tells whether the node's shm takes memory of Register.
func takesForeign(info NodeInfo) bool {
	for _, f := range info.Fabrics {
		if f.Name == PathSHM {
			return f.Foreign
		}
	}
	return false
}

// Reasons of usable, beside ReasonNoFabric.
const (
	ReasonOtherHost = "other-host"  // shm needs client and node on one host
	ReasonDown      = "fabric-down" // the node says that the fabric is not up
)

// Reasons of shm for memory of Register.
const (
	ReasonForeignOff     = "foreign-off"     // the node takes memory of Alloc only
	ReasonForeignUser    = "foreign-user"    // the node runs as another user
	ReasonForeignDenied  = "foreign-denied"  // the kernel denies it: ptrace scope, or a process that is not dumpable
	ReasonForeignProcess = "foreign-process" // the node cannot see this process (another pid namespace)
	ReasonForeignAddress = "foreign-address" // not all of the memory is writable, anonymous or shared
)

// regionReason is the word for an announcement that failed.
func regionReason(err error) string {
	refused := new(frame.RefusedError)
	switch {
	case errors.Is(err, target.ErrPinned) && errors.Is(err, syscall.ENOMEM):
		return ReasonMemlock
	case errors.Is(err, target.ErrPinned):
		return ReasonAdapter
	case !errors.As(err, &refused):
		return ReasonRegion
	}
	switch refused.Status {
	case frame.StatusOff:
		return ReasonForeignOff
	case frame.StatusUser:
		return ReasonForeignUser
	case frame.StatusDenied:
		return ReasonForeignDenied
	case frame.StatusProcess:
		return ReasonForeignProcess
	case frame.StatusAddress:
		return ReasonForeignAddress
	}
	return ReasonRegion
}

// usable tells why a fabric of the node cannot be used from the host; empty when it can.
func usable(info NodeInfo, fabric, host string) string {
	for _, f := range info.Fabrics {
		switch {
		case f.Name != fabric:
			continue
		case !f.Up:
			return firstOf(f.Reason, ReasonDown)
		case fabric == PathSHM && (host == "" || info.Host != host):
			return ReasonOtherHost
		}
		return ""
	}
	return ReasonNoFabric
}

// NodeInfo is what a node says about its fabrics.
type NodeInfo = frame.NodeInfo

// NodeInfo asks the node for its fabrics, addresses, limits and ids. Errors: *Error, also when the
// endpoint is another kind of server.
func (c *Client) NodeInfo(ctx context.Context) (NodeInfo, error) {
	resp, err := c.control(ctx, http.MethodGet, frame.ControlPath, nil)
	if err != nil {
		return NodeInfo{}, fmt.Errorf("client: ask for fabrics: %w", err)
	}
	defer resp.Body.Close()
	info, err := frame.DecodeNodeInfo(resp.Body)
	if err != nil {
		return NodeInfo{}, fmt.Errorf("client: ask for fabrics: %w", err)
	}
	return info, nil
}

func (c *Client) offer(ctx context.Context, fabric string) (frame.SessionReply, error) {
	body, err := json.Marshal(frame.SessionRequest{Fabric: fabric})
	if err != nil {
		return frame.SessionReply{}, fmt.Errorf("client: open session: %w", err)
	}
	resp, err := c.control(ctx, http.MethodPost, frame.SessionsPath, body)
	if err != nil {
		return frame.SessionReply{}, fmt.Errorf("client: open session: %w", err)
	}
	defer resp.Body.Close()
	offer, err := frame.DecodeSessionReply(resp.Body)
	if err != nil {
		return frame.SessionReply{}, fmt.Errorf("client: open session: %w", err)
	}
	if offer.Fabric != fabric {
		return frame.SessionReply{}, fmt.Errorf("%w: session of fabric %q, asked for %q",
			ErrProtocol, offer.Fabric, fabric)
	}
	return offer, nil
}

// control sends one signed request of the control plane; the answer is 2xx.
func (c *Client) control(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	resp, err := c.exchange(ctx, &call{method: method, path: path, body: body,
		header: http.Header{"Content-Type": {"application/json"}}})
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return nil, readError(resp)
	}
	return resp, nil
}

// LocalHostID identifies this host as nodes do; empty when the host has no ids to derive it from.
func LocalHostID() string {
	machine, err1 := os.ReadFile("/etc/machine-id")
	boot, err2 := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err1 != nil && err2 != nil {
		return ""
	}
	return frame.HostID(machine, boot)
}

// fabricSet holds the slots in order of preference.
type fabricSet struct {
	client   *Client
	dial     func(context.Context, frame.SessionReply) (conn, error)
	local    func(fabric string) *DeclinedError
	slots    []*slot
	life     context.Context // of openers; ends with the client
	end      context.CancelFunc
	openers  sync.WaitGroup
	adapters adapters

	openLimit  time.Duration // how long requests wait for a session that is being opened
	closeLimit time.Duration // and close for its opener to give up
}

func (f *fabricSet) init(c *Client) {
	f.client, f.dial, f.local = c, f.dialTarget, f.locally
	f.adapters = adapters{library: c.cfg.Verbs, names: c.cfg.RDMADevices}
	f.openLimit, f.closeLimit = sessionTimeout+openGrace, openGrace
	f.life, f.end = context.WithCancel(context.Background())
	var names []string
	switch c.cfg.Fabric {
	case Auto:
		names = []string{PathSHM, PathRC, PathTCP}
	case SHM, RC, TCP, DC:
		names = []string{string(c.cfg.Fabric)}
	}
	for _, name := range names {
		f.slots = append(f.slots, &slot{set: f, name: name})
	}
}

// start runs an opener for the slot, whose mutex the caller holds; false after closing.
func (f *fabricSet) start(s *slot) bool {
	if f.life.Err() != nil {
		return false
	}
	s.opening, s.openBy = make(chan struct{}), time.Now().Add(f.openLimit)
	f.openers.Go(func() { s.fill(f.life) })
	return true
}

// close ends openers and fences what is open. An opener that hangs in a driver is not waited for longer than
// closeLimit: what it needs is let go when it returns, and the error says so.
func (f *fabricSet) close() error {
	for _, s := range f.slots { // no opener starts between the end of life and the wait for openers
		s.mu.Lock()
	}
	f.end()
	for _, s := range f.slots {
		s.mu.Unlock()
	}
	opened := make(chan struct{})
	let := make(chan error, 1)
	go func() {
		f.openers.Wait()
		close(opened)
		let <- errors.Join(f.fence(), f.adapters.close())
	}()
	timer := time.NewTimer(f.closeLimit)
	defer timer.Stop()
	select {
	case <-opened:
		return <-let
	case <-timer.C:
		return errors.Join(f.fence(), errOpenHangs)
	}
}

// fence fences what is open.
func (f *fabricSet) fence() error {
	var errs []error
	for _, s := range f.slots {
		s.mu.Lock()
		current := s.current
		s.mu.Unlock()
		if current != nil && !current.over() {
			errs = append(errs, current.fence())
		}
	}
	return errors.Join(errs...)
}

// lease is a region on a live session.
type lease struct {
	session *session
	at      announced
	skipped string // why a fabric that is preferred cannot reach the region; empty when none is
}

func (l *lease) fabric() string { return l.session.name }

// lease finds the first fabric that can reach the region. Without one it returns why the last one cannot.
func (f *fabricSet) lease(ctx context.Context, r *Region) (*lease, *DeclinedError) {
	refused := &DeclinedError{Reason: ReasonConfigured}
	skipped := ""
	for _, s := range f.slots {
		l, why := s.lease(ctx, r)
		if why == nil {
			l.skipped = skipped
			return l, nil
		}
		refused = why
		if skipped == "" && !expected(s.name, why.Reason) {
			skipped = why.Reason
		}
	}
	return nil, refused
}

// lease announces the region on the slot's session.
func (s *slot) lease(ctx context.Context, r *Region) (*lease, *DeclinedError) {
	sess, why := s.get(ctx)
	if why != nil {
		return nil, why
	}
	if r.memory.Foreign() && !sess.foreign {
		return nil, &DeclinedError{Reason: ReasonForeignOff}
	}
	at, err := r.on(ctx, sess)
	if err == nil {
		return &lease{session: sess, at: at}, nil
	}
	refused := &DeclinedError{Reason: regionReason(err), Cause: err}
	if sess.over() || errors.Is(err, target.ErrClosed) { // by another's fence, which may not be done yet
		refused.Reason = ReasonNoSession
	}
	return nil, refused
}

// Control sends one signed call to a node's control plane, below /.penstock/: in is sent as JSON
// (nil: no body) and the answer decoded into out (nil: dropped). Errors: *Error.
func (c *Client) Control(ctx context.Context, method, path string, in, out any) error {
	if !strings.HasPrefix(path, "/.penstock/") {
		return fmt.Errorf("%w: %q is not a path of the control plane", ErrConfig, path)
	}
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return fmt.Errorf("client: control %s: %w", path, err)
		}
	}
	resp, err := c.control(ctx, method, path, body)
	if err != nil {
		return fmt.Errorf("client: control %s: %w", path, err)
	}
	defer drain(resp.Body)
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, frame.MaxControlBytes)).Decode(out); err != nil {
		return fmt.Errorf("client: control %s: %w", path, err)
	}
	return nil
}

// Probe opens a session and announces the region on it, without a transfer: nil when the configured
// fabric can reach the region. Errors: *DeclinedError with the reason.
func (c *Client) Probe(ctx context.Context, r *Region) error {
	if err := r.acquire(); err != nil {
		return err
	}
	defer r.release()
	if _, refused := c.fabrics.lease(ctx, r); refused != nil {
		return refused
	}
	return nil
}
