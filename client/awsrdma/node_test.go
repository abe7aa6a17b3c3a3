package awsrdma_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	cryptorand "crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"go.uber.org/goleak"

	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/client/awsrdma"
	"github.com/penstock-store/penstock/internal/config"
	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
	"github.com/penstock-store/penstock/test/onenode"
)

// TestMain makes a certificate that the whole process trusts.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "awsrdma")
	if err != nil {
		panic(err)
	}
	if err := makeCertificate(dir); err != nil {
		panic(err)
	}
	_ = os.Setenv("SSL_CERT_FILE", filepath.Join(dir, "cert.pem")) // the SDK
	_ = os.Setenv("AWS_CA_BUNDLE", filepath.Join(dir, "cert.pem")) // the client
	_ = os.Setenv("AWSRDMA_TEST_CERTIFICATE", dir)
	code := m.Run()
	_ = os.RemoveAll(dir)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func makeCertificate(dir string) error {
	secret, err := ecdsa.GenerateKey(elliptic.P256(), cryptorand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(cryptorand.Reader, template, template, &secret.PublicKey, secret)
	if err != nil {
		return err
	}
	secretDER, err := x509.MarshalPKCS8PrivateKey(secret)
	if err != nil {
		return err
	}
	for name, block := range map[string]*pem.Block{
		"cert.pem": {Type: "CERTIFICATE", Bytes: der}, "key.pem": {Type: "PRIVATE KEY", Bytes: secretDER},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// node is a real server in this process, with one bucket "bkt".
type node struct {
	t        testing.TB
	endpoint string
	metrics  string
	creds    client.Credentials
	read     int64 // payload that the test itself read over HTTP
	stop     func()
	adapters *fakeverbs.NIC // faked ones, of node and clients; nil: the machine's
}

func moreBuffers(c *config.Config) { c.Arena.FabricBuffers, c.Arena.HTTPBuffers = 32, 32 }

func startNode(t testing.TB, change ...func(*config.Config)) *node {
	t.Helper()
	change = append([]func(*config.Config){moreBuffers}, change...)
	if fakeverbs.Supported() {
		return nodeOf(t, onenode.StartRC(t, fakeverbs.Options{}, change...))
	}
	return nodeOf(t, onenode.Start(t, change...))
}

// allFabrics are those of nodes by startNode: rc is among them where adapters can be faked.
func allFabrics() []string {
	if !fakeverbs.Supported() {
		return fabrics
	}
	return append(slices.Clone(fabrics), client.PathRC)
}

func nodeOf(t testing.TB, o *onenode.Node) *node {
	t.Helper()
	n := &node{
		t: t, endpoint: o.Endpoint, metrics: o.Metrics, creds: o.Credentials, stop: o.Stop, adapters: o.Adapters,
	}
	if _, err := n.plain().CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String("bkt")}); err != nil {
		t.Fatal(err)
	}
	return n
}

// library is that of the faked adapters; nil: there are none.
func (n *node) library() *native.Library {
	if n.adapters == nil {
		return nil
	}
	return n.adapters.Library()
}

func withTLS(c *config.Config) {
	dir := os.Getenv("AWSRDMA_TEST_CERTIFICATE")
	c.HTTP.TLSCert, c.HTTP.TLSKey = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
}

// transport is one for each SDK client, so that no idle connection outlives its test.
func transport(t testing.TB) *http.Client {
	tr := http.DefaultTransport.(*http.Transport).Clone()
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// options are those of an SDK client at the endpoint, with the checksums that a loaded configuration has.
func (n *node) options(endpoint string) s3.Options {
	return s3.Options{
		Region: "us-east-1", BaseEndpoint: aws.String(endpoint), UsePathStyle: true, HTTPClient: transport(n.t),
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenSupported,
		ResponseChecksumValidation: aws.ResponseChecksumValidationWhenSupported,
		Credentials:                credentials.NewStaticCredentialsProvider(n.creds.AccessKey, n.creds.SecretKey, ""),
	}
}

// plain is an SDK client without the option.
func (n *node) plain() *s3.Client { return s3.New(n.options(n.endpoint)) }

// session opens a session over one path.
func (n *node) session(path string, o awsrdma.Options, change ...func(*client.Config)) *awsrdma.Session {
	n.t.Helper()
	s := awsrdma.New(n.client(path, change...), o)
	n.t.Cleanup(func() {
		if used := s.Stats().PoolUsedBytes; used != 0 && !n.t.Failed() {
			n.t.Errorf("%d bytes of the pool were not given back", used)
		}
		if err := s.Close(); err != nil {
			n.t.Errorf("close session: %v", err)
		}
	})
	return s
}

func (n *node) client(path string, change ...func(*client.Config)) *client.Client {
	n.t.Helper()
	cfg := client.Config{
		Verbs:    n.library(),
		Endpoint: n.endpoint, AWSRegion: "us-east-1", Credentials: n.creds, Fabric: client.Fabric(path),
	}
	for _, f := range change {
		f(&cfg)
	}
	c, err := client.New(cfg)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		if err := c.Close(); err != nil {
			n.t.Errorf("close client: %v", err)
		}
	})
	return c
}

// payloadBytes is the server's count of payload bytes of an operation over a path.
func (n *node) payloadBytes(op, path string) int64 {
	n.t.Helper()
	return n.metric(fmt.Sprintf("penstock_payload_bytes_total{op=%q,path=%q}", op, path))
}

func (n *node) metric(series string) int64 {
	n.t.Helper()
	resp, err := http.Get(n.metrics)
	if err != nil {
		n.t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if err != nil || resp.StatusCode != 200 {
		n.t.Fatalf("metrics: %d %v", resp.StatusCode, err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), series+" "); ok {
			f, err := strconv.ParseFloat(value, 64)
			if err != nil {
				n.t.Fatal(err)
			}
			return int64(f)
		}
	}
	return 0
}

func randomBytes(seed uint64, n int) []byte {
	b := make([]byte, n)
	var key [32]byte
	key[0], key[1] = byte(seed), byte(seed>>8)
	_, _ = rand.NewChaCha8(key).Read(b)
	return b
}

func same(t testing.TB, what string, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Errorf("%s: %d bytes that differ from the %d stored", what, len(got), len(want))
	}
}
