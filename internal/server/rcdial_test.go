//go:build cgo

package server_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/internal/config"
	"github.com/penstock-store/penstock/internal/s3"
	"github.com/penstock-store/penstock/internal/server"
	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// rcClient is what an existing client of `rc:` tokens has: registered memory, and a queue pair for each token.
type rcClient struct {
	t      *testing.T
	r      *running
	dev    *native.Device
	pd     *native.PD
	cq     *native.CQ
	mr     *native.MR
	port   native.PortInfo
	gid    [16]byte
	memory []byte
}

func newRCClient(t *testing.T, r *running, library *native.Library, device string) *rcClient {
	t.Helper()
	c := &rcClient{t: t, r: r}
	var err error
	must := func(what string) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	c.memory, err = unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	must("mmap")
	c.dev, err = library.OpenDevice(device)
	must("device")
	c.port, err = c.dev.Port(1)
	must("port")
	c.pd, err = c.dev.NewPD()
	must("pd")
	c.cq, err = c.dev.NewCQ(4)
	must("cq")
	c.mr, err = c.pd.Register(c.memory, native.LocalWrite|native.RemoteWrite|native.RemoteRead)
	must("register")
	for _, g := range c.port.GIDs {
		if g.Index == 1 {
			c.gid = g.Raw
		}
	}
	t.Cleanup(func() {
		for _, o := range []io.Closer{c.mr, c.cq, c.pd, c.dev} {
			if err := o.Close(); err != nil {
				t.Errorf("close %T: %v", o, err)
			}
		}
		_ = unix.Munmap(c.memory)
	})
	return c
}

// post sends a request of the dialect: unsigned, without a body.
func (c *rcClient) post(path string, headers ...string) *http.Response {
	c.t.Helper()
	req, err := http.NewRequest(http.MethodPost, "http://"+c.r.s.Addr().String()+path, http.NoBody)
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := c.r.web.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// dialled is a connection as its client has it.
type dialled struct {
	c       *rcClient
	session string
	qp      *native.QP
}

// pairText is the 88 hex digits of a queue pair: transport, number, GID, and the port behind key, address and length.
func pairText(qpn uint32, gid [16]byte, port byte) string {
	b := make([]byte, 44)
	b[0] = 1
	binary.LittleEndian.PutUint32(b[1:], qpn)
	copy(b[5:], gid[:])
	b[41] = port
	return hex.EncodeToString(b)
}

// dial connects a new queue pair, as the client does for each of its tokens.
func (c *rcClient) dial() *dialled {
	c.t.Helper()
	const psn = 0xabc
	qp, err := c.pd.NewQP(c.cq, native.PairOptions{Depth: 1})
	if err != nil {
		c.t.Fatal(err)
	}
	own := native.Path{Port: 1, GIDIndex: 1, HopLimit: 64, Access: native.RemoteRead | native.RemoteWrite, PSN: psn,
		MinRNRTimer: 12, Timeout: 14, Retries: 7, RNRRetries: 7}
	if err := qp.Init(own); err != nil {
		c.t.Fatal(err)
	}
	resp := c.post("/.s3rdma-rc/connect", "x-amz-rdma-token", pairText(qp.Number(), c.gid, 1),
		"x-amz-rdma-psn", fmt.Sprintf("%06x", psn))
	code, text, _ := strings.Cut(resp.Header.Get("X-Amz-Rdma-Reply"), ":")
	theirs, err := hex.DecodeString(text)
	number, psnErr := strconv.ParseUint(resp.Header.Get("X-Amz-Rdma-Psn"), 16, 24)
	if resp.StatusCode != 200 || code != "200" || len(theirs) != 44 || theirs[0] != 1 || number == 0 ||
		errors.Join(err, psnErr) != nil || resp.ContentLength != 0 {
		body, _ := io.ReadAll(resp.Body)
		c.t.Fatalf("connect: %s %v %s", resp.Status, resp.Header, body)
	}
	peer := native.Peer{QPN: binary.LittleEndian.Uint32(theirs[1:]), PSN: uint32(number),
		GID: [16]byte(theirs[5:21]), MTU: c.port.MTU, Reads: 1}
	if err := errors.Join(qp.Receive(own, peer), qp.Send(own, peer)); err != nil {
		c.t.Fatal(err)
	}
	return &dialled{c: c, session: resp.Header.Get("X-Amz-Rdma-Session"), qp: qp}
}

// token is that of n bytes at an offset of the memory.
func (d *dialled) token(off, n int) string {
	return fmt.Sprintf("rc:%s:%016x:%08x:%08x", d.session, d.c.mr.Addr()+uint64(off), n, d.c.mr.RKey())
}

// hangUp disconnects and gives the queue pair back.
func (d *dialled) hangUp() {
	d.c.t.Helper()
	if resp := d.c.post("/.s3rdma-rc/disconnect", "x-amz-rdma-session", d.session); resp.StatusCode != 204 {
		d.c.t.Errorf("disconnect: %s", resp.Status)
	}
	if err := d.qp.Close(); err != nil {
		d.c.t.Error(err)
	}
}

// rcNode is a node that takes `rc:` tokens, with a bucket; client is its adapter's other port.
func rcNode(t *testing.T, change func(*config.Config)) (*running, *fakeverbs.NIC, *syncBuffer) {
	t.Helper()
	nic := fakeverbs.New(t, fakeverbs.Options{Devices: []fakeverbs.Device{{}, {}}, Poison: true})
	conf := configFor(t, t.TempDir())
	conf.RDMA.RCTokens, conf.RDMA.UnsignedConnect, conf.RDMA.Devices = true, true, []string{"fake0"}
	conf.RDMA.ClientNetworks = []string{"10.99.0.2/32"}
	if change != nil {
		change(&conf)
	}
	var log syncBuffer
	s, err := server.NewOn(t.Context(), server.Ground{Verbs: nic.Library()}, conf,
		slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx) }()
	r := &running{t: t, s: s, signer: s3.NewSigner(), key: s.Root(), web: &http.Client{Transport: &http.Transport{}}}
	t.Cleanup(func() {
		r.web.CloseIdleConnections()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	if status, text := r.do("PUT", "/bucket", nil); status != 200 {
		t.Fatalf("bucket: %d %s", status, text)
	}
	return r, nic, &log
}

// TestRCTokens: a client of the dialect puts and gets an object, whole and in part, by connections of its own; after it
// has hung up, its token is none.
func TestRCTokens(t *testing.T) {
	r, nic, log := rcNode(t, nil)
	if !strings.Contains(log.text(), "rdma.unsigned_connect") {
		t.Errorf("the log says\n%s", log.text())
	}
	c := newRCClient(t, r, nic.Library(), "fake1")
	const n = 300_001
	for i := range n {
		c.memory[i] = byte(i*7 + i>>8)
	}
	first := c.dial()
	put := r.withToken("PUT", "/bucket/key", first.token(0, n))
	if put.StatusCode != 200 || put.Header.Get("X-Amz-Rdma-Reply") != "200" ||
		put.Header.Get("X-Amz-Rdma-Bytes-Transferred") != fmt.Sprint(n) {
		text, _ := io.ReadAll(put.Body)
		t.Fatalf("put: %s %v %s", put.Status, put.Header, text)
	}
	first.hangUp()
	second := c.dial()
	for range 2 { // a connection serves more than one request
		clear(c.memory[400_000:])
		get := r.withToken("GET", "/bucket/key", second.token(400_000, n+7))
		if get.StatusCode != 200 || get.Header.Get("X-Amz-Rdma-Reply") != "200" || get.ContentLength != 0 {
			text, _ := io.ReadAll(get.Body)
			t.Fatalf("get: %s %v %s", get.Status, get.Header, text)
		}
		if !bytes.Equal(c.memory[400_000:][:n], c.memory[:n]) || c.memory[400_000+n] != 0 || c.memory[399_999] != 0 {
			t.Error("the bytes are not those")
		}
	}
	clear(c.memory[400_000:])
	part := r.ranged("/bucket/key", second.token(500_000, 1000), "bytes=1000-1999")
	if part.StatusCode != 206 || part.Header.Get("X-Amz-Rdma-Reply") != "206" ||
		part.Header.Get("X-Amz-Rdma-Bytes-Transferred") != "1000" {
		t.Errorf("a range: %s %v", part.Status, part.Header)
	}
	if !bytes.Equal(c.memory[500_000:][:1000], c.memory[1000:2000]) || c.memory[501_000] != 0 || c.memory[499_999] != 0 {
		t.Error("the bytes of the range are not those")
	}
	if status, text := r.do("GET", "/bucket/key", nil); status != 200 || !bytes.Equal(text, c.memory[:n]) {
		t.Errorf("by HTTP: %d, %d bytes", status, len(text))
	}
	second.hangUp()
	second.session = first.session
	gone := r.withToken("GET", "/bucket/key", second.token(0, n))
	if gone.StatusCode != 501 || gone.Header.Get("X-Amz-Rdma-Reply") != "501" ||
		gone.Header.Get("X-Penstock-Rdma-Reason") != "no-session" {
		t.Errorf("a connection that is gone: %s %v", gone.Status, gone.Header)
	}
	for range 2 {
		if again := c.post("/.s3rdma-rc/disconnect", "x-amz-rdma-session", first.session); again.StatusCode != 204 {
			t.Errorf("disconnected again: %s", again.Status)
		}
	}
	if strings.Contains(log.text(), first.session) {
		t.Error("the log has a session's id")
	}
}

// TestRCTokensOff: a node that does not take them says so, and a request of nobody connects only where that is allowed.
func TestRCTokensOff(t *testing.T) {
	for name, s := range map[string]struct {
		change func(*config.Config)
		status int
		reason string
	}{
		"off":      {func(c *config.Config) { c.RDMA.RCTokens, c.RDMA.UnsignedConnect = false, false }, 501, "no-rail"},
		"all off":  {func(c *config.Config) { c.RDMA.Enabled = false }, 501, "off"},
		"unsigned": {func(c *config.Config) { c.RDMA.UnsignedConnect = false }, 403, ""},
		"foreign":  {func(c *config.Config) { c.RDMA.ClientNetworks = nil }, 403, ""},
	} {
		r, nic, _ := rcNode(t, s.change)
		c := newRCClient(t, r, nic.Library(), "fake1")
		resp := c.post("/.s3rdma-rc/connect", "x-amz-rdma-token", pairText(7, c.gid, 1), "x-amz-rdma-psn", "000001")
		if resp.StatusCode != s.status || resp.Header.Get("X-Penstock-Rdma-Reason") != s.reason ||
			(resp.Header.Get("X-Amz-Rdma-Reply") == "501") != (s.status == 501) {
			t.Errorf("%s: %s %v", name, resp.Status, resp.Header)
		}
	}
}

// ranged reads a part of an object into a token's window.
func (r *running) ranged(path, token, span string) *http.Response {
	r.t.Helper()
	req, err := http.NewRequest("GET", "http://"+r.s.Addr().String()+path, http.NoBody)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("X-Amz-Rdma-Token", token)
	req.Header.Set("Range", span)
	o := s3.SignOptions{
		Credentials: s3.Credentials{AccessKey: r.key.ID, SecretKey: string(r.key.Secret)},
		Region:      "us-east-1", Time: time.Now(),
	}
	if err := r.signer.Sign(req, o); err != nil {
		r.t.Fatal(err)
	}
	resp, err := r.web.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}
