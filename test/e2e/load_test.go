package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/internal/checksum"
)

// load is what several workers do to the keys that they share, and all that was answered.
type load struct {
	t      *testing.T
	bucket string
	keys   []string
	fatal  bool // the node lives: an operation without an answer is an error
	start  time.Time
	next   atomic.Uint64

	mu      sync.Mutex
	initial map[string]uint64            // guarded by mu
	history map[string][]operation       // guarded by mu
	names   map[string]map[string]uint64 // key → ETag, or the 16 digits of the CRC64NVME → value; guarded by mu
}

func newLoad(t *testing.T, bucket string, keys int) *load {
	l := &load{
		t: t, bucket: bucket, start: time.Now(), initial: map[string]uint64{}, history: map[string][]operation{},
		names: map[string]map[string]uint64{},
	}
	for i := range keys {
		key := fmt.Sprintf("shared/%d", i)
		l.keys = append(l.keys, key)
		l.names[key] = map[string]uint64{}
	}
	return l
}

func (l *load) now() int64 { return int64(time.Since(l.start)) }

func (l *load) record(key string, o operation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.history[key] = append(l.history[key], o)
}

func (l *load) name(key, etag string, value uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.names[key][etag] = value
}

// valueOf finds the write that an ETag stands for. Not known: a multipart upload without an answer.
func (l *load) valueOf(key, etag string) (uint64, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if v, ok := l.names[key][etag]; ok {
		return v, true
	}
	if len(etag) == 34 && strings.HasSuffix(etag, "-1") {
		v, ok := l.names[key][etag[:16]]
		return v, ok
	}
	return 0, false
}

// crashed says that no operation without an answer takes effect any more.
func (l *load) crashed() {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ops := range l.history {
		for i := range ops {
			if ops[i].outcome == unknown {
				ops[i].end = min(ops[i].end, now)
			}
		}
	}
}

// check explains every key's history and forgets it, given what each key holds now that all is quiet.
func (l *load) check(now map[string]uint64) {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, key := range l.keys {
		at := l.now()
		ops := append(l.history[key], operation{opRead, done, now[key], 0, at, at})
		if err := explain(l.initial[key], ops); err != nil {
			l.t.Errorf("%s: %v", key, err)
		}
		l.initial[key], l.history[key] = now[key], nil
	}
}

// contents is a function of key, value and size alone.
func contents(key string, value uint64, p []byte) {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key))
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], h.Sum64())
	binary.LittleEndian.PutUint64(seed[8:], value)
	_, _ = rand.NewChaCha8(seed).Read(p) // never returns an error
	binary.LittleEndian.PutUint64(p, value)
}

// valueIn says which write the bytes are, whole.
func valueIn(key string, p []byte) (uint64, error) {
	if len(p) < 8 {
		return 0, fmt.Errorf("%d bytes were never written", len(p))
	}
	v := binary.LittleEndian.Uint64(p)
	want := make([]byte, len(p))
	contents(key, v, want)
	if !bytes.Equal(p, want) {
		return 0, fmt.Errorf("%d bytes that begin as write %d are not that write", len(p), v)
	}
	return v, nil
}

// worker is one client of a load.
type worker struct {
	*load
	path   int
	client *client.Client
	memory *memory
	random *rand.Rand
	sizes  []int
	seen   map[string]string // key → last ETag
	ok     int               // operations answered
}

func newWorker(l *load, c *client.Client, path int, sizes []int, seed uint64) *worker {
	return &worker{
		load: l, path: path, client: c, memory: newMemory(l.t, c, patternOf(16<<20), seed),
		random: rand.New(rand.NewPCG(seed, 4)), sizes: sizes, seen: map[string]string{},
	}
}

// step does one random operation. false: the worker cannot go on.
func (w *worker) step(ctx context.Context) bool {
	key := w.keys[w.random.IntN(len(w.keys))]
	switch w.random.IntN(10) {
	case 0, 1, 2:
		w.write(ctx, key, operation{kind: opWrite}, client.Conditions{})
	case 3:
		w.write(ctx, key, operation{kind: opCreate}, client.Conditions{IfNoneMatch: "*"})
	case 4:
		etag := w.seen[key]
		if expect, ok := w.valueOf(key, etag); ok {
			w.write(ctx, key, operation{kind: opReplace, expect: expect}, client.Conditions{IfMatch: etag})
		}
	case 5:
		w.remove(ctx, key)
	case 6:
		w.list(ctx)
	default:
		w.read(ctx, key)
	}
	return !w.memory.region.Abandoned()
}

// outcomeOf judges an answer; drop says that it tells nothing.
func (w *worker) outcomeOf(err error) (o outcome, drop bool) {
	var answer *client.Error
	if errors.As(err, &answer) && answer.Status < http.StatusInternalServerError {
		switch {
		case answer.Status == http.StatusPreconditionFailed:
			return refused, false
		case errors.Is(err, client.ErrNotFound):
			return missing, false
		case errors.Is(err, client.ErrPrecondition): // a conflict: nothing was written
			return refused, true
		}
		w.t.Errorf("%s by %s: %v", w.bucket, paths[w.path], err)
		return refused, true
	}
	if err == nil {
		w.ok++
		return done, false
	}
	if w.fatal {
		w.t.Errorf("%s by %s: %v", w.bucket, paths[w.path], err)
	}
	return unknown, false
}

func (w *worker) finish(key string, o operation, err error) bool {
	o.end = w.now()
	var drop bool
	if o.outcome, drop = w.outcomeOf(err); o.outcome == unknown {
		o.end = math.MaxInt64
	}
	if !drop {
		w.record(key, o)
	}
	return o.outcome == done
}

func (w *worker) write(ctx context.Context, key string, o operation, cond client.Conditions) {
	o.value = w.next.Add(1)
	p := make([]byte, 16+w.sizes[w.random.IntN(len(w.sizes))])
	contents(key, o.value, p)
	w.name(key, md5Of(p), o.value)
	w.name(key, fmt.Sprintf("%016x", checksum.Sum(p)), o.value)
	window := w.memory.load(p)
	o.begin = w.now()
	res, err := w.client.PutFrom(ctx, window, w.bucket, key, client.PutOptions{Conditions: cond})
	if w.finish(key, o, err) {
		w.name(key, res.Object.ETag, o.value)
		w.seen[key] = res.Object.ETag
		if err := checkPath(w.path, res, len(p)); err != nil {
			w.t.Error(err)
		}
	}
	if !w.memory.region.Abandoned() {
		if err := w.memory.sent(window, p); err != nil {
			w.t.Errorf("put by %s: %v", paths[w.path], err)
		}
	}
}

func (w *worker) remove(ctx context.Context, key string) {
	o := operation{kind: opRemove, begin: w.now()}
	w.finish(key, o, w.client.Delete(ctx, w.bucket, key))
}

// read reads the key into a window and returns what it holds.
func (w *worker) read(ctx context.Context, key string) (uint64, error) {
	largest := 16
	for _, n := range w.sizes {
		largest = max(largest, 16+n)
	}
	window := w.memory.window(largest)
	o := operation{kind: opRead, begin: w.now()}
	res, err := w.client.GetInto(ctx, window, w.bucket, key, client.GetOptions{})
	o.end = w.now()
	touched := window.Bytes
	switch {
	case errors.Is(err, client.ErrNotFound):
		w.record(key, o)
		err = nil
	case err == nil:
		touched = res.Bytes
		o.value, err = valueIn(key, w.memory.region.Bytes()[window.Offset:window.Offset+res.Bytes])
		if err != nil {
			w.t.Errorf("read %s by %s: %v", key, paths[w.path], err)
			break
		}
		if v, ok := w.valueOf(key, res.Object.ETag); ok && v != o.value {
			w.t.Errorf("read %s by %s: ETag %s of write %d, bytes of write %d",
				key, paths[w.path], res.Object.ETag, v, o.value)
		}
		w.ok++
		w.seen[key] = res.Object.ETag
		w.record(key, o)
	case w.fatal:
		w.t.Errorf("read %s by %s: %v", key, paths[w.path], err)
	}
	if !w.memory.region.Abandoned() {
		if err := w.memory.settle(window, touched); err != nil {
			w.t.Errorf("read %s by %s: %v", key, paths[w.path], err)
		}
	}
	return o.value, err
}

// list reads every key by its entry in one listing.
func (w *worker) list(ctx context.Context) {
	begin, found := w.now(), map[string]string{}
	for e, err := range w.client.List(ctx, w.bucket, client.ListOptions{Prefix: "shared/"}) {
		if err != nil {
			if w.fatal {
				w.t.Errorf("list: %v", err)
			}
			return
		}
		found[e.Key] = e.ETag
	}
	end := w.now()
	for _, key := range w.keys {
		o := operation{kind: opRead, begin: begin, end: end}
		if etag, ok := found[key]; ok {
			if o.value, ok = w.valueOf(key, etag); !ok {
				continue
			}
		}
		w.record(key, o)
		delete(found, key)
	}
	for key := range found {
		if !slices.Contains(w.keys, key) { // else its write is not known by its ETag
			w.t.Errorf("%q is listed and was never written", key)
		}
	}
}

// TestSharedKeys lets clients of all paths write, overwrite, create, replace, delete, read and list
// the same few keys, and then looks for an order that explains every answer.
func TestSharedKeys(t *testing.T) {
	n := startNode(t)
	if err := n.connect(t, client.HTTP).CreateBucket(t.Context(), "shared"); err != nil {
		t.Fatal(err)
	}
	rounds, steps := 3, 40
	if testing.Short() {
		rounds, steps = 1, 25
	}
	if long() {
		rounds = 60
	}
	l := newLoad(t, "shared", 4)
	l.fatal = true
	var workers []*worker
	for i := range 2 * len(paths) {
		path := i % len(paths)
		c := n.connect(t, paths[path])
		workers = append(workers, newWorker(l, c, path, []int{0, 1000, 20 << 10, 200 << 10, 3 << 20}, uint64(i)))
	}
	for range rounds {
		var group sync.WaitGroup
		for _, w := range workers {
			group.Go(func() {
				for range steps {
					if !w.step(t.Context()) {
						t.Errorf("the region of a client by %s was abandoned", paths[w.path])
						return
					}
				}
			})
		}
		group.Wait()
		l.check(l.held(t.Context(), workers))
		if t.Failed() {
			return
		}
	}
}

// held reads every key by the paths in turn, while nothing else runs.
func (l *load) held(ctx context.Context, workers []*worker) map[string]uint64 {
	l.t.Helper()
	now := map[string]uint64{}
	for i, key := range l.keys {
		v, err := workers[i%len(workers)].read(ctx, key)
		if err != nil {
			l.t.Errorf("read %s: %v", key, err)
		}
		now[key] = v
	}
	workers[0].list(ctx)
	return now
}
