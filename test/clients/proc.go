package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// command runs tools as processes of their own.
type command struct {
	env []string
	dir string
}

// outcome of a process that ran.
type outcome struct {
	code           int
	stdout, stderr string
}

func (c command) run(ctx context.Context, name string, args ...string) (outcome, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env, cmd.Dir = c.env, c.dir
	var out, diagnostics bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diagnostics
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || ctx.Err() != nil) {
		return outcome{}, fmt.Errorf("%s: %w: %s", name, errors.Join(err, ctx.Err()), clip(diagnostics.String()))
	}
	return outcome{cmd.ProcessState.ExitCode(), out.String(), diagnostics.String()}, nil
}

// said makes an answer of a tool that prints at most a URL.
func said(out outcome, err error) (answer, error) {
	if err != nil {
		return answer{}, err
	}
	if out.code != 0 {
		return out.refusal(), nil
	}
	return answer{URL: strings.TrimSpace(out.stdout)}, nil
}

// refusal makes an answer of a tool that ended with an error: the codes of S3 and statuses are
// looked for in what it printed.
func (o outcome) refusal() answer {
	text := o.stderr
	if text == "" {
		text = o.stdout
	}
	a := answer{Error: fmt.Sprintf("exit code %d: %s", o.code, text)}
	if m := statusPattern.FindStringSubmatch(text); m != nil {
		for _, group := range m[1:] {
			if n, err := strconv.Atoi(group); err == nil {
				a.Status = n
			}
		}
	}
	if m := codePattern.FindString(text); m != "" {
		a.Code = m
	}
	if a.Status == 0 && missingPattern.MatchString(text) {
		a.Status = 404 // said in words
	}
	return a
}

var (
	statusPattern = regexp.MustCompile(`\((\d{3})\)|[sS]tatus ?[cC]ode:? (\d{3})|\b(\d{3}) \(|error: (\d{3})\b`)
	codePattern   = regexp.MustCompile(`\b(NoSuchKey|NoSuchBucket|PreconditionFailed|InvalidRange|BadDigest|` +
		`NotFound|BucketNotEmpty)\b`)
	missingPattern = regexp.MustCompile(`not found|does not exist`)
)

// library is a client that stays and takes orders as lines of JSON.
type library struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
	diags *diagnostics
}

// diagnostics is what a client prints beside its answers; it may be read while the client runs.
type diagnostics struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (d *diagnostics) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.text.Write(p)
}

func (d *diagnostics) String() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.text.String()
}

func startLibrary(c command, name string, args ...string) (*library, error) {
	l := &library{cmd: exec.Command(name, args...), diags: &diagnostics{}}
	l.cmd.Env, l.cmd.Dir, l.cmd.Stderr = c.env, c.dir, l.diags
	l.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var err error
	if l.in, err = l.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	l.out = bufio.NewReaderSize(out, 1<<20)
	if err := l.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return l, nil
}

func (l *library) do(ctx context.Context, o order) (answer, error) {
	line, err := json.Marshal(o)
	if err != nil {
		return answer{}, fmt.Errorf("order: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = l.cmd.Process.Kill() }) // the read below then ends
	defer stop()
	if _, err := l.in.Write(append(line, '\n')); err != nil {
		return answer{}, fmt.Errorf("client: write order: %w: %s", errors.Join(err, ctx.Err()), clip(l.diags.String()))
	}
	text, err := l.out.ReadBytes('\n')
	if err != nil {
		return answer{}, fmt.Errorf("client: read answer: %w: %s", errors.Join(err, ctx.Err()), clip(l.diags.String()))
	}
	var a answer
	if err := json.Unmarshal(text, &a); err != nil {
		return answer{}, fmt.Errorf("client: read answer: %w: %s", err, clip(string(text)))
	}
	return a, nil
}

func (l *library) close() error {
	_ = l.in.Close() // its end of input
	return l.cmd.Wait()
}
