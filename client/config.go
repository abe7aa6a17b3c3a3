package client

import (
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/penstock-store/penstock/native"
)

// Fabric is a preference for the path of payloads.
type Fabric string

// Preferences. Auto takes the first that can be used: shm when the node runs on this host, rc where both machines have
// RDMA adapters, tcp. Memory that shm cannot reach goes by the next; Result.Reason says so. DC is for servers that take
// tokens of the cuObject wire, Penstock's own among them (rdma.dc); it needs mlx5 adapters, was not yet run on
// hardware, and is never chosen by Auto.
const (
	Auto Fabric = "auto"
	SHM  Fabric = "shm"
	RC   Fabric = "rc"
	TCP  Fabric = "tcp"
	DC   Fabric = "dc"
	HTTP Fabric = "http"
)

// Limits of a client, each with its reason.
const (
	// DefaultPartBytes is the length of the parallel ranges and parts that a large transfer is cut
	// into: the longest chunk of a node, so that a part is one chunk.
	DefaultPartBytes = 64 << 20
	// DefaultMultipartBytes is the payload length above which PutFrom and PutReader use multipart
	// uploads: below it one request is faster than three.
	DefaultMultipartBytes = 128 << 20
	// DefaultConcurrency is the number of parts or ranges in flight per call: four fill a 100 Gb/s
	// line at 64 MiB each, and two cores.
	DefaultConcurrency = 4
	// DefaultTransferTimeout bounds one fabric request: what 4 GiB need at 100 MB/s, with margin.
	DefaultTransferTimeout = 60 * time.Second
	// MaxTransferTimeout is the longest deadline that a node grants; on dc it is 8 s.
	MaxTransferTimeout = 300 * time.Second
	// DefaultMaxAttempts bounds the tries of one request: more only prolongs an outage.
	DefaultMaxAttempts = 4
	// MinPartBytes is S3's lower limit of all parts but the last.
	MinPartBytes = 5 << 20
	// MaxParts is S3's limit of parts in one upload.
	MaxParts = 10000

	dcDeadlineMS    = 8000             // docs/wire.md §5: the longest for tokens without a session
	answerGrace     = 2 * time.Second  // how long after the deadline an answer may still arrive
	fenceTimeout    = 10 * time.Second // a node drains by its deadline; without an ack the region is abandoned
	sessionTimeout  = 10 * time.Second // opening a session: two signed requests and a dial
	openGrace       = 5 * time.Second  // for a session whose opening failed to be taken down again
	maxRetryAfter   = 30 * time.Second // a longer Retry-After is not waited for
	baseBackoff     = 50 * time.Millisecond
	maxBackoff      = 2 * time.Second
	maxIdleConns    = 64 // kept per node: as many as a busy batch has in flight
	idleConnTimeout = 60 * time.Second
	socketBuffer    = 256 << 10 // of the HTTP writer; reads bypass theirs when they are larger
	readBuffer      = 16 << 10  // of the HTTP reader: the headers of an answer and a small body
	dialTimeout     = 5 * time.Second
	tlsTimeout      = 10 * time.Second
	keepAlive       = 30 * time.Second // finds a node whose machine is gone while a request waits
	// continueWait is how long a PUT waits for "100 Continue" before it sends its body unasked.
	continueWait = time.Second
)

// DefaultDCKey is the access key that clients and servers of the cuObject wire use unless told otherwise.
const DefaultDCKey = "0xffeeddcc"

// Credentials sign requests.
type Credentials struct {
	AccessKey    string
	SecretKey    string
	SessionToken string // optional
}

// String hides the secrets.
func (c Credentials) String() string { return "credentials(" + c.AccessKey + ",redacted)" }

// GoString hides the secrets.
func (c Credentials) GoString() string { return c.String() }

// LogValue hides the secrets.
func (c Credentials) LogValue() slog.Value { return slog.StringValue(c.String()) }

// Config says where the node is and how payloads travel. The zero value takes everything from the
// environment: AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, AWS_REGION or AWS_DEFAULT_REGION,
// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN; without such a key, the profile
// AWS_PROFILE (default) of the file AWS_SHARED_CREDENTIALS_FILE. AWS_CA_BUNDLE is read for HTTPS.
type Config struct {
	Endpoint    string      // http(s)://host:port; path-style requests go below it
	AWSRegion   string      // default us-east-1
	Credentials Credentials // static

	// Files of an HTTPS endpoint, PEM, read once by New.
	CABundle   string // authorities, instead of the system's; default AWS_CA_BUNDLE
	ClientCert string // the client's own certificate and
	ClientKey  string // its key, for a node that asks for one

	// Fabric is Auto when empty. With SHM, RC, TCP or DC no other fabric is tried.
	Fabric Fabric
	// Verbs is the library of RDMA adapters for rc and dc; nil: libibverbs.so.1, opened when one of them is first wanted.
	// It must outlive the Client, and may serve several.
	Verbs *native.Library
	// RDMADevices restrict rc and dc to some adapters ("mlx5_0") or ports ("mlx5_0/1") of this machine; empty: all.
	RDMADevices []string
	// DCKey is the access key of this client's targets on dc, a number of up to 64 bits such as DefaultDCKey, which it
	// is when empty. The server must have the same one (rdma.dc_key). The default is known to everybody: whoever reads
	// a token on the network can then use the memory.
	DCKey string
	// AllowHTTPFallback lets HTTP carry a payload that the fabric declined. The Result says so.
	AllowHTTPFallback bool

	PartBytes       int64         // default DefaultPartBytes, at least MinPartBytes
	MultipartBytes  int64         // default DefaultMultipartBytes
	Concurrency     int           // default DefaultConcurrency
	MaxAttempts     int           // default DefaultMaxAttempts; 1 never retries
	TransferTimeout time.Duration // of one fabric request; default DefaultTransferTimeout
	Logger          *slog.Logger  // sessions opened, fenced, lost; error answers; default: discard
}

func firstOf(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// resolved fills what is empty and checks the rest.
func (c Config) resolved() (Config, *url.URL, error) {
	c.Endpoint = firstOf(c.Endpoint, os.Getenv("AWS_ENDPOINT_URL_S3"), os.Getenv("AWS_ENDPOINT_URL"))
	c.AWSRegion = firstOf(c.AWSRegion, os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"), "us-east-1")
	if c.Credentials == (Credentials{}) {
		var err error
		if c.Credentials, err = environmentCredentials(); err != nil {
			return c, nil, err
		}
	}
	c.Fabric = Fabric(firstOf(string(c.Fabric), string(Auto)))
	c.DCKey = firstOf(c.DCKey, DefaultDCKey)
	c.PartBytes = orDefault(c.PartBytes, DefaultPartBytes)
	c.MultipartBytes = orDefault(c.MultipartBytes, DefaultMultipartBytes)
	c.Concurrency = orDefault(c.Concurrency, DefaultConcurrency)
	c.MaxAttempts = orDefault(c.MaxAttempts, DefaultMaxAttempts)
	c.TransferTimeout = orDefault(c.TransferTimeout, DefaultTransferTimeout)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	u, err := c.check()
	return c, u, err
}

func (c Config) check() (*url.URL, error) {
	if c.Endpoint == "" {
		return nil, fmt.Errorf("%w: no endpoint: set AWS_ENDPOINT_URL", ErrConfig)
	}
	u, err := url.Parse(c.Endpoint)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.RawQuery != "" {
		return nil, fmt.Errorf("%w: endpoint %q is not http(s)://host[:port]", ErrConfig, c.Endpoint)
	}
	switch c.Fabric {
	case Auto, SHM, RC, TCP, DC, HTTP:
	default:
		return nil, fmt.Errorf("%w: fabric %q is not auto, shm, rc, tcp, dc or http", ErrConfig, c.Fabric)
	}
	if _, err := strconv.ParseUint(c.DCKey, 0, 64); err != nil { // not wrapped: it quotes the key
		return nil, fmt.Errorf("%w: the access key of dc is no number of at most 64 bits", ErrConfig)
	}
	if c.Credentials.AccessKey == "" || c.Credentials.SecretKey == "" {
		return nil, fmt.Errorf("%w: no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY,"+
			" or AWS_SHARED_CREDENTIALS_FILE", ErrConfig)
	}
	for _, v := range []string{c.Credentials.AccessKey, c.Credentials.SecretKey, c.Credentials.SessionToken} {
		if strings.ContainsFunc(v, unicode.IsSpace) {
			return nil, fmt.Errorf("%w: credentials contain a space or a line break", ErrConfig)
		}
	}
	if c.PartBytes < MinPartBytes {
		return nil, fmt.Errorf("%w: part length %d is below %d", ErrConfig, c.PartBytes, MinPartBytes)
	}
	if c.TransferTimeout < 0 || c.TransferTimeout > MaxTransferTimeout {
		return nil, fmt.Errorf("%w: transfer timeout %v is not within 0..%v", ErrConfig,
			c.TransferTimeout, MaxTransferTimeout)
	}
	return u, nil
}

func orDefault[T int | int64 | time.Duration](v, d T) T {
	if v == 0 {
		return d
	}
	return v
}
