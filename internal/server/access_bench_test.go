package server_test

import (
	"bufio"
	"net"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// crew is clients of one node, each with a connection and a request that was signed once.
type crew struct {
	request string
	conns   []net.Conn
	readers []*bufio.Reader
}

func newCrew(b *testing.B, r *running, size int) *crew {
	r.do("PUT", "/bucket", nil)
	r.do("PUT", "/bucket/k0", make([]byte, 4096))
	c := &crew{request: r.signed("GET", "/bucket/k0")}
	for range size {
		conn, err := net.Dial("tcp", r.s.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = conn.Close() }) // of a client, with nothing under way
		c.conns, c.readers = append(c.conns, conn), append(c.readers, bufio.NewReader(conn))
	}
	return c
}

// run has each client send n requests, and returns how long that took by the clock and on the cores.
func (c *crew) run(b *testing.B, n int) (wall, cpu time.Duration) {
	start, used := time.Now(), cores(b)
	var clients sync.WaitGroup
	for i := range c.conns {
		clients.Go(func() {
			for range n {
				if err := exchange(c.conns[i], c.readers[i], c.request); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	clients.Wait()
	return time.Since(start), cores(b) - used
}

// cores is the time that this process, clients and nodes, was on a core.
func cores(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkAccessLogOverhead sends 4 KiB GETs by turns to a node without an access log and to one with it,
// so that whatever else the machine does meets both. One iteration is 16 clients with 200 requests each, on
// either node.
func BenchmarkAccessLogOverhead(b *testing.B) {
	const clients, requests = 16, 200
	with := configFor(b, b.TempDir())
	with.HTTP.AccessLog = filepath.Join(b.TempDir(), "access.log")
	off, on := newCrew(b, start(b, configFor(b, b.TempDir()), nil), clients), newCrew(b, start(b, with, nil), clients)
	off.run(b, requests) // caches, buffers and pools fill
	on.run(b, requests)
	var wallOff, wallOn, cpuOff, cpuOn time.Duration
	turns := 0
	for b.Loop() {
		first, second := off, on
		if turns%2 == 1 {
			first, second = on, off
		}
		wall1, cpu1 := first.run(b, requests)
		wall2, cpu2 := second.run(b, requests)
		if turns%2 == 1 {
			wall1, cpu1, wall2, cpu2 = wall2, cpu2, wall1, cpu1
		}
		wallOff, cpuOff, wallOn, cpuOn = wallOff+wall1, cpuOff+cpu1, wallOn+wall2, cpuOn+cpu2
		turns++
	}
	n := float64(turns * clients * requests)
	b.ReportMetric(n/wallOff.Seconds(), "GET/s-off")
	b.ReportMetric(n/wallOn.Seconds(), "GET/s-on")
	b.ReportMetric(100*(wallOn.Seconds()/wallOff.Seconds()-1), "%time")
	b.ReportMetric(100*(cpuOn.Seconds()/cpuOff.Seconds()-1), "%cpu")
}
