package rdma

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-store/penstock/client"
)

// job is what a client process is.
type job struct {
	Kind                           string
	Endpoint, AccessKey, SecretKey string
	Fabric                         string
	Timeout                        time.Duration // of one transfer
	ServerPID                      int

	Offer  json.RawMessage // of a raw client and a target: frame.SessionReply.Encode
	Device string          // of a target
	Step   string          // where a raw client ends
	How    syscall.Signal  // by which signal it ends

	Bytes  int64 // of one transfer
	Flight int   // transfers at once, of one crowd
	Shared bool  // a client of the crowd has one window, since it serves one transfer at a time
	Seed   uint64
}

// Kinds of client processes.
const (
	kindCrowd  = "crowd"  // moves one object again and again
	kindVictim = "victim" // one transfer, in the middle of which something ends
	kindRaw    = "raw"    // speaks frames by hand
	kindTarget = "target" // a session without a node
)

// order is a line that a client process reads.
type order struct {
	Verb     string
	Key      string
	Clients  int // in use
	For      time.Duration
	At       int64          // the byte of the window whose arrival counts; −1: none
	Signal   syscall.Signal // what is sent then
	ToServer bool           // to the node instead of this process
}

// report is a line that it writes.
type report struct {
	What      string // "ready", "at", "done"
	Bytes     int64
	Transfers int
	Took      time.Duration
	Path      string
	Abandoned bool
	Failures  []string
	Tokens    []string
}

// work is the client process.
func work(text string) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	w := &worker{job: j, in: bufio.NewScanner(os.Stdin), out: json.NewEncoder(os.Stdout)}
	switch j.Kind {
	case kindCrowd:
		return w.crowd()
	case kindVictim:
		return w.victim()
	case kindRaw:
		return w.raw()
	case kindTarget:
		return w.target()
	}
	return fmt.Errorf("unknown kind %q", j.Kind)
}

type worker struct {
	job
	in  *bufio.Scanner
	out *json.Encoder
}

// orders yields the orders until the input ends.
func (w *worker) orders(obey func(order) error) error {
	for w.in.Scan() {
		var o order
		if err := json.Unmarshal(w.in.Bytes(), &o); err != nil {
			return err
		}
		if err := obey(o); err != nil {
			return err
		}
	}
	return w.in.Err()
}

// member is a client of a crowd with memory of its own.
type member struct {
	client *client.Client
	region *client.Region
}

func (w *worker) join() (*member, error) {
	c, err := connect(w.Endpoint, w.AccessKey, w.SecretKey, w.Fabric, w.Timeout)
	if err != nil {
		return nil, err
	}
	windows := int64(max(w.Flight, 1))
	if w.Shared {
		windows = 1
	}
	r, err := c.Alloc(w.Bytes * windows)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &member{c, r}, nil
}

func (m *member) leave() error { return errors.Join(m.region.Close(), m.client.Close()) }

// crowd obeys "clients" (so many have a session from now on), "get" and "put" (move for a time by all clients), and
// "end" (do not wait for the time to be over).
func (w *worker) crowd() error {
	var all []*member
	var end chan struct{} // of the run under way
	var tasks sync.WaitGroup
	err := w.orders(func(o order) error {
		switch o.Verb {
		case "clients":
			r := report{What: "ready"}
			var err error
			all, err = w.resize(all, o, &r)
			return errors.Join(err, w.out.Encode(r))
		case "end":
			close(end)
			return nil
		}
		tasks.Wait()
		end = make(chan struct{})
		tasks.Go(func() { _ = w.out.Encode(w.run(all, o, end)) }) // the parent may be gone
		return nil
	})
	tasks.Wait()
	for _, m := range all {
		err = errors.Join(err, m.leave())
	}
	return err
}

// resize lets the newest clients leave, or others join, each with a session.
func (w *worker) resize(all []*member, o order, r *report) ([]*member, error) {
	for len(all) > o.Clients {
		if err := all[len(all)-1].leave(); err != nil {
			return all, err
		}
		all = all[:len(all)-1]
	}
	var mu sync.Mutex
	var failure error
	var tasks sync.WaitGroup
	turns := make(chan struct{}, w.Flight)
	for range o.Clients - len(all) {
		turns <- struct{}{}
		tasks.Go(func() {
			defer func() { <-turns }()
			m, err := w.join()
			var moved error
			if err == nil {
				moved = w.move(m, 0, order{Verb: "get", Key: o.Key})
			}
			mu.Lock()
			defer mu.Unlock()
			if failure = errors.Join(failure, err); err == nil {
				all = append(all, m)
			}
			if moved != nil {
				r.Failures = append(r.Failures, moved.Error())
			}
		})
	}
	tasks.Wait()
	return all, failure
}

// run moves for a time: Flight transfers at once, each slot of them by the clients in turn.
func (w *worker) run(members []*member, o order, end <-chan struct{}) report {
	var mu sync.Mutex
	sum := report{What: "done"}
	start := time.Now()
	var tasks sync.WaitGroup
	for slot := range w.Flight {
		tasks.Go(func() {
			for i := slot; time.Since(start) < o.For; i += w.Flight {
				select {
				case <-end:
					return
				default:
				}
				err := w.move(members[i%len(members)], slot, o)
				mu.Lock()
				sum.Transfers++
				sum.Bytes += w.Bytes
				if err != nil {
					sum.Failures = append(sum.Failures, err.Error())
				}
				mu.Unlock()
			}
		})
	}
	tasks.Wait()
	sum.Took = time.Since(start)
	return sum
}

// move is one transfer. The edges and the middle of what came are compared: all of it would cost an emulated machine
// more than the transfer.
func (w *worker) move(m *member, slot int, o order) error {
	if w.Shared {
		slot = 0
	}
	win := m.region.Window(int64(slot)*w.Bytes, w.Bytes)
	mem := m.region.Bytes()[win.Offset : win.Offset+win.Bytes]
	p := newPattern(w.Seed)
	if o.Verb == "put" {
		p.fill(mem, 0)
		key := fmt.Sprintf("%s-%d-%d", o.Key, os.Getpid(), slot)
		res, err := m.client.PutFrom(context.Background(), win, bucket, key, client.PutOptions{})
		return errors.Join(err, w.went(err, res))
	}
	const probe = 4096
	spots := []int64{0, w.Bytes/2 - 7, w.Bytes - probe}
	if w.Bytes < 3*probe {
		spots = nil
	}
	for _, at := range spots {
		clear(mem[at : at+probe])
	}
	res, err := m.client.GetInto(context.Background(), win, bucket, o.Key, client.GetOptions{})
	if err != nil {
		return err
	}
	for _, at := range spots {
		if !p.is(mem[at:at+probe], at) {
			return fmt.Errorf("get %s: other bytes at %d", o.Key, at)
		}
	}
	return w.went(nil, res)
}

func (w *worker) went(err error, res client.Result) error {
	if err == nil && (res.Path != w.Fabric || res.Bytes != w.Bytes) {
		return fmt.Errorf("%d bytes by %s (%s)", res.Bytes, res.Path, res.Reason)
	}
	return nil
}

// process is a client process from outside.
type process struct {
	t       *testing.T
	command *exec.Cmd
	in      io.WriteCloser
	lines   chan report
	stderr  bytes.Buffer
	ended   chan struct{}
	err     error // once ended is closed
}

// launch starts a client of the node.
func (n *node) launch(j job) *process {
	n.t.Helper()
	j.Endpoint, j.AccessKey, j.SecretKey, j.Fabric = n.Endpoint, n.AccessKey, n.SecretKey, n.fabric
	j.ServerPID = n.PID()
	if j.Timeout == 0 {
		j.Timeout = slow(30 * time.Second)
	}
	return spawn(n.t, j)
}

// lineBytes bounds a report: the tokens of one measurement.
const lineBytes = 4 << 20

func spawn(t *testing.T, j job) *process {
	t.Helper()
	text, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{
		t: t, command: exec.Command(self, "-test.run=^$"), lines: make(chan report, 16), ended: make(chan struct{}),
	}
	p.command.Env = append(os.Environ(), jobVariable+"="+string(text))
	p.command.Stderr = &p.stderr
	p.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if p.in, err = p.command.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.command.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		s := bufio.NewScanner(out)
		s.Buffer(nil, lineBytes)
		for s.Scan() {
			var r report
			if json.Unmarshal(s.Bytes(), &r) == nil {
				p.lines <- r
			}
		}
		p.err = p.command.Wait()
	}()
	t.Cleanup(p.kill)
	return p
}

// kill ends the process; it may have ended already.
func (p *process) kill() {
	_ = p.command.Process.Kill()
	for {
		select {
		case <-p.lines: // so that the reader comes to the end
		case <-p.ended:
			return
		}
	}
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.command.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// tell sends an order.
func (p *process) tell(o order) {
	p.t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.in.Write(append(text, '\n')); err != nil {
		p.t.Fatalf("order to a client process: %v: %s", err, p.stderr.String())
	}
}

// hears waits for a report, of any kind without a word.
func (p *process) hears(what string, within time.Duration) report {
	p.t.Helper()
	select {
	case r := <-p.lines:
		if what != "" && r.What != what {
			p.t.Fatalf("client process: %+v, want %q", r, what)
		}
		return r
	case <-p.ended:
		p.t.Fatalf("client process ended: %v: %s", p.err, p.stderr.String())
	case <-time.After(within):
		p.t.Fatalf("no %q of a client process within %v", what, within)
	}
	return report{}
}

// leave lets the process end by itself.
func (p *process) leave() {
	p.t.Helper()
	_ = p.in.Close()
	select {
	case <-p.ended:
	case <-time.After(patience()):
		p.t.Fatal("a client process does not end")
	}
	if p.err != nil {
		p.t.Errorf("client process: %v: %s", p.err, p.stderr.String())
	}
}
