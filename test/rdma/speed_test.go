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
	// speedSpan is how long one measurement takes.
	speedSpan = time.Second
	// leastSpeed is the part of perftest's rate that transfers must reach.
	leastSpeed = 0.7
)

// TestSpeed compares transfers with perftest between two processes, by turns in one run, by medians: a GET is RDMA
// WRITE, a PUT is RDMA READ. Both have the same number of bytes in a message and as many of them under way. A transfer
// is a whole S3 request: signature, metadata, checksum of every byte, and for a PUT the drive.
func TestSpeed(t *testing.T) {
	onVerbs(t)
	for _, tool := range []string{"ib_write_bw", "ib_read_bw"} {
		if _, err := exec.LookPath(tool); err != nil {
			unsupported(t, "perftest: %v", err)
		}
	}
	n := startNode(t, rc)
	floor := newFloor(t)
	rounds := 3
	if long() {
		rounds = 7
	}
	for _, size := range []int64{1 << 20, 4 << 20} {
		c := n.connect(rc)
		key := fmt.Sprintf("speed-%d", size)
		n.put(c, alloc(t, c, size), key, objectSeed, size)
		p := n.launch(job{Kind: kindCrowd, Bytes: size, Flight: speedFlight, Seed: objectSeed})
		p.tell(order{Verb: "clients", Clients: 1, Key: key})
		fine(t, p.hears("ready", patience()))
		s3 := func(verb string) float64 {
			p.tell(order{Verb: verb, Key: key, For: speedSpan})
			r := p.hears("done", speedSpan+patience())
			fine(t, r)
			return float64(r.Bytes) / (1 << 20) / r.Took.Seconds()
		}
		var get, put, write, read []float64
		for range rounds {
			write = append(write, floor.rate(t, "ib_write_bw", size))
			get = append(get, s3("get"))
			read = append(read, floor.rate(t, "ib_read_bw", size))
			put = append(put, s3("put"))
		}
		p.leave()
		for _, v := range []struct {
			what           string
			own, reference []float64
		}{{"GET against ib_write_bw", get, write}, {"PUT against ib_read_bw", put, read}} {
			f := figure{What: v.what, Fabric: rc, Bytes: size, Flight: speedFlight, Rate: median(v.own),
				Reference: median(v.reference)}
			f.Ratio = f.Rate / f.Reference
			t.Logf("%s, %d MiB: %.1f of %.1f MiB/s: %.2f (%.1f; %.1f)", v.what, size>>20, f.Rate, f.Reference, f.Ratio,
				v.own, v.reference)
			record(t, f)
			if f.Ratio < leastSpeed {
				t.Errorf("%s, %d MiB: %.2f, want %.2f", v.what, size>>20, f.Ratio, leastSpeed)
			}
		}
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
