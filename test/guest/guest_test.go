package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestMain lets the test binary be the guest's first program, as the command is.
func TestMain(m *testing.M) {
	if os.Args[0] == initName {
		guestMain()
	}
	os.Exit(m.Run())
}

// TestVerdicts plays guests by shell scripts that write events. The oracle is the table: only the guest that ran every
// step to a good end passes.
func TestVerdicts(t *testing.T) {
	const (
		ready = `echo '{"penstock":"ready"}'; `
		one   = `: > one.log; echo '{"penstock":"begin","step":"one"}'; echo '{"penstock":"end","step":"one"}'; `
		bad   = `: > one.log; echo '{"penstock":"end","step":"one","failed":true,"why":"x"}'; `
		begin = `echo '{"penstock":"begin","step":"two"}'; `
		two   = begin + `echo '--- PASS: TestIt (0.00s)' > two.log; echo '{"penstock":"end","step":"two"}'; `
		none  = begin + `echo 'PASS' > two.log; echo '{"penstock":"end","step":"two"}'; `
		side  = `: > one.log; echo '{"penstock":"begin","step":"one"}'; ` + two + `echo '{"penstock":"end","step":"one"}'; `
		done  = `echo '{"penstock":"done"}'; `
		hang  = `sleep 1000; `
	)
	for _, c := range []struct {
		name, script string
		want         []error // none: the run passes
	}{
		{"all passed", ready + one + two + done, nil},
		{"other lines", `printf 'SeaBIOS\033[2J\n{"a":1}\n'; ` + ready + one + two + done, nil},
		{"a line that is too long", "head -c 200000 /dev/zero; echo; " + ready + one + two + done, []error{errNoMarker}},
		{"carriage returns", "{ " + ready + one + two + done + "} | sed 's/$/\r/'", nil},
		{"a step failed", ready + bad + two + done, []error{errFailed}},
		{"no test ran", ready + one + none + done, []error{errFailed}},
		{"a step is missing", ready + one + done, []error{errFailed}},
		{"a step did not end", ready + one + begin + done, []error{errFailed}},
		{"panic while booting", "", []error{errNoMarker, errFailed}},
		{"panic in a step", ready + one + begin + "kill -9 $$", []error{errNoMarker, errFailed}},
		{"no end marker", ready + one + two, []error{errNoMarker}},
		{"hung while booting", hang, []error{errHung, errNoMarker}},
		{"hung in a step", ready + one + begin + hang, []error{errHung, errNoMarker, errFailed}},
		{"hung with the pipe open", ready + one + begin + "sleep 1000 & " + hang, []error{errHung, errNoMarker}},
		{"side by side", ready + side + done, nil},
		{"hung side by side", ready + `echo '{"penstock":"begin","step":"one"}'; ` + begin +
			`echo '{"penstock":"end","step":"one"}'; ` +
			hang, []error{errHung, errNoMarker, errFailed}},
		{"hung between steps", ready + one + hang, []error{errHung, errNoMarker}},
		{"hung after its end marker", ready + one + two + done + hang, []error{errHung}},
		{"not prepared", `echo '{"penstock":"error","why":"no rail"}'`, []error{errGuest, errNoMarker}},
		{"it failed after its end marker", ready + one + two + done + "exit 3", []error{errEnded}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := &harness{results: t.TempDir(), out: io.Discard}
			p := program{Steps: []step{{Name: "one"}, {Name: "two", Tests: true}}}
			v := &verdict{harness: h, program: p}
			w := watcher{program: p, boot: 2 * time.Second, slack: 2 * time.Second, seen: v.see}
			began := time.Now()
			err := v.judge(w.watch(t.Context(), []string{"/bin/sh", "-c", "cd " + h.results + "; " + c.script}, io.Discard))
			if (err == nil) != (c.want == nil) {
				t.Errorf("verdict %v, want %v", err, c.want)
			}
			for _, want := range c.want {
				if !errors.Is(err, want) {
					t.Errorf("verdict %v, want %v", err, want)
				}
			}
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}

// TestStops: an interrupted run ends its guest and does not pass.
func TestStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p := program{Steps: []step{{Name: "one", Limit: time.Hour}}}
	v := &verdict{harness: &harness{results: t.TempDir(), out: io.Discard}, program: p}
	w := watcher{program: p, boot: time.Hour, slack: time.Hour, seen: func(event) { cancel() }}
	err := v.judge(w.watch(ctx, []string{"/bin/sh", "-c", `echo '{"penstock":"ready"}'; sleep 1000`}, io.Discard))
	if !errors.Is(err, context.Canceled) || !errors.Is(err, errNoMarker) {
		t.Errorf("verdict %v, want %v and %v", err, context.Canceled, errNoMarker)
	}
}

// TestSteps runs real processes: each step's output is kept, one that fails or takes too long does not keep the others
// from running, and nothing that a step started outlives it.
func TestSteps(t *testing.T) {
	dir := t.TempDir()
	shell := func(script string) []string { return []string{"/bin/sh", "-c", script} }
	p := program{Results: dir, Scratch: dir, Env: []string{"A=1", "B=1"}, Steps: []step{
		{Name: "bad", Command: shell("echo bad; exit 3"), Limit: time.Minute},
		{Name: "slow", Command: shell("sleep 1000 & echo $!; wait"), Limit: 300 * time.Millisecond},
		{Name: "deaf", Command: shell("trap '' QUIT; echo deaf; while :; do sleep 1000; done"),
			Limit: 300 * time.Millisecond},
		{Name: "left", Command: shell("sleep 1000 & echo $!"), Limit: time.Minute},
		{Name: "missing", Command: []string{filepath.Join(dir, "none")}, Limit: time.Minute},
		{Name: "good", Command: shell("echo $A$B; pwd"), Env: []string{"B=2"}, Dir: "/", Limit: time.Minute},
	}}
	var said []string
	failed := map[string]bool{}
	p.run(t.Context(), func(e event) {
		said = append(said, e.Penstock+e.Step)
		if e.Penstock == eventEnd || e.Penstock == eventDone {
			failed[e.Step] = e.Failed
		}
	})
	want := "beginbad endbad beginslow endslow begindeaf enddeaf beginleft endleft beginmissing endmissing " +
		"begingood endgood done"
	if got := strings.Join(said, " "); got != want {
		t.Errorf("events %s, want %s", got, want)
	}
	wantFailed := map[string]bool{"bad": true, "slow": true, "deaf": true, "left": false, "missing": true, "good": false,
		"": true}
	if fmt.Sprint(failed) != fmt.Sprint(wantFailed) {
		t.Errorf("failed %v, want %v", failed, wantFailed)
	}
	text := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name+".log"))
		if err != nil {
			t.Error(err)
		}
		return strings.TrimSpace(string(b))
	}
	if bad, deaf, good := text("bad"), text("deaf"), text("good"); bad != "bad" || deaf != "deaf" || good != "12\n/" {
		t.Errorf("output %q, %q, %q", bad, deaf, good)
	}
	for _, name := range []string{"slow", "left"} {
		pid, err := strconv.Atoi(text(name))
		if err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(10 * time.Second); !gone(pid); {
			if time.Now().After(deadline) {
				t.Fatalf("process %d of step %s outlives it", pid, name)
			}
		}
	}
}

// TestLanes: steps of several lanes run side by side, those of one in order, and one that runs alone waits for all.
// Steps of a lane end only when one of the other lane has begun.
func TestLanes(t *testing.T) {
	dir := t.TempDir()
	mark := func(mine, other string) []string {
		return []string{"/bin/sh", "-c", ": > " + mine + "; until [ -e " + other + " ]; do sleep 0.01; done"}
	}
	p := program{Results: dir, Scratch: dir, Steps: []step{
		{Name: "before", Command: mark("0", "0"), Limit: time.Minute},
		{Name: "a1", Command: mark("a1", "b1"), Limit: time.Minute, Lane: 1},
		{Name: "a2", Command: mark("a2", "b1"), Limit: time.Minute, Lane: 1},
		{Name: "b1", Command: mark("b1", "a2"), Limit: time.Minute, Lane: 2},
		{Name: "bad", Command: []string{"/bin/false"}, Limit: time.Minute, Lane: 2},
		{Name: "after", Command: mark("1", "b1"), Limit: time.Minute},
	}}
	var said []string
	failed := false
	p.run(t.Context(), func(e event) {
		said = append(said, e.Penstock+e.Step)
		failed = e.Failed
	})
	at := func(what string) int { return slices.Index(said, what) }
	for _, order := range [][2]string{
		{"endbefore", "begina1"}, {"endbefore", "beginb1"}, {"enda1", "begina2"}, {"beginb1", "enda1"}, {"begina2", "endb1"},
		{"endb1", "beginbad"}, {"enda2", "beginafter"}, {"endbad", "beginafter"}, {"endafter", "done"},
	} {
		if a, b := at(order[0]), at(order[1]); a < 0 || a > b {
			t.Errorf("%s is not before %s: %v", order[0], order[1], said)
		}
	}
	if !failed {
		t.Error("a step failed, and the run did not")
	}
}

// gone tells whether a process runs no more; where nobody reaps orphans it stays as a zombie.
func gone(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return errors.Is(err, fs.ErrNotExist) || bytes.Contains(stat, []byte(") Z "))
}

func TestNewestKernel(t *testing.T) {
	for _, c := range []struct {
		names []string
		want  string
	}{
		{nil, ""},
		{[]string{"linux-image-6.1.0-9-amd64", "linux-image-6.1.0-57-amd64", "linux-image-6.1.0-50-amd64"},
			"linux-image-6.1.0-57-amd64"},
		{[]string{"linux-image-6.1.0-58-cloud-amd64", "linux-image-6.1.0-58-rt-amd64", "linux-image-6.1.0-58-amd64-dbg",
			"linux-image-6.12.0-1-amd64", "/cache/linux-image-6.1.0-7-amd64"}, "/cache/linux-image-6.1.0-7-amd64"},
	} {
		if got := newest(c.names); got != c.want {
			t.Errorf("newest of %v: %q, want %q", c.names, got, c.want)
		}
	}
	if _, err := moduleFiles(t.TempDir(), modules); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("modules of an empty tree: %v", err)
	}
}

// TestRealGuests boots guests that fail in ways that only real ones can.
func TestRealGuests(t *testing.T) {
	if os.Getenv("PENSTOCK_TEST_LONG") == "" {
		t.Skip("boots emulated machines; PENSTOCK_TEST_LONG=1 does")
	}
	t.Chdir("../..")
	for _, c := range []struct {
		name, command string
		want          error // nil: the run passes
	}{
		{"passes", `rdma link show rxe1/1 && test "$PENSTOCK_TEST_VERBS" = device && test "$(ulimit -l)" = unlimited`, nil},
		{"fails", "exit 3", errFailed},
		{"panics", "echo c > /proc/sysrq-trigger; sleep 1000", errNoMarker},
		{"takes too long", "sleep 1000", errFailed},
		{"stops", "kill -STOP $PPID; sleep 1000", errHung},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			h := &harness{machine: standard(), shell: c.command, limit: 20 * time.Second, cache: ".cache/guest", out: &out}
			err := h.run(t.Context())
			if (err == nil) != (c.want == nil) || !errors.Is(err, c.want) {
				t.Errorf("verdict %v, want %v\n%s", err, c.want, out.String())
			}
		})
	}
}

// TestTelling: of a failed step's output, what failed is shown, not what passed before and after it.
func TestTelling(t *testing.T) {
	var passed, goroutines strings.Builder
	for i := range 100 {
		fmt.Fprintf(&passed, "=== RUN   TestGood%d\n    --- PASS: TestGood%d (0.00s)\n", i, i)
		fmt.Fprintf(&goroutines, "goroutine %d\n", i)
	}
	for _, c := range []struct{ name, text, want, without string }{
		{"a failed test", "=== RUN   TestBad\n    bad.go:1: words\n--- FAIL: TestBad (0.00s)\n" + passed.String() + "FAIL",
			"    bad.go:1: words\n--- FAIL: TestBad (0.00s)\nFAIL", "TestGood"},
		{"a panic", passed.String() + "panic: test timed out\n\trunning tests:\n\t\tTestBad\n" + goroutines.String(),
			"panic: test timed out\n\trunning tests:\n\t\tTestBad\ngoroutine 0\n", "goroutine 99"},
		{"much", strings.Repeat("first\n", tailLines) + "last", "last", ""},
	} {
		got := strings.Join(telling(strings.Split(c.text, "\n")), "\n")
		if !strings.Contains(got, c.want) || c.without != "" && strings.Contains(got, c.without) {
			t.Errorf("%s: shown %q", c.name, got)
		}
		if n := strings.Count(got, "\n") + 1; n > tailLines {
			t.Errorf("%s: %d lines", c.name, n)
		}
	}
}
