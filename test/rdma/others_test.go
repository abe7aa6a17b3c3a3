package rdma

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/penstock-store/penstock/bench"
	"github.com/penstock-store/penstock/internal/rail"
	"github.com/penstock-store/penstock/native"
)

// Programs of others that speak to the node, by the names that their own builds give them.
const (
	elbenchoProgram = "s3rdma-client"  // breuner/elbencho, tools/s3rdma/client
	hipProgram      = "v2-data-client" // ROCm/hipObject, test/integration/rdma-test-server
)

// otherClient is the path of a program, or skips: they are separate programs, which this repository neither has nor
// builds.
func otherClient(t *testing.T, name string) string {
	t.Helper()
	dir := os.Getenv(clientsVariable)
	if dir == "" {
		t.Skipf("%s names no directory that has %s", clientsVariable, name)
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("%s: %v", clientsVariable, err)
	}
	return path
}

// program runs one to its end.
func (n *node) program(path string, env []string, args ...string) (string, error) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), patience())
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	n.t.Logf("%s %s: %v\n%s", filepath.Base(path), strings.Join(args, " "), err, out)
	return string(out), err
}

// sdk is a client without RDMA, of others.
func (n *node) sdk() *s3.Client {
	return s3.New(s3.Options{
		Region: "us-east-1", BaseEndpoint: aws.String(n.Endpoint), UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(n.AccessKey, n.SecretKey, ""),
	})
}

func (n *node) readByHTTP(svc *s3.Client, bucket, key string) []byte {
	n.t.Helper()
	out, err := svc.GetObject(n.t.Context(), &s3.GetObjectInput{Bucket: &bucket, Key: &key})
	if err != nil {
		n.t.Fatalf("read %s/%s: %v", bucket, key, err)
	}
	defer out.Body.Close()
	p, err := io.ReadAll(out.Body)
	if err != nil {
		n.t.Fatalf("read %s/%s: %v", bucket, key, err)
	}
	return p
}

func (n *node) writeByHTTP(svc *s3.Client, bucket, key string, p []byte) {
	n.t.Helper()
	in := &s3.PutObjectInput{Bucket: &bucket, Key: &key, Body: bytes.NewReader(p)}
	if _, err := svc.PutObject(n.t.Context(), in); err != nil {
		n.t.Fatalf("write %s/%s: %v", bucket, key, err)
	}
}

// railAddress is the IPv4 address of a rail that is up.
func railAddress(t *testing.T) string {
	t.Helper()
	l, err := native.Open(native.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	rails, _, err := rail.Discover(l, rail.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rails {
		if r.Up && r.Address().Is4() {
			return r.Address().String()
		}
	}
	t.Skip("no rail has an IPv4 address")
	return ""
}

// elbencho is a run of that client: it does what its flags name in the order put, get, delete.
type elbencho struct {
	*node
	path string
	env  []string
}

const elbenchoBucket = "elbencho"

// Paths of payload, as the node's log and counters call them.
const (
	rcTokens = "rc-tokens"
	hipObj   = "hipobj"
)

func (e elbencho) run(args ...string) error {
	e.t.Helper()
	_, err := e.program(e.path, e.env, append([]string{
		"--verbose", "--endpoint", e.Endpoint, "--bucket", elbenchoBucket,
	}, args...)...)
	return err
}

func (e elbencho) must(args ...string) {
	e.t.Helper()
	if err := e.run(args...); err != nil {
		e.t.Fatalf("%s: %v", strings.Join(args, " "), err)
	}
}

// moved wants the newest request of an operation on a key to have moved n bytes by a path, none of them in a body of
// HTTP.
func (n *node) moved(path, operation, key string, size int64) {
	n.t.Helper()
	var last logged
	if !eventually(func() bool {
		for _, l := range n.transfers() {
			if l.Operation == operation && l.Key == key {
				last = l
			}
		}
		return last.Payload == size && last.Path == path
	}) || last.BytesIn != 0 || last.BytesOut != 0 || last.Status/100 != 2 {
		n.t.Errorf("access log of %s %s: %+v, want %d bytes by %s, and no bodies", operation, key, last, size, path)
	}
}

// carried wants the counters of a path to say how many bytes came to the node by it, and went.
func (n *node) carried(path string, stores, reads int64) {
	n.t.Helper()
	if put, get := n.payload("PutObject", path), n.payload("GetObject", path); put != stores || get != reads {
		n.t.Errorf("by %s %d bytes came and %d went, want %d and %d", path, put, get, stores, reads)
	}
}

// TestElbenchoClient: elbencho's client of the rc: dialect, which signs nothing, makes a bucket, stores, reads and
// checks objects and ranges, and removes them. Oracles: what the client says of the bytes that it reads, which are its
// own pattern; the AWS SDK over HTTP, by which the bytes that it stored go into another object, for it to judge;
// and the node's access log and counters, for payload that must not travel in bodies.
func TestElbenchoClient(t *testing.T) {
	path := otherClient(t, elbenchoProgram)
	onVerbs(t)
	n := startNode(t, rc, "--rdma-rc-tokens", "--rdma-unsigned-connect", "--test-anonymous-bucket", elbenchoBucket)
	e := elbencho{node: n, path: path, env: []string{
		"S3RDMA_RC_ENDPOINT=" + n.Endpoint, "S3RDMA_RC_ADDR=" + railAddress(t),
	}}
	svc := n.sdk()
	before := n.baseline()
	e.must("--mkbucket", "--size", "1")
	stores, reads := int64(0), int64(0)
	for _, size := range []int64{1, 4096, 1 << 20, 5 << 20, 1_000_003} {
		key, text := fmt.Sprintf("of-%d", size), strconv.FormatInt(size, 10)
		e.must("--key", key, "--size", text, "--put")
		n.moved(rcTokens, "PutObject", key, size)
		e.must("--key", key, "--size", text, "--get", "--verify")
		n.moved(rcTokens, "GetObject", key, size)

		stored := n.readByHTTP(svc, elbenchoBucket, key)
		if int64(len(stored)) != size {
			t.Fatalf("%s: %d bytes are stored", key, len(stored))
		}
		n.writeByHTTP(svc, elbenchoBucket, key+"-again", stored)
		e.must("--key", key+"-again", "--size", text, "--get", "--verify")
		n.moved(rcTokens, "GetObject", key+"-again", size)
		stored[size/2] ^= 1
		n.writeByHTTP(svc, elbenchoBucket, key+"-other", stored)
		var exit *exec.ExitError
		if err := e.run("--key", key+"-other", "--size", text, "--get", "--verify"); !errors.As(err, &exit) {
			t.Errorf("%s with another byte: %v, want the client to find it", key, err)
		}
		n.moved(rcTokens, "GetObject", key+"-other", size)
		stores += size
		reads += 3 * size
	}
	const large, part = "of-1048576", 65_537
	for _, off := range []int{1, 4096, 1<<20 - part} {
		e.must("--key", large, "--size", strconv.Itoa(part), "--offset", strconv.Itoa(off), "--get", "--verify")
		n.moved(rcTokens, "GetObject", large, part)
		reads += part
	}
	if got := n.payload("GetObject", "http"); got != stores {
		t.Errorf("%d bytes were read over HTTP, want %d, those of the SDK", got, stores)
	}
	e.must("--key", "many", "--count", "5", "--size", "10000", "--put", "--get", "--verify", "--delete")
	e.must("--key", large, "--size", "1", "--delete")
	if err := e.run("--key", large, "--size", "1", "--get"); err == nil {
		t.Error("an object that was deleted is read")
	}
	if err := e.run("--size", "1", "--rmbucket"); err == nil {
		t.Error("a bucket that is not empty is removed")
	}
	n.empty(svc, elbenchoBucket)
	e.must("--size", "1", "--rmbucket")
	n.carried(rcTokens, stores+5*10_000, reads+5*10_000)
	n.settled(before, "afterwards")
}

// empty removes the objects of a bucket.
func (n *node) empty(svc *s3.Client, bucket string) {
	n.t.Helper()
	list, err := svc.ListObjectsV2(n.t.Context(), &s3.ListObjectsV2Input{Bucket: &bucket})
	if err != nil {
		n.t.Fatal(err)
	}
	for _, o := range list.Contents {
		if _, err := svc.DeleteObject(n.t.Context(), &s3.DeleteObjectInput{Bucket: &bucket, Key: o.Key}); err != nil {
			n.t.Fatal(err)
		}
	}
}

// Credentials that hipObject's client has built in.
const hipKey, hipSecret = "hipobj-test-key", "hipobj-test-secret"

// TestHipObjectClient: hipObject's client of hipobj-rc-v2 stores an object and reads one. Oracles: the AWS SDK over
// HTTP for what is stored, the client's judgement of what it read, and the node's counters.
func TestHipObjectClient(t *testing.T) {
	path := otherClient(t, hipProgram)
	onVerbs(t)
	n := startNodeAs(t, hipKey, hipSecret, rc, "--rdma-hipobj")
	host, port, err := net.SplitHostPort(strings.TrimPrefix(n.Endpoint, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	svc := n.sdk()
	before := n.baseline()
	run := func(op, key string, size int) (string, error) {
		return n.program(path, nil, host, port, op, "/"+bucket+"/"+key, strconv.Itoa(size), "7fedcba9")
	}
	const begin = "dp-put-payload" // of what it stores; zeros follow
	for _, size := range []int{14, 64, 1024} {
		key := fmt.Sprintf("of-%d", size)
		if _, err := run("PUT", key, size); err != nil {
			t.Fatalf("put %s: %v", key, err)
		}
		want := append([]byte(begin), make([]byte, size-len(begin))...)
		if got := n.readByHTTP(svc, bucket, key); !bytes.Equal(got, want) {
			t.Errorf("%s: %d other bytes are stored: %q", key, len(got), got[:min(len(got), 64)])
		}
		n.moved(hipObj, "PutObject", key, int64(size))
		if out, err := run("GET", key, size); err != nil || !strings.Contains(out, "payload verified") {
			t.Errorf("get %s: %v", key, err)
		}
		n.moved(hipObj, "GetObject", key, int64(size))
	}
	other := append([]byte(begin[:8]), bytes.Repeat([]byte{0xa5}, 56)...)
	n.writeByHTTP(svc, bucket, "by-http", other)
	if _, err := run("GET", "by-http", len(other)); err != nil {
		t.Errorf("get of an object that came over HTTP: %v", err)
	}
	n.writeByHTTP(svc, bucket, "else", bytes.Repeat([]byte{0x5a}, 64))
	var exit *exec.ExitError
	if out, err := run("GET", "else", 64); !errors.As(err, &exit) || !strings.Contains(out, "mismatch") {
		t.Errorf("get of other bytes: %v, want the client to find them", err)
	}
	if _, err := run("GET", "none", 64); !errors.As(err, &exit) {
		t.Errorf("get of no object: %v", err)
	}
	if got, want := n.payload("GetObject", "http"), int64(14+64+1024); got != want {
		t.Errorf("%d bytes were read over HTTP, want %d, those of the SDK", got, want)
	}
	n.carried(hipObj, 14+64+1024, 14+64+1024+64+64)
	n.settled(before, "afterwards")
}

// startNodeAs is startNode with credentials of one's own.
func startNodeAs(t *testing.T, key, secret, fabric string, more ...string) *node {
	t.Helper()
	free := func() string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return l.Addr().String()
	}
	return startNodeLike(t, &bench.Node{
		Endpoint: "http://" + free(), Metrics: "http://" + free() + "/metrics", AccessKey: key, SecretKey: secret,
	}, fabric, more...)
}
