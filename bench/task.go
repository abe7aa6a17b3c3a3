package bench

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/penstock-store/penstock/client"
)

// Kinds of task.
const (
	Get            = "get"
	Put            = "put"
	FloorRead      = "floor-read"       // pread of 64 KiB pieces from the page cache into a memfd, and CRC64NVME
	FloorWrite     = "floor-write"      // O_DIRECT writes of 4 MiB into a preallocated file, fdatasync per 64 MiB
	FloorTCP       = "floor-tcp"        // copy over loopback TCP connections from another process
	floorTCPSender = "floor-tcp-sender" // that process
	FloorMD5       = "floor-md5"        // MD5 on one core
)

// PathForeign is shm into memory of the worker's heap. Node and worker must be of one user without
// CAP_SYS_PTRACE, so it is not for root.
const PathForeign = "shm-foreign"

// fabric is the path as the client names it.
func (t Task) fabric() string {
	if t.Path == PathForeign {
		return client.PathSHM
	}
	return t.Path
}

// Task is one thing to measure, for one worker process.
type Task struct {
	Name        string  `json:"name"`
	Kind        string  `json:"kind"`
	Path        string  `json:"path,omitempty"` // http, tcp, rc, shm, shm-foreign
	ObjectBytes int64   `json:"object_bytes"`
	Objects     int     `json:"objects,omitempty"` // number of keys, used in turn
	InFlight    int     `json:"in_flight"`         // of this process
	Processes   int     `json:"processes"`
	Ops         int     `json:"ops,omitempty"`     // of this process; 0: until Seconds have passed
	Seconds     float64 `json:"seconds,omitempty"` // of a task without Ops
	Bucket      string  `json:"bucket,omitempty"`
	Prefix      string  `json:"prefix,omitempty"`  // of the keys
	Verify      bool    `json:"verify,omitempty"`  // the client compares checksums once more; the server always has
	Discard     bool    `json:"discard,omitempty"` // http GET: read the body and drop it
	// RegionBytes is the client's registered memory, which the windows share; 0: as much as they need.
	RegionBytes int64  `json:"region_bytes,omitempty"`
	Dir         string `json:"dir,omitempty"` // of a floor that needs files
}

// Sample is what one task did in one round, all processes together.
type Sample struct {
	Ops        int64   `json:"ops"`
	Bytes      int64   `json:"bytes"`
	Seconds    float64 `json:"seconds"`
	ClientCPU  float64 `json:"client_cpu_s"` // of floors: of the whole loop
	ServerCPU  float64 `json:"server_cpu_s"`
	P50Millis  float64 `json:"p50_ms"`
	P99Millis  float64 `json:"p99_ms"`
	PeakMemory int64   `json:"server_peak_bytes,omitempty"` // VmRSS − RssShmem

	Latencies []float64 `json:"latencies,omitempty"` // ms, only from worker to parent
}

// GBps is the rate in 10^9 bytes per second.
func (s Sample) GBps() float64 { return ratio(float64(s.Bytes)/1e9, s.Seconds) }

// OpsPerSecond is the rate of requests.
func (s Sample) OpsPerSecond() float64 { return ratio(float64(s.Ops), s.Seconds) }

// ServerCPUPerGB is in CPU-seconds.
func (s Sample) ServerCPUPerGB() float64 { return ratio(s.ServerCPU, float64(s.Bytes)/1e9) }

// ClientCPUPerGB is in CPU-seconds.
func (s Sample) ClientCPUPerGB() float64 { return ratio(s.ClientCPU, float64(s.Bytes)/1e9) }

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// setPercentiles fills P50Millis and P99Millis and drops the latencies.
func (s *Sample) setPercentiles() {
	slices.Sort(s.Latencies)
	s.P50Millis, s.P99Millis = percentile(s.Latencies, 0.50), percentile(s.Latencies, 0.99)
	s.Latencies = nil
}

// percentile is the nearest-rank percentile of sorted values.
func percentile(sorted []float64, p float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, int(math.Ceil(p*float64(len(sorted))))-1)]
}

// Median of the values; the mean of the middle two when their number is even.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	v := slices.Sorted(slices.Values(values))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// Measurement is a task with the samples of all rounds.
type Measurement struct {
	Task    Task     `json:"task"`
	Samples []Sample `json:"samples"`

	GBps           float64 `json:"gbps"` // medians of the rounds from here on
	OpsPerSecond   float64 `json:"ops_per_s"`
	ServerCPUPerGB float64 `json:"server_cpu_s_per_gb"`
	ClientCPUPerGB float64 `json:"client_cpu_s_per_gb"`
	P50Millis      float64 `json:"p50_ms"`
	P99Millis      float64 `json:"p99_ms"`
	PeakMemory     int64   `json:"server_peak_bytes,omitempty"` // the highest of all rounds
}

func (m *Measurement) summarise() {
	median := func(f func(Sample) float64) float64 {
		values := make([]float64, len(m.Samples))
		for i, s := range m.Samples {
			values[i] = f(s)
		}
		return Median(values)
	}
	m.GBps, m.OpsPerSecond = median(Sample.GBps), median(Sample.OpsPerSecond)
	m.ServerCPUPerGB, m.ClientCPUPerGB = median(Sample.ServerCPUPerGB), median(Sample.ClientCPUPerGB)
	m.P50Millis = median(func(s Sample) float64 { return s.P50Millis })
	m.P99Millis = median(func(s Sample) float64 { return s.P99Millis })
	for _, s := range m.Samples {
		m.PeakMemory = max(m.PeakMemory, s.PeakMemory)
	}
}

// check refuses tasks that would measure nothing.
func (t Task) check() error {
	if t.ObjectBytes <= 0 || t.InFlight <= 0 || (t.Ops <= 0 && t.Seconds <= 0) {
		return fmt.Errorf("bench: task %s: object bytes, in flight and ops or seconds must be positive", t.Name)
	}
	return nil
}

func (t Task) duration() time.Duration { return time.Duration(t.Seconds * float64(time.Second)) }
