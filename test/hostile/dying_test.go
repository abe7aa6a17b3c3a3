package hostile

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/iam"
	"github.com/penstock-store/penstock/internal/meta"
	"github.com/penstock-store/penstock/internal/s3"
	"github.com/penstock-store/penstock/internal/vfs/errfs"
)

// jobVariable, set in the environment, makes the test binary an attacking process.
const jobVariable = "PENSTOCK_HOSTILE_JOB"

// job is what an attacking process does: one transfer, at one step of which it ends.
type job struct {
	Host, KeyID, KeySecret string
	Offer                  json.RawMessage // frame.SessionReply.Encode
	Fabric, Method, Key    string
	Bytes                  int
	Step                   string
	How                    string // kill, stop, close, unmap
	DeadlineMillis         int
}

// The steps at which a client ends.
const (
	stepConnected = "connected" // nothing said
	stepHello     = "hello"     // half of the handshake
	stepAnnounced = "announced" // the region is sent, the answer not read
	stepReady     = "ready"     // the region is taken
	stepAsked     = "asked"     // the request is sent, the bytes have not begun to move
	stepMoving    = "moving"    // bytes move
	stepAnswered  = "answered"
)

// attack is the attacking process. It says "here" at its step, and ends as it is told to.
func attack(text string) int {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return fail(err)
	}
	offer, err := frame.DecodeSessionReply(strings.NewReader(string(j.Offer)))
	if err != nil {
		return fail(err)
	}
	if err := j.run(offer); err != nil {
		return fail(err)
	}
	return fail(fmt.Errorf("step %q never came", j.Step))
}

func fail(err error) int {
	_, _ = fmt.Fprintln(os.Stderr, "attacker:", err)
	return 1
}

func (j *job) run(offer frame.SessionReply) error {
	if j.Step == stepConnected || j.Step == stepHello {
		c, err := net.Dial(offer.Network, offer.Address)
		if err != nil {
			return err
		}
		if j.Step == stepHello {
			var body [frame.HelloBytes]byte
			frame.HelloBody{Session: offer.Session}.Encode(body[:])
			if err := frame.WriteFrame(c, frame.Header{Type: frame.Hello}, body[:]); err != nil {
				return err
			}
		}
		j.end(&link{Conn: c})
	}
	l, err := connect(offer)
	if err != nil {
		return err
	}
	if j.Step == stepAnnounced {
		if l.mem, err = newMemory(j.Bytes); err != nil {
			return err
		}
		if err := l.announce(1, uint64(j.Bytes), l.mem.file); err != nil {
			return err
		}
		j.end(l)
	}
	if err := l.region(j.Bytes); err != nil {
		return err
	}
	if j.Step == stepReady {
		j.end(l)
	}
	return j.transfer(l)
}

func (j *job) transfer(l *link) error {
	r := request{method: j.Method, path: "/" + bucket + "/" + j.Key,
		key: iam.Key{ID: j.KeyID, Secret: meta.Secret(j.KeySecret)}}
	r = r.with("X-Amz-Rdma-Token", l.token(1, 0, int64(j.Bytes)),
		"X-Penstock-Rdma-Deadline-Ms", fmt.Sprint(j.DeadlineMillis))
	raw, err := encode(s3.NewSigner(), j.Host, r)
	if err != nil {
		return err
	}
	c, err := net.Dial("tcp", j.Host)
	if err != nil {
		return err
	}
	if _, err := c.Write(raw); err != nil {
		return err
	}
	if j.Step == stepAsked || j.Step == stepMoving && j.Fabric == "shm" {
		j.end(l) // on shm the node's disk hangs in the middle
	}
	if j.Fabric == "tcp" {
		frames := 0
		go l.obey(func(h frame.Header) {
			if h.Type == frame.Data || h.Type == frame.Read {
				frames++
			}
			if j.Step == stepMoving && frames == 3 {
				j.end(l)
			}
		})
	}
	if _, err := readAnswer(c, j.Method); err != nil {
		return err
	}
	j.end(l)
	return nil
}

// end ends the client. What does not end the process ends the session, and waits to be killed.
func (j *job) end(l *link) {
	fmt.Println("here")
	switch j.How {
	case "kill":
		die(unix.SIGKILL)
	case "stop":
		die(unix.SIGSTOP)
	case "unmap":
		if l.mem != nil {
			l.mem.close()
		}
	case "close":
		_ = frame.WriteFrame(l, frame.Header{Type: frame.Close}, nil)
	}
	select {}
}

// victim is a running attacking process.
type victim struct {
	command *exec.Cmd
	here    chan struct{}
	ended   chan error
}

func (n *node) launch(j job) *victim {
	n.t.Helper()
	offer := n.offer(n.root, j.Fabric)
	body, err := offer.Encode()
	if err != nil {
		n.t.Fatal(err)
	}
	j.Host, j.KeyID, j.KeySecret, j.Offer = n.host, n.root.ID, string(n.root.Secret), body
	text, err := json.Marshal(j)
	if err != nil {
		n.t.Fatal(err)
	}
	n.secret(tokenOf(offer, 1, 0, int64(j.Bytes)))
	self, err := os.Executable()
	if err != nil {
		n.t.Fatal(err)
	}
	v := &victim{command: exec.Command(self, "-test.run=^$"), here: make(chan struct{}), ended: make(chan error, 1)}
	v.command.Env = append(os.Environ(), jobVariable+"="+string(text))
	v.command.Stderr = os.Stderr
	v.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := v.command.StdoutPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	if err := v.command.Start(); err != nil {
		n.t.Fatal(err)
	}
	go func() {
		if s := bufio.NewScanner(out); s.Scan() && s.Text() == "here" {
			close(v.here)
		}
		v.ended <- v.command.Wait()
	}()
	return v
}

// arrived waits until the process is at its step.
func (v *victim) arrived(t testing.TB) {
	t.Helper()
	select {
	case <-v.here:
	case err := <-v.ended:
		t.Fatalf("the attacking process ended: %v", err)
	case <-time.After(patience):
		t.Fatal("the attacking process does not arrive")
	}
}

func (v *victim) kill() {
	_ = v.command.Process.Kill() // it may be dead already
	<-v.ended
}

// TestClientsThatEnd: a client process is killed, stopped, closes its session or unmaps its memory at each
// step of a transfer. The node gives everything back, at the latest at the deadline of the transfer.
func TestClientsThatEnd(t *testing.T) {
	n := startNode(t)
	h := n.neighbour()
	before := n.baseline(2) // the object and the neighbour's
	steps := []string{stepConnected, stepHello, stepAnnounced, stepReady, stepAsked, stepMoving, stepAnswered}
	if testing.Short() {
		steps = []string{stepHello, stepAsked, stepMoving}
	}
	for _, fabric := range []string{"shm", "tcp"} {
		for _, step := range steps {
			for _, how := range []string{"kill", "stop", "close", "unmap"} {
				late := step == stepAsked || step == stepMoving
				if !late && (how == "close" || how == "unmap") {
					continue // nothing is under way
				}
				method := "GET"
				if how == "kill" || how == "close" {
					method = "PUT"
				}
				name := strings.Join([]string{fabric, step, how, method}, "/")
				n.endAt(name, before, job{Fabric: fabric, Method: method, Step: step, How: how})
				if late && how == "stop" {
					n.endAt(name+"/PUT", before, job{Fabric: fabric, Method: "PUT", Step: step, How: how})
				}
				if t.Failed() {
					return
				}
			}
		}
	}
	h.works("afterwards")
}

func (n *node) endAt(name string, before levels, j job) {
	n.t.Helper()
	j.Bytes, j.DeadlineMillis, j.Key = objectBytes, 400, "object"
	if j.Method == "PUT" {
		j.Key = "never"
	}
	// On shm the payload is a copy: only a disk that hangs keeps it in the middle.
	var release chan struct{}
	if j.Fabric == "shm" && (j.Step == stepMoving || j.Step == stepAsked) {
		release = make(chan struct{})
		n.fs.Add(errfs.Rule{Ops: errfs.Read | errfs.Write, Path: "*.seg", Nth: 3, Fault: errfs.Stick, Release: release})
	}
	v := n.launch(j)
	v.arrived(n.t)
	if j.How == "kill" {
		<-v.ended
	}
	if j.How != "kill" {
		n.quiet(name)
		v.kill()
	}
	if release != nil {
		n.quiet(name)
		close(release)
		n.fs.Clear()
	}
	if j.Step == stepAnswered { // and so acknowledged
		n.expectStatus(204, n.send(request{method: "DELETE", path: "/" + bucket + "/never"}))
	}
	n.settled(before, name)
	n.absent("never")
}

// quiet waits until no transfer is under way, although the client does not move.
func (n *node) quiet(name string) {
	n.t.Helper()
	var now levels
	if !eventually(func() bool {
		now = n.levels()
		return now[`penstock_fabric_windows{fabric="shm"}`]+now[`penstock_fabric_windows{fabric="tcp"}`] == 0
	}) {
		n.t.Errorf("%s: windows stay open past the deadline: %v", name, now)
	}
}
