package wire_test

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/crc64"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/penstock-store/penstock/internal/config"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/server"
	"github.com/penstock-store/penstock/internal/vfs/crashfs"
	"github.com/penstock-store/penstock/test/onenode"
)

const bucket = "wire"

// bench is a node, the memory of the client under test, and a client that sees what is stored.
type bench struct {
	t      *testing.T
	node   *onenode.Node
	host   string
	memory *memory
	sdk    *awss3.Client
	n      int // of objects, for their names
}

func newBench(t *testing.T, change ...func(*config.Config)) *bench {
	t.Helper()
	m := &memory{held: make(chan struct{}), letOut: make(chan struct{})}
	few := func(c *config.Config) {
		c.RDMA.Shm, c.RDMA.TCP, c.RDMA.RC = false, false, false
		c.RDMA.Aliases = []string{config.AliasInfo, config.AliasCuObj}
		c.Arena.FabricBuffers, c.Arena.Wait = 1, 20*time.Millisecond // so that one transfer leaves none
	}
	ground := server.Ground{FS: crashfs.New(crashfs.Options{}), Fabrics: []fabric.Fabric{m}}
	n := onenode.StartOn(t, ground, slices.Insert(change, 0, few)...)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	b := &bench{t: t, node: n, host: strings.TrimPrefix(n.Endpoint, "http://"), memory: m, sdk: awss3.New(awss3.Options{
		Region: "us-east-1", BaseEndpoint: aws.String(n.Endpoint), UsePathStyle: true, RetryMaxAttempts: 1,
		Credentials: credentials.NewStaticCredentialsProvider(n.Credentials.AccessKey, n.Credentials.SecretKey, ""),
		HTTPClient:  &http.Client{Transport: transport},
	})}
	if _, err := b.sdk.CreateBucket(t.Context(), &awss3.CreateBucketInput{Bucket: aws.String(bucket)}); err != nil {
		t.Fatal(err)
	}
	return b
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never returns an error
	return b
}

// nvme is CRC64NVME, from the reversed form of its polynomial.
var nvme = crc64.MakeTable(0x9a6c9329ac4bc9b5)

func nvmeText(b []byte) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint64(nil, crc64.Checksum(b, nvme)))
}

// trial is one client in one scenario.
type trial struct {
	*ask
	b       *bench
	want    []byte // get: the bytes asked for; put, part: those in the window
	before  []byte // put: what the key had; nil: nothing
	filling []byte // what the memory held before
}

// prepare makes the node's state and the request's parts.
func (b *bench) prepare(s *scenario) *trial {
	b.t.Helper()
	b.n++
	key := fmt.Sprintf("%s-%d", s.name, b.n)
	a := &ask{
		scenario: s, host: b.host, bucket: bucket, key: key, id: b.node.Credentials.AccessKey,
		secret: b.node.Credentials.SecretKey, at: time.Now(), addr: memoryBase + 64, window: int64(s.window),
		connection: "00112233445566778899aabbccddeeff",
	}
	if a.window == 0 {
		a.window = int64(s.size)
	}
	tr := &trial{ask: a, b: b, filling: random(64 + int(a.window) + 64)}
	switch {
	case s.forged:
		a.secret = strings.Repeat("x", 32)
	case s.absent && s.op == put:
		a.bucket = "no-such-bucket"
	}
	tr.store()
	if s.op != get {
		a.payload = tr.filling[64 : 64+a.window]
		a.sum, tr.want = nvmeText(a.payload), a.payload
		if s.sum != "" {
			a.sum = s.sum
		}
	}
	switch a.token = dcToken(a.addr, a.window); {
	case s.garbage:
		a.token = "not a token"
	case s.ofi:
		a.token = fmt.Sprintf("%016x:%x:ofi1:verbs:0a0b0c0d:00000000deadbeef", a.addr, a.window)
	}
	b.memory.reset(slices.Clone(tr.filling), s.fault)
	return tr
}

// store puts the object or the upload there that the scenario needs.
func (tr *trial) store() {
	tr.b.t.Helper()
	ctx, a := tr.b.t.Context(), tr.ask
	switch {
	case a.op == get && !a.absent:
		object := random(a.size)
		tr.b.put(a.key, object)
		tr.want = object
		if a.ranged {
			tr.want = object[rangeOffset:min(rangeOffset+rangeBytes, len(object))]
		}
	case a.op == put && a.exists:
		tr.before = random(777)
		tr.b.put(a.key, tr.before)
	case a.op == part:
		up, err := tr.b.sdk.CreateMultipartUpload(ctx, &awss3.CreateMultipartUploadInput{
			Bucket: aws.String(bucket), Key: aws.String(a.key)})
		if err != nil {
			tr.b.t.Fatal(err)
		}
		a.uploadID = *up.UploadId
		if a.absent {
			a.uploadID = strings.Repeat("0", len(a.uploadID))
		}
	}
}

func (b *bench) put(key string, payload []byte) {
	b.t.Helper()
	_, err := b.sdk.PutObject(b.t.Context(), &awss3.PutObjectInput{
		Bucket: aws.String(bucket), Key: aws.String(key), Body: bytes.NewReader(payload)})
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) drop(key string) {
	b.t.Helper()
	_, err := b.sdk.DeleteObject(b.t.Context(), &awss3.DeleteObjectInput{Bucket: aws.String(bucket), Key: aws.String(key)})
	if err != nil {
		b.t.Fatal(err)
	}
}

// read is what another client finds; nil: nothing.
func (b *bench) read(key string) []byte {
	b.t.Helper()
	out, err := b.sdk.GetObject(b.t.Context(), &awss3.GetObjectInput{Bucket: aws.String(bucket), Key: aws.String(key)})
	if err != nil {
		return nil
	}
	defer out.Body.Close()
	payload, err := io.ReadAll(out.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return payload
}

// stored tells whether the payload of a PUT or part is there as another client sees it, and whether anything is there
// that was not before.
func (tr *trial) stored() (whole, changed bool) {
	tr.b.t.Helper()
	ctx := tr.b.t.Context()
	if tr.op == put {
		now := tr.b.read(tr.key)
		return now != nil && bytes.Equal(now, tr.want), !bytes.Equal(now, tr.before) || (now == nil) != (tr.before == nil)
	}
	if tr.absent {
		return false, false
	}
	list, err := tr.b.sdk.ListParts(ctx, &awss3.ListPartsInput{
		Bucket: aws.String(bucket), Key: aws.String(tr.key), UploadId: aws.String(tr.uploadID)})
	if err != nil {
		tr.b.t.Fatal(err)
	}
	if len(list.Parts) == 0 {
		return false, false
	}
	_, err = tr.b.sdk.CompleteMultipartUpload(ctx, &awss3.CompleteMultipartUploadInput{
		Bucket: aws.String(bucket), Key: aws.String(tr.key), UploadId: aws.String(tr.uploadID),
		MultipartUpload: &types.CompletedMultipartUpload{
			Parts: []types.CompletedPart{{PartNumber: aws.Int32(1), ETag: list.Parts[0].ETag}}}})
	return err == nil && bytes.Equal(tr.b.read(tr.key), tr.want), true
}

// exchange sends the client's request; busy scenarios find every buffer in use.
func (tr *trial) exchange(c *client) answer {
	tr.b.t.Helper()
	if tr.busy {
		defer tr.b.hold()()
	}
	if c.talks != nil {
		return c.talks(tr)
	}
	return exchange(tr.b.t, tr.b.host, c.request(tr.ask))
}

// hold takes the only buffer, by a transfer that waits until the function that it returns is called.
func (b *bench) hold() (release func()) {
	b.t.Helper()
	b.put("held", random(objectBytes))
	a := &ask{scenario: &scenario{op: get}, host: b.host, bucket: bucket, key: "held",
		id: b.node.Credentials.AccessKey, secret: b.node.Credentials.SecretKey, at: time.Now()}
	r := a.start()
	for _, f := range []field{{"Host", a.host}, {"x-amz-date", a.stamp()}, {"x-amz-content-sha256", unsigned},
		{"x-amz-rdma-token", dcToken(heldBase, objectBytes)}} {
		r.add(f.name, f.value)
	}
	a.finish(r, unsigned, nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		exchange(b.t, b.host, r)
	}()
	<-b.memory.held
	return func() {
		b.memory.letOut <- struct{}{}
		<-done
	}
}

// run sends, judges and compares with the truth. The result has ! for a false success, ? for a fallback that is lost.
func (tr *trial) run(c *client, spec bool) string {
	t := tr.b.t
	t.Helper()
	r := tr.exchange(c)
	if c.talks == nil {
		tr.checkWire(&r, spec)
	} else {
		tr.checkMessages(&r)
	}
	switch {
	case !tr.declined, c.talks != nil:
	case c.announces && tr.op != get:
		if r.status != http.StatusBadRequest {
			t.Errorf("%s: status %d for an announced body", tr.name, r.status)
		}
	default:
		tr.checkDecline(&r, spec && !c.alias)
	}
	v, n := c.judge(tr.ask, &r)
	content, moves := tr.b.memory.content()
	text := string(v)
	if tr.op == get {
		window := content[64 : 64+tr.window]
		inMemory := int64(len(tr.want)) == n && n <= tr.window && bytes.Equal(window[:n], tr.want)
		if v == moved && !inMemory || v == inBody && !bytes.Equal(r.body, tr.want) {
			text += "!"
		}
		if end := 64 + min(len(tr.want), int(tr.window)); !bytes.Equal(content[:64], tr.filling[:64]) ||
			!bytes.Equal(content[end:], tr.filling[end:]) {
			t.Errorf("%s: memory outside the answer was written", tr.name)
		}
	} else {
		whole, changed := tr.stored()
		success := r.ok() && (r.reply() == "200" || c.talks != nil)
		if changed && !success {
			t.Errorf("%s: something is stored after status %d, reply %q", tr.name, r.status, r.reply())
		}
		if success && !whole {
			t.Errorf("%s: what is stored after a success is not the payload", tr.name)
		}
		if v == moved && !whole {
			text += "!"
		}
	}
	if tr.declined {
		if moves > 0 {
			t.Errorf("%s: memory was touched %d times before the decline", tr.name, moves)
		}
		if c.falls && v != byHTTP && v != inBody && v != againHTTP {
			text += "?"
		}
	}
	return text
}

// checkWire: the rules of docs/wire.md §4 that no client is asked about.
func (tr *trial) checkWire(r *answer, spec bool) {
	t := tr.b.t
	t.Helper()
	reply := r.reply()
	switch {
	case r.closed:
	case reply == "501" && r.ok() && !spec:
		t.Errorf("%s: reply 501 on %d", tr.name, r.status)
	case reply == "501" && tr.op != get && r.etag() != "":
		t.Errorf("%s: a declined PUT has an ETag", tr.name)
	case r.ok() && reply == "":
		t.Errorf("%s: %d without a reply", tr.name, r.status)
	case !r.ok() && reply != "" && reply != "501":
		t.Errorf("%s: reply %s on %d", tr.name, reply, r.status)
	case (reply == "200" || reply == "206") && len(r.body) > 0:
		t.Errorf("%s: reply %s with a body", tr.name, reply)
	case (reply == "501") != (r.header.Get("X-Penstock-Rdma-Reason") != ""):
		t.Errorf("%s: reply %q, reason %q", tr.name, reply, r.header.Get("X-Penstock-Rdma-Reason"))
	}
}

// checkDecline: every client is told of a decline, and by the specification a GET's payload comes with it.
func (tr *trial) checkDecline(r *answer, bySpec bool) {
	t := tr.b.t
	t.Helper()
	switch {
	case r.reply() != "501":
		t.Errorf("%s: declined by status %d, reply %q", tr.name, r.status, r.reply())
	case r.ok() != bySpec || !r.ok() && r.status != http.StatusNotImplemented:
		t.Errorf("%s: declined by status %d, by the specification: %v", tr.name, r.status, bySpec)
	case bySpec && tr.op == get && !bytes.Equal(r.body, tr.want):
		t.Errorf("%s: the body of a decline is not the payload", tr.name)
	}
}

// TestJudges: every answer of the node, as every client takes it. Oracle: the client's memory, the body, and the AWS
// SDK's view of the bucket; the cells of the clients.
func TestJudges(t *testing.T) {
	modes := []string{config.Decline501, config.DeclineSpec}
	all := scenarios()
	got := make([]map[string]string, len(modes)) // by client and scenario
	for i, mode := range modes {
		b := newBench(t, func(c *config.Config) { c.RDMA.Decline = mode })
		got[i] = map[string]string{}
		for _, c := range clients {
			for j := range all {
				s := &all[j]
				if c.sends != nil && !c.sends(s) || s.first && !c.probes {
					got[i][c.name+" "+s.name] = string(never)
					continue
				}
				got[i][c.name+" "+s.name] = b.prepare(s).run(c, mode == config.DeclineSpec)
			}
		}
	}
	for _, c := range clients {
		t.Run(c.name, func(t *testing.T) {
			want := c.expected(t)
			var table strings.Builder
			right := len(want) == len(all)
			unused := map[string]bool{}
			for name := range c.listed {
				unused[name] = true
			}
			for _, s := range all {
				cell := [2]string{got[0][c.name+" "+s.name], got[1][c.name+" "+s.name]}
				fmt.Fprintf(&table, "%-20s %-10s %s\n", s.name, cell[0], cell[1])
				right = right && cell == want[s.name]
				for i, v := range cell {
					if strings.ContainsAny(v, "!?") && !c.explains(&s, modes[i], unused) {
						t.Errorf("%s, declines by %s: %s has no reason", s.name, modes[i], v)
					}
				}
			}
			for name := range unused {
				t.Errorf("%s is listed, but is neither a false success nor a lost fallback", name)
			}
			if !right {
				t.Errorf("the cells are now\n%s", table.String())
			}
		})
	}
}

// explains tells whether a reason is listed, and notes that it was used.
func (c *client) explains(s *scenario, mode string, unused map[string]bool) bool {
	for _, key := range []string{s.name, "declines " + mode} {
		if _, ok := c.listed[key]; ok && (key == s.name || s.declined) {
			delete(unused, key)
			return true
		}
	}
	return false
}

// TestFallbacks: what a client does over HTTP after a decline finds a node that serves it.
func TestFallbacks(t *testing.T) {
	b := newBench(t)
	for _, s := range scenarios() {
		if !s.declined || s.op == part {
			continue
		}
		tr := b.prepare(&s)
		r := tr.exchange(clients[0])
		if r.status != http.StatusNotImplemented {
			t.Errorf("%s: status %d", s.name, r.status)
		}
		if s.op == get {
			if !bytes.Equal(b.read(tr.key), tr.want) {
				t.Errorf("%s: other bytes over HTTP", s.name)
			}
			continue
		}
		b.put(tr.key, tr.payload)
		if whole, _ := tr.stored(); !whole {
			t.Errorf("%s: not stored over HTTP", s.name)
		}
	}
}
