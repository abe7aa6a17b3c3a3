package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// verdict collects what the events say and decides.
type verdict struct {
	*harness
	program program
	began   time.Time
	ended   map[string]bool // steps, and whether they passed
}

// see prints a step's line when it ends.
func (v *verdict) see(e event) {
	switch e.Penstock {
	case eventReady:
		v.printf("%-24s %7.1f s\n", "boot", time.Since(v.began).Seconds())
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
			v.tail(e.Step+".log", v.verbose)
		}
	}
}

// Lines of go test -v about tests that are not part of others.
var (
	passPattern = regexp.MustCompile(`(?m)^--- PASS: `)
	skipPattern = regexp.MustCompile(`(?m)^--- SKIP: `)
)

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
		passed, skipped := len(passPattern.FindAll(text, -1)), len(skipPattern.FindAll(text, -1))
		counts = fmt.Sprintf("%d passed, %d skipped", passed, skipped)
		if passed == 0 && why == "" {
			why = "no test ran"
		}
	}
	return counts, why
}

// tailLines is how much of a failed step is shown.
const tailLines = 60

func (v *verdict) tail(name string, whole bool) {
	text, err := os.ReadFile(filepath.Join(v.resultsDir(), name))
	if err != nil {
		return
	}
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	if !whole && len(lines) > tailLines {
		lines = lines[len(lines)-tailLines:]
	}
	for _, line := range lines {
		v.printf("    %s\n", strings.TrimRight(line, "\r"))
	}
}

// judge is the end of a run: err is how the guest ended.
func (v *verdict) judge(err error) error {
	if err != nil {
		v.printf("last messages of the guest's kernel:\n")
		v.tail(kernelLog, false)
		v.printf("last lines of its console:\n")
		v.tail(consoleLog, false)
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
	v.printf("%-24s %7.1f s\n", "all", time.Since(v.began).Seconds())
	return err
}
