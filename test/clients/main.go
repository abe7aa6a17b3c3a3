// Command clients runs other people's S3 clients as processes against a real node, over HTTP and
// HTTPS, and compares what comes out with what went in.
//
// Called by: make e2e, .ci/run (pinned).
//
// The oracle is not the node and not the client: contents are functions of a name (content), what
// the node holds is read by requests signed here (raw), listings are compared with a model, and
// ETags and checksums with sums made here. Objects of each client are read by all others.
//
// Invariants:
//  1. A case that a client fails is a failure unless cannot.txt names it with a reason; a case named
//     there that works is a failure, too, so that the table cannot grow stale.
//  2. Clients run with their defaults, unless kinds says otherwise and why.
//  3. Nothing but package indexes and addresses of this machine is reached.
//  4. Every process is ended and every directory but the cache removed.
//
// What it does not do: load, timing, RDMA.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

type options struct {
	pinned, record          bool
	clients, schemes, cases string
	cache, binary, source   string
	verbose                 bool
}

func main() {
	var o options
	flag.BoolVar(&o.pinned, "pinned", false, "install the recorded versions instead of the newest")
	flag.BoolVar(&o.record, "record", false, "record the versions that were installed")
	flag.StringVar(&o.clients, "clients", "", "only these clients, separated by commas")
	flag.StringVar(&o.schemes, "schemes", "http,https", "only these schemes")
	flag.StringVar(&o.cases, "cases", "", "only cases whose names begin with one of these")
	flag.StringVar(&o.cache, "cache", ".cache/e2e", "directory where clients are installed")
	flag.StringVar(&o.binary, "binary", "bin/penstock", "the node")
	flag.StringVar(&o.source, "source", "test/clients", "directory of this program and its clients")
	flag.BoolVar(&o.verbose, "v", false, "a line per case with its time")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	failed, err := suite(ctx, o, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "clients:", err)
	}
	if err != nil || failed {
		stop()
		os.Exit(1)
	}
}

// session is one run of everything.
type session struct {
	options
	tools *toolbox
	ca    *authority
	dir   string
	nodes []*node
	runs  []*run
	table *table
	out   io.Writer
}

// crossBucket is where clients leave objects for each other; sharedBucket has the long listing.
const (
	crossBucket  = "cross"
	sharedBucket = "shared"
)

// parallelRuns is how many clients work at a time: the machines of the gate have two cores.
const parallelRuns = 2

func suite(ctx context.Context, o options, out io.Writer) (failed bool, err error) {
	s := &session{options: o, out: out}
	if s.dir, err = os.MkdirTemp("", "penstock-e2e-"); err != nil {
		return true, fmt.Errorf("make directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(s.dir)) }()
	if err := s.prepare(ctx); err != nil {
		return true, err
	}
	if s.table, err = newTable(filepath.Join(s.tools.source, "cannot.txt")); err != nil {
		return true, err
	}
	err = s.serve(ctx)
	for _, r := range s.runs {
		if err := r.client.close(); err != nil {
			_, _ = fmt.Fprintf(out, "%s %s: ended with: %v\n", r.name, r.node.scheme, err)
		}
	}
	for _, n := range s.nodes {
		err = errors.Join(err, n.stop())
	}
	if err != nil {
		return true, err
	}
	return s.table.print(out, o.cases == "" && o.clients == ""), nil
}

// prepare installs the clients and makes the certificate.
func (s *session) prepare(ctx context.Context) error {
	began := time.Now()
	kind := "newest"
	if s.pinned {
		kind = "pinned"
	}
	source, err := filepath.Abs(s.source)
	if err != nil {
		return fmt.Errorf("find source: %w", err)
	}
	cache, err := filepath.Abs(filepath.Join(s.cache, kind))
	if err != nil {
		return fmt.Errorf("find cache: %w", err)
	}
	s.tools = &toolbox{source: source, dir: cache, pinned: s.pinned, env: append(os.Environ(), "CGO_ENABLED=0")}
	if err := s.tools.install(ctx); err != nil {
		return err
	}
	versions, err := s.tools.versions(ctx)
	if err != nil {
		return err
	}
	if s.record {
		if err := s.tools.record(ctx); err != nil {
			return err
		}
	}
	_, _ = fmt.Fprintf(s.out, "clients (%s, installed in %.0f s):\n  %s\n", kind, time.Since(began).Seconds(),
		strings.Join(versions, "\n  "))
	if s.binary, err = filepath.Abs(s.binary); err != nil {
		return fmt.Errorf("find node: %w", err)
	}
	s.ca, err = newAuthority(s.dir)
	return err
}

// serve starts the nodes and lets every client work on them.
func (s *session) serve(ctx context.Context) error {
	for scheme := range strings.SplitSeq(s.schemes, ",") {
		n, err := newNode(s.binary, filepath.Join(s.dir, "data-"+scheme), scheme, s.ca)
		if err != nil {
			return err
		}
		if err := n.start(ctx); err != nil {
			return err
		}
		s.nodes = append(s.nodes, n)
		if err := fill(ctx, raw{n}); err != nil {
			return err
		}
	}
	for _, k := range kinds() { // the slowest first, on all nodes at a time
		if s.clients != "" && !slices.Contains(strings.Split(s.clients, ","), k.name) {
			continue
		}
		for _, n := range s.nodes {
			r, err := s.newRun(k, n)
			if err != nil {
				return err
			}
			s.runs = append(s.runs, r)
		}
	}
	if err := s.each(ctx, s.work); err != nil {
		return err
	}
	if !s.wanted("cross") {
		return nil
	}
	if err := s.each(ctx, func(ctx context.Context, r *run) {
		s.judge(ctx, r, testCase{name: "cross-put", run: func(ctx context.Context, r *run) error { return r.leave(ctx) }})
	}); err != nil {
		return err
	}
	names := s.names()
	return s.each(ctx, func(ctx context.Context, r *run) {
		s.judge(ctx, r, testCase{name: "cross-get", run: func(ctx context.Context, r *run) error {
			return r.readOthers(ctx, names)
		}})
	})
}

func (s *session) names() []string {
	var names []string
	for _, r := range s.runs {
		if !slices.Contains(names, r.name) {
			names = append(names, r.name)
		}
	}
	return names
}

func (s *session) newRun(k kind, n *node) (*run, error) {
	r := &run{
		kind: k, tools: s.tools, node: n, raw: raw{n}, bucket: k.name, shared: sharedBucket,
		dir: filepath.Join(s.dir, k.name+"-"+n.scheme),
	}
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return nil, fmt.Errorf("scratch: %w", err)
	}
	r.cmd = command{env: n.environment(r.dir), dir: r.dir}
	var err error
	r.client, err = k.start(s.tools, r.cmd, n)
	return r, err
}

// each gives every run to f, some at a time.
func (s *session) each(ctx context.Context, f func(context.Context, *run)) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallelRuns)
	for _, r := range s.runs {
		g.Go(func() error {
			f(ctx, r)
			return ctx.Err()
		})
	}
	return g.Wait()
}

func (s *session) wanted(name string) bool {
	if s.cases == "" {
		return true
	}
	return slices.ContainsFunc(strings.Split(s.cases, ","), func(p string) bool { return strings.HasPrefix(name, p) })
}

func (s *session) work(ctx context.Context, r *run) {
	if err := r.raw.makeBucket(ctx, r.bucket); err != nil {
		s.table.note(r, testCase{name: "bucket"}, err)
		return
	}
	for _, c := range cases() {
		if s.wanted(c.name) && (c.only == nil || slices.Contains(c.only, r.name)) {
			s.judge(ctx, r, c)
		}
	}
}

func (s *session) judge(ctx context.Context, r *run, c testCase) {
	began := time.Now()
	err := r.attempt(ctx, c)
	if s.verbose {
		took := time.Since(began).Seconds()
		_, _ = fmt.Fprintf(s.out, "%-9s %-5s %-18s %6.2f s %v\n", r.name, r.node.scheme, c.name, took, err)
	}
	s.table.note(r, c, err)
}

// fill makes the buckets that all clients read.
func fill(ctx context.Context, r raw) error {
	if err := errors.Join(r.makeBucket(ctx, crossBucket), r.makeBucket(ctx, sharedBucket)); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for key, size := range manyKeys() {
		g.Go(func() error { return r.put(ctx, sharedBucket, key, make([]byte, size)) })
	}
	return g.Wait()
}

// table collects results.
type table struct {
	mu      sync.Mutex
	reasons map[string]string // by client and case
	used    map[string]bool
	cells   map[string]string // by client, case and scheme: ok, FAIL or no
	cases   []string
	clients []string
	schemes []string
	errors  []string
}

// newTable reads the reasons: client, case and text, separated by blanks.
func newTable(name string) (*table, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("table: %w", err)
	}
	t := &table{reasons: map[string]string{}, used: map[string]bool{}, cells: map[string]string{}}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) < 3 {
			return nil, fmt.Errorf("table: line %q has no reason", line)
		}
		t.reasons[fields[0]+" "+fields[1]] = strings.Join(fields[2:], " ")
	}
	return t, nil
}

// note judges one result: see invariant 1 of the package.
func (t *table) note(r *run, c testCase, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, x := range []struct {
		all  *[]string
		name string
	}{{&t.cases, c.name}, {&t.clients, r.name}, {&t.schemes, r.node.scheme}} {
		if !slices.Contains(*x.all, x.name) {
			*x.all = append(*x.all, x.name)
		}
	}
	name := r.name + " " + c.name
	_, excused := t.reasons[name]
	t.used[name] = true
	cell := name + " " + r.node.scheme
	var no *cannotError
	switch {
	case err == nil && !excused:
		t.cells[cell] = "ok"
	case err == nil:
		t.cells[cell] = "FAIL"
		t.errors = append(t.errors, cell+": works, but cannot.txt says that it cannot")
	case excused:
		t.cells[cell] = "no"
	case errors.As(err, &no):
		t.cells[cell] = "FAIL"
		t.errors = append(t.errors, cell+": "+err.Error()+": cannot.txt has no line about it")
	default:
		t.cells[cell] = "FAIL"
		t.errors = append(t.errors, err.Error())
	}
}

// print writes the table, the reasons, the failures and the count. whole: nothing was left out, so
// every reason must have been used.
func (t *table) print(w io.Writer, whole bool) (failed bool) {
	slices.Sort(t.schemes)
	_, _ = fmt.Fprintf(w, "\ncase by client; in a cell: %s\n%-18s", strings.Join(t.schemes, "/"), "")
	order := []string{}
	for _, k := range kinds() {
		if slices.Contains(t.clients, k.name) {
			order = append(order, k.name)
			_, _ = fmt.Fprintf(w, " %-10s", k.name)
		}
	}
	count := map[string]int{}
	for _, c := range t.cases {
		_, _ = fmt.Fprintf(w, "\n%-18s", c)
		for _, k := range order {
			var cell []string
			for _, scheme := range t.schemes {
				state, ok := t.cells[k+" "+c+" "+scheme]
				if !ok {
					state = "-"
				}
				count[state]++
				cell = append(cell, state)
			}
			_, _ = fmt.Fprintf(w, " %-10s", strings.Join(cell, "/"))
		}
	}
	_, _ = fmt.Fprint(w, "\n\nno: what a client cannot do\n")
	for _, k := range order {
		for _, c := range t.cases {
			if reason := t.reasons[k+" "+c]; reason != "" {
				_, _ = fmt.Fprintf(w, "  %s %s: %s\n", k, c, reason)
			}
		}
	}
	if whole {
		for name := range t.reasons {
			if !t.used[name] {
				count["FAIL"]++
				t.errors = append(t.errors, "cannot.txt: no such case: "+name)
			}
		}
	}
	slices.Sort(t.errors)
	for _, e := range t.errors {
		_, _ = fmt.Fprintln(w, "FAIL", e)
	}
	_, _ = fmt.Fprintf(w, "\n%d passed, %d failed, %d skipped\n", count["ok"], count["FAIL"], count["no"])
	return count["FAIL"] != 0
}
