package hostile

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-store/penstock/bench"
	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/internal/iam"
	"github.com/penstock-store/penstock/internal/meta"
	"github.com/penstock-store/penstock/internal/s3"
	"github.com/penstock-store/penstock/test/realnode"
)

const (
	// siegeMemory is how much the node may grow under one attack: 4,096 connections with what net/http and
	// TLS hold of each, the HTTP shares of the arena (160 MiB) and 4 MiB of raw headers, parsed.
	siegeMemory = 512 << 20
	// siegeRatio is what must be left of the throughput of transfers. Judged only with PENSTOCK_SIEGE, on a
	// machine that does nothing else.
	siegeRatio = 0.90
	// siegeObject and siegeInFlight are the transfers.
	siegeObject   = 16 << 20
	siegeInFlight = 4
	// newcomerWait is how long an honest client may need to get in while the attack goes on.
	newcomerWait = 5 * time.Second
)

// besieged is a node in a process of its own, and an honest client of it.
type besieged struct {
	t       *testing.T
	n       *bench.Node
	host    string
	socket  string
	tcp     string
	signer  *s3.Signer
	client  *client.Client
	windows []*client.Region
	long    bool
}

func newBesieged(t *testing.T, flags ...string) *besieged {
	t.Helper()
	b := &besieged{t: t, signer: s3.NewSigner(), long: os.Getenv("PENSTOCK_SIEGE") != ""}
	dir := t.TempDir()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b.tcp = l.Addr().String()
	_ = l.Close() // only its port was wanted
	b.n, err = bench.StartNode(t.Context(), bench.NodeOptions{
		Binary: realnode.Build(t), Dir: dir, TLS: slices.Contains(flags, "--http-tls-cert"), Flags: append([]string{
			"--storage-segment", "128MiB", "--storage-reserve", "64MiB", "--rdma-tcp-listen", b.tcp,
		}, flags...),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.n.Stop(); err != nil {
			t.Errorf("node: %v", err)
		}
	})
	b.host, b.socket = b.n.Endpoint[strings.LastIndexByte(b.n.Endpoint, '/')+1:], filepath.Join(dir, "fabric.sock")
	b.client = realnode.Connect(t, b.n, client.SHM, 1<<30)
	t.Cleanup(func() { _ = b.client.Close() })
	if err := b.client.CreateBucket(t.Context(), bucket); err != nil {
		t.Fatal(err)
	}
	for range siegeInFlight {
		r, err := b.client.Alloc(siegeObject)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Close() })
		copy(r.Bytes(), pattern(7, siegeObject))
		b.windows = append(b.windows, r)
	}
	if _, err := b.client.PutFrom(t.Context(), b.windows[0].All(), bucket, "object", client.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	return b
}

// signed is the header of a request of root's.
func (b *besieged) signed(r request) []byte {
	b.t.Helper()
	r.key = iam.Key{ID: b.n.AccessKey, Secret: meta.Secret(b.n.SecretKey)}
	raw, err := encode(b.signer, b.host, r)
	if err != nil {
		b.t.Fatal(err)
	}
	return raw
}

// speed is GB/s and the node's CPU seconds per GB: the first is what is promised, the second tells a costly
// attack from a busy machine.
type speed struct{ rate, cpu float64 }

// rate moves objects by the fabric for a while. Every transfer must go by shm.
func (b *besieged) rate(d time.Duration) speed {
	b.t.Helper()
	var moved atomic.Int64
	var group sync.WaitGroup
	start, busy := time.Now(), b.cpu()
	for _, w := range b.windows {
		group.Go(func() {
			for time.Since(start) < d {
				got, err := b.client.GetInto(b.t.Context(), w.All(), bucket, "object", client.GetOptions{})
				if err != nil || got.Path != "shm" {
					b.t.Errorf("a transfer: path %q, %v", got.Path, err)
					return
				}
				moved.Add(siegeObject)
			}
		})
	}
	group.Wait()
	gb := float64(moved.Load()) / 1e9
	return speed{gb / time.Since(start).Seconds(), (b.cpu() - busy) / gb}
}

func (b *besieged) cpu() float64 {
	b.t.Helper()
	seconds, err := bench.ProcessCPU(b.n.PID())
	if err != nil {
		b.t.Fatal(err)
	}
	return seconds
}

// newcomer is a client that comes while the attack goes on: it opens connections and a session.
func (b *besieged) newcomer(fabric client.Fabric) {
	b.t.Helper()
	began := time.Now()
	c := realnode.Connect(b.t, b.n, fabric, 1<<30)
	defer c.Close()
	r, err := c.Alloc(siegeObject)
	if err != nil {
		b.t.Fatal(err)
	}
	defer r.Close()
	got, err := c.GetInto(b.t.Context(), r.All(), bucket, "object", client.GetOptions{})
	if err != nil || got.Path != string(fabric) {
		b.t.Errorf("a newcomer by %s: path %q, %v", fabric, got.Path, err)
	}
	if took := time.Since(began); took > newcomerWait {
		b.t.Errorf("a newcomer by %s needed %v", fabric, took)
	}
}

// memory is what the node holds for itself.
func (b *besieged) memory() int64 {
	b.t.Helper()
	n, err := bench.PrivateMemory(b.n.PID())
	if err != nil {
		b.t.Fatal(err)
	}
	return n
}

// connections is what the node says of them.
func (b *besieged) connections() float64 {
	values, err := bench.Counters(b.t.Context(), b.n.Metrics, "penstock_connections")
	if err != nil {
		b.t.Fatal(err)
	}
	return values[""]
}

// begin starts the attacking process; end ends it and waits until the node has noticed.
func (b *besieged) begin(s siege) (end func()) {
	b.t.Helper()
	text, err := json.Marshal(s)
	if err != nil {
		b.t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		b.t.Fatal(err)
	}
	before := b.connections()
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), besiegeVariable+"="+string(text))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		b.t.Fatalf("the attacker says %q, %v", line, err)
	}
	b.quiet()
	return func() {
		_ = in.Close() // it ends with its input
		_, _ = io.Copy(io.Discard, out)
		if err := cmd.Wait(); err != nil {
			b.t.Errorf("attacker: %v", err)
		}
		if !eventually(func() bool { return b.connections() <= before+2*siegeInFlight }) {
			b.t.Errorf("%s: the node still has %v connections", s.Name, b.connections())
		}
	}
}

// quiet waits until the node has dealt with what came at once: with hardly any CPU used between two looks.
func (b *besieged) quiet() {
	const look, hardly = 200 * time.Millisecond, 0.02
	for end := time.Now().Add(patience); time.Now().Before(end); {
		before := b.cpu()
		<-time.After(look)
		if b.cpu()-before < hardly {
			return
		}
	}
}

// sieges are the attacks on a node that speaks plain HTTP.
func (b *besieged) sieges() []siege {
	many := func(n int) int {
		if b.long {
			return n
		}
		return n / 10
	}
	chunked := func(hash string, pairs ...string) []byte {
		r := request{method: "PUT", path: "/" + bucket + "/k", noLength: true, hash: hash}.with(pairs...)
		return b.signed(r.plus("Transfer-Encoding: chunked"))
	}
	aws := []string{"Content-Encoding", "aws-chunked", "X-Amz-Decoded-Content-Length", "1000000",
		"X-Amz-Trailer", "x-amz-checksum-crc32"}
	const stream = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
	get := b.signed(request{method: "GET", path: "/" + bucket + "/object"})
	body := b.signed(request{method: "PUT", path: "/" + bucket + "/k", noLength: true}.plus("Content-Length: 10000000"))
	list := []siege{
		{Name: "idle", Count: many(10_000)},
		{Name: "slow headers", Count: many(2000), Opening: [][]byte{[]byte("GET / HTTP/1.1\r\nHost: x\r\nA: ")},
			Drip: []byte("a"), Pause: time.Second, Rate: 100},
		{Name: "endless headers", Count: many(1000), Rate: 20, Pause: time.Second, Drip: repeated("a: b\r\n", 96),
			Opening: [][]byte{append([]byte("GET / HTTP/1.1\r\nHost: x\r\n"), distinctHeaders(50<<10)...)}},
		{Name: "slow unsigned bodies", Count: many(1000), Rate: 50, Pause: time.Second, Drip: []byte("x"),
			Opening: [][]byte{[]byte("PUT /hostile/k HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")}},
		{Name: "slow bodies", HoldsHTTP: true, Count: many(500), Rate: 20, Pause: time.Second, Drip: []byte("x"),
			Opening: [][]byte{body}},
		{Name: "endless chunk extensions", HoldsHTTP: true, Count: many(500), Rate: 20, Pause: time.Second,
			Drip: repeated("e", 64), Opening: [][]byte{append(chunked("", "X-Amz-Decoded-Content-Length", "1000"), "5;e="...)}},
		{Name: "endless aws-chunk extensions", HoldsHTTP: true, Count: many(500), Rate: 20, Pause: time.Second,
			Drip: repeated("e", 64), Opening: [][]byte{append(chunked(stream, aws...), "ff\r\n5;e="...)}},
		{Name: "endless trailers", HoldsHTTP: true, Count: many(500), Rate: 20, Pause: time.Second,
			Drip:    repeated("a: b\r\n", 96),
			Opening: [][]byte{append(chunked("", "X-Amz-Decoded-Content-Length", "0"), "0\r\n"...)}},
		{Name: "pipelined garbage", Count: many(500), Rate: 50, Opening: [][]byte{
			slices.Concat(b.signed(request{method: "GET", path: "/"}), repeated("\x00\xffGARBAGE", 4096))}},
		{Name: "answers that nobody reads", HoldsHTTP: true, Count: many(200), Rate: 20, Opening: [][]byte{get},
			SmallBuffer: true},
		{Name: "idle after a good request", Count: many(3000), Answered: true, Rate: 20,
			Opening: [][]byte{b.signed(request{method: "HEAD", path: "/" + bucket})}},
	}
	for i := range list {
		list[i].Network, list[i].Address = "tcp", b.host
	}
	return append(list,
		siege{Name: "half-open tcp data connections", Network: "tcp", Address: b.tcp, Count: many(2000), Rate: 200},
		siege{Name: "half-open shm data connections", Network: "unix", Address: b.socket, Count: many(2000), Rate: 200,
			Opening: [][]byte{[]byte("PNSTK")}},
	)
}

// distinctHeaders is n bytes of short lines with a name each: what takes most memory once parsed.
func distinctHeaders(n int) []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "h%x:\r\n", i)
	}
	return b.Bytes()
}

// withstand measures transfers with and without one attack in turn. Oracle: every transfer and newcomer
// succeeds, the node's memory as the kernel counts it, and the throughput of the same node without the
// attack.
func (b *besieged) withstand(s siege) {
	rounds, each := 1, 200*time.Millisecond
	if b.long {
		rounds, each = 7, time.Second
	}
	calm := b.memory()
	var rates, costs [2][]float64 // without and with the attack
	var most int64
	sample := func(i int) {
		got := b.rate(each)
		rates[i], costs[i] = append(rates[i], got.rate), append(costs[i], got.cpu)
	}
	for range rounds {
		sample(0)
		end := b.begin(s)
		sample(1)
		most = max(most, b.memory()-calm)
		b.newcomer(client.SHM)
		b.newcomer(client.TCP)
		if !s.HoldsHTTP {
			b.newcomer(client.HTTP)
		}
		end()
	}
	left := make([]float64, rounds) // round by round: the machine's own speed drifts by more than the bound
	for i := range left {
		left[i] = rates[1][i] / rates[0][i]
	}
	ratio := bench.Median(left)
	b.t.Logf("%d × %s: %.2f of the throughput is left (%.1f of %.1f GB/s; %.3f and %.3f s of the node's CPU per GB), "+
		"the node grew by %d MiB", s.Count, s.Name, ratio, bench.Median(rates[1]), bench.Median(rates[0]),
		bench.Median(costs[1]), bench.Median(costs[0]), most>>20)
	if most > siegeMemory {
		b.t.Errorf("%s: the node grew by %d MiB, more than %d", s.Name, most>>20, siegeMemory>>20)
	}
	if b.long && ratio < siegeRatio {
		b.t.Errorf("%s: %.2f of the throughput is left, less than %.2f", s.Name, ratio, siegeRatio)
	}
}

// TestSiege attacks a real node with slow, endless and idle clients of another process, while a third
// process moves objects by shm. PENSTOCK_SIEGE=1 (make bench-hostile) is the long form, with 10,000
// connections and the bound of the throughput.
func TestSiege(t *testing.T) {
	b := newBesieged(t)
	for _, s := range b.sieges() {
		t.Run(s.Name, func(t *testing.T) {
			inner := *b
			inner.t = t
			inner.withstand(s)
		})
	}
}

// TestSiegeOfTLS stops handshakes at each step, on a node that speaks TLS: nothing sent, half of a hello, a
// whole hello whose answer is not taken up, and records that never end.
func TestSiegeOfTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key := selfSigned(t, dir)
	t.Setenv("SSL_CERT_FILE", cert) // the certificate is trusted by this process, which asks for no other
	t.Setenv("AWS_CA_BUNDLE", cert) // for package client
	b := newBesieged(t, "--http-tls-cert", cert, "--http-tls-key", key)
	hello := helloOf()
	many := 300
	if b.long {
		many = 6000
	}
	b.withstand(siege{
		Name: "TLS handshakes that stop", Network: "tcp", Address: b.host, Count: many, Rate: 50, Pause: time.Second,
		Opening: [][]byte{{}, hello[:3], hello[:len(hello)/2], hello, {22, 3, 1, 0x40, 0}, []byte("GET / HTTP/1.1\r\n")},
	})
}

// selfSigned writes a certificate for 127.0.0.1.
func selfSigned(t *testing.T, dir string) (cert, key string) {
	t.Helper()
	secret, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, &secret.PublicKey, secret)
	if err != nil {
		t.Fatal(err)
	}
	pkcs, err := x509.MarshalPKCS8PrivateKey(secret)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for name, block := range map[string]*pem.Block{
		cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: pkcs},
	} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}
