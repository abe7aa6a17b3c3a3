package rails

import (
	"slices"
	"time"

	"github.com/penstock-store/penstock/internal/rail"
)

// Reasons why a rail is down, besides those of rail.Rail.
const (
	reasonOpen    = "open-failed"
	reasonRefresh = "port-unknown"
	reasonFatal   = "device-fatal"
	reasonEjected = "ejected"
	reasonProbe   = "probe-failed"
)

// all is the rail's uses. Set.mu is held.
func (k *Rail) all() []*Use {
	uses := make([]*Use, 0, len(k.uses))
	for u := range k.uses {
		uses = append(uses, u)
	}
	return uses
}

// lower takes a rail down: its uses fail at once, and the fabrics are told.
func (k *Rail) lower(reason string, cause error) {
	k.set.mu.Lock()
	was := k.up.Swap(false)
	k.reason = reason
	uses := k.all()
	k.lapses = nil
	k.set.mu.Unlock()
	for _, u := range uses {
		u.Fail()
	}
	if was {
		k.set.log(k, cause)
		k.set.changed()
	}
}

// raise brings a rail up.
func (k *Rail) raise() {
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
func (k *Rail) learn(info rail.Rail) (moved bool) {
	k.set.mu.Lock()
	defer k.set.mu.Unlock()
	moved = k.info.GID != info.GID || k.info.LID != info.LID || k.info.MTU != info.MTU
	k.note(info)
	return moved
}

// lapse is a use that failed and not for its client; see Failed.
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

// Failed counts a use that failed while its client lived, as the client itself has proved, or whose queue pair the
// adapter does not reset. It ejects the rail when failures come from several clients, or when another rail reaches a
// client that this one does not. A success after the failed operation began says that the rail works, whenever the
// client speaks.
func (u *Use) Failed(began time.Time) {
	k := u.Rail
	since := time.Now().Add(-lapseWindow)
	active := since
	if good := time.Unix(0, k.good.Load()); good.After(since) {
		since = good
	}
	k.set.mu.Lock()
	k.lapses = append(k.lapses, lapse{began, u.Owner, u.Session, u.Far.GID})
	k.lapses = slices.DeleteFunc(k.lapses, func(l lapse) bool { return !l.at.After(since) })
	if len(k.lapses) > maxLapses {
		k.lapses = slices.Delete(k.lapses, 1, 2) // the first is from whence others are looked at
	}
	suspect := k.up.Load() && len(k.lapses) >= lapsesToEject &&
		(k.several() || k.set.reached(k, u.Far.GID).After(k.lapses[0].at)) && k.believed(active)
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
// is in trouble has many sessions. Set.mu is held.
func (k *Rail) several() bool {
	sessions, gids := false, false
	for _, l := range k.lapses {
		sessions = sessions || l.session != k.lapses[0].session
		gids = gids || l.gid != k.lapses[0].gid
	}
	return sessions && gids
}

// believed tells whether the failures may be held against the rail: a client can make its uses fail as it likes, by
// as many sessions and devices as it has. What one principal says alone counts when it alone has uses of this rail;
// when others have some, but moved no bytes since active, it costs them one of several rails at most. Set.mu is held.
func (k *Rail) believed(active time.Time) bool {
	accuser := k.lapses[0].principal
	for _, l := range k.lapses {
		if l.principal != accuser {
			return true
		}
	}
	alone := true
	for u := range k.uses {
		if u.Owner == accuser {
			continue
		}
		if alone = false; time.Unix(0, u.good.Load()).After(active) {
			return false
		}
	}
	return alone || slices.ContainsFunc(k.set.list, func(other *Rail) bool { return other != k && other.up.Load() })
}

// reached is when a rail other than k last moved bytes to or from a client's device. Set.mu is held.
func (set *Set) reached(k *Rail, gid [16]byte) (last time.Time) {
	for _, other := range set.list {
		if other == k {
			continue
		}
		for u := range other.uses {
			if u.Far.GID != gid {
				continue
			}
			if at := time.Unix(0, u.good.Load()); at.After(last) {
				last = at
			}
		}
	}
	return last
}
