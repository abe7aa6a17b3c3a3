package rails

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-store/penstock/internal/fabric/verbs/initiator"
	"github.com/penstock-store/penstock/internal/rail"
	"github.com/penstock-store/penstock/native"
)

// fakeEngine is a rail whose port does what a test says, in fake time.
type fakeEngine struct {
	Engine
	events chan native.Event

	mu      sync.Mutex
	info    rail.Rail
	refused error         // of Refresh
	broken  error         // of Probe
	probes  int           // that worked
	gate    chan struct{} // not nil: Refresh waits for it
}

func (e *fakeEngine) Events() <-chan native.Event { return e.events }
func (e *fakeEngine) Close() error                { return nil }
func (e *fakeEngine) Stats() initiator.Stats      { return initiator.Stats{} }

func (e *fakeEngine) Refresh() (rail.Rail, error) {
	e.mu.Lock()
	gate := e.gate
	e.mu.Unlock()
	if gate != nil {
		<-gate
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.info, e.refused
}

func (e *fakeEngine) Probe(time.Duration) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.broken == nil && !e.info.Up {
		return errors.New("probe of a port that is down")
	}
	if e.broken == nil {
		e.probes++
	}
	return e.broken
}

// worked is how many probes did.
func (e *fakeEngine) worked() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.probes
}

// set changes the port, and says so by an event that may be lost.
func (e *fakeEngine) set(change func(), event native.EventType, lost bool) {
	e.mu.Lock()
	change()
	e.info.Reason = ""
	if !e.info.Up {
		e.info.Reason = rail.ReasonPortDown
	}
	e.mu.Unlock()
	if !lost {
		e.tell(event)
	}
}

// tell loses the event when the keeper is far behind, as the initiator does.
func (e *fakeEngine) tell(event native.EventType) {
	select {
	case e.events <- native.Event{Type: event}:
	default:
	}
}

// newKept is a rail on a fake engine, with its keeper.
func newKept(t *testing.T, changed func()) (*fakeEngine, *Rail) {
	e := &fakeEngine{events: make(chan native.Event, 64), info: rail.Rail{Device: "fake", Port: 1, Up: true}}
	set := newSet([]Opened{{Rail: e.info, Engine: e}}, slog.New(slog.DiscardHandler))
	set.Watch(changed)
	set.keep()
	t.Cleanup(func() {
		if err := set.Close(); err != nil {
			t.Error(err)
		}
	})
	return e, set.list[0]
}

// unkept is a rail without a keeper.
func unkept() *Rail {
	return newSet([]Opened{{Rail: rail.Rail{Up: true}, Engine: &fakeEngine{}}}, slog.New(slog.DiscardHandler)).list[0]
}

// eject lets uses of several clients fail.
func (k *Rail) eject() {
	for i := range lapsesToEject {
		k.use(byte(i % 2)).Failed(time.Now())
	}
}

// use is a client's, with a session and a device of its own.
func (k *Rail) use(client byte) *Use {
	return &Use{Rail: k, Owner: "p", Session: [16]byte{client}, Far: End{GID: [16]byte{client}}, Fail: func() {}}
}

// TestEjectedDuringALook: a rail that is ejected while the keeper asks for its port is not taken for one whose port
// came up: it is probed after the wait, not at once.
func TestEjectedDuringALook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, k := newKept(t, func() {})
		gate := make(chan struct{})
		e.mu.Lock()
		e.gate = gate
		e.mu.Unlock()
		e.tell(native.EventGIDs)
		synctest.Wait()
		k.eject()
		if k.up.Load() || k.ejections.Load() != 1 {
			t.Fatal("not ejected")
		}
		e.mu.Lock()
		e.gate = nil
		e.mu.Unlock()
		close(gate)
		time.Sleep(firstProbe - time.Millisecond) // fake time
		synctest.Wait()
		if n := e.worked(); k.up.Load() || n != 0 {
			t.Errorf("up %v after %d probes, before the wait was over", k.up.Load(), n)
		}
		time.Sleep(time.Millisecond) // fake time
		synctest.Wait()
		if n := e.worked(); !k.up.Load() || n != 1 || k.returns.Load() != 1 {
			t.Errorf("up %v after %d probes, %d returns", k.up.Load(), n, k.returns.Load())
		}
	})
}

// TestFailuresAtOnceEjectOnce: failures that are counted at the same moment are one ejection.
func TestFailuresAtOnceEjectOnce(t *testing.T) {
	for range 200 {
		k := unkept()
		var tasks sync.WaitGroup
		for i := range lapsesToEject + 2 {
			u := k.use(byte(i))
			tasks.Go(func() { u.Failed(time.Now()) })
		}
		tasks.Wait()
		if n := k.ejections.Load(); n != 1 || k.up.Load() {
			t.Fatalf("%d ejections", n)
		}
	}
}

// TestLapsesAreBounded, however many a client makes, and those of others still count.
func TestLapsesAreBounded(t *testing.T) {
	k := unkept()
	one := k.use(0)
	for range 10 * maxLapses {
		one.Failed(time.Now())
	}
	if len(k.lapses) > maxLapses || !k.up.Load() {
		t.Fatalf("%d failures are remembered, up %v", len(k.lapses), k.up.Load())
	}
	k.use(1).Failed(time.Now())
	if k.up.Load() {
		t.Error("a second client's failure does not count")
	}
}

// watcher looks at each change of a rail's state.
type watcher struct {
	e      *fakeEngine
	k      *Rail
	down   bool
	probes int // that had worked when the rail went down
	wrong  atomic.Bool
}

func (w *watcher) changed() {
	w.e.mu.Lock()
	defer w.e.mu.Unlock()
	if !w.k.up.Load() {
		w.down, w.probes = true, w.e.probes
		return
	}
	if w.down && w.e.probes == w.probes {
		w.wrong.Store(true)
	}
	w.down = false
}

// TestKeeperInAStorm drives a rail by random events, lost ones among them, ports that change without a word, queries
// and probes that fail, and ejections: it never comes back without a probe that worked since, and when the storm is
// over it is up if its port is and works, and down otherwise.
func TestKeeperInAStorm(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 7))
			w := &watcher{}
			e, k := newKept(t, w.changed)
			w.e, w.k = e, k
			coin := func() bool { return random.IntN(2) == 0 }
			for range 400 {
				switch random.IntN(8) {
				case 0, 1:
					up := coin()
					event := native.EventPortDown
					if up {
						event = native.EventPortUp
					}
					e.set(func() { e.info.Up = up }, event, random.IntN(3) == 0)
				case 2:
					e.set(func() { e.info.GID[15]++ }, native.EventGIDs, coin())
				case 3:
					broken := errors.New("broken")
					if coin() {
						broken = nil
					}
					e.set(func() { e.broken = broken }, native.EventGIDs, true)
				case 4:
					refused := errors.New("refused")
					if coin() {
						refused = nil
					}
					e.set(func() { e.refused = refused }, native.EventGIDs, true)
				case 5:
					k.eject()
				case 6:
					for range random.IntN(200) {
						e.tell([]native.EventType{native.EventPortUp, native.EventPortDown, native.EventGIDs}[random.IntN(3)])
					}
				case 7:
					time.Sleep(time.Duration(random.IntN(3000)) * time.Millisecond) // fake time
				}
				if coin() {
					synctest.Wait()
				}
			}
			up, works, answers := coin(), coin(), random.IntN(4) > 0
			e.set(func() {
				e.info.Up, e.broken, e.refused = up, nil, nil
				if !works {
					e.broken = errors.New("broken")
				}
				if !answers {
					e.refused = errors.New("refused")
				}
			}, native.EventGIDs, true)
			synctest.Wait()
			k.eject() // a rail that is up and does not work is found by its failures only
			time.Sleep(2*lastProbe + 2*pollWait)
			synctest.Wait()
			if want := up && works && answers; k.up.Load() != want {
				t.Errorf("seed %d: up %v, want %v: port up %v, works %v, answers %v", seed, !want, want, up, works, answers)
			}
			if w.wrong.Load() {
				t.Errorf("seed %d: came back without a probe", seed)
			}
			e.tell(native.EventDeviceFatal)
			e.set(func() { e.info.Up, e.broken, e.refused = true, nil, nil }, native.EventPortUp, false)
			time.Sleep(2*lastProbe + 2*pollWait) // fake time
			synctest.Wait()
			if k.up.Load() || k.reason != reasonFatal {
				t.Errorf("seed %d: a device that is lost came back", seed)
			}
		})
	}
}
