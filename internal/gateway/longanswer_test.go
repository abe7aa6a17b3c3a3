package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/chunk"
	"github.com/penstock-store/penstock/internal/chunk/chunkmem"
	"github.com/penstock-store/penstock/internal/meta/kv"
)

// gate holds back writes to the engines of a node while it is shut: engines that are slow.
type gate struct {
	mu     sync.Mutex
	shut   chan struct{} // nil: open
	panics atomic.Bool   // who passes panics
	fails  atomic.Bool   // who passes gets an error
}

// close shuts the gate until the returned function is called.
func (g *gate) close() (open func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	shut := make(chan struct{})
	g.shut = shut
	return sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.shut = nil
		close(shut)
	})
}

func (g *gate) pass() error {
	g.mu.Lock()
	shut := g.shut
	g.mu.Unlock()
	if shut != nil {
		<-shut
	}
	if g.panics.Load() {
		panic("engine")
	}
	if g.fails.Load() {
		return errors.New("engine: broken")
	}
	return nil
}

type gatedKV struct {
	kv.Engine
	gate *gate
}

func (e gatedKV) Txn(ctx context.Context, fn func(kv.Tx) error) error {
	if err := e.gate.pass(); err != nil {
		return err
	}
	return e.Engine.Txn(ctx, fn)
}

type gatedChunks struct {
	*chunkmem.Engine
	gate *gate
}

func (e gatedChunks) Write(
	ctx context.Context, o chunk.Owner, s chunk.Scheme, src arena.Source,
) (chunk.Ref, error) {
	if err := e.gate.pass(); err != nil {
		return chunk.Ref{}, err
	}
	return e.Engine.Write(ctx, o, s, src)
}

func keepAlive(d time.Duration) tweak { return func(o *tweakOptions) { o.Limits.KeepAlive = d } }

// newUpload starts an upload and returns its id.
func (n *node) newUpload(path string, header map[string]string) string {
	n.t.Helper()
	got := n.send(request{method: "POST", path: path + "?uploads", header: header})
	id := regexp.MustCompile(`<UploadId>(.*)</UploadId>`).FindSubmatch(got.body)
	if id == nil {
		n.t.Fatalf("%d %s", got.status, got.body)
	}
	return string(id[1])
}

// completion is a CompleteMultipartUpload document of one part.
func completion(etag string) string {
	return "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>" + etag +
		"</ETag></Part></CompleteMultipartUpload>"
}

// longRequests are the three operations whose answers may begin early, for a source /long/src.
func (n *node) longRequests(etag string) map[string]request {
	post := func(path, body string) request {
		return request{method: "POST", path: path, body: strings.NewReader(body), length: int64(len(body)),
			unsigned: map[string]string{"Content-Length": fmt.Sprint(len(body))}}
	}
	up, other := n.newUpload("/long/complete", nil), n.newUpload("/long/partcopy", nil)
	part := sendPut(n, "/long/complete?partNumber=1&uploadId="+up, []byte("part"), nil)
	if etag == "" {
		etag = part.header.Get("Etag")
	}
	from := map[string]string{"X-Amz-Copy-Source": "long/src"}
	return map[string]request{
		"CopyObject":              {method: "PUT", path: "/long/copy", header: from},
		"UploadPartCopy":          {method: "PUT", path: "/long/partcopy?partNumber=1&uploadId=" + other, header: from},
		"CompleteMultipartUpload": post("/long/complete?uploadId="+up, completion(etag)),
	}
}

// begin writes a request to a connection of its own and reads the header of the answer and n bytes of its body.
func (n *node) begin(r request, count int) (net.Conn, *http.Response, []byte) {
	n.t.Helper()
	conn, err := net.Dial("tcp", n.host)
	if err != nil {
		n.t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := conn.Write(n.raw(r)); err != nil {
		n.t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		n.t.Fatal(err)
	}
	first := make([]byte, count)
	if _, err := io.ReadFull(resp.Body, first); err != nil {
		n.t.Fatal(err)
	}
	return conn, resp, first
}

// TestLongAnswers: while the engines are slow, the answer begins with 200 and the XML declaration and goes on with
// white space; the result follows. Oracle: encoding/xml and the bytes that were stored.
func TestLongAnswers(t *testing.T) {
	n := newNode(t, keepAlive(20*time.Millisecond))
	makeBucket(t, n.root(), "long")
	p := randomBytes(300_000)
	sendPut(n, "/long/src", p, nil)
	wantTag := map[string]string{"CopyObject": etagOf(p), "UploadPartCopy": etagOf(p),
		"CompleteMultipartUpload": `-1"`}
	for name, r := range n.longRequests("") {
		open := n.gate.close()
		conn, resp, first := n.begin(r, 44)
		if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "application/xml" ||
			!strings.HasPrefix(string(first), "<?xml ") || !strings.HasSuffix(string(first), "    ") {
			t.Errorf("%s: %d %v %q", name, resp.StatusCode, resp.Header, first)
		}
		open()
		rest, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		var doc struct {
			XMLName xml.Name
			ETag    string
		}
		if err := xml.Unmarshal(append(first, rest...), &doc); err != nil || !strings.HasSuffix(doc.ETag, wantTag[name]) {
			t.Errorf("%s: %v %+v in %s", name, err, doc, rest)
		}
		_ = conn.Close()
	}
	if got := n.send(request{method: "GET", path: "/long/copy"}); !bytes.Equal(got.body, p) {
		t.Errorf("copy: %d", got.status)
	}
}

// TestLongErrors: what fails after the answer has begun is an Error document in a 200; before, it has its own
// status. The SDK reports both alike.
func TestLongErrors(t *testing.T) {
	n := newNode(t, keepAlive(20*time.Millisecond))
	makeBucket(t, n.root(), "long")
	sendPut(n, "/long/src", randomBytes(300_000), nil)
	sendPut(n, "/long/copy", []byte("old"), nil)
	r := n.longRequests("00000000000000000000000000000000")
	conflict := r["CopyObject"]
	conflict.header = map[string]string{"X-Amz-Copy-Source": "long/src", "If-None-Match": "*"}
	if got := n.send(request{method: "PUT", path: "/long/copy", header: conflict.header}); got.status != 412 {
		t.Errorf("at once: %d %s", got.status, got.body)
	}
	open := n.gate.close()
	conn, resp, first := n.begin(r["CompleteMultipartUpload"], 44)
	open()
	rest, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		XMLName   xml.Name
		Code      string
		RequestId string
	}
	if err := xml.Unmarshal(append(first, rest...), &doc); err != nil || doc.XMLName.Local != "Error" ||
		doc.Code != "InvalidPart" || doc.RequestId != resp.Header.Get("X-Amz-Request-Id") {
		t.Errorf("%v %+v in %s", err, doc, rest)
	}
	_ = conn.Close()

	c, ctx := n.root(), context.Background()
	up := must(c.CreateMultipartUpload(ctx, &awss3.CreateMultipartUploadInput{
		Bucket: aws.String("long"), Key: aws.String("sdk"),
	}))(t)
	in := &awss3.CompleteMultipartUploadInput{
		Bucket: aws.String("long"), Key: aws.String("sdk"), UploadId: up.UploadId,
		MultipartUpload: &types.CompletedMultipartUpload{Parts: []types.CompletedPart{
			{PartNumber: aws.Int32(1), ETag: aws.String("00000000000000000000000000000000")},
		}},
	}
	open = n.gate.close()
	timer := time.AfterFunc(100*time.Millisecond, open) // five intervals of silence
	defer timer.Stop()
	_, err = c.CompleteMultipartUpload(ctx, in)
	wantCode(t, err, "InvalidPart")
}

// TestLongAnswersWithoutAPeer: a client that goes away gets nothing committed, whether the answer has begun or not.
func TestLongAnswersWithoutAPeer(t *testing.T) {
	for _, interval := range []time.Duration{time.Hour, 20 * time.Millisecond} {
		n := newNode(t, keepAlive(interval))
		makeBucket(t, n.root(), "long")
		sendPut(n, "/long/src", randomBytes(300_000), nil)
		for name, r := range n.longRequests("") {
			open := n.gate.close()
			conn, err := net.Dial("tcp", n.host)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Write(n.raw(r)); err != nil {
				t.Fatal(err)
			}
			if interval < time.Hour {
				if _, err := conn.Read(make([]byte, 1)); err != nil {
					t.Fatal(err)
				}
			} else {
				eventually(t, func() bool { return n.g.InFlight() == 1 })
			}
			_ = conn.Close()
			open()
			eventually(t, func() bool { return n.g.InFlight() == 0 && n.arena.InUse() == 0 })
			if name == "UploadPartCopy" {
				got := n.send(request{method: "GET", path: strings.Replace(r.path, "partNumber=1&", "", 1)})
				if got.status != 200 || bytes.Contains(got.body, []byte("<Part>")) {
					t.Errorf("%v %s: %d %s", interval, name, got.status, got.body)
				}
			} else if got := n.send(request{method: "HEAD", path: strings.SplitN(r.path, "?", 2)[0]}); got.status != 404 {
				t.Errorf("%v %s: committed for nobody (%d)", interval, name, got.status)
			}
		}
	}
}

// TestLongAnswerPanics: a panic of the operation is 500 before the answer has begun, and a cut connection after it.
func TestLongAnswerPanics(t *testing.T) {
	var log syncBuffer
	n := newNode(t, keepAlive(20*time.Millisecond), func(o *tweakOptions) { o.Log = debugLogger(&log) })
	makeBucket(t, n.root(), "long")
	sendPut(n, "/long/src", randomBytes(300_000), nil)
	r := n.longRequests("")["CopyObject"]
	n.gate.panics.Store(true)
	wantError(t, n.send(r), 500, "InternalError")
	open := n.gate.close()
	conn, resp, _ := n.begin(r, 44)
	open()
	if rest, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("the answer ends well: %q", rest)
	}
	_ = conn.Close()
	n.gate.panics.Store(false)
	if got := n.send(r); got.status != 200 {
		t.Errorf("afterwards: %d %s", got.status, got.body)
	}
	if !strings.Contains(log.String(), "gatedChunks") {
		t.Error("the log does not name the place of the panic")
	}
}
