package client

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/penstock-store/penstock/client/target"
	"github.com/penstock-store/penstock/internal/checksum"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/token"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// fakeNode is a small S3 server with one fabric. Its memory access is real: a token names a window of
// the client's region, which the node reads or writes. Tests replace answer to make it lie.
type fakeNode struct {
	t      *testing.T
	server *httptest.Server
	fabric string

	// answer, when set, sees every object request first; true means it has answered.
	answer answerFunc
	// fenceErr is what a fence of the next conns returns.
	fenceErr error
	// announceErr refuses regions; refuse those on one fabric, or its sessions.
	announceErr error
	refuse      map[string]error // by fabric: announcements
	refuseDial  map[string]error // by fabric: data connections
	// host and listed, when set, are what the node says of itself.
	host   string
	listed []frame.FabricInfo
	// announceGate, when set, holds announcements until it is closed.
	announceGate chan struct{}
	offerStatus  int         // of POST sessions when not 0
	spent        atomic.Bool // the next grant finds no number left

	mu       sync.Mutex
	objects  map[string][]byte
	headers  map[string]http.Header // of the PUT that stored the object
	uploads  map[string]map[int][]byte
	grants   map[string]*fakeGrant
	tokens   []string       // as they came with requests
	calls    map[string]int // METHOD → count, and what tests count
	sessions []*fakeConn
	nextID   int
}

func newFakeNode(t *testing.T, fabric string) *fakeNode {
	n := &fakeNode{
		t: t, fabric: fabric, objects: map[string][]byte{}, headers: map[string]http.Header{},
		uploads: map[string]map[int][]byte{}, grants: map[string]*fakeGrant{}, calls: map[string]int{},
	}
	n.server = httptest.NewServer(n)
	t.Cleanup(n.server.Close)
	return n
}

// client returns a client of the node.
func (n *fakeNode) client(change func(*Config)) *Client {
	n.t.Helper()
	cfg := Config{
		Endpoint: n.server.URL, Fabric: Fabric(n.fabric), AWSRegion: "us-east-1", MaxAttempts: 2,
		Credentials: Credentials{AccessKey: "AK", SecretKey: "SK"},
	}
	if change != nil {
		change(&cfg)
	}
	c, err := New(cfg)
	if err != nil {
		n.t.Fatal(err)
	}
	c.fabrics.dial = n.dial
	c.fabrics.local = func(string) *DeclinedError { return nil }
	n.t.Cleanup(func() { _ = c.Close() })
	return c
}

// region registers n zero bytes.
func region(t *testing.T, c *Client, n int) *Region {
	t.Helper()
	r, err := c.Register(make([]byte, n))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (n *fakeNode) dial(_ context.Context, offer frame.SessionReply) (conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.refuseDial[offer.Fabric]; err != nil {
		return nil, err
	}
	fc := &fakeConn{node: n, fabric: offer.Fabric, done: make(chan struct{}), fenceErr: n.fenceErr}
	n.sessions = append(n.sessions, fc)
	return fc, nil
}

// count reads a counter.
func (n *fakeNode) count(name string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.calls[name]
}

func (n *fakeNode) add(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls[name]++
}

func (n *fakeNode) object(key string) []byte {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.objects[key]
}

// answerFunc answers a request in place of the fake; win is the window of its token, nil without.
type answerFunc func(n *fakeNode, w http.ResponseWriter, r *http.Request, win []byte) bool

// behave replaces answer while requests run.
func (n *fakeNode) behave(f answerFunc) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.answer = f
}

type fakeConn struct {
	node     *fakeNode
	fabric   string
	once     sync.Once
	done     chan struct{}
	fenceErr error
}

func (c *fakeConn) Announce(ctx context.Context, m *target.Memory) (announced, error) {
	c.node.add("announce")
	if c.node.announceGate != nil {
		select {
		case <-c.node.announceGate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if err := cmp.Or(c.node.announceErr, c.node.refuse[c.fabric]); err != nil {
		return nil, err
	}
	return &fakeRegion{c, m.Bytes()}, nil
}

func (c *fakeConn) Fence(context.Context) error {
	c.node.add("fence")
	c.once.Do(func() { close(c.done) })
	return c.fenceErr
}

func (c *fakeConn) Done() <-chan struct{} { return c.done }

type fakeRegion struct {
	conn *fakeConn
	mem  []byte
}

func (r *fakeRegion) Grant(off, size int64, d target.Direction) (grant, error) {
	n := r.conn.node
	if n.spent.Swap(false) {
		return nil, target.ErrSpent
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.nextID++
	g := &fakeGrant{node: n, token: fmt.Sprintf("ps1:fake:%d", n.nextID), mem: r.mem[off : off+size], direction: d}
	n.grants[g.token] = g
	return g, nil
}

func (r *fakeRegion) Forget(context.Context) error {
	r.conn.node.add("forget")
	return nil
}

type fakeGrant struct {
	node      *fakeNode
	token     string
	mem       []byte
	direction target.Direction
}

func (g *fakeGrant) Token() string { return g.token }

func (g *fakeGrant) End() error {
	g.node.mu.Lock()
	defer g.node.mu.Unlock()
	delete(g.node.grants, g.token)
	return nil
}

func writeError(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.Header().Set("x-amz-request-id", "REQ1")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<Error><Code>%s</Code><Message>m</Message></Error>", code)
}

// ServeHTTP implements http.Handler.
func (n *fakeNode) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/.penstock/") {
		n.control(w, r)
		return
	}
	n.add(r.Method)
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client gave up
	}
	token := r.Header.Get(headerToken)
	var win []byte
	if token != "" {
		n.add("token")
		n.mu.Lock()
		n.tokens = append(n.tokens, token)
		if g := n.grants[token]; g != nil {
			win = g.mem
		}
		n.mu.Unlock()
		if win == nil {
			panic(http.ErrAbortHandler) // the client gave up already
		}
		signed := r.Header.Get("Authorization")
		if !strings.Contains(signed, "x-amz-rdma-token") ||
			!strings.Contains(signed, strings.ToLower(headerDeadlineMS)) {
			n.t.Errorf("token or deadline not in SignedHeaders of %s", r.Method)
		}
		if len(body) != 0 {
			n.t.Errorf("%s with a token has a body of %d bytes", r.Method, len(body))
		}
	}
	n.mu.Lock()
	answer := n.answer
	n.mu.Unlock()
	if answer != nil && answer(n, w, r, win) {
		return
	}
	switch r.Method {
	case http.MethodHead:
		n.head(w, r)
	case http.MethodGet:
		n.get(w, r, win)
	case http.MethodPut:
		n.put(w, r, win, body)
	case http.MethodPost:
		n.post(w, r, body)
	case http.MethodDelete:
		n.add("abort")
		w.WriteHeader(http.StatusNoContent)
	}
}

func (n *fakeNode) control(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		listed := n.listed
		if listed == nil {
			listed = []frame.FabricInfo{{Name: n.fabric, Up: true, Foreign: true}}
		}
		_ = json.NewEncoder(w).Encode(frame.NodeInfo{
			Version: 1, Node: "n", Host: cmp.Or(n.host, LocalHostID()), Fabrics: listed,
			Limits: frame.ControlLimits{MaxDeadlineMillis: 300000},
		})
		return
	}
	asked, err := frame.DecodeSessionRequest(r.Body)
	if err != nil {
		n.t.Error(err)
	}
	n.add("session")
	n.add("session " + asked.Fabric)
	if n.offerStatus != 0 {
		writeError(w, n.offerStatus, "AccessDenied")
		return
	}
	body, _ := frame.SessionReply{Fabric: asked.Fabric, Secret: token.NewSecret()}.Encode()
	_, _ = w.Write(body)
}

func etagOf(b []byte) string {
	sum := sha256.Sum256(b)
	return `"` + hex.EncodeToString(sum[:16]) + `"`
}

func (n *fakeNode) find(w http.ResponseWriter, r *http.Request) ([]byte, bool) {
	b, ok := n.object2(r.URL.Path)
	if !ok {
		writeError(w, 404, "NoSuchKey")
		return nil, false
	}
	if m := r.Header.Get("If-Match"); m != "" && m != etagOf(b) {
		writeError(w, 412, "PreconditionFailed")
		return nil, false
	}
	w.Header().Set("ETag", etagOf(b))
	return b, true
}

func (n *fakeNode) object2(path string) ([]byte, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	b, ok := n.objects[path]
	return b, ok
}

func (n *fakeNode) head(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get(headerToken) != "" {
		n.t.Error("HEAD with a token")
	}
	if b, ok := n.find(w, r); ok {
		w.Header().Set(headerCRC, checksum.Base64(checksum.Sum(b)))
		w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	}
}

func (n *fakeNode) get(w http.ResponseWriter, r *http.Request, win []byte) {
	b, ok := n.find(w, r)
	if !ok {
		return
	}
	status := http.StatusOK
	if spec := r.Header.Get("Range"); spec != "" {
		var first, last int
		if _, err := fmt.Sscanf(spec, "bytes=%d-%d", &first, &last); err != nil {
			n.t.Errorf("range %q", spec)
		}
		if first >= len(b) {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", len(b)))
			writeError(w, 416, "InvalidRange")
			return
		}
		last = min(last, len(b)-1)
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, last, len(b)))
		b, status = b[first:last+1], http.StatusPartialContent
	} else {
		w.Header().Set(headerCRC, checksum.Base64(checksum.Sum(b)))
	}
	if win == nil {
		w.Header().Set("Content-Length", strconv.Itoa(len(b)))
		w.WriteHeader(status)
		_, _ = w.Write(b)
		return
	}
	copy(win, b)
	w.Header().Set(headerReply, strconv.Itoa(status))
	w.Header().Set(headerBytes, strconv.Itoa(len(b)))
	w.Header().Set(headerMoved, "CRC64NVME "+checksum.Base64(checksum.Sum(b)))
	w.Header().Set("Content-Length", "0")
	w.WriteHeader(status)
}

func (n *fakeNode) put(w http.ResponseWriter, r *http.Request, win, body []byte) {
	if win != nil {
		body = append([]byte(nil), win...)
		w.Header().Set(headerReply, "200")
		w.Header().Set(headerBytes, strconv.Itoa(len(body)))
	}
	crc := checksum.Base64(checksum.Sum(body))
	if sent := r.Header.Get(headerCRC); sent != crc {
		n.t.Errorf("PUT %s: checksum %q, payload has %q", r.URL.Path, sent, crc)
		w.Header().Del(headerReply)
		writeError(w, 400, "BadDigest")
		return
	}
	n.mu.Lock()
	if id := r.URL.Query().Get("uploadId"); id != "" {
		part, _ := strconv.Atoi(r.URL.Query().Get("partNumber"))
		n.uploads[id][part] = body
	} else {
		n.objects[r.URL.Path] = body
		n.headers[r.URL.Path] = r.Header.Clone()
	}
	n.mu.Unlock()
	w.Header().Set(headerCRC, crc)
	w.Header().Set("ETag", etagOf(body))
}

func (n *fakeNode) post(w http.ResponseWriter, r *http.Request, _ []byte) {
	q := r.URL.Query()
	n.mu.Lock()
	defer n.mu.Unlock()
	if q.Has("uploads") {
		n.nextID++
		id := fmt.Sprintf("up%d", n.nextID)
		n.uploads[id] = map[int][]byte{}
		n.headers[r.URL.Path] = r.Header.Clone()
		fmt.Fprintf(w, "<InitiateMultipartUploadResult><UploadId>%s</UploadId></InitiateMultipartUploadResult>", id)
		return
	}
	parts := n.uploads[q.Get("uploadId")]
	var whole []byte
	for i := range len(parts) {
		whole = append(whole, parts[i+1]...)
	}
	crc := checksum.Base64(checksum.Sum(whole))
	if r.Header.Get(headerCRC) != crc {
		writeError(w, 400, "BadDigest")
		return
	}
	n.objects[r.URL.Path] = whole
	n.calls["complete"]++
	fmt.Fprintf(w, "<CompleteMultipartUploadResult><ETag>%s</ETag><ChecksumCRC64NVME>%s</ChecksumCRC64NVME>"+
		"</CompleteMultipartUploadResult>", strings.ReplaceAll(etagOf(whole), `"`, "&quot;"), crc)
}

var errNotAcknowledged = errors.New("fake: fence not acknowledged")
