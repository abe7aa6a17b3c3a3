package server

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/penstock-store/penstock/internal/drive"
	"github.com/penstock-store/penstock/internal/gateway"
)

// adminHandler answers /metrics, /livez and /readyz, without signatures: bind it where only
// monitoring can reach it.
func (s *Server) adminHandler() http.Handler {
	s.registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), newNodeCollector(s))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := s.checkReady(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
	return mux
}

// nodeCollector reads what the parts of a node count by themselves, at each scrape.
type nodeCollector struct {
	s     *Server
	descs map[string]*prometheus.Desc
}

var _ prometheus.Collector = (*nodeCollector)(nil)

// nodeMetrics are the names, help texts and labels; docs/operations.md lists them.
var nodeMetrics = []struct {
	name, help string
	labels     []string
}{
	{"penstock_connections", "Open HTTP connections.", nil},
	{"penstock_connections_evicted_total", "HTTP connections closed for a newcomer.", nil},
	{"penstock_requests_in_flight", "Requests under way.", nil},
	{"penstock_arena_buffers", "Payload buffers of a share.", []string{"share"}},
	{"penstock_arena_buffers_in_use", "Payload buffers that are out or reserved.", []string{"share"}},
	{"penstock_arena_waits_total", "Requests that waited for a buffer.", []string{"share"}},
	{"penstock_arena_refusals_total", "Requests that got no buffer in time.", []string{"share"}},
	{"penstock_fabric_sessions", "Open sessions.", []string{"fabric"}},
	{"penstock_fabric_regions", "Regions announced on open sessions.", []string{"fabric"}},
	{"penstock_fabric_mapped_bytes", "Client memory of those regions.", []string{"fabric"}},
	{"penstock_fabric_windows", "Windows of client memory open now.", []string{"fabric"}},
	{"penstock_fabric_transfers_total", "Transfers that ended well.", []string{"fabric", "direction"}},
	{"penstock_fabric_bytes_total", "Bytes moved to or from client memory.", []string{"fabric", "direction"}},
	{"penstock_fabric_failures_total", "Transfers, sessions and regions that ended badly.", []string{"fabric", "kind"}},
	{"penstock_rdma_rail_up", "1 while the rail takes paths and transfers.", []string{"rail"}},
	{"penstock_rdma_paths", "Queue pairs of clients' paths now.", []string{"rail"}},
	{"penstock_rdma_stuck", "Of these, those that the adapter does not let go of.", []string{"rail"}},
	{"penstock_rdma_work_requests", "Work requests under way now.", []string{"rail"}},
	{"penstock_rdma_bytes_total", "Bytes acknowledged on the rail.", []string{"rail", "direction"}},
	{"penstock_rdma_operations_total", "Work requests that completed well.", []string{"rail"}},
	{"penstock_rdma_failures_total", "What went wrong on the rail.", []string{"rail", "reason"}},
	{"penstock_rdma_ejections_total", "How often the rail was taken out after failures.", []string{"rail"}},
	{"penstock_rdma_returns_total", "How often the rail came back.", []string{"rail"}},
	{"penstock_drive_up", "1 when the drive takes reads and writes.", []string{"drive"}},
	{"penstock_drive_space_bytes", "Space of the drive's file system.", []string{"drive", "kind"}},
	{"penstock_drive_records", "Records on the drive.", []string{"drive", "kind"}},
	{"penstock_drive_record_bytes", "Space of those records.", []string{"drive", "kind"}},
	{"penstock_drive_segments", "Segment files.", []string{"drive"}},
	{"penstock_chunk_faults_total", "Reads and writes that went wrong below the store.", []string{"kind"}},
	{"penstock_chunk_stuck", "Device operations that hang now.", nil},
	{"penstock_kv_writable", "1 when the metadata take writes.", nil},
	{"penstock_ready", "1 when /readyz says yes.", nil},
	{"penstock_access_log_lines_total", "Lines of the access log.", nil},
	{"penstock_access_log_dropped_total", "Lines that found no room.", nil},
	{"penstock_access_log_failures_total", "Writes and openings of the access log that went wrong.", nil},
	{"penstock_tls_certificate_expiry_seconds", "Unix time when the first certificate in force ends.", nil},
	{"penstock_tls_reloads_total", "Sets of certificates that came into force after the first.", nil},
	{"penstock_tls_reload_errors_total", "Tries to read certificates that changed nothing.", nil},
	{"penstock_tls_handshake_failures_total", "TLS handshakes that failed.", nil},
}

func newNodeCollector(s *Server) *nodeCollector {
	c := &nodeCollector{s: s, descs: map[string]*prometheus.Desc{}}
	for _, m := range nodeMetrics {
		c.descs[m.name] = prometheus.NewDesc(m.name, m.help, m.labels, nil)
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *nodeCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *nodeCollector) Collect(out chan<- prometheus.Metric) {
	send := func(kind prometheus.ValueType, name string, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(c.descs[name], kind, value, labels...)
	}
	gauge := func(name string, value float64, labels ...string) {
		send(prometheus.GaugeValue, name, value, labels...)
	}
	count := func(name string, value int64, labels ...string) {
		send(prometheus.CounterValue, name, float64(value), labels...)
	}
	s := c.s
	gauge("penstock_connections", float64(s.listener.Connections()))
	count("penstock_connections_evicted_total", s.listener.Evicted())
	gauge("penstock_requests_in_flight", float64(s.gateway.InFlight()))
	gauge("penstock_ready", truth(s.checkReady() == nil))
	gauge("penstock_kv_writable", truth(s.broken.Load() == nil))
	for _, name := range []string{gateway.ShareFabric, gateway.ShareHTTP, gateway.ShareSmall} {
		share := s.arena.Share(name)
		gauge("penstock_arena_buffers", float64(share.Total()), name)
		gauge("penstock_arena_buffers_in_use", float64(share.InUse()), name)
		count("penstock_arena_waits_total", share.Waits(), name)
		count("penstock_arena_refusals_total", share.Refusals(), name)
	}
	for _, f := range s.fabrics.Stats() {
		gauge("penstock_fabric_sessions", float64(f.Sessions), f.Fabric)
		gauge("penstock_fabric_regions", float64(f.Regions), f.Fabric)
		gauge("penstock_fabric_mapped_bytes", float64(f.MappedBytes), f.Fabric)
		gauge("penstock_fabric_windows", float64(f.OpenWindows), f.Fabric)
		count("penstock_fabric_transfers_total", f.Gets, f.Fabric, "get")
		count("penstock_fabric_transfers_total", f.Puts, f.Fabric, "put")
		count("penstock_fabric_bytes_total", f.GetBytes, f.Fabric, "get")
		count("penstock_fabric_bytes_total", f.PutBytes, f.Fabric, "put")
		count("penstock_fabric_failures_total", f.Failed, f.Fabric, "transfer")
		count("penstock_fabric_failures_total", f.Fenced, f.Fabric, "fenced")
		count("penstock_fabric_failures_total", f.Faults, f.Fabric, "memory-fault")
		count("penstock_fabric_failures_total", f.Violated, f.Fabric, "protocol")
		count("penstock_fabric_failures_total", f.RejectedRegions, f.Fabric, "region")
		count("penstock_fabric_failures_total", f.Refused, f.Fabric, "handshake")
		count("penstock_fabric_failures_total", f.Replayed, f.Fabric, "replay")
	}
	c.collectRails(gauge, count)
	c.collectDrive(gauge, count)
	c.collectFront(gauge, count)
}

// collectRails reads the rails of a node that has some.
func (c *nodeCollector) collectRails(
	gauge func(name string, value float64, labels ...string), count func(name string, value int64, labels ...string),
) {
	if c.s.rails == nil {
		return
	}
	for _, r := range c.s.rails.Stats() {
		gauge("penstock_rdma_rail_up", truth(r.Up), r.Name)
		gauge("penstock_rdma_paths", float64(r.Engine.Paths), r.Name)
		gauge("penstock_rdma_stuck", float64(r.Engine.Stuck), r.Name)
		gauge("penstock_rdma_work_requests", float64(r.Engine.WorkNow), r.Name)
		count("penstock_rdma_bytes_total", r.Engine.Writes, r.Name, "get")
		count("penstock_rdma_bytes_total", r.Engine.Reads, r.Name, "put")
		count("penstock_rdma_operations_total", r.Engine.Works, r.Name)
		count("penstock_rdma_failures_total", r.Engine.Denied, r.Name, "denied")
		count("penstock_rdma_failures_total", r.Engine.Lost, r.Name, "lost")
		count("penstock_rdma_failures_total", r.Engine.Local, r.Name, "local")
		count("penstock_rdma_failures_total", r.Engine.Unexpected, r.Name, "unexpected")
		count("penstock_rdma_failures_total", r.Refused, r.Name, "refused")
		count("penstock_rdma_ejections_total", r.Ejections, r.Name)
		count("penstock_rdma_returns_total", r.Returns, r.Name)
	}
}

// collectFront reads what is only there when it is configured.
func (c *nodeCollector) collectFront(
	gauge func(name string, value float64, labels ...string), count func(name string, value int64, labels ...string),
) {
	if c.s.access != nil {
		stats := c.s.access.Stats()
		count("penstock_access_log_lines_total", stats.Lines)
		count("penstock_access_log_dropped_total", stats.Dropped)
		count("penstock_access_log_failures_total", stats.Failures)
	}
	if c.s.certs != nil {
		stats := c.s.certs.Stats()
		gauge("penstock_tls_certificate_expiry_seconds", float64(stats.Expires.Unix()))
		count("penstock_tls_reloads_total", stats.Reloads)
		count("penstock_tls_reload_errors_total", stats.Errors)
		count("penstock_tls_handshake_failures_total", c.s.handshakes.Load())
	}
}

func (c *nodeCollector) collectDrive(
	gauge func(name string, value float64, labels ...string), count func(name string, value int64, labels ...string),
) {
	stats, err := c.s.chunks.Stats()
	if err != nil {
		return // the drive is going away; its metrics go with it
	}
	id := c.s.drive.ID().String()
	gauge("penstock_drive_up", truth(stats.State.Mode == drive.ReadWrite), id)
	gauge("penstock_drive_space_bytes", float64(stats.Drive.Space.Total), id, "total")
	gauge("penstock_drive_space_bytes", float64(stats.Drive.Space.Free), id, "free")
	gauge("penstock_drive_space_bytes", float64(stats.Drive.Reserve), id, "reserve")
	gauge("penstock_drive_space_bytes", float64(stats.Drive.SegmentBytes), id, "segments")
	gauge("penstock_drive_records", float64(stats.Drive.Records), id, "live")
	gauge("penstock_drive_records", float64(stats.Drive.Pending), id, "pending")
	gauge("penstock_drive_record_bytes", float64(stats.Drive.RecordBytes), id, "live")
	gauge("penstock_drive_record_bytes", float64(stats.Drive.PendingBytes), id, "pending")
	gauge("penstock_drive_segments", float64(stats.Drive.Segments), id)
	gauge("penstock_chunk_stuck", float64(stats.Stuck))
	count("penstock_chunk_faults_total", stats.GivenUp, "given-up")
	count("penstock_chunk_faults_total", stats.Corrupt, "corrupt")
	count("penstock_chunk_faults_total", stats.DeviceErrors, "device")
	count("penstock_chunk_faults_total", stats.Interference, "client-memory")
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
