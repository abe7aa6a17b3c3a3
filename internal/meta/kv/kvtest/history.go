package kvtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-store/penstock/internal/meta/kv"
)

// event is one call in a transaction and, once it ran, its result.
type event struct {
	op     string // get, scan, put, delete
	key    string
	result string // of get: the value or ""; of scan: all keys and values
	value  string // of put: unique in the history
}

// txnRecord is one transaction: when it was called, when it returned, and what happened in the try
// that committed.
type txnRecord struct {
	plan        []event
	snapshot    bool // reads only, in a snapshot
	abort       bool // fn returns an error: what it read must still fit
	called, end int64
	events      []event
}

// testHistories runs small random sets of transactions at the same time and looks for a serial order
// that explains every result and in which no transaction comes before one that had returned before
// it was called.
func testHistories(t *testing.T, e kv.Engine) {
	ctx := within(t)
	step := rapid.Custom(func(t *rapid.T) event {
		return event{
			op:  rapid.SampledFrom([]string{"get", "get", "put", "put", "delete", "scan"}).Draw(t, "op"),
			key: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "key"),
		}
	})
	record := rapid.Custom(func(t *rapid.T) *txnRecord {
		kind := rapid.IntRange(0, 9).Draw(t, "kind")
		return &txnRecord{
			plan:     rapid.SliceOfN(step, 1, 4).Draw(t, "plan"),
			snapshot: kind == 0, abort: kind == 1,
		}
	})
	client := rapid.SliceOfN(record, 1, 3)
	rapid.Check(t, func(rt *rapid.T) {
		clients := rapid.SliceOfN(client, 2, 4).Draw(rt, "clients")
		h := &history{e: e}
		if err := h.empty(ctx); err != nil {
			rt.Fatalf("empty engine: %v", err)
		}
		if err := h.run(ctx, clients); err != nil {
			rt.Fatal(err)
		}
		if !explained(slices.Concat(clients...)) {
			rt.Fatalf("no serial order explains this history:\n%s", show(clients))
		}
	})
}

type history struct {
	e      kv.Engine
	clock  atomic.Int64
	values atomic.Int64
}

func (h *history) empty(ctx context.Context) error {
	return retried(ctx, h.e, func(tx kv.Tx) error {
		return errors.Join(tx.Delete([]byte("a")), tx.Delete([]byte("b")), tx.Delete([]byte("c")))
	})
}

func (h *history) run(ctx context.Context, clients [][]*txnRecord) error {
	var wg sync.WaitGroup
	errs := make([]error, len(clients))
	for i, txns := range clients {
		wg.Go(func() {
			for _, r := range txns {
				errs[i] = errors.Join(errs[i], h.transaction(ctx, r))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (h *history) transaction(ctx context.Context, r *txnRecord) error {
	r.called = h.clock.Add(1)
	defer func() { r.end = h.clock.Add(1) }()
	if r.snapshot {
		s, err := h.e.Snapshot(ctx)
		if err != nil {
			return err
		}
		defer s.Close()
		r.events, err = readAll(ctx, s, r.plan)
		return err
	}
	rollBack := errors.New("roll back")
	err := retried(ctx, h.e, func(tx kv.Tx) error {
		r.events = nil
		for _, ev := range r.plan {
			if err := h.step(ctx, tx, &ev); err != nil {
				return err
			}
			r.events = append(r.events, ev)
		}
		if r.abort {
			return rollBack
		}
		return nil
	})
	if r.abort && errors.Is(err, rollBack) {
		return nil
	}
	return err
}

func readAll(ctx context.Context, r kv.Reader, plan []event) ([]event, error) {
	var events []event
	for _, ev := range plan {
		var err error
		switch ev.op {
		case "get":
			ev.result, err = get(ctx, r, ev.key)
		case "scan":
			ev.result, err = scanned(ctx, r)
		default:
			continue
		}
		if err != nil {
			return nil, err
		}
		events = append(events, ev)
	}
	return events, nil
}

func (h *history) step(ctx context.Context, tx kv.Tx, ev *event) (err error) {
	switch ev.op {
	case "get":
		ev.result, err = get(ctx, tx, ev.key)
	case "scan":
		ev.result, err = scanned(ctx, tx)
	case "put":
		ev.value = fmt.Sprint(h.values.Add(1))
		err = tx.Put([]byte(ev.key), []byte(ev.value))
	case "delete":
		err = tx.Delete([]byte(ev.key))
	}
	return err
}

func scanned(ctx context.Context, r kv.Reader) (string, error) {
	all, err := collect(ctx, r, []byte("a"), []byte("d"))
	var b strings.Builder
	for _, p := range all {
		fmt.Fprintf(&b, "%s=%s ", p.key, p.value)
	}
	return b.String(), err
}

// apply runs the events against a state; it reports whether they give the recorded results, and the
// state afterwards.
func (r *txnRecord) apply(state map[string]string) (map[string]string, bool) {
	after := maps.Clone(state)
	for _, ev := range r.events {
		switch ev.op {
		case "get":
			if after[ev.key] != ev.result {
				return nil, false
			}
		case "scan":
			if stateText(after) != ev.result {
				return nil, false
			}
		case "put":
			after[ev.key] = ev.value
		case "delete":
			delete(after, ev.key)
		}
	}
	if r.abort {
		return state, true
	}
	return after, true
}

func stateText(state map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(state)) {
		fmt.Fprintf(&b, "%s=%s ", k, state[k])
	}
	return b.String()
}

// explained searches for the serial order, depth first, remembering what it tried.
func explained(all []*txnRecord) bool {
	tried := map[string]bool{}
	var search func(done uint64, state map[string]string) bool
	search = func(done uint64, state map[string]string) bool {
		if done == 1<<len(all)-1 {
			return true
		}
		at := fmt.Sprint(done, stateText(state))
		if tried[at] {
			return false
		}
		tried[at] = true
		for i, r := range all {
			if done>>i&1 == 1 || !mayBeNext(all, done, r) {
				continue
			}
			if after, ok := r.apply(state); ok && search(done|1<<i, after) {
				return true
			}
		}
		return false
	}
	return search(0, map[string]string{})
}

// mayBeNext reports whether everything that returned before r was called is done.
func mayBeNext(all []*txnRecord, done uint64, r *txnRecord) bool {
	for i, q := range all {
		if done>>i&1 == 0 && q != r && q.end < r.called {
			return false
		}
	}
	return true
}

func show(clients [][]*txnRecord) string {
	var b strings.Builder
	for i, txns := range clients {
		for _, r := range txns {
			fmt.Fprintf(&b, "client %d [%d, %d] snapshot=%v abort=%v %+v\n", i, r.called, r.end, r.snapshot, r.abort, r.events)
		}
	}
	return b.String()
}
