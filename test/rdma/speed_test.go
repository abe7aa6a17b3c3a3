package rdma

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-store/penstock/native"
)

const (
	// speedFlight is how many transfers are under way, and how many messages of perftest.
	speedFlight = 16
	// speedSpan is how long one measurement takes: half a second is 30 messages of 1 MiB on the slowest machine.
	speedSpan = 500 * time.Millisecond
	// leastSpeed is the part of perftest's rate that transfers must reach.
	leastSpeed = 0.7
)

// TestSpeed compares transfers with perftest between two processes, by turns in one run, by medians: a GET is RDMA
// WRITE, a PUT is RDMA READ. Both have the same number of bytes in a message and as many of them under way, on one
// adapter and one path.
//
// The bound is for the fabric: a window is opened, moved from or to the arena, confirmed and closed, as for a request.
// A whole S3 request (two signatures, metadata, a checksum of every byte at both ends, for a PUT the drive) is measured
// beside it without a bound: emulated processors need longer for these than for the bytes' way, of which they do the
// adapter's part, too.
func TestSpeed(t *testing.T) {
	onVerbs(t)
	for _, tool := range []string{"ib_write_bw", "ib_read_bw"} {
		if _, err := exec.LookPath(tool); err != nil {
			unsupported(t, "perftest: %v", err)
		}
	}
	floor := newFloor(t)
	n := startNode(t, rc)
	c := n.connect(rc)
	for _, size := range []int64{1 << 20, 4 << 20} {
		key := fmt.Sprintf("speed-%d", size)
		n.put(c, alloc(t, c, size), key, objectSeed, size)
		m := &measured{node: n, floor: floor, size: size, key: key}
		m.run()
	}
}

// measured is the measurement of one size.
type measured struct {
	*node
	floor *floor
	size  int64
	key   string
}

func (m *measured) run() {
	t := m.t
	t.Helper()
	e := newEngine(t, m.floor.device, m.size)
	if err := e.checks(); err != nil {
		t.Fatal(err)
	}
	p := m.launch(job{Kind: kindCrowd, Bytes: m.size, Flight: speedFlight, Seed: objectSeed})
	p.tell(order{Verb: "clients", Clients: 1, Key: m.key})
	fine(t, p.hears("ready", patience()))
	request := func(verb string) float64 {
		p.tell(order{Verb: verb, Key: m.key, For: speedSpan})
		r := p.hears("done", speedSpan+patience())
		fine(t, r)
		return float64(r.Bytes) / (1 << 20) / r.Took.Seconds()
	}
	rounds := 1
	if long() || bounded() {
		rounds = 7
	}
	for _, v := range []struct{ verb, tool string }{{"get", "ib_write_bw"}, {"put", "ib_read_bw"}} {
		var reference, own, whole []float64
		for range rounds {
			reference = append(reference, m.floor.rate(t, v.tool, m.size))
			own = append(own, e.rate(v.verb))
			whole = append(whole, request(v.verb))
		}
		m.compare(v.verb+" by the fabric against "+v.tool, own, reference, leastSpeed)
		m.compare(v.verb+" by S3 against "+v.tool, whole, reference, 0)
	}
	p.leave()
	e.client.leave()
}

func (m *measured) compare(what string, own, reference []float64, least float64) {
	m.t.Helper()
	f := figure{What: what, Fabric: rc, Bytes: m.size, Flight: speedFlight, Rate: median(own),
		Reference: median(reference)}
	f.Ratio = f.Rate / f.Reference
	m.t.Logf("%s, %d MiB: %.1f of %.1f MiB/s: %.2f (%.1f; %.1f)", what, m.size>>20, f.Rate, f.Reference, f.Ratio, own,
		reference)
	record(m.t, f)
	if bounded() && f.Ratio < least {
		m.t.Errorf("%s, %d MiB: %.2f, want %.2f", what, m.size>>20, f.Ratio, least)
	}
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}

// floor runs perftest on the adapter that a client would take.
type floor struct {
	device, gid string
	last        map[string]float64 // MiB/s
}

func newFloor(t *testing.T) *floor {
	t.Helper()
	e := &end{}
	if err := e.open(); err != nil {
		t.Fatal(errors.Join(err, e.close()))
	}
	f := &floor{device: e.info.Name, gid: strconv.Itoa(e.gid.Index), last: map[string]float64{}}
	if e.gid.Type == native.GIDInfiniBand {
		f.gid = ""
	}
	if err := e.close(); err != nil {
		t.Fatal(err)
	}
	return f
}

// rate is what a tool of perftest moves between two processes, in MiB per second. The number of messages follows from
// the last rate, so that it takes a second.
func (f *floor) rate(t *testing.T, tool string, size int64) float64 {
	t.Helper()
	messages := max(int64(f.last[tool]*speedSpan.Seconds())<<20/size, 2*speedFlight)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	_ = l.Close()
	args := []string{"-d", f.device, "-s", strconv.FormatInt(size, 10), "-n", strconv.FormatInt(messages, 10),
		"-t", strconv.Itoa(speedFlight), "-Q", "1", "-F", "-p", port, "--output=bandwidth"}
	if f.gid != "" {
		args = append(args, "-x", f.gid)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience())
	defer cancel()
	var said bytes.Buffer
	server := exec.CommandContext(ctx, tool, args...)
	server.Stdout, server.Stderr = &said, &said
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	var out []byte
	if !eventually(func() bool { // the server may not listen yet
		out, err = exec.CommandContext(ctx, tool, append(args, "127.0.0.1")...).Output()
		return err == nil || ctx.Err() != nil
	}) || err != nil {
		_ = server.Process.Kill()
		t.Fatalf("%s: %v: %s", tool, errors.Join(err, server.Wait()), said.String())
	}
	if err := server.Wait(); err != nil {
		t.Fatalf("%s: server: %v: %s", tool, err, said.String())
	}
	lines := strings.Fields(string(out))
	if len(lines) == 0 {
		t.Fatalf("%s said nothing", tool)
	}
	figure, err := strconv.ParseFloat(lines[len(lines)-1], 64) // in MB of 2^20 bytes
	if err != nil || figure <= 0 {
		t.Fatalf("%s: %q: %v", tool, out, err)
	}
	f.last[tool] = figure
	return figure
}
