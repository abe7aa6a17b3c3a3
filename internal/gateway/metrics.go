package gateway

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-store/penstock/internal/token"
)

// path says how a payload moved.
type path uint8

// The paths.
const (
	pathNone path = iota
	pathHTTP
	pathShm
	pathTCP
	pathRC
	pathRCTokens
	pathHip
	pathOther
	pathCount
)

var pathNames = [pathCount]string{"none", "http", "shm", "tcp", "rc", "rc-tokens", "hipobj", "other"}

// pathOf is the path that a token asks for.
func pathOf(d token.Descriptor) path {
	switch {
	case d.Kind == token.RC:
		return pathRCTokens
	case d.Kind != token.Session:
		return pathOther
	case d.Fabric == "shm":
		return pathShm
	case d.Fabric == "tcp":
		return pathTCP
	case d.Fabric == "rc":
		return pathRC
	}
	return pathOther
}

// classes are the first digits of status codes; 0 is for answers that were cut off.
const classes = 6

var classNames = [classes]string{"cut", "1xx", "2xx", "3xx", "4xx", "5xx"}

// Metrics count requests. The counters of all label values exist from the start, so that counting is one
// atomic addition.
type Metrics struct {
	requests [opCount][classes]prometheus.Counter
	bytes    [opCount][pathCount]prometheus.Counter
	latency  [opCount]prometheus.Observer
	declines *prometheus.CounterVec
}

// NewMetrics registers the metrics; a nil registerer registers nowhere.
func NewMetrics(to prometheus.Registerer) *Metrics {
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "penstock_requests_total", Help: "Requests by operation and class of status (cut: connection cut off).",
	}, []string{"op", "status"})
	bytes := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "penstock_payload_bytes_total", Help: "Payload bytes moved, by operation and path.",
	}, []string{"op", "path"})
	latency := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "penstock_request_seconds", Help: "Time from the parsed header to the end of the operation.",
		Buckets: prometheus.ExponentialBuckets(0.0001, 3.16, 11), // 100 µs to 30 s
	}, []string{"op"})
	m := &Metrics{declines: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "penstock_rdma_declines_total", Help: "Requests that asked for RDMA and were declined.",
	}, []string{"op", "reason"})}
	for o := range opCount {
		for i, class := range classNames {
			m.requests[o][i] = requests.WithLabelValues(o.String(), class)
		}
		m.latency[o] = latency.WithLabelValues(o.String())
		for p, name := range pathNames {
			m.bytes[o][p] = bytes.WithLabelValues(o.String(), name)
		}
	}
	if to != nil {
		to.MustRegister(requests, bytes, latency, m.declines)
	}
	return m
}

func (m *Metrics) observe(c *call) {
	m.latency[c.op].Observe(time.Since(c.start).Seconds())
	if c.moved > 0 {
		m.bytes[c.op][c.path].Add(float64(c.moved))
	}
	if c.reason != "" {
		m.declines.WithLabelValues(c.op.String(), c.reason).Inc()
	}
	m.requests[c.op][min(c.status/100, classes-1)].Inc() // last: who sees it sees the others
}
