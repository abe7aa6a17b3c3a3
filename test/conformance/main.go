// Command conformance runs the S3 tests of the Ceph project against a fresh node and compares each
// result with expected.txt, in which every test of the suite has a line.
//
// Called by: make conformance.
//
// Invariants:
//  1. Nothing of the suite is part of this repository: it is read from a path or fetched, at one
//     pinned revision whose content is compared with a recorded sum.
//  2. Every test that the suite collects has exactly one line, and every line has its test.
//  3. The outcome of a run is a function of the results alone: a test that must pass and does not, or
//     one that passes against its line, ends in exit code 1.
//  4. Whatever it starts ends with it: the node, the test processes, the temporary directory.
//
// What it does not do: judging what a test is good for; that is the reason in its line.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"syscall"
	"time"
)

// errDeviates says that results and expectations differ; what differs was printed.
var errDeviates = errors.New("conformance: results differ from what is expected")

// options are the flags.
type options struct {
	suite    string
	binary   string
	cache    string
	expected string
	update   bool
	all      bool
	only     string
	keep     bool
	shards   int
	limit    time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.suite, "suite", "", "checkout, bare git directory or copy of the suite; empty: fetch it")
	flag.StringVar(&o.binary, "penstock", "bin/penstock", "the binary under test")
	flag.StringVar(&o.cache, "cache", ".cache/conformance", "directory of the Python environment")
	flag.StringVar(&o.expected, "expected", "test/conformance/expected.txt", "file with a line per test")
	flag.BoolVar(&o.update, "update", false, "run everything and print expected.txt as the results suggest it")
	flag.BoolVar(&o.all, "all", false, "also run the files whose whole feature is not built")
	flag.StringVar(&o.only, "run", "", "regular expression of the tests to run and compare; empty: all")
	flag.BoolVar(&o.keep, "keep", false, "keep the temporary directory: logs, results, data")
	flag.IntVar(&o.shards, "shards", min(max(runtime.NumCPU(), 2), maxShards), "test processes at a time")
	flag.DurationVar(&o.limit, "limit", 30*time.Minute, "limit of the whole run: only one that hangs meets it")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, o.limit)
	err := o.run(ctx, os.Stdout)
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run is one run from the suite's source to the verdict.
func (o options) run(ctx context.Context, out io.Writer) (err error) {
	text, err := os.ReadFile(o.expected)
	if err != nil {
		return fmt.Errorf("conformance: read expectations: %w", err)
	}
	expected, err := parseExpected(text)
	if err != nil && !o.update {
		return err
	}
	only, err := regexp.Compile(o.only)
	if err != nil {
		return fmt.Errorf("conformance: read -run: %w", err)
	}
	maps.DeleteFunc(expected, func(test string, _ line) bool { return !only.MatchString(test) })
	dir, err := os.MkdirTemp("", "penstock-conformance-")
	if err != nil {
		return fmt.Errorf("conformance: make directory: %w", err)
	}
	if o.keep {
		fmt.Fprintln(os.Stderr, "kept:", dir)
	} else {
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	suite := filepath.Join(dir, "suite")
	if err := obtain(ctx, o.suite, suite); err != nil {
		return err
	}
	python, err := environment(ctx, o.cache)
	if err != nil {
		return err
	}
	r := runner{dir: dir, suite: suite, python: python, shards: o.shards, only: only}
	results, collected, err := r.run(ctx, o.binary, o.update || o.all)
	if err != nil {
		return err
	}
	if o.update {
		return propose(out, expected, collected, results)
	}
	return compare(out, expected, collected, results)
}
