package hostile

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/iam"
	"github.com/penstock-store/penstock/internal/s3"
	"github.com/penstock-store/penstock/internal/token"
)

// request is one request as an attacker writes it.
type request struct {
	method, path string // path with query, as it goes out
	header       map[string]string
	unsigned     []string // whole header lines, added after signing
	body         []byte
	noLength     bool   // no Content-Length
	hash         string // payload hash; "" is UNSIGNED-PAYLOAD
	key          iam.Key
}

func (n *node) put(path string, body []byte) request {
	return request{method: "PUT", path: path, body: body}
}

func (n *node) as(k iam.Key, r request) request {
	r.key = k
	return r
}

// with adds signed headers.
func (r request) with(pairs ...string) request {
	header := map[string]string{}
	for k, v := range r.header {
		header[k] = v
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		header[pairs[i]] = pairs[i+1]
	}
	r.header = header
	return r
}

// plus adds header lines behind the signer's back.
func (r request) plus(lines ...string) request {
	r.unsigned = append(slices.Clone(r.unsigned), lines...)
	return r
}

// signed returns the headers of a request, signed.
func signed(signer *s3.Signer, host string, r request) (http.Header, error) {
	u, err := url.Parse("http://" + host + r.path)
	if err != nil {
		return nil, err
	}
	req := &http.Request{Method: r.method, URL: u, Host: host, Header: http.Header{}}
	for k, v := range r.header {
		req.Header.Set(k, v)
	}
	if h := req.Header.Get("Host"); h != "" {
		req.Host = h
		req.Header.Del("Host")
	}
	err = signer.Sign(req, s3.SignOptions{
		Credentials: s3.Credentials{AccessKey: r.key.ID, SecretKey: string(r.key.Secret)},
		Region:      "us-east-1", Time: time.Now(), PayloadHash: r.hash,
	})
	req.Header.Set("Host", req.Host)
	return req.Header, err
}

// encode is the request in bytes.
func encode(signer *s3.Signer, host string, r request) ([]byte, error) {
	h, err := signed(signer, host, r)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\n", r.method, r.path)
	for name, values := range h {
		fmt.Fprintf(&b, "%s: %s\r\n", name, values[0])
	}
	if !r.noLength {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", len(r.body))
	}
	for _, line := range r.unsigned {
		fmt.Fprintf(&b, "%s\r\n", line)
	}
	b.WriteString("\r\n")
	b.Write(r.body)
	return b.Bytes(), nil
}

func (n *node) raw(r request) []byte {
	n.t.Helper()
	if r.key.ID == "" {
		r.key = n.root
	}
	if t := r.header["X-Amz-Rdma-Token"]; len(t) > 32 {
		n.secret(t)
	}
	raw, err := encode(n.signer, n.host, r)
	if err != nil {
		n.t.Fatal(err)
	}
	return raw
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// code is the S3 code of an error answer.
func (a answer) code() string {
	_, rest, _ := strings.Cut(string(a.body), "<Code>")
	code, _, _ := strings.Cut(rest, "</Code>")
	return code
}

func (n *node) dial() net.Conn {
	n.t.Helper()
	c, err := net.Dial("tcp", n.host)
	if err != nil {
		n.t.Fatal(err)
	}
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		n.t.Fatal(err)
	}
	return c
}

func readAnswer(c io.Reader, method string) (answer, error) {
	resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, text}, err
}

// talk sends bytes on a connection of their own and reads one answer.
func (n *node) talk(raw []byte, method string) (answer, error) {
	c := n.dial()
	defer c.Close()
	_, _ = c.Write(raw) // the node may answer and close before it has read all
	return readAnswer(c, method)
}

func (n *node) send(r request) answer {
	n.t.Helper()
	a, err := n.talk(n.raw(r), r.method)
	if err != nil {
		n.t.Fatalf("%s %s: %v", r.method, r.path, err)
	}
	return a
}

func (n *node) expectStatus(status int, a answer) {
	n.t.Helper()
	if a.status != status {
		n.t.Errorf("status %d, want %d: %s", a.status, status, a.body)
	}
}

// expectError checks an S3 error: nothing of it can be taken for success by any client.
func (n *node) expectError(what string, a answer, status int, code string) {
	n.t.Helper()
	if a.status != status || a.code() != code {
		n.t.Errorf("%s: status %d %s, want %d %s: %.300s", what, a.status, a.code(), status, code, a.body)
	}
	for _, name := range []string{"X-Amz-Rdma-Reply", "X-Amz-Rdma-Bytes-Transferred", "Etag"} {
		if v := a.header.Get(name); v != "" {
			n.t.Errorf("%s: an error carries %s: %s", what, name, v)
		}
	}
}

// expectDeclined checks a decline.
func (n *node) expectDeclined(what string, a answer, reason string) {
	n.t.Helper()
	h := a.header
	if a.status != 501 || h.Get("X-Amz-Rdma-Reply") != "501" || h.Get("X-Penstock-Rdma-Reason") != reason ||
		h.Get("Etag") != "" || h.Get("X-Amz-Rdma-Bytes-Transferred") != "" || a.code() != "NotImplemented" {
		n.t.Errorf("%s: status %d, %v, want a decline for %s: %.300s", what, a.status, h, reason, a.body)
	}
}

// memory is a memfd that the attacker keeps a mapping of.
type memory struct {
	file  int
	bytes []byte
}

func newMemory(size int) (*memory, error) {
	m := &memory{}
	var err error
	m.file, err = unix.MemfdCreate("hostile", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	if err := unix.Ftruncate(m.file, int64(size)); err != nil {
		return nil, err
	}
	if _, err := unix.FcntlInt(uintptr(m.file), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		return nil, err
	}
	m.bytes, err = unix.Mmap(m.file, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	for i := range m.bytes {
		m.bytes[i] = 0xee
	}
	return m, nil
}

// unmap takes the client's own mapping away; the server's descriptor stays what it is.
func (m *memory) unmap() {
	if m.bytes != nil {
		_ = unix.Munmap(m.bytes)
		m.bytes = nil
	}
}

func (m *memory) close() {
	m.unmap()
	if m.file >= 0 {
		_ = unix.Close(m.file)
		m.file = -1
	}
}

// link is a data connection in the attacker's hands.
type link struct {
	net.Conn
	offer frame.SessionReply
	mem   *memory
	last  atomic.Uint32 // number of the last token
}

// connect proves the secret of an offer.
func connect(offer frame.SessionReply) (*link, error) {
	c, err := (&net.Dialer{Timeout: patience}).DialContext(context.Background(), offer.Network, offer.Address)
	if err != nil {
		return nil, err
	}
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	if _, err := frame.Connect(c, offer.Session, offer.Secret.Reveal(), 0); err != nil {
		_ = c.Close()
		return nil, err
	}
	return &link{Conn: c, offer: offer}, nil
}

// announce sends a Region frame, on shm with a descriptor, and does not wait.
func (l *link) announce(number uint64, size uint64, file int) error {
	h := frame.Header{Type: frame.Region, Region: number, Size: size}
	u, ok := l.Conn.(*net.UnixConn)
	if !ok || file < 0 {
		return frame.WriteFrame(l, h, nil)
	}
	var b [frame.HeaderBytes]byte
	h.Encode(b[:])
	_, _, err := u.WriteMsgUnix(b[:], unix.UnixRights(file), nil)
	return err
}

// next reads the header of the next frame.
func (l *link) next() (frame.Header, error) {
	var b [frame.HeaderBytes]byte
	return frame.ReadHeader(l, &b)
}

// region announces fresh memory as region 1.
func (l *link) region(size int) error {
	m, err := newMemory(size)
	if err != nil {
		return err
	}
	l.mem = m
	if err := l.announce(1, uint64(size), m.file); err != nil {
		return err
	}
	h, err := l.next()
	if err == nil && h.Type != frame.RegionOK {
		err = fmt.Errorf("region: frame of type %d, %s", h.Type, h.Status)
	}
	return err
}

func (l *link) close() {
	_ = l.Close()
	if l.mem != nil {
		l.mem.close()
	}
}

// token names a window of a region of the session, under a number of its own.
func (l *link) token(region uint64, off uint64, size int64) string {
	return tokenOf(l.offer, uint64(l.last.Add(1))<<32|region, off, size)
}

// fresh gives the request's token, if it is signed, a number of its own.
func (l *link) fresh(r request) request {
	old, ok := r.header[headerToken]
	if !ok {
		return r
	}
	d, err := token.Parse(old)
	if err != nil {
		panic(err)
	}
	d.Region = uint64(l.last.Add(1))<<32 | uint64(uint32(d.Region))
	return r.with(headerToken, d.Encode())
}

func tokenOf(o frame.SessionReply, region, off uint64, size int64) string {
	return token.Descriptor{
		Kind: token.Session, Fabric: o.Fabric, SessionID: o.Session, Region: region, Addr: off, Size: size,
	}.Encode()
}

// obey is an honest receiver on a tcp data connection: it places what comes and serves what is asked for.
// step sees each frame before that, and may do anything.
func (l *link) obey(step func(frame.Header)) {
	var placed uint64
	for {
		h, err := l.next()
		if err != nil {
			return
		}
		step(h)
		switch h.Type {
		case frame.Start:
			placed = 0
		case frame.Data:
			_, err = io.ReadFull(l, l.mem.bytes[h.Offset:h.Offset+uint64(h.Length)])
			placed += uint64(h.Length)
		case frame.Read:
			p := frame.Header{Type: frame.Payload, ID: h.ID, Offset: h.Offset}
			err = frame.WriteFrame(l, p, l.mem.bytes[h.Offset:h.Offset+h.Size])
		case frame.Done:
			err = frame.WriteFrame(l, frame.Header{Type: frame.Ack, ID: h.ID, Size: placed}, nil)
		}
		if err != nil {
			return
		}
	}
}

// attacker opens a session with a region of the given size.
func (n *node) attacker(k iam.Key, fabric string, size int) *link {
	n.t.Helper()
	l, err := connect(n.offer(k, fabric))
	if err != nil {
		n.t.Fatal(err)
	}
	if err := l.region(size); err != nil {
		n.t.Fatal(err)
	}
	return l
}

func die(signal unix.Signal) {
	_ = unix.Kill(os.Getpid(), signal)
	select {} // a stop takes effect at its leisure
}
