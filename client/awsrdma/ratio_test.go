package awsrdma_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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
	"golang.org/x/sync/errgroup"

	"github.com/penstock-store/penstock/bench"
	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/client/awsrdma"
	"github.com/penstock-store/penstock/test/realnode"
)

const (
	wantedRatio = 2.0
	// inFlight is the number of requests at once, with and without the option.
	inFlight = 4
)

// TestSDKRatio moves 16 objects by aws-sdk-go-v2 up and down, with the option and without, by turns, to and
// from a node in a process of its own. Oracle: the bytes, the SDK's checksums, the server's counters. The
// speed has a bound when PENSTOCK_SDK_BYTES says how long an object is, as make bench-sdk does (64 MiB):
// without, few and short objects see that it works.
func TestSDKRatio(t *testing.T) {
	objects, rounds, size, bound := 4, 1, int64(4<<20), false
	if text := os.Getenv("PENSTOCK_SDK_BYTES"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		objects, rounds, size, bound = 16, 5, n, true
	}
	binary := realnode.Build(t)
	dir, err := bench.TempDir(filepath.Dir(binary))
	if err != nil {
		t.Fatal(err)
	}
	n, err := bench.StartNode(t.Context(), bench.NodeOptions{Binary: binary, Dir: dir,
		Flags: []string{"--storage-reserve", "64MiB", "--storage-grace", "1s"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Stop(); err != nil {
			t.Errorf("node: %v", err)
		}
	}()
	for _, path := range fabrics {
		m := newMover(t, n, path, objects, size)
		if ratios := m.run(t, rounds); bound && path == client.PathSHM {
			for op, ratio := range ratios {
				if ratio < wantedRatio {
					t.Errorf("%s %s: %.2f times the speed without the option, less than %.1f", path, op, ratio, wantedRatio)
				}
			}
		}
	}
}

// mover is one program, with and without the option.
type mover struct {
	node        *bench.Node
	path        string
	plain, fast *s3.Client
	session     *awsrdma.Session
	want        []byte
	into        [inFlight][]byte // of the program: one for each request in flight
	objects     int
}

func newMover(t *testing.T, n *bench.Node, path string, objects int, size int64) *mover {
	m := &mover{node: n, path: path, want: randomBytes(1, int(size)), objects: objects}
	for i := range m.into {
		m.into[i] = make([]byte, size)
	}
	c, err := client.New(client.Config{Endpoint: n.Endpoint, Fabric: client.Fabric(path),
		Credentials: client.Credentials{AccessKey: n.AccessKey, SecretKey: n.SecretKey}})
	if err != nil {
		t.Fatal(err)
	}
	m.session = awsrdma.New(c, awsrdma.Options{Strict: true})
	o := s3.Options{
		Region: "us-east-1", BaseEndpoint: aws.String(n.Endpoint), UsePathStyle: true,
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenSupported,
		ResponseChecksumValidation: aws.ResponseChecksumValidationWhenSupported,
		Credentials:                credentials.NewStaticCredentialsProvider(n.AccessKey, n.SecretKey, ""),
	}
	o.HTTPClient = transport(t)
	m.plain = s3.New(o)
	o.HTTPClient = transport(t)
	m.fast = s3.New(o, awsrdma.Enable(m.session))
	t.Cleanup(func() {
		if err := errors.Join(m.session.Close(), c.Close()); err != nil {
			t.Error(err)
		}
	})
	if _, err := m.plain.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String("bkt")}); err != nil {
		t.Fatal(err)
	}
	return m
}

// each runs fn for all objects, a few at a time, and says how long that took.
func (m *mover) each(t *testing.T, fn func(ctx context.Context, slot int, key *string) error) time.Duration {
	t.Helper()
	slots := make(chan int, inFlight)
	for i := range inFlight {
		slots <- i
	}
	start := time.Now()
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(inFlight)
	for i := range m.objects {
		group.Go(func() error {
			slot := <-slots
			defer func() { slots <- slot }()
			return fn(ctx, slot, aws.String(fmt.Sprintf("%s/%d", m.path, i)))
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatalf("%s: %v", m.path, err)
	}
	return time.Since(start)
}

func (m *mover) put(svc *s3.Client) func(context.Context, int, *string) error {
	return func(ctx context.Context, _ int, key *string) error {
		_, err := svc.PutObject(ctx, &s3.PutObjectInput{
			Bucket: aws.String("bkt"), Key: key, Body: bytes.NewReader(m.want),
		})
		return err
	}
}

func (m *mover) get(svc *s3.Client) func(context.Context, int, *string) error {
	return func(ctx context.Context, slot int, key *string) error {
		out, err := svc.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String("bkt"), Key: key})
		if err != nil {
			return err
		}
		defer out.Body.Close()
		if _, err := io.ReadFull(out.Body, m.into[slot]); err != nil {
			return err
		}
		if n, err := io.Copy(io.Discard, out.Body); err != nil || n != 0 { // the SDK compares checksums here
			return fmt.Errorf("%d bytes after the end: %w", n, errors.Join(err, io.ErrUnexpectedEOF))
		}
		return nil
	}
}

// run measures, and checks everything but the speed.
func (m *mover) run(t *testing.T, rounds int) map[string]float64 {
	took := map[string][]time.Duration{}
	moved := map[string]int64{}
	turn := func(name, op string, fn func(context.Context, int, *string) error) {
		before := m.counters(t)
		took[name] = append(took[name], m.each(t, fn))
		for series, v := range m.settled(t, before, op) {
			moved[name+" "+series] += int64(v - before[series])
		}
	}
	for range rounds {
		turn("put plain", "PutObject", m.put(m.plain))
		turn("put option", "PutObject", m.put(m.fast))
	}
	turn("get first", "GetObject", m.get(m.plain)) // out of the page cache from here on
	for range rounds {
		turn("get plain", "GetObject", m.get(m.plain))
		turn("get option", "GetObject", m.get(m.fast))
		for _, got := range m.into {
			same(t, "read", got, m.want)
		}
		clear(m.into[0])
	}
	total := int64(rounds*m.objects) * int64(len(m.want))
	for name, series := range map[string]string{
		"put option": `op="PutObject"`, "get option": `op="GetObject"`,
	} {
		byFabric, byHTTP := series+`,path="`+m.path+`"`, series+`,path="http"`
		t.Logf("%s %s: server counters: %d payload bytes by %s, %d in HTTP bodies", m.path, name,
			moved[name+" "+byFabric], m.path, moved[name+" "+byHTTP])
		if moved[name+" "+byFabric] != total || moved[name+" "+byHTTP] != 0 {
			t.Errorf("%s %s: want %d bytes by the fabric and none over HTTP", m.path, name, total)
		}
	}
	m.wantChecksums(t)
	ratios := map[string]float64{}
	bytesEach := float64(m.objects) * float64(len(m.want))
	for _, op := range []string{"put", "get"} {
		plain, fast := median(took[op+" plain"]), median(took[op+" option"])
		ratios[op] = plain.Seconds() / fast.Seconds()
		t.Logf("%s %s: %d objects of %d bytes, %d in flight: %.2f GB/s with the option, %.2f without: ratio %.2f",
			m.path, op, m.objects, len(m.want), inFlight, bytesEach/fast.Seconds()/1e9, bytesEach/plain.Seconds()/1e9,
			ratios[op])
	}
	return ratios
}

func median(d []time.Duration) time.Duration {
	d = slices.Clone(d)
	slices.Sort(d)
	return d[len(d)/2]
}

func (m *mover) counters(t *testing.T) map[string]float64 {
	t.Helper()
	c, err := bench.Counters(t.Context(), m.node.Metrics, "penstock_payload_bytes_total")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// settled are the counters once all objects of a turn are in them: a node counts a request after its answer is
// out, so the last one of a turn may come late. What is missing at the end fails the comparison of the caller.
func (m *mover) settled(t *testing.T, before map[string]float64, op string) map[string]float64 {
	t.Helper()
	total := float64(m.objects) * float64(len(m.want))
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for end := time.Now().Add(5 * time.Second); ; <-ticker.C {
		now, grown := m.counters(t), 0.0
		for series, v := range now {
			if strings.Contains(series, `op="`+op+`"`) {
				grown += v - before[series]
			}
		}
		if grown >= total || time.Now().After(end) {
			return now
		}
	}
}

// wantChecksums compares what the node stored with the standard library's CRC32.
func (m *mover) wantChecksums(t *testing.T) {
	t.Helper()
	want := sumOf("CRC32", m.want)
	m.each(t, func(ctx context.Context, _ int, key *string) error {
		head, err := m.plain.HeadObject(ctx, &s3.HeadObjectInput{
			Bucket: aws.String("bkt"), Key: key, ChecksumMode: "ENABLED",
		})
		if err == nil && aws.ToString(head.ChecksumCRC32) != want {
			err = fmt.Errorf("%s: checksum %q, want %s", *key, aws.ToString(head.ChecksumCRC32), want)
		}
		return err
	})
}
