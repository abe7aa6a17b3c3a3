package verbs

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-store/penstock/internal/fabric/verbs/initiator"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/rail"
)

// driverWait bounds the wait for a driver that does not return from a call, when rails are closed: what the initiator
// itself waits for, and a probe.
const driverWait = 35 * time.Second

// principalShare is the part of a rail's paths that one principal may have: half, so that others find room.
const principalShare = 2

// Reasons why a rail is down, besides those of rail.Rail.
const (
	reasonOpen    = "open-failed"
	reasonRefresh = "port-unknown"
	reasonFatal   = "device-fatal"
	reasonEjected = "ejected"
	reasonProbe   = "probe-failed"
)

// ports are the rails of this node. The list never changes.
type ports struct {
	list    []*port
	logger  *slog.Logger
	changed func() // a rail went up or down, or has another address

	stop      chan struct{}
	stopping  sync.Once
	closeWait time.Duration // for the driver of a rail

	mu sync.Mutex
}

// port is a rail with its health and its paths.
type port struct {
	set    *ports
	index  uint8
	name   string
	engine engine // nil: could not be opened
	cause  error  // then: why
	numa   int

	up   atomic.Bool                // takes paths and transfers; set under set.mu
	at   atomic.Pointer[netip.Addr] // info's address; set under set.mu, and read by each request
	load atomic.Int64               // bytes of the open transfers that chose it
	good atomic.Int64               // when a move last succeeded, Unix nanoseconds

	ejections, returns, refused atomic.Int64

	connects *turns        // of the queue pairs that connect
	ejected  chan struct{} // capacity 1: wakes the keeper, which sees by ejections that there was one
	kept     chan struct{} // closed when the keeper has ended; nil: there was none

	// guarded by set.mu
	info    rail.Rail
	reason  string
	paths   map[*path]struct{}
	holders map[string]int // paths by principal
	lapses  []lapse        // failures since the last success, oldest first
}

func newPorts(rails []opened, logger *slog.Logger, changed func()) *ports {
	set := &ports{logger: logger, changed: changed, stop: make(chan struct{}), closeWait: driverWait}
	for i, r := range rails {
		k := &port{
			set: set, index: uint8(i), name: r.rail.Name(), engine: r.engine, cause: r.err, numa: r.rail.NUMANode,
			connects: newTurns(), ejected: make(chan struct{}, 1),
			reason: r.rail.Reason,
			paths:  make(map[*path]struct{}), holders: make(map[string]int),
		}
		if k.engine == nil {
			k.reason = reasonOpen
		}
		k.up.Store(k.engine != nil && r.rail.Up)
		k.note(r.rail)
		set.list = append(set.list, k)
		set.log(k, k.cause)
	}
	return set
}

// log tells the state of a rail, loudly.
func (set *ports) log(k *port, cause error) {
	set.mu.Lock()
	up, info, reason := k.up.Load(), k.info, k.reason
	set.mu.Unlock()
	if up {
		set.logger.Info("rdma rail is up", "rail", k.name, "address", info.Address().String(), "network", info.Network,
			"mtu", info.MTU, "numa", info.NUMANode)
		return
	}
	set.logger.Warn("rdma rail is down", "rail", k.name, "reason", reason, "error", cause)
}

// usable is the number of rails that could be opened.
func (set *ports) usable() (n int) {
	for _, k := range set.list {
		if k.engine != nil {
			n++
		}
	}
	return n
}

// whyNone is the error of a node none of whose rails could be opened.
func (set *ports) whyNone() error {
	errs := []error{ErrNoRail}
	for _, k := range set.list {
		errs = append(errs, k.cause)
	}
	return errors.Join(errs...)
}

// state tells whether a rail is up, and if none is, why.
func (set *ports) state() (up bool, reason string) {
	set.mu.Lock()
	defer set.mu.Unlock()
	for _, k := range set.list {
		if k.up.Load() {
			return true, ""
		}
		reason = k.reason
	}
	return false, reason
}

// keep starts the keepers.
func (set *ports) keep() {
	for _, k := range set.list {
		if k.engine != nil {
			k.kept = make(chan struct{})
			go func() {
				defer close(k.kept)
				k.keep()
			}()
		}
	}
}

// close ends the keepers and closes the rails, at once: one whose driver does not return from a call costs the others
// nothing, and is left alone after closeWait. It may be called again after an error. Errors: initiator.ErrStuck.
func (set *ports) close() error {
	set.stopping.Do(func() { close(set.stop) })
	closing := make([]chan error, len(set.list))
	for i, k := range set.list {
		closing[i] = make(chan error, 1)
		go func() { closing[i] <- k.close() }()
	}
	limit := time.NewTimer(set.closeWait)
	defer limit.Stop()
	var errs []error
	for i, k := range set.list {
		select {
		case err := <-closing[i]:
			errs = append(errs, err)
			continue
		case <-limit.C:
			limit.Reset(0) // for the rest
		}
		errs = append(errs, fmt.Errorf("rc: rail %s: %w: its driver does not return", k.name, initiator.ErrStuck))
	}
	return errors.Join(errs...)
}

// close ends the keeper and closes the rail.
func (k *port) close() error {
	if k.engine == nil {
		return nil
	}
	if k.kept != nil {
		<-k.kept
	}
	if err := k.engine.Close(); err != nil {
		return fmt.Errorf("rc: rail %s: %w", k.name, err)
	}
	return nil
}

// rails is the body of a RAILS frame.
func (set *ports) rails() []byte {
	set.mu.Lock()
	defer set.mu.Unlock()
	rails := make([]frame.Rail, 0, len(set.list))
	for _, k := range set.list {
		rails = append(rails, frame.Rail{
			Index: k.index, Up: k.up.Load(), MTU: frame.MTUNumber(k.info.MTU), LID: k.info.LID, GID: k.info.GID,
		})
	}
	return frame.EncodeRails(rails)
}

// find is the rail of an index, or nil.
func (set *ports) find(index uint64) *port {
	if index >= uint64(len(set.list)) {
		return nil
	}
	return set.list[index]
}

// owns tells whether a GID is that of one of the rails.
func (set *ports) owns(gid [16]byte) bool {
	set.mu.Lock()
	defer set.mu.Unlock()
	for _, k := range set.list {
		if k.info.GID == gid {
			return true
		}
	}
	return false
}

// near is the rail of an address, or nil.
func (set *ports) near(at netip.Addr) *port {
	if !at.IsValid() {
		return nil
	}
	for _, k := range set.list {
		if own := *k.at.Load(); own == at || at.Zone() == "" && own.WithZone("") == at {
			return k
		}
	}
	return nil
}

// anyUp tells whether a rail is up.
func (set *ports) anyUp() bool {
	return slices.ContainsFunc(set.list, func(k *port) bool { return k.up.Load() })
}

// isBeside tells whether two rails are known to be of one NUMA node.
func (k *port) isBeside(other *port) bool { return k.numa == other.numa && k.numa >= 0 }

// stuck notes a queue pair that the adapter did not give back.
func (k *port) stuck(err error) {
	k.set.logger.Error("rdma queue pair is not given back", "rail", k.name, "error", err)
}

// join counts a path in. The status is not OK when the rail is down or the principal has its share.
func (k *port) join(p *path, principal string) frame.Status {
	k.set.mu.Lock()
	defer k.set.mu.Unlock()
	switch {
	case !k.up.Load():
		return frame.StatusRail
	case k.holders[principal] >= max(1, k.engine.Limit()/principalShare):
		k.refused.Add(1)
		return frame.StatusLimit
	}
	k.holders[principal]++
	k.paths[p] = struct{}{}
	return frame.StatusOK
}

// leave undoes join.
func (k *port) leave(p *path, principal string) {
	k.set.mu.Lock()
	defer k.set.mu.Unlock()
	delete(k.paths, p)
	if k.holders[principal]--; k.holders[principal] == 0 {
		delete(k.holders, principal)
	}
}

// all is the rail's paths. set.mu is held.
func (k *port) all() []*path {
	paths := make([]*path, 0, len(k.paths))
	for p := range k.paths {
		paths = append(paths, p)
	}
	return paths
}

// lower takes a rail down: its paths fail at once, and the sessions are told.
func (k *port) lower(reason string, cause error) {
	k.set.mu.Lock()
	was := k.up.Swap(false)
	k.reason = reason
	paths := k.all()
	k.lapses = nil
	k.set.mu.Unlock()
	for _, p := range paths {
		p.fail(whyRail)
	}
	if was {
		k.set.log(k, cause)
		k.set.changed()
	}
}

// raise brings a rail up.
func (k *port) raise() {
	k.set.mu.Lock()
	was := k.up.Swap(true)
	k.reason = ""
	k.lapses = nil
	k.set.mu.Unlock()
	if !was {
		k.returns.Add(1)
		k.set.log(k, nil)
		k.set.changed()
	}
}

// learn takes the port's state as it is now; moved tells that clients must know.
func (k *port) learn(info rail.Rail) (moved bool) {
	k.set.mu.Lock()
	defer k.set.mu.Unlock()
	moved = k.info.GID != info.GID || k.info.LID != info.LID || k.info.MTU != info.MTU
	k.note(info)
	return moved
}

// note keeps the port's state. set.mu is held, or nobody else has the port yet.
func (k *port) note(info rail.Rail) {
	at := info.Address()
	if at.Is6() && at.IsLinkLocalUnicast() {
		at = at.WithZone(info.Network) // as the address of a connection has it
	}
	k.info = info
	k.at.Store(&at)
}

// lapse is a path that failed and not for its client; see failed.
type lapse struct {
	at        time.Time // when what failed began
	principal string
	session   [16]byte
	gid       [16]byte // of the client's device
}

const (
	// lapseWindow is how long a failure counts: some seconds of retries, several times.
	lapseWindow = 30 * time.Second
	// lapsesToEject is how many failures without a success between make a rail suspect.
	lapsesToEject = 4
	// maxLapses bounds those that are remembered, however fast a client makes them.
	maxLapses = 64
)

// failed counts a path that failed while its client lived, as the client's FENCED proved, or whose queue pair the
// adapter does not reset. It ejects the rail when failures come from several clients, or when another rail reaches a
// client that this one does not. A success after the failed operation began says that the rail works, whenever the
// client says FENCED.
func (k *port) failed(p *path, began time.Time) {
	since := time.Now().Add(-lapseWindow)
	active := since
	if good := time.Unix(0, k.good.Load()); good.After(since) {
		since = good
	}
	k.set.mu.Lock()
	k.lapses = append(k.lapses, lapse{began, p.owner(), p.session.core.ID, p.gid})
	k.lapses = slices.DeleteFunc(k.lapses, func(l lapse) bool { return !l.at.After(since) })
	if len(k.lapses) > maxLapses {
		k.lapses = slices.Delete(k.lapses, 1, 2) // the first is from whence others are looked at
	}
	suspect := k.up.Load() && len(k.lapses) >= lapsesToEject &&
		(k.several() || k.set.reached(k, p.gid).After(k.lapses[0].at)) && k.believed(active)
	if suspect {
		k.lapses = nil // of several that fail at once, one ejects the rail
	}
	k.set.mu.Unlock()
	if !suspect {
		return
	}
	k.ejections.Add(1)
	k.lower(reasonEjected, nil)
	select {
	case k.ejected <- struct{}{}:
	default:
	}
}

// several tells whether failures are of more than one session and more than one device of clients: a machine that
// is in trouble has many sessions. set.mu is held.
func (k *port) several() bool {
	sessions, gids := false, false
	for _, l := range k.lapses {
		sessions = sessions || l.session != k.lapses[0].session
		gids = gids || l.gid != k.lapses[0].gid
	}
	return sessions && gids
}

// believed tells whether the failures may be held against the rail: a client can make its paths fail as it likes, by
// as many sessions and devices as it has. What one principal says alone counts when it alone has paths of this rail;
// when others have some, but moved no bytes since active, it costs them one of several rails at most. set.mu is held.
func (k *port) believed(active time.Time) bool {
	accuser := k.lapses[0].principal
	for _, l := range k.lapses {
		if l.principal != accuser {
			return true
		}
	}
	alone := true
	for p := range k.paths {
		if p.owner() == accuser {
			continue
		}
		if alone = false; time.Unix(0, p.good.Load()).After(active) {
			return false
		}
	}
	return alone || slices.ContainsFunc(k.set.list, func(other *port) bool { return other != k && other.up.Load() })
}

// reached is when a rail other than k last moved bytes to or from a client's device. set.mu is held.
func (set *ports) reached(k *port, gid [16]byte) (last time.Time) {
	for _, other := range set.list {
		if other == k {
			continue
		}
		for p := range other.paths {
			if p.gid != gid {
				continue
			}
			if at := time.Unix(0, p.good.Load()); at.After(last) {
				last = at
			}
		}
	}
	return last
}
