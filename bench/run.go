package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// MaxProcesses bounds the client processes of a task.
const MaxProcesses = 16

// Options of a run.
type Options struct {
	Rounds      int
	Environment []string // of the workers: AWS_* variables
	ServerPID   int      // 0: CPU from Metrics, if that is given
	Metrics     string   // URL of /metrics; used when ServerPID is 0
	Log         func(format string, args ...any)
}

// Run measures the tasks, interleaved: all of them once per round.
func Run(ctx context.Context, tasks []Task, o Options) ([]Measurement, error) {
	out := make([]Measurement, len(tasks))
	for i, t := range tasks {
		out[i].Task = t
		if t.Processes < 1 || t.Processes > MaxProcesses {
			return nil, fmt.Errorf("bench: task %s: %d processes, 1..%d are possible",
				t.Name, t.Processes, MaxProcesses)
		}
	}
	p := &pool{env: o.Environment}
	defer p.stop()
	for round := range o.Rounds {
		for i, t := range tasks {
			s, err := p.sample(ctx, t, o)
			if err != nil {
				return nil, fmt.Errorf("bench: %s: %w", t.Name, err)
			}
			out[i].Samples = append(out[i].Samples, s)
			if o.Log != nil {
				o.Log("round %d/%d  %-28s %8.2f GB/s %10.0f op/s",
					round+1, o.Rounds, t.Name, s.GBps(), s.OpsPerSecond())
			}
		}
	}
	for i := range out {
		out[i].summarise()
	}
	return out, nil
}

// pool is the worker processes, kept between tasks.
type pool struct {
	env     []string
	workers []*process
}

// process is one worker.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	enc *json.Encoder
	dec *json.Decoder
}

func (p *pool) grow(n int) error {
	binary, err := os.Executable()
	if err != nil {
		return fmt.Errorf("start worker: %w", err)
	}
	for len(p.workers) < n {
		cmd := exec.Command(binary, "bench", "worker")
		cmd.Env = append(os.Environ(), p.env...)
		cmd.Stderr = os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		in, err := cmd.StdinPipe()
		if err != nil {
			return fmt.Errorf("start worker: %w", err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			return fmt.Errorf("start worker: %w", err)
		}
		if err := cmd.Start(); err != nil {
			return fmt.Errorf("start worker: %w", err)
		}
		p.workers = append(p.workers, &process{
			cmd: cmd, in: in, enc: json.NewEncoder(in), dec: json.NewDecoder(bufio.NewReader(out)),
		})
	}
	return nil
}

func (p *pool) stop() {
	for _, w := range p.workers {
		_ = w.in.Close() // a worker ends with its input
	}
	for _, w := range p.workers {
		timer := time.AfterFunc(stopTimeout, func() { _ = w.cmd.Process.Kill() })
		_ = w.cmd.Wait()
		timer.Stop()
	}
}

func (w *process) send(r request) error { return w.enc.Encode(r) }

func (w *process) receive() (reply, error) {
	var r reply
	if err := w.dec.Decode(&r); err != nil {
		return r, fmt.Errorf("worker: %w", err)
	}
	if r.Error != "" {
		return r, fmt.Errorf("worker: %w", errors.New(r.Error))
	}
	return r, nil
}

// sample runs a task once on its processes.
func (p *pool) sample(ctx context.Context, t Task, o Options) (Sample, error) {
	parts := make([]Task, t.Processes)
	for i := range parts {
		parts[i] = t
		if t.Kind == Put {
			parts[i].Prefix = fmt.Sprintf("%sp%d-", t.Prefix, i)
		}
	}
	return p.together(ctx, parts, o)
}

// together runs one part per worker, all at once, and adds up what they did.
func (p *pool) together(ctx context.Context, parts []Task, o Options) (Sample, error) {
	if err := errors.Join(ctx.Err(), p.grow(len(parts))); err != nil {
		return Sample{}, err
	}
	workers := p.workers[:len(parts)]
	for i, w := range workers {
		if err := w.send(request{Task: &parts[i]}); err != nil {
			return Sample{}, err
		}
	}
	for _, w := range workers {
		if _, err := w.receive(); err != nil {
			return Sample{}, err
		}
	}
	before, err := serverCPU(ctx, o)
	if err != nil {
		return Sample{}, err
	}
	stopMemory := func() int64 { return 0 }
	if o.ServerPID != 0 {
		stopMemory = watchMemory(o.ServerPID)
	}
	start := time.Now()
	sum, err := p.collect(workers)
	if len(workers) > 1 {
		sum.Seconds = time.Since(start).Seconds() // from the first start to the last end
	}
	sum.PeakMemory = stopMemory()
	if err != nil {
		return Sample{}, err
	}
	after, err := serverCPU(ctx, o)
	sum.ServerCPU = after - before
	sum.setPercentiles()
	return sum, err
}

// collect starts the prepared workers and adds up their samples.
func (p *pool) collect(workers []*process) (Sample, error) {
	for _, w := range workers {
		if err := w.send(request{Go: true}); err != nil {
			return Sample{}, err
		}
	}
	var sum Sample
	var failures []error
	for _, w := range workers {
		r, err := w.receive()
		if err != nil {
			failures = append(failures, err)
			continue
		}
		sum.add(*r.Sample)
	}
	return sum, errors.Join(failures...)
}

// RunTogether runs the tasks once, all at the same time, each in one process.
func RunTogether(ctx context.Context, name string, tasks []Task, o Options) (Measurement, error) {
	p := &pool{env: o.Environment}
	defer p.stop()
	s, err := p.together(ctx, tasks, o)
	if err != nil {
		return Measurement{}, fmt.Errorf("bench: %s: %w", name, err)
	}
	m := Measurement{Samples: []Sample{s}}
	m.Task = Task{Name: name, Kind: Get, ObjectBytes: tasks[0].ObjectBytes, Processes: 1}
	for _, t := range tasks {
		m.Task.InFlight += t.InFlight
	}
	m.summarise()
	return m, nil
}

func (s *Sample) add(other Sample) {
	s.Ops += other.Ops
	s.Bytes += other.Bytes
	s.Seconds = max(s.Seconds, other.Seconds)
	s.ClientCPU += other.ClientCPU
	s.Latencies = append(s.Latencies, other.Latencies...)
}

// serverCPU is the server's CPU time so far in seconds; 0 when nobody tells.
func serverCPU(ctx context.Context, o Options) (float64, error) {
	if o.ServerPID != 0 {
		return ProcessCPU(o.ServerPID)
	}
	if o.Metrics == "" {
		return 0, nil
	}
	const metric = "process_cpu_seconds_total"
	values, err := Counters(ctx, o.Metrics, metric)
	if err != nil {
		return 0, err
	}
	v, ok := values[""]
	if !ok {
		return 0, fmt.Errorf("bench: %s has no %s", o.Metrics, metric)
	}
	return v, nil
}
