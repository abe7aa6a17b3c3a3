package rails

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/penstock-store/penstock/internal/fabric/verbs/initiator"
)

const (
	// settleWait bounds the silence about a reset, which takes an adapter microseconds.
	settleWait = 2 * time.Second
	// hungWait is how long a queue pair may take to be reset before it counts as its rail's failure: longer than an
	// adapter needs that is asked to reset thousands, when a job's clients all end at once.
	hungWait = 30 * time.Second
)

// ErrGivenUp says that the caller stopped waiting.
var ErrGivenUp = errors.New("rails: given up")

// errNotReset says that an adapter keeps a queue pair, and the buffers with it.
var errNotReset = fmt.Errorf("%w within %v", initiator.ErrStuck, settleWait)

// LinkOptions of Set.Link.
type LinkOptions struct {
	Owner   string   // the principal whose it is
	Session [16]byte // of the client, or what takes its place
	// Peer is the client's queue pair, to which the caller has found that this node may lead. An MTU beyond the port's
	// means the port's.
	Peer       initiator.Endpoint
	Local      netip.Addr // where the client's HTTP connection came in, if that is known
	RNRRetries uint8      // see initiator.PathOptions
}

// Link is a queue pair of a fabric that has no other to go on by when it fails: connected to a client's, until it fails
// or is cut. What fails it says nothing about the rail, since no client has proved that it lives.
type Link struct {
	use  *Use
	path *initiator.Path
	done chan struct{} // closed when the queue pair is given back

	mu     sync.Mutex
	failed bool
	made   *initiator.Path // nil: not yet
}

// Link connects a queue pair to a client's, by the rail that Toward says. It waits for its turn until stop is closed,
// and then for the adapter, and the kernel, which may resolve an address. Errors: those of Toward and Use.Join;
// ErrGivenUp; initiator.ErrLimit, ErrLost, ErrLocal, ErrClosed; native.ErrVerbs.
func (set *Set) Link(o LinkOptions, stop <-chan struct{}) (*Link, error) {
	if err := set.enter(); err != nil {
		return nil, err
	}
	l, err := set.link(o, stop)
	if err != nil {
		set.links.Done()
		return nil, err
	}
	go func() {
		defer set.links.Done()
		l.live()
	}()
	return l, nil
}

// link connects a link that is counted in.
func (set *Set) link(o LinkOptions, stop <-chan struct{}) (*Link, error) {
	k, from, err := set.Toward(o.Peer.GID, o.Local)
	if err != nil {
		return nil, err
	}
	l := &Link{done: make(chan struct{})}
	l.use = &Use{
		Rail: k, Owner: o.Owner, Session: o.Session, Far: End{o.Peer.GID, o.Peer.QPN},
		Path: initiator.PathOptions{From: from, RNRRetries: o.RNRRetries}, Fail: l.Fail,
	}
	return l, l.open(o.Peer, stop)
}

// enter counts a link in, whose end is links.Done.
func (set *Set) enter() error {
	set.mu.Lock()
	defer set.mu.Unlock()
	select {
	case <-set.stop:
		return initiator.ErrClosed
	default:
		set.links.Add(1)
		return nil
	}
}

// open makes and connects the queue pair. After an error nothing is left of it.
func (l *Link) open(peer initiator.Endpoint, stop <-chan struct{}) error {
	if err := l.use.Join(); err != nil {
		return err
	}
	err := l.connect(peer, stop)
	if err != nil {
		l.use.Leave()
	}
	return err
}

func (l *Link) connect(peer initiator.Endpoint, stop <-chan struct{}) error {
	leave := l.use.Turn(stop)
	if leave == nil {
		return ErrGivenUp
	}
	defer leave()
	made, err := l.use.NewPath()
	if err != nil {
		return err
	}
	l.path = made
	l.mu.Lock()
	l.made = made
	if err = nil; l.failed {
		err = ErrDown
	}
	l.mu.Unlock()
	if err == nil {
		if err = made.Connect(peer); err != nil {
			l.use.Refused()
		}
	}
	if err != nil {
		l.giveBack()
	}
	return err
}

// giveBack gives back a queue pair that nothing was posted on, or that is reset.
func (l *Link) giveBack() {
	if err := l.path.Close(); err != nil {
		l.use.Stuck(err)
	}
}

// live stays with the link to its end.
func (l *Link) live() {
	<-l.path.Failed()
	began := time.Now()
	late := time.AfterFunc(settleWait, func() { l.use.Stuck(errNotReset) })
	hung := time.AfterFunc(hungWait, func() { l.use.Failed(began) })
	<-l.path.Settled()
	late.Stop()
	hung.Stop()
	l.giveBack()
	l.use.Leave()
	close(l.done)
}

// Local is what the client must know of the queue pair.
func (l *Link) Local() initiator.Endpoint { return l.path.Local() }

// Port is the port's number.
func (l *Link) Port() int { return l.use.port() }

// Move moves bytes. Errors: those of initiator.Path.Move.
func (l *Link) Move(m initiator.Move) error {
	err := l.path.Move(m)
	if err == nil {
		l.use.Moved()
	}
	return err
}

// Fail ends the link without waiting.
func (l *Link) Fail() {
	l.mu.Lock()
	l.failed = true
	made := l.made
	l.mu.Unlock()
	if made != nil {
		made.Fail()
	}
}

// Failed is closed when the link has failed, for whatever reason.
func (l *Link) Failed() <-chan struct{} { return l.path.Failed() }

// Done is closed when the link has failed and nothing is left of it.
func (l *Link) Done() <-chan struct{} { return l.done }

// Cut ends the link and waits, at most so long, until its queue pair is reset: nothing is moved by it any more. Errors:
// initiator.ErrStuck: it may still be, until Done.
func (l *Link) Cut(wait time.Duration) error {
	l.Fail()
	limit := time.NewTimer(wait)
	defer limit.Stop()
	select {
	case <-l.path.Settled():
		return nil
	case <-limit.C:
	}
	return fmt.Errorf("%w within %v", initiator.ErrStuck, wait)
}
