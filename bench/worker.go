package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/client"
)

// The worker speaks JSON lines: it reads a request with a task, prepares, answers ready, reads
// another request ("go"), runs and answers the sample.
type request struct {
	Task *Task `json:"task,omitempty"`
	Go   bool  `json:"go,omitempty"`
}

type reply struct {
	Ready   bool    `json:"ready,omitempty"`
	Address string  `json:"address,omitempty"` // of a task that serves another one
	Sample  *Sample `json:"sample,omitempty"`
	Error   string  `json:"error,omitempty"`
}

// runner is a prepared task: operation i of the run, in one of the slots.
type runner struct {
	op      func(ctx context.Context, slot, i int) (int64, error)
	close   func()
	address string // where it serves another task, instead of op
}

// Work runs tasks from in until its end. It is the body of a worker process.
func Work(ctx context.Context, in io.Reader, out io.Writer) error {
	w := &worker{clients: map[string]*client.Client{}}
	defer w.close()
	dec, enc := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var r request
		if err := dec.Decode(&r); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("bench: worker: %w", err)
		}
		if r.Task == nil {
			continue
		}
		if err := w.one(ctx, *r.Task, dec, enc); err != nil {
			return err
		}
	}
}

type worker struct {
	clients map[string]*client.Client // by path
	region  *client.Region
	owner   *client.Client
}

func (w *worker) one(ctx context.Context, t Task, dec *json.Decoder, enc *json.Encoder) error {
	run, err := w.prepare(ctx, t)
	if err != nil {
		return enc.Encode(reply{Error: err.Error()})
	}
	defer run.close()
	if err := enc.Encode(reply{Ready: true, Address: run.address}); err != nil {
		return err
	}
	var start request
	if err := dec.Decode(&start); errors.Is(err, io.EOF) {
		return nil
	} else if err != nil {
		return fmt.Errorf("bench: worker: %w", err)
	}
	s, err := measure(ctx, t, run.op)
	if err != nil {
		return enc.Encode(reply{Error: err.Error()})
	}
	return enc.Encode(reply{Sample: &s})
}

func (w *worker) close() {
	w.dropRegion()
	for _, c := range w.clients {
		_ = c.Close() // the process ends
	}
}

func (w *worker) dropRegion() {
	if w.region != nil {
		_ = w.region.Close() // measured already
		w.region, w.owner = nil, nil
	}
}

// measure runs the operation InFlight at a time.
func measure(ctx context.Context, t Task, op func(context.Context, int, int) (int64, error)) (Sample, error) {
	var s Sample
	latencies := make([][]float64, t.InFlight)
	var next, bytes atomic.Int64
	group, gctx := errgroup.WithContext(ctx)
	before, start := selfCPU(), time.Now()
	deadline := start.Add(t.duration())
	for slot := range t.InFlight {
		group.Go(func() error {
			for gctx.Err() == nil {
				i := int(next.Add(1)) - 1
				begin := time.Now()
				if (t.Ops > 0 && i >= t.Ops) || (t.Ops == 0 && begin.After(deadline)) {
					return nil
				}
				n, err := op(gctx, slot, i)
				if err != nil {
					return err
				}
				bytes.Add(n)
				latencies[slot] = append(latencies[slot], time.Since(begin).Seconds()*1e3)
			}
			return gctx.Err()
		})
	}
	err := group.Wait()
	s.Seconds, s.ClientCPU = time.Since(start).Seconds(), selfCPU()-before
	for _, l := range latencies {
		s.Latencies = append(s.Latencies, l...)
	}
	s.Ops, s.Bytes = int64(len(s.Latencies)), bytes.Load()
	return s, err
}

// selfCPU is the CPU time of this process in seconds.
func selfCPU() float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

func (w *worker) prepare(ctx context.Context, t Task) (runner, error) {
	if err := t.check(); err != nil {
		return runner{}, err
	}
	switch t.Kind {
	case Get, Put:
		return w.prepareTransfer(ctx, t)
	case FloorRead:
		return prepareRead(t)
	case FloorWrite:
		return prepareWrite(t)
	case FloorTCP:
		return prepareTCP(t)
	case floorTCPSender:
		return prepareTCPSender(t)
	case FloorMD5:
		return prepareMD5(t)
	}
	return runner{}, fmt.Errorf("bench: unknown kind %q", t.Kind)
}

func (w *worker) client(t Task) (*client.Client, error) {
	if c := w.clients[t.Path]; c != nil {
		return c, nil
	}
	c, err := client.New(client.Config{
		Fabric: client.Fabric(t.fabric()), MaxAttempts: 2, Logger: slog.New(slog.DiscardHandler),
	})
	if err == nil {
		w.clients[t.Path] = c
	}
	return c, err
}

// prepareTransfer registers the memory and moves one object, so that sessions, connections and
// registrations exist before the clock starts.
func (w *worker) prepareTransfer(ctx context.Context, t Task) (runner, error) {
	c, err := w.client(t)
	if err != nil {
		return runner{}, err
	}
	if err := w.useRegion(c, t); err != nil {
		return runner{}, err
	}
	windows := make([]client.Window, t.InFlight)
	for i := range windows {
		places := max(1, int64(len(w.region.Bytes()))/t.ObjectBytes)
		windows[i] = w.region.Window(int64(i)%places*t.ObjectBytes, t.ObjectBytes)
	}
	run := runner{close: func() {}}
	switch {
	case t.Kind == Put:
		run.op = w.put(c, t, windows)
	case t.Discard:
		run.op = discard(c, t)
	default:
		run.op = get(c, t, windows)
	}
	_, err = run.op(ctx, 0, 0)
	return run, err
}

func (w *worker) useRegion(c *client.Client, t Task) error {
	need := t.RegionBytes
	if need == 0 {
		need = t.ObjectBytes * int64(t.InFlight)
	}
	if t.Discard {
		need = t.ObjectBytes // never filled, but windows are made alike
		need = min(need, 1<<20)
	}
	if w.region != nil && w.owner == c && int64(len(w.region.Bytes())) == need {
		return nil
	}
	w.dropRegion()
	allocate := c.Alloc
	if t.Path == PathForeign {
		allocate = func(n int64) (*client.Region, error) { return c.Register(make([]byte, n)) }
	}
	r, err := allocate(need)
	if err != nil {
		return err
	}
	w.region, w.owner = r, c
	return nil
}

func (t Task) key(i int) string { return t.Prefix + strconv.Itoa(i%max(1, t.Objects)) }

// onPath fails a measurement whose payload took another path than the one measured.
func (t Task) onPath(r client.Result) error {
	if r.Path != t.fabric() || r.Bytes != t.ObjectBytes {
		return fmt.Errorf("bench: %s: %d bytes by %s (%s)", t.Name, r.Bytes, r.Path, r.Reason)
	}
	return nil
}

func get(c *client.Client, t Task, windows []client.Window) func(context.Context, int, int) (int64, error) {
	opts := client.GetOptions{PartBytes: t.ObjectBytes, Verify: client.VerifyOff}
	if t.Verify {
		opts.Verify = client.VerifyOn
	}
	return func(ctx context.Context, slot, i int) (int64, error) {
		res, err := c.GetInto(ctx, windows[slot], t.Bucket, t.key(i), opts)
		if err != nil {
			return 0, err
		}
		return res.Bytes, t.onPath(res)
	}
}

func (w *worker) put(c *client.Client, t Task, windows []client.Window) func(context.Context, int, int) (int64, error) {
	fill(w.region.Bytes())
	opts := client.PutOptions{MultipartBytes: t.ObjectBytes}
	return func(ctx context.Context, slot, i int) (int64, error) {
		res, err := c.PutFrom(ctx, windows[slot], t.Bucket, t.key(i), opts)
		if err != nil {
			return 0, err
		}
		return res.Bytes, t.onPath(res)
	}
}

func discard(c *client.Client, t Task) func(context.Context, int, int) (int64, error) {
	return func(ctx context.Context, _, i int) (int64, error) {
		s, err := c.Get(ctx, t.Bucket, t.key(i), client.GetOptions{Verify: client.VerifyOff})
		if err != nil {
			return 0, err
		}
		defer s.Close()
		n, err := io.CopyBuffer(onlyWriter{}, s, make([]byte, 256<<10))
		return n, err
	}
}

// onlyWriter drops what it gets, without io.Discard's way of reading with its own small buffers.
type onlyWriter struct{}

func (onlyWriter) Write(p []byte) (int, error) { return len(p), nil }
