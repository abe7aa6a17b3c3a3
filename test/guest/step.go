package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// step is one command of a run.
type step struct {
	Name    string
	Command []string
	Dir     string   // where it runs; empty: the scratch directory
	Env     []string // beside that of the run
	Limit   time.Duration
	Tests   bool // it prints as go test -v does, and at least one test must have run
	// Lane is 0 for a step that runs alone. Successive steps of other lanes run side by side, those of one lane in order:
	// most steps leave one of two processors idle.
	Lane int
}

// program is what runs in the guest: it travels as JSON.
type program struct {
	Steps   []step
	Env     []string
	Results string // directory for the output of steps
	Scratch string // directory that is empty at first and takes O_DIRECT
}

// Kinds of event.
const (
	eventReady = "ready" // the rails are up; the steps follow
	eventBegin = "begin" // of a step
	eventEnd   = "end"   // of a step
	eventDone  = "done"  // of all: the end marker
	eventError = "error" // the guest could not be prepared
)

// event is a line from the guest.
type event struct {
	Penstock string  `json:"penstock"` // the kind; no other line begins with this name
	Step     string  `json:"step,omitempty"`
	Failed   bool    `json:"failed,omitempty"`
	Why      string  `json:"why,omitempty"`
	Seconds  float64 `json:"seconds,omitempty"`
}

// waitDelay is how long the pipes of a killed step may stay open.
const waitDelay = 5 * time.Second

// run does all steps, whether or not one fails: the others' results are wanted, too. emit is called by one at a time.
func (p program) run(ctx context.Context, emit func(event)) {
	var mu sync.Mutex // of emit
	failed := false
	tell := func(e event) {
		mu.Lock()
		defer mu.Unlock()
		failed = failed || e.Failed
		emit(e)
	}
	for rest := p.Steps; len(rest) > 0; {
		n := 1
		for rest[0].Lane != 0 && n < len(rest) && rest[n].Lane != 0 {
			n++
		}
		lanes := map[int][]step{}
		for _, s := range rest[:n] {
			lanes[s.Lane] = append(lanes[s.Lane], s)
		}
		var all sync.WaitGroup
		for _, steps := range lanes {
			all.Go(func() {
				for _, s := range steps {
					p.step(ctx, s, tell)
				}
			})
		}
		all.Wait()
		rest = rest[n:]
	}
	emit(event{Penstock: eventDone, Failed: failed})
}

func (p program) step(ctx context.Context, s step, tell func(event)) {
	tell(event{Penstock: eventBegin, Step: s.Name})
	began := time.Now()
	e := event{Penstock: eventEnd, Step: s.Name}
	if err := p.one(ctx, s); err != nil {
		e.Failed, e.Why = true, err.Error()
	}
	e.Seconds = time.Since(began).Seconds()
	tell(e)
}

// one runs a step in a process group of its own, which does not outlive it.
func (p program) one(ctx context.Context, s step) (err error) {
	ctx, cancel := context.WithTimeout(ctx, s.Limit)
	defer cancel()
	out, err := os.Create(filepath.Join(p.Results, s.Name+".log"))
	if err != nil {
		return fmt.Errorf("make log: %w", err)
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	cmd := exec.CommandContext(ctx, s.Command[0], s.Command[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.Dir, out, out
	if cmd.Dir == "" {
		cmd.Dir = p.Scratch
	}
	cmd.Env = append(append(os.Environ(), p.Env...), s.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = waitDelay
	group := func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	// Go prints where each goroutine is when it gets SIGQUIT.
	cmd.Cancel = func() error { return syscall.Kill(cmd.Process.Pid, syscall.SIGQUIT) }
	err = cmd.Run()
	if cmd.Process != nil {
		_ = group() // what it left behind
	}
	if ctx.Err() != nil {
		return fmt.Errorf("step took more than %v: %w", s.Limit, ctx.Err())
	}
	return err
}
