package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Bounds of settings, each with its reason.
const (
	MinHeaderBytes   = 16 * KiB          // presigned URLs have above 4 KiB, metadata 2 KiB more
	MaxHeaderBytes   = 1 * MiB           // of one request; no client sends a tenth of it
	MaxDeadline      = 8 * time.Second   // clients of the wire give up at 10 s and may reuse the memory
	MaxHipObjStaging = 1 * TiB           // a contiguous piece of the address space, of which there are 128
	MaxSessionLimit  = 300 * time.Second // sessions can be fenced, so they may ask for more
	MinSegment       = 128 * MiB         // the largest chunk has 64 MiB, and a header and a footer
	MinSecretBytes   = 16                // a shorter secret can be guessed from a captured signature
	MaxSocketBytes   = 107               // a Unix socket address has 108 bytes on Linux, with the final zero
)

// fill sets what depends on other settings.
func (c *Config) fill() {
	if c.Data == "" {
		return
	}
	if len(c.Drives) == 0 {
		c.Drives = []string{filepath.Join(c.Data, "drive")}
	}
	switch socket := absolute(filepath.Join(c.Data, "fabric.sock")); {
	case c.RDMA.ShmSocket != "" && c.RDMA.ShmSocket[0] != '@': // @ begins the name of an abstract socket
		c.RDMA.ShmSocket = absolute(c.RDMA.ShmSocket)
	case c.RDMA.ShmSocket == "" && len(socket) <= MaxSocketBytes: // else the fabric draws an abstract name
		c.RDMA.ShmSocket = socket
	}
}

// absolute is the path as clients need it, which work in other directories.
func absolute(path string) string {
	if whole, err := filepath.Abs(path); err == nil {
		return whole
	}
	return path // the working directory is gone: whoever opens the path says so
}

// Validate reports everything that is wrong, not only the first.
func (c Config) Validate() error {
	var errs []error
	wrong := func(key, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: %s: %s", ErrInvalid, key, fmt.Sprintf(format, args...)))
	}
	if c.Data == "" {
		wrong("data", "must be given: --data DIR, or data in the file of --config")
	}
	if len(c.Drives) > 1 {
		wrong("drives", "%d given, but this version stores on exactly one", len(c.Drives))
	}
	c.validateHTTP(wrong)
	c.validateLimits(wrong)
	c.validateRDMA(wrong)
	c.validateTest(wrong)
	if c.Storage.Segment < MinSegment {
		wrong("storage.segment", "%v is below %v", c.Storage.Segment, MinSegment)
	}
	if c.Storage.Grace < 0 {
		wrong("storage.grace", "is negative")
	}
	if c.Storage.KVCache < MiB {
		wrong("storage.kv_cache", "%v is below %v", c.Storage.KVCache, MiB)
	}
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, c.Log.Level) {
		wrong("log.level", "%q is not debug, info, warn or error", c.Log.Level)
	}
	if !slices.Contains([]string{"text", "json"}, c.Log.Format) {
		wrong("log.format", "%q is not text or json", c.Log.Format)
	}
	if (c.Root.AccessKey == "") != (c.Root.SecretKey == "") {
		wrong("credentials", "%s and %s must be given together", EnvRootAccessKey, EnvRootSecretKey)
	}
	if s := c.Root.SecretKey; s != "" && len(s) < MinSecretBytes {
		wrong("credentials", "%s is shorter than %d bytes", EnvRootSecretKey, MinSecretBytes)
	}
	return errors.Join(errs...)
}

func (c Config) validateHTTP(wrong func(key, format string, args ...any)) {
	address := func(key, a string) {
		if _, _, err := net.SplitHostPort(a); err != nil {
			wrong(key, "%q is not host:port", a)
		}
	}
	address("http.listen", c.HTTP.Listen)
	if c.HTTP.AdminListen != "" {
		address("http.admin_listen", c.HTTP.AdminListen)
	}
	if c.HTTP.Region == "" {
		wrong("http.region", "is empty")
	}
	if (c.HTTP.TLSCert == "") != (c.HTTP.TLSKey == "") {
		wrong("http.tls_cert, http.tls_key", "must be given together")
	}
	c.validateTLS(wrong)
	if c.RDMA.TCP {
		address("rdma.tcp_listen", c.RDMA.TCPListen)
		validateDialled(wrong, "rdma.tcp", c.RDMA.TCPListen, c.RDMA.TCPAdvertise)
	}
	if c.RDMA.RC {
		address("rdma.rc_listen", c.RDMA.RCListen)
		validateDialled(wrong, "rdma.rc", c.RDMA.RCListen, c.RDMA.RCAdvertise)
	}
}

// validateDialled looks at the address that clients are told to dial: one of all addresses would be their own machine.
func validateDialled(wrong func(key, format string, args ...any), fabric, listen, advertise string) {
	if advertise != "" {
		host, port, err := net.SplitHostPort(advertise)
		if number, portErr := strconv.ParseUint(port, 10, 16); err != nil || unspecified(host) || portErr != nil ||
			number == 0 {
			wrong(fabric+"_advertise", "%q is not host:port that a client can dial", advertise)
		}
		return
	}
	if host, _, err := net.SplitHostPort(listen); err == nil && unspecified(host) {
		wrong(fabric+"_listen", "%q is all addresses: name the one that clients dial in %s_advertise", listen, fabric)
	}
}

// unspecified tells whether a host stands for all addresses of a machine.
func unspecified(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "" || err == nil && ip.Unmap().IsUnspecified()
}

func (c Config) validateTLS(wrong func(key, format string, args ...any)) {
	h := c.HTTP
	for _, pair := range h.TLSMore {
		if cert, key, _ := strings.Cut(pair, ":"); cert == "" || key == "" {
			wrong("http.tls_more", "%q is not CERT:KEY", pair)
		}
	}
	if len(h.TLSMore) > 0 && h.TLSCert == "" {
		wrong("http.tls_more", "needs http.tls_cert, the certificate of clients that name no server")
	}
	switch h.ClientAuth {
	case "off":
		if h.ClientCA != "" {
			wrong("http.tls_client_ca", "is of no use while http.tls_client_auth is off")
		}
	case "request", "require":
		if h.ClientCA == "" || h.TLSCert == "" {
			wrong("http.tls_client_auth", "%s needs http.tls_client_ca and http.tls_cert", h.ClientAuth)
		}
	default:
		wrong("http.tls_client_auth", "%q is not off, request or require", h.ClientAuth)
	}
}

// Networks are the client networks; what is no network is left out.
func (r RDMA) Networks() (networks []netip.Prefix) {
	for _, text := range r.ClientNetworks {
		if n, err := netip.ParsePrefix(text); err == nil {
			networks = append(networks, n)
		}
	}
	return networks
}

// TLSPairs lists the files of the certificates and their keys, the first for clients that name no server.
func (h HTTP) TLSPairs() (pairs [][2]string) {
	if h.TLSCert == "" {
		return nil
	}
	pairs = append(pairs, [2]string{h.TLSCert, h.TLSKey})
	for _, pair := range h.TLSMore {
		cert, key, _ := strings.Cut(pair, ":")
		pairs = append(pairs, [2]string{cert, key})
	}
	return pairs
}

func (c Config) validateLimits(wrong func(key, format string, args ...any)) {
	l := c.Limits
	if l.HeaderBytes < MinHeaderBytes || l.HeaderBytes > MaxHeaderBytes {
		wrong("limits.header_bytes", "%v is not between %v and %v", l.HeaderBytes, MinHeaderBytes, MaxHeaderBytes)
	}
	counts := []struct {
		key string
		n   int
	}{
		{"limits.connections", l.Connections}, {"limits.requests", l.Requests},
		{"arena.fabric_buffers", c.Arena.FabricBuffers}, {"arena.http_buffers", c.Arena.HTTPBuffers},
		{"arena.small_buffers", c.Arena.SmallBuffers}, {"rdma.sessions", c.RDMA.Sessions},
		{"rdma.regions", c.RDMA.Regions}, {"rdma.hipobj_sessions", c.RDMA.HipObjSessions},
	}
	for _, s := range counts {
		if s.n <= 0 {
			wrong(s.key, "%d is not above zero", s.n)
		}
	}
	durations := []struct {
		key string
		d   time.Duration
	}{
		{"limits.read_header_timeout", l.ReadHeaderTimeout}, {"limits.idle_timeout", l.IdleTimeout},
		{"limits.stall_timeout", l.StallTimeout}, {"limits.shutdown_timeout", l.ShutdownTimeout},
		{"limits.keep_alive", l.KeepAlive},
		{"arena.wait", c.Arena.Wait},
	}
	for _, s := range durations {
		if s.d <= 0 {
			wrong(s.key, "%v is not above zero", s.d)
		}
	}
	if l.DocumentBytes < 8*MiB {
		wrong("limits.document_bytes", "%v is below %v, the largest document", l.DocumentBytes, 8*MiB)
	}
}

func (c Config) validateRDMA(wrong func(key, format string, args ...any)) {
	r := c.RDMA
	if r.Deadline <= 0 || r.Deadline > MaxDeadline {
		wrong("rdma.deadline", "%v is not between 0 and %v", r.Deadline, MaxDeadline)
	}
	if r.SessionDeadline < r.Deadline || r.SessionDeadline > MaxSessionLimit {
		wrong("rdma.session_deadline", "%v is not between rdma.deadline and %v", r.SessionDeadline, MaxSessionLimit)
	}
	for _, text := range r.ClientNetworks {
		if n, err := netip.ParsePrefix(text); err != nil || n.Addr().Is4In6() { // GIDs are compared unwrapped
			wrong("rdma.client_networks", "%q is not a network such as 10.0.0.0/24", text)
		}
	}
	if _, err := strconv.ParseUint(r.DCKey, 0, 64); err != nil {
		wrong("rdma.dc_key", "is no number of at most 64 bits such as %s", DefaultDCKey)
	}
	if r.DC && !r.RC {
		wrong("rdma.dc", "needs rdma.rc")
	}
	if r.RCTokens && !r.RC {
		wrong("rdma.rc_tokens", "needs rdma.rc")
	}
	if r.UnsignedConnect && !r.RCTokens {
		wrong("rdma.unsigned_connect", "needs rdma.rc_tokens")
	}
	if r.HipObj && !r.RC {
		wrong("rdma.hipobj", "needs rdma.rc")
	}
	if r.HipObjStaging <= 0 || r.HipObjStaging > MaxHipObjStaging {
		wrong("rdma.hipobj_staging", "%v is not between 0 and %v", r.HipObjStaging, MaxHipObjStaging)
	}
	if r.Decline != Decline501 && r.Decline != DeclineSpec {
		wrong("rdma.decline", "%q is not %s or %s", r.Decline, Decline501, DeclineSpec)
	}
	for _, name := range r.Aliases {
		if name != AliasInfo && name != AliasCuObj {
			wrong("rdma.aliases", "%q is not %s or %s", name, AliasInfo, AliasCuObj)
		}
	}
	if r.MappedBytes <= 0 {
		wrong("rdma.mapped_bytes", "must be above zero")
	}
	if r.Shm && len(r.ShmSocket) > MaxSocketBytes {
		wrong("rdma.shm_socket", "path of %d bytes is longer than a socket address takes (%d)",
			len(r.ShmSocket), MaxSocketBytes)
	}
}

// validateTest keeps a bucket that is open to all on this machine: every address that the node listens on or tells
// clients must be a loopback one, written as such, since a name may mean another address tomorrow. TLS is a sign that
// the node serves others.
func (c Config) validateTest(wrong func(key, format string, args ...any)) {
	const key = "test.anonymous_bucket"
	if c.Test.AnonymousBucket == "" {
		return
	}
	h, r := c.HTTP, c.RDMA
	if h.TLSCert != "" || h.TLSKey != "" || len(h.TLSMore) > 0 || h.ClientCA != "" || h.ClientAuth != "off" {
		wrong(key+", http.tls_cert", "a bucket without signatures is for tests, and not for nodes that speak TLS")
	}
	local := func(other, address string) {
		if address != "" && !loopback(address) {
			wrong(key+", "+other, "a bucket without signatures needs a loopback address such as 127.0.0.1:0, not %q", address)
		}
	}
	local("http.listen", h.Listen)
	local("http.admin_listen", h.AdminListen)
	if r.TCP {
		local("rdma.tcp_listen", r.TCPListen)
		local("rdma.tcp_advertise", r.TCPAdvertise)
	}
	if r.RC {
		local("rdma.rc_listen", r.RCListen)
		local("rdma.rc_advertise", r.RCAdvertise)
	}
}

// loopback tells whether only this machine reaches an address, which must be a number.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
