// Package config is the one documented configuration of a server: a struct, its defaults, its YAML
// form, its flags, its validation and its printed form.
//
// Called by: cli (serve, config check, config print), server.
//
// Invariants:
//  1. Order of precedence: defaults, then the YAML file, then flags. Credentials come only from the
//     environment, and nothing else does.
//  2. An unknown key, a second document and a value that does not parse are errors.
//  3. Every key has a `doc` tag; docs/operations.md lists them all, and a test compares.
//  4. Nothing secret is in Config but Root.SecretKey, which prints redacted; RDMA.DCKey is known to every client.
//
// What it does not do: opening anything.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"go.yaml.in/yaml/v3"
)

// Environment variables that may name the root credentials. Both or none.
const (
	EnvRootAccessKey = "PENSTOCK_ROOT_ACCESS_KEY"
	EnvRootSecretKey = "PENSTOCK_ROOT_SECRET_KEY"
)

// MaxFileBytes bounds a configuration file: the longest sensible one has a few KiB.
const MaxFileBytes = 1 << 20

// ErrInvalid is wrapped by every error of Load and Validate that is the configuration's fault.
var ErrInvalid = errors.New("config: invalid")

// Config is the whole configuration of one node.
type Config struct {
	Data   string   `yaml:"data" doc:"data directory: metadata, credentials, lock; created when missing"`
	Drives []string `yaml:"drives" doc:"directory that holds payload; empty: drive in the data directory"`

	HTTP    HTTP    `yaml:"http"`
	Limits  Limits  `yaml:"limits"`
	Arena   Arena   `yaml:"arena"`
	RDMA    RDMA    `yaml:"rdma"`
	Storage Storage `yaml:"storage"`
	Log     Log     `yaml:"log"`
	Test    Test    `yaml:"test"`

	Root Credentials `yaml:"-"`
}

// HTTP is what clients connect to.
type HTTP struct {
	Listen      string   `yaml:"listen" doc:"address of the S3 endpoint"`
	AdminListen string   `yaml:"admin_listen" doc:"address of /metrics, /livez, /readyz; empty: none"`
	Domains     []string `yaml:"domains" doc:"base domains of virtual-host style requests (bucket.domain)"`
	Region      string   `yaml:"region" doc:"AWS region of this server; us-east-1 is accepted as well"`
	TLSCert     string   `yaml:"tls_cert" doc:"PEM file of the certificate chain; empty: plain HTTP"`
	TLSKey      string   `yaml:"tls_key" doc:"PEM file of the certificate's key"`
	TLSMore     []string `yaml:"tls_more" doc:"further certificates, CERT:KEY each; the server name asked for chooses"`
	ClientCA    string   `yaml:"tls_client_ca" doc:"PEM file of the authorities of client certificates"`
	ClientAuth  string   `yaml:"tls_client_auth" doc:"client certificates: off, request (verified if given) or require"`
	AccessLog   string   `yaml:"access_log" doc:"file with a line per request; - is standard output; empty: none"`
}

// Limits bound what clients can make the server hold.
type Limits struct {
	HeaderBytes       Bytes         `yaml:"header_bytes" doc:"request line and headers of one request"`
	Connections       int           `yaml:"connections" doc:"open connections; one more ends one without a request"`
	Requests          int           `yaml:"requests" doc:"requests in flight; further ones get 503 SlowDown"`
	DocumentBytes     Bytes         `yaml:"document_bytes" doc:"XML bodies in flight, all requests together"`
	ReadHeaderTimeout time.Duration `yaml:"read_header_timeout" doc:"first byte of a request to its last header"`
	IdleTimeout       time.Duration `yaml:"idle_timeout" doc:"keep-alive without a request"`
	StallTimeout      time.Duration `yaml:"stall_timeout" doc:"longest pause of a body or an answer"`
	MinRate           Bytes         `yaml:"min_rate" doc:"least bytes per second of a body, after stall_timeout"`
	KeepAlive         time.Duration `yaml:"keep_alive" doc:"longest silence while a copy or completion is answered"`
	ShutdownTimeout   time.Duration `yaml:"shutdown_timeout" doc:"for requests in flight at shutdown"`
}

// Arena sizes the payload buffers, which are allocated once at start.
type Arena struct {
	FabricBuffers int           `yaml:"fabric_buffers" doc:"1 MiB buffers of one-sided transfers"`
	HTTPBuffers   int           `yaml:"http_buffers" doc:"512 KiB buffers of HTTP payloads"`
	SmallBuffers  int           `yaml:"small_buffers" doc:"64 KiB buffers of HTTP payloads up to 64 KiB"`
	Wait          time.Duration `yaml:"wait" doc:"how long a request waits for a buffer before 503 or a decline"`
}

// Bytes is the whole arena, which is registered with each rail.
func (a Arena) Bytes() uint64 {
	return uint64(a.FabricBuffers)<<20 + uint64(a.HTTPBuffers)<<19 + uint64(a.SmallBuffers)<<16
}

// RDMA are the switches of one-sided transfers.
type RDMA struct {
	Enabled         bool          `yaml:"enabled" doc:"false: every token is declined with reason off"`
	Shm             bool          `yaml:"shm" doc:"offer the shm fabric to clients on this host"`
	ShmSocket       string        `yaml:"shm_socket" doc:"Unix socket of shm; empty: fabric.sock in the data directory"`
	ShmForeign      bool          `yaml:"shm_foreign" doc:"shm also reaches memory of client.Register"`
	TCP             bool          `yaml:"tcp" doc:"offer the tcp fabric"`
	TCPListen       string        `yaml:"tcp_listen" doc:"address of the tcp fabric; port 0: any free one"`
	TCPAdvertise    string        `yaml:"tcp_advertise" doc:"address told to clients; empty: the one of tcp_listen"`
	RC              bool          `yaml:"rc" doc:"offer the rc fabric (RDMA verbs) where the machine has a rail"`
	RCListen        string        `yaml:"rc_listen" doc:"address of rc's data connections; port 0: any free one"`
	RCAdvertise     string        `yaml:"rc_advertise" doc:"address told to clients; empty: the one of rc_listen"`
	DC              bool          `yaml:"dc" doc:"take tokens that name a DCT, by mlx5 adapters; needs rdma.rc"`
	RCTokens        bool          `yaml:"rc_tokens" doc:"take tokens that name a connection (rc:…); needs rdma.rc"`
	UnsignedConnect bool          `yaml:"unsigned_connect" doc:"let anybody make such connections; needs rdma.rc_tokens"`
	HipObj          bool          `yaml:"hipobj" doc:"offer hipobj-rc-v2 to clients of hipObject; needs rdma.rc"`
	HipObjSessions  int           `yaml:"hipobj_sessions" doc:"transfers of hipobj-rc-v2 at a time, of all principals"`
	HipObjStaging   Bytes         `yaml:"hipobj_staging" doc:"memory into which clients of hipobj-rc-v2 write PUTs"`
	DCKey           string        `yaml:"dc_key" doc:"access key of the clients' DCTs, up to 64 bits"`
	Devices         []string      `yaml:"devices" doc:"RDMA devices or ports to use (mlx5_0, mlx5_0/1); empty: all"`
	ClientNetworks  []string      `yaml:"client_networks" doc:"networks (CIDR) of client adapters at other addresses"`
	VerbsLibrary    string        `yaml:"verbs_library" doc:"path of libibverbs; empty: libibverbs.so.1 of the system"`
	Sessions        int           `yaml:"sessions" doc:"open sessions of one principal"`
	Regions         int           `yaml:"regions" doc:"regions of one session"`
	MappedBytes     Bytes         `yaml:"mapped_bytes" doc:"client memory mapped for one principal (shm)"`
	Deadline        time.Duration `yaml:"deadline" doc:"arrival to the last access to client memory; at most 8s"`
	SessionDeadline time.Duration `yaml:"session_deadline" doc:"most that a ps1 token may ask for; at most 300s"`
	Decline         string        `yaml:"decline" doc:"answer of a decline: 501, or spec (2xx; GET by its body)"`
	Aliases         []string      `yaml:"aliases" doc:"other headers of tokens that are taken: x-rdma-info, cuobj"`
}

// DefaultDCKey is what clients use unless told otherwise.
const DefaultDCKey = "0xffeeddcc"

// Values of RDMA.Decline and RDMA.Aliases.
const (
	Decline501  = "501"
	DeclineSpec = "spec"

	AliasInfo  = "x-rdma-info"
	AliasCuObj = "cuobj"
)

// Storage is about drives and metadata.
type Storage struct {
	Reserve    Bytes         `yaml:"reserve" doc:"space of each drive that payload never takes"`
	Grace      time.Duration `yaml:"grace" doc:"time between a delete and the return of its space"`
	Segment    Bytes         `yaml:"segment" doc:"size of a drive's segment files"`
	DirectRead bool          `yaml:"direct_read" doc:"read payload past the page cache"`
	KVCache    Bytes         `yaml:"kv_cache" doc:"block cache of the metadata engine"`
}

// Log says what is logged and how.
type Log struct {
	Level  string `yaml:"level" doc:"debug, info, warn or error"`
	Format string `yaml:"format" doc:"text or json"`
}

// Test is what only tests need. A node with any of it must hold nothing that counts.
type Test struct {
	AnonymousBucket string `yaml:"anonymous_bucket" doc:"bucket without signatures, for tests: loopback, no TLS"`
}

// Credentials of root, when the environment names them.
type Credentials struct {
	AccessKey string
	SecretKey string
}

// String is redacted.
func (c Credentials) String() string { return "credentials(" + c.AccessKey + ",redacted)" }

// GoString is redacted like String.
func (c Credentials) GoString() string { return c.String() }

// LogValue is redacted like String.
func (c Credentials) LogValue() slog.Value { return slog.StringValue(c.String()) }

// Default is the configuration of a node that only got a data directory.
func Default() Config {
	return Config{
		HTTP: HTTP{
			Listen: "127.0.0.1:9000", AdminListen: "127.0.0.1:9001", Region: "us-east-1", ClientAuth: "off",
		},
		Limits: Limits{
			HeaderBytes: 64 * KiB, Connections: 4096, Requests: 1024, DocumentBytes: 64 * MiB,
			ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 120 * time.Second,
			StallTimeout: 30 * time.Second, MinRate: 4 * KiB, KeepAlive: 10 * time.Second,
			ShutdownTimeout: 30 * time.Second,
		},
		Arena: Arena{FabricBuffers: 256, HTTPBuffers: 256, SmallBuffers: 512, Wait: 2 * time.Second},
		RDMA: RDMA{
			Enabled: true, Shm: true, ShmForeign: true, TCP: true, TCPListen: "127.0.0.1:0",
			RC: true, RCListen: "127.0.0.1:0", Sessions: 1024, Regions: 256,
			MappedBytes: 64 * GiB, Deadline: 8 * time.Second, SessionDeadline: 300 * time.Second,
			Decline: Decline501, DCKey: DefaultDCKey, HipObjSessions: 64, HipObjStaging: 256 * MiB,
		},
		Storage: Storage{
			Reserve: 1 * GiB, Grace: 10 * time.Minute, Segment: 1 * GiB,
			KVCache: 64 * MiB,
		},
		Log: Log{Level: "info", Format: "text"},
	}
}

// Load makes the effective configuration: defaults, then the file (none when name is empty), then
// the flags that were set (none when f is nil), then the credentials of the environment. It
// validates the result.
func Load(name string, f *Flags, getenv func(string) string) (Config, error) {
	c := Default()
	if name != "" {
		file, err := os.Open(name)
		if err != nil {
			return Config{}, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		defer file.Close()
		if err := c.Read(file); err != nil {
			return Config{}, fmt.Errorf("%s: %w", name, err)
		}
	}
	if f != nil {
		if err := f.apply(&c); err != nil {
			return Config{}, err
		}
	}
	if getenv != nil {
		c.Root = Credentials{AccessKey: getenv(EnvRootAccessKey), SecretKey: getenv(EnvRootSecretKey)}
	}
	c.fill()
	if err := c.Validate(); err != nil {
		return Config{}, err
	}
	return c, nil
}

// Read overlays the YAML document of r.
func (c *Config) Read(r io.Reader) error {
	text, err := io.ReadAll(io.LimitReader(r, MaxFileBytes+1))
	if err != nil {
		return fmt.Errorf("config: read: %w", err)
	}
	if len(text) > MaxFileBytes {
		return fmt.Errorf("%w: file is larger than %d bytes", ErrInvalid, MaxFileBytes)
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(c); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	var second yaml.Node
	if err := d.Decode(&second); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: more than one document", ErrInvalid)
	}
	return nil
}

// Print writes the effective configuration as YAML that Read takes, with a comment per key.
// Credentials are not part of it.
func (c Config) Print(w io.Writer) error {
	var doc yaml.Node
	if err := doc.Encode(c); err != nil {
		return fmt.Errorf("config: encode: %w", err)
	}
	comments := map[string]string{}
	for _, k := range Keys() {
		comments[k.Name] = k.Doc
	}
	annotate(&doc, "", comments)
	e := yaml.NewEncoder(w)
	e.SetIndent(2)
	if err := e.Encode(&doc); err != nil {
		return fmt.Errorf("config: print: %w", err)
	}
	return e.Close()
}

func annotate(n *yaml.Node, prefix string, comments map[string]string) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		name := prefix + n.Content[i].Value
		n.Content[i].HeadComment = comments[name]
		if n.Content[i+1].Kind == yaml.MappingNode {
			annotate(n.Content[i+1], name+".", comments)
		}
	}
}
