package fabrictest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/token"
)

// childVariable, set in the environment, makes the test binary a client process.
const childVariable = "PENSTOCK_FABRICTEST_CLIENT"

// Main is for TestMain of a package that runs the suite: it is the client process when the binary
// was started as one, and runs the tests and the goroutine leak check otherwise.
func Main(m *testing.M, bed Bed) {
	if os.Getenv(childVariable) != "" {
		if err := clientProcess(bed, os.Stdin, os.Stdout); err != nil {
			_, _ = fmt.Fprintln(os.Stderr, "client process:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// job is the first line that a client process reads.
type job struct {
	Offer json.RawMessage // frame.SessionReply.Encode
	Bytes int
	Seed  uint64
}

// clientProcess opens the offered session, and obeys: "get" grants the region and prints the token,
// "check SEED" compares the memory with a pattern, "put" grants it for reading, "end" takes the last
// grant back, "fence" ends.
func clientProcess(bed Bed, in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	lines.Scan()
	var j job
	if err := json.Unmarshal(lines.Bytes(), &j); err != nil {
		return err
	}
	reply, err := frame.DecodeSessionReply(strings.NewReader(string(j.Offer)))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := bed.Dial(ctx, fabric.SessionOffer{
		Fabric: reply.Fabric, ID: reply.Session, Secret: reply.Secret,
		Network: reply.Network, Address: reply.Address,
	})
	if err != nil {
		return err
	}
	r, err := c.Register(ctx, j.Bytes)
	if err != nil {
		return err
	}
	copy(r.Bytes(), pattern(j.Seed, 0, j.Bytes))
	var w Window
	for lines.Scan() {
		answer, err := obey(ctx, lines.Text(), c, r, &w)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(out, answer); err != nil {
			return err
		}
	}
	return lines.Err()
}

func obey(ctx context.Context, line string, c Client, r Region, w *Window) (answer string, err error) {
	verb, argument, _ := strings.Cut(line, " ")
	switch verb {
	case "get", "put":
		d := fabric.ForGet
		if verb == "put" {
			d = fabric.ForPut
		}
		*w, err = r.Grant(0, int64(len(r.Bytes())), d)
		if err != nil {
			return "", err
		}
		return (*w).Descriptor().Encode(), nil
	case "end":
		return "ok", (*w).EndContext(ctx)
	case "check":
		seed, err := strconv.ParseUint(argument, 10, 64)
		if err != nil {
			return "", err
		}
		if string(r.Bytes()) != string(pattern(seed, 0, len(r.Bytes()))) {
			return "wrong bytes", nil
		}
		return "ok", nil
	case "fence":
		return "ok", c.Fence(ctx)
	}
	return "", fmt.Errorf("unknown verb %q", verb)
}

// child is a running client process.
type child struct {
	command *exec.Cmd
	in      io.WriteCloser
	lines   *bufio.Scanner
	stderr  *strings.Builder
}

func (s *stage) spawn(bytes int, seed uint64) (*child, error) {
	offer, err := s.offer(principal)
	if err != nil {
		return nil, err
	}
	body, err := TargetOffer(offer).Encode()
	if err != nil {
		return nil, err
	}
	first, err := json.Marshal(job{Offer: body, Bytes: bytes, Seed: seed})
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{command: exec.CommandContext(s.ctx, self, "-test.run=^$"), stderr: &strings.Builder{}}
	c.command.Env = append(os.Environ(), childVariable+"=1")
	c.command.Stderr = c.stderr
	if c.in, err = c.command.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.lines = bufio.NewScanner(out)
	if err := c.command.Start(); err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(c.in, "%s\n", first); err != nil {
		return nil, errors.Join(err, c.stop())
	}
	return c, nil
}

// ask sends a line and returns the answer.
func (c *child) ask(line string) (string, error) {
	if _, err := fmt.Fprintln(c.in, line); err != nil {
		return "", err
	}
	if !c.lines.Scan() {
		return "", errors.Join(io.ErrUnexpectedEOF, c.lines.Err())
	}
	return c.lines.Text(), nil
}

func (c *child) expect(line string) error {
	answer, err := c.ask(line)
	if err == nil && answer != "ok" {
		err = fmt.Errorf("%s: %s", line, answer)
	}
	return err
}

func (c *child) stop() error {
	_ = c.in.Close()
	if err := c.command.Wait(); err != nil {
		return fmt.Errorf("client process: %w: %s", err, c.stderr.String())
	}
	return nil
}

// testProcesses runs 1, 4 and 16 client processes side by side, each with a GET and a PUT.
func testProcesses(t *testing.T, bed Bed) {
	if bed.OneProcess {
		t.Skip("one process")
	}
	for _, n := range []int{1, 4, 16} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			s := newStage(t, bed, fabric.Limits{})
			var wg sync.WaitGroup
			for i := range n {
				wg.Go(func() {
					if err := s.serveChild(uint64(i)*10 + 1); err != nil {
						t.Errorf("process %d: %v", i, err)
					}
				})
			}
			wg.Wait()
			if st := s.fabric.Stats(); st.Gets != int64(n) || st.Puts != int64(n) {
				t.Errorf("counters: %+v", st)
			}
		})
	}
}

const childBytes = 3<<20 + 5

func (s *stage) serveChild(seed uint64) error {
	c, err := s.spawn(childBytes, seed)
	if err != nil {
		return err
	}
	err = errors.Join(s.childTransfer(c, "put", seed), s.childTransfer(c, "get", seed+1),
		c.expect("check "+strconv.FormatUint(seed+1, 10)), c.expect("fence"))
	return errors.Join(err, c.stop())
}

func (s *stage) childTransfer(c *child, verb string, seed uint64) error {
	text, err := c.ask(verb)
	if err != nil {
		return err
	}
	d, err := token.Parse(text)
	if err != nil {
		return err
	}
	direction := fabric.ForGet
	if verb == "put" {
		direction = fabric.ForPut
	}
	remote, err := s.fabric.Open(s.ctx, d, request(direction, d.Size))
	if err != nil {
		return err
	}
	if direction == fabric.ForGet {
		err = s.sendAll(remote, seed, d.Size, 1<<20)
	} else {
		err = s.readAll(remote, seed, d.Size, 1<<20)
	}
	return errors.Join(err, remote.Close(), c.expect("end"))
}

// testKilledProcesses kills client processes in the middle of transfers while others go on.
func testKilledProcesses(t *testing.T, bed Bed) {
	if bed.OneProcess {
		t.Skip("one process")
	}
	s := newStage(t, bed, fabric.Limits{})
	var wg sync.WaitGroup
	for i := range 6 {
		seed := uint64(i)*10 + 1
		if i%2 == 0 {
			wg.Go(func() {
				if err := s.serveChild(seed); err != nil {
					t.Errorf("process %d: %v", i, err)
				}
			})
			continue
		}
		wg.Go(func() {
			if err := s.killChild(seed, i%4 == 1); err != nil {
				t.Errorf("process %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	sessionGone(s)
}

// killChild kills a client process while its window is written or read over and over.
func (s *stage) killChild(seed uint64, get bool) error {
	c, err := s.spawn(childBytes, seed)
	if err != nil {
		return err
	}
	verb, d := "put", fabric.ForPut
	if get {
		verb, d = "get", fabric.ForGet
	}
	text, err := c.ask(verb)
	if err != nil {
		return errors.Join(err, c.stop())
	}
	descriptor, err := token.Parse(text)
	if err != nil {
		return err
	}
	remote, err := s.fabric.Open(s.ctx, descriptor, request(d, descriptor.Size))
	if err != nil {
		return err
	}
	b := s.buffer(1<<20, 1, 0)
	defer b.Release()
	for round := 0; err == nil; round++ {
		if round == 3 {
			if err := c.command.Process.Kill(); err != nil {
				return err
			}
		}
		if get {
			err = remote.Write(s.ctx, 0, b)
		} else {
			err = remote.Read(s.ctx, 0, b)
		}
	}
	if !errors.Is(err, fabric.ErrFenced) {
		return fmt.Errorf("killed client: %w", err)
	}
	if err := remote.Close(); !errors.Is(err, fabric.ErrFenced) {
		return fmt.Errorf("close: %w", err)
	}
	_ = c.stop() // killed
	return nil
}
