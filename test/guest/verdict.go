package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// verdict collects what the events say and decides.
type verdict struct {
	*harness
	program program
	booted  time.Time       // when the guest was started
	ended   map[string]bool // steps, and whether they passed
}

// see prints a step's line when it ends.
func (v *verdict) see(e event) {
	switch e.Penstock {
	case eventReady:
		v.printf("%-24s %7.1f s\n", "boot", time.Since(v.booted).Seconds())
	case eventEnd:
		counts, why := v.check(e)
		if v.ended == nil {
			v.ended = map[string]bool{}
		}
		v.ended[e.Step] = why == ""
		word := "ok"
		if why != "" {
			word = "FAILED: " + why
		}
		v.printf("%-24s %7.1f s  %s %s\n", e.Step, e.Seconds, word, counts)
		if v.verbose || why != "" {
			v.show(e.Step+".log", v.verbose)
		}
	}
}

// Lines of go test -v about tests that are not part of others.
var (
	passPattern = regexp.MustCompile(`(?m)^--- PASS: (\S+) \(([0-9.]+)s\)`)
	skipPattern = regexp.MustCompile(`(?m)^--- SKIP: `)
)

// longTest is how long a test takes that gets a line of its own.
const longTest = 5 * time.Second

// check returns what is known of a step and why it failed, if it did.
func (v *verdict) check(e event) (counts, why string) {
	if e.Failed {
		why = e.Why
	}
	text, err := os.ReadFile(filepath.Join(v.resultsDir(), e.Step+".log"))
	if err != nil {
		return "", cmp.Or(why, "its output is missing")
	}
	for _, s := range v.program.Steps {
		if s.Name != e.Step {
			continue
		}
		if !s.Tests {
			if line := bytes.TrimSpace(text); len(line) > 0 && !bytes.ContainsRune(line, '\n') {
				counts = string(line)
			}
			continue
		}
		passed, skipped := passPattern.FindAllStringSubmatch(string(text), -1), len(skipPattern.FindAll(text, -1))
		counts = fmt.Sprintf("%d passed, %d skipped", len(passed), skipped)
		if len(passed) == 0 && why == "" {
			why = "no test ran"
		}
		for _, m := range passed {
			if seconds, err := strconv.ParseFloat(m[2], 64); err == nil && seconds >= longTest.Seconds() {
				counts += fmt.Sprintf("\n  %-22s %7.1f s", m[1], seconds)
			}
		}
	}
	return counts, why
}

// tailLines is how much of a failed step is shown.
const tailLines = 60

// show prints the output of a step: all of it, or what tells why it failed.
func (v *verdict) show(name string, whole bool) {
	text, err := os.ReadFile(filepath.Join(v.resultsDir(), name))
	if err != nil {
		return
	}
	lines := strings.Split(strings.TrimRight(strings.ReplaceAll(string(text), "\r", ""), "\n"), "\n")
	if !whole {
		lines = telling(lines)
	}
	for _, line := range lines {
		v.printf("    %s\n", line)
	}
}

// telling leaves out what go test -v says of tests that are under way or passed, and the goroutines after a panic but
// for the first; of the rest it returns the last lines.
func telling(lines []string) []string {
	var kept []string
	for i := 0; i < len(lines); i++ {
		word := strings.TrimSpace(lines[i])
		if strings.HasPrefix(word, "=== ") || strings.HasPrefix(word, "--- PASS: ") {
			continue
		}
		if strings.HasPrefix(word, "panic: ") || strings.HasPrefix(word, "SIGQUIT: ") {
			kept = append(kept, lines[i:min(i+panicLines, len(lines))]...)
			break
		}
		kept = append(kept, lines[i])
	}
	return kept[max(0, len(kept)-tailLines):]
}

// panicLines reach from a panic over the tests that were running and the first goroutine.
const panicLines = 30

// judge is the end of a run: err is how the guest ended.
func (v *verdict) judge(err error) error {
	if err != nil {
		v.printf("last messages of the guest's kernel:\n")
		v.show(kernelLog, false)
		v.printf("last lines of its console:\n")
		v.show(consoleLog, false)
	}
	var failed []string
	for _, s := range v.program.Steps {
		if passed, ended := v.ended[s.Name]; !ended {
			failed = append(failed, s.Name+" (did not end)")
		} else if !passed {
			failed = append(failed, s.Name)
		}
	}
	if len(failed) > 0 {
		err = errors.Join(err, fmt.Errorf("%w: %s", errFailed, strings.Join(failed, ", ")))
	}
	v.printf("%-24s %7.1f s\n", "all", time.Since(v.harness.began).Seconds())
	return err
}
