package rails

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/penstock-store/penstock/internal/fabric/verbs/initiator"
	"github.com/penstock-store/penstock/internal/fabric/verbs/reach"
	"github.com/penstock-store/penstock/internal/rail"
)

// driverWait bounds the wait for a driver that does not return from a call, when rails are closed: what the initiator
// itself waits for, and a probe.
const driverWait = 35 * time.Second

// Set is the rails of this node. The list never changes.
type Set struct {
	list   []*Rail
	ends   *ends
	logger *slog.Logger

	// onDevice tells whether a GID is an address of a network device of this machine: reach.OnDevice.
	onDevice func(gid [16]byte, device string) bool

	stop      chan struct{}
	stopping  sync.Once
	closeWait time.Duration // for the driver of a rail

	links sync.WaitGroup // and stages; counted up under mu, until stop is closed

	mu       sync.Mutex
	watchers []*func()
}

// New watches over rails, which it owns; a nil logger discards. Errors: ErrNoRail with the causes, when none of them
// could be opened.
func New(rails []Opened, logger *slog.Logger) (*Set, error) {
	set := newSet(rails, orNone(logger))
	if !slices.ContainsFunc(set.list, func(k *Rail) bool { return k.engine != nil }) {
		errs := []error{ErrNoRail}
		for _, k := range set.list {
			errs = append(errs, k.cause)
		}
		return nil, errors.Join(errs...)
	}
	set.keep()
	return set, nil
}

func newSet(rails []Opened, logger *slog.Logger) *Set {
	set := &Set{ends: newEnds(), logger: logger, onDevice: reach.OnDevice, stop: make(chan struct{}),
		closeWait: driverWait}
	for i, r := range rails {
		k := &Rail{
			set: set, index: uint8(i), name: r.Rail.Name(), engine: r.Engine, cause: r.Err, numa: r.Rail.NUMANode,
			connects: newTurns(), ejected: make(chan struct{}, 1),
			reason: r.Rail.Reason,
			uses:   make(map[*Use]struct{}), holders: make(map[string]int),
			stages: make(map[*Stage]struct{}),
		}
		if k.engine == nil {
			k.reason = reasonOpen
		}
		k.up.Store(k.engine != nil && r.Rail.Up)
		k.note(r.Rail)
		set.list = append(set.list, k)
		set.log(k, k.cause)
	}
	return set
}

// log tells the state of a rail, loudly.
func (set *Set) log(k *Rail, cause error) {
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

// Watch calls changed, which must not wait, whenever a rail went up or down or has another address, until stop.
func (set *Set) Watch(changed func()) (stop func()) {
	entry := &changed
	set.mu.Lock()
	defer set.mu.Unlock()
	set.watchers = append(slices.Clone(set.watchers), entry)
	return func() {
		set.mu.Lock()
		defer set.mu.Unlock()
		set.watchers = slices.DeleteFunc(slices.Clone(set.watchers), func(w *func()) bool { return w == entry })
	}
}

// changed tells those who watch.
func (set *Set) changed() {
	set.mu.Lock()
	watchers := set.watchers
	set.mu.Unlock()
	for _, w := range watchers {
		(*w)()
	}
}

// State tells whether a rail is up, and if none is, why.
func (set *Set) State() (up bool, reason string) {
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
func (set *Set) keep() {
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

// Close ends the keepers, the links and the stages, and closes the rails, at once: one whose driver does not return
// from a call costs the others nothing, and is left alone after a while. After an error an adapter may still use the
// arena and the memory of stages, which must stay mapped; Close may be called again then. Errors: initiator.ErrStuck,
// when an adapter neither resets nor destroys a queue pair.
func (set *Set) Close() error {
	set.stopping.Do(func() {
		set.mu.Lock()
		defer set.mu.Unlock()
		close(set.stop)
	})
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
		errs = append(errs, fmt.Errorf("rails: %s: %w: its driver does not return", k.name, initiator.ErrStuck))
	}
	err := errors.Join(errs...)
	if err == nil {
		set.links.Wait() // their queue pairs are gone
	}
	return err
}

// List is the rails, each at its index.
func (set *Set) List() []*Rail { return set.list }

// Find is the rail of an index, or nil.
func (set *Set) Find(index uint64) *Rail {
	if index >= uint64(len(set.list)) {
		return nil
	}
	return set.list[index]
}

// Ports is the state of all ports at one moment, each at its rail's index. One is up when its rail takes uses.
func (set *Set) Ports() []rail.Rail {
	set.mu.Lock()
	defer set.mu.Unlock()
	all := make([]rail.Rail, 0, len(set.list))
	for _, k := range set.list {
		info := k.info
		info.Up, info.Reason = k.up.Load(), k.reason
		all = append(all, info)
	}
	return all
}

// Owns tells whether a GID is that of one of the rails.
func (set *Set) Owns(gid [16]byte) bool {
	set.mu.Lock()
	defer set.mu.Unlock()
	return slices.ContainsFunc(set.list, func(k *Rail) bool { return k.info.GID == gid })
}

// Near is the rail of an address of this node, or, of a link-local one, that of its link; nil: there is none. It takes
// no lock.
func (set *Set) Near(at netip.Addr) *Rail {
	if at = at.Unmap(); !at.IsValid() {
		return nil
	}
	for _, k := range set.list {
		if own := k.place.Load().at; own == at || at.Zone() == "" && own.WithZone("") == at {
			return k
		}
	}
	if zone := at.Zone(); zone != "" {
		for _, k := range set.list {
			if k.place.Load().device == zone {
				return k
			}
		}
	}
	return nil
}

// AnyUp tells whether a rail is up. It takes no lock.
func (set *Set) AnyUp() bool { return slices.ContainsFunc(set.list, (*Rail).Up) }

// Stats is a reading of one rail.
type Stats struct {
	Name      string
	Up        bool
	Reason    string // why it is not up
	Engine    initiator.Stats
	Ejections int64
	Returns   int64 // how often it came back, from ejections and from a port that was down
	Refused   int64 // uses that the rail had no room for, or its adapter refused
}

// Stats reads the counters of all rails, each at its index.
func (set *Set) Stats() []Stats {
	all := make([]Stats, 0, len(set.list))
	for _, k := range set.list {
		set.mu.Lock()
		r := Stats{Name: k.name, Up: k.up.Load(), Reason: k.reason}
		set.mu.Unlock()
		if r.Up {
			r.Reason = ""
		}
		if k.engine != nil {
			r.Engine = k.engine.Stats()
		}
		r.Ejections, r.Returns, r.Refused = k.ejections.Load(), k.returns.Load(), k.refused.Load()
		all = append(all, r)
	}
	return all
}
