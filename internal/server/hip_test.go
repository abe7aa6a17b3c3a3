//go:build cgo

package server_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/config"
	"github.com/penstock-store/penstock/internal/s3"
	"github.com/penstock-store/penstock/internal/token"
	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

const hipCookie = 0x1a2b3c4d

// hipSession is a transfer of hipobj-rc-v2 as its client has it.
type hipSession struct {
	c        *rcClient
	qp       *native.QP
	session  string
	addr     uint64
	rkey     uint32
	prepared *http.Response
}

// message sends a signed request without a body.
func (r *running) message(path string, headers ...string) *http.Response {
	r.t.Helper()
	req, err := http.NewRequest(http.MethodPost, "http://"+r.s.Addr().String()+path, http.NoBody)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("X-Amz-Rdma-Protocol", "hipobj-rc-v2")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set("X-Amz-Rdma-"+headers[i], headers[i+1])
	}
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

// prepareHip sends the first message, and connects the queue pair where the answer names one.
func (c *rcClient) prepareHip(op, target string, size int) *hipSession {
	c.t.Helper()
	qp, err := c.pd.NewQP(c.cq, native.PairOptions{Depth: 2, Receives: 1})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = qp.Close() })
	path := native.Path{Port: 1, GIDIndex: 1, HopLimit: 64, Access: native.RemoteRead | native.RemoteWrite, PSN: 1,
		Timeout: 14, Retries: 7, RNRRetries: 7, MinRNRTimer: 12}
	if err := qp.Init(path); err != nil {
		c.t.Fatal(err)
	}
	own := token.Descriptor{Kind: token.HipObj, HipRC: true, QPN: qp.Number(), GID: c.gid, Port: 1}
	s := &hipSession{c: c, qp: qp}
	s.prepared = c.r.message("/.hipobj-rc/prepare", "Token", own.Encode(), "Psn", "000001",
		"Cookie", fmt.Sprintf("%08x", hipCookie), "Op", op, "Target", target, "Size", strconv.Itoa(size))
	h := s.prepared.Header
	if s.prepared.StatusCode != 200 {
		return s
	}
	s.session = h.Get("X-Amz-Rdma-Session")
	node, err := token.Parse(h.Get("X-Amz-Rdma-Reply")[len("200:"):])
	psn, psnErr := strconv.ParseUint(h.Get("X-Amz-Rdma-Psn"), 16, 24)
	at, atErr := strconv.ParseUint(h.Get("X-Amz-Rdma-Mr-Addr"), 16, 64)
	key, keyErr := strconv.ParseUint(h.Get("X-Amz-Rdma-Mr-Rkey"), 16, 32)
	if err := errors.Join(err, psnErr, atErr, keyErr); err != nil {
		c.t.Fatalf("prepared %v: %v", h, err)
	}
	s.addr, s.rkey = at, uint32(key)
	peer := native.Peer{QPN: node.QPN, PSN: uint32(psn), GID: node.GID, LID: node.LID, MTU: c.port.MTU, Reads: 1}
	if err := errors.Join(qp.Receive(path, peer), qp.Send(path, peer)); err != nil {
		c.t.Fatal(err)
	}
	return s
}

// ready sends the second message for memory at an offset, and does something meanwhile.
func (s *hipSession) ready(off int, meanwhile func()) *http.Response {
	s.c.t.Helper()
	answered := make(chan *http.Response, 1)
	go func() {
		answered <- s.c.r.message("/.hipobj-rc/ready", "Session", s.session, "Cookie", fmt.Sprintf("%08x", hipCookie),
			"Qpn", strconv.FormatUint(uint64(s.qp.Number()), 16),
			"Mr-Addr", strconv.FormatUint(s.c.mr.Addr()+uint64(off), 16),
			"Mr-Rkey", strconv.FormatUint(uint64(s.c.mr.RKey()), 16))
	}()
	<-time.After(20 * time.Millisecond) // clients are late
	meanwhile()
	return <-answered
}

// write puts the client's first bytes where the node said.
func (s *hipSession) write(n int) {
	w := native.Work{Op: native.OpWriteImm, Local: s.c.mr.Addr(), LKey: s.c.mr.LKey(), Remote: s.addr, RKey: s.rkey,
		Length: uint32(n), Imm: hipCookie, Signal: true}
	if _, err := s.qp.Post([]native.Work{w}); err != nil {
		s.c.t.Error(err)
	}
}

func hipNode(t *testing.T, change func(*config.Config)) (*running, *fakeverbs.NIC) {
	t.Helper()
	r, nic, _ := rcNode(t, func(c *config.Config) {
		c.RDMA.RCTokens, c.RDMA.UnsignedConnect, c.RDMA.HipObj = false, false, true
		c.RDMA.HipObjStaging = config.MiB
		if change != nil {
			change(c)
		}
	})
	return r, nic
}

// TestHipObj: a client puts and gets an object by two messages each, with queue pairs of its own, late receives and
// late writes; a session that it cancels is gone.
func TestHipObj(t *testing.T) {
	r, nic := hipNode(t, nil)
	c := newRCClient(t, r, nic.Library(), "fake1")
	const n = 300_001
	for i := range n {
		c.memory[i] = byte(i*7 + i>>8)
	}
	put := c.prepareHip("PUT", "/bucket/key", n)
	if put.prepared.StatusCode != 200 || put.addr == 0 {
		t.Fatalf("prepare: %s %v", put.prepared.Status, put.prepared.Header)
	}
	done := put.ready(0, func() { put.write(n) })
	if done.StatusCode != 204 || done.Header.Get("X-Amz-Rdma-Bytes-Transferred") != fmt.Sprint(n) ||
		done.Header.Get("Etag") == "" || done.Header.Get("X-Amz-Rdma-Cookie") != fmt.Sprintf("%08x", hipCookie) {
		t.Fatalf("put: %s %v", done.Status, done.Header)
	}
	if status, text := r.do("GET", "/bucket/key", nil); status != 200 || !bytes.Equal(text, c.memory[:n]) {
		t.Errorf("by HTTP: %d, %d bytes", status, len(text))
	}
	get := c.prepareHip("GET", "/bucket/key", n)
	if get.prepared.StatusCode != 200 || get.addr != 0 || get.rkey != 0 {
		t.Fatalf("prepare: %s %v", get.prepared.Status, get.prepared.Header)
	}
	done = get.ready(400_000, func() {
		if err := get.qp.PostReceive(1); err != nil {
			t.Error(err)
		}
	})
	if done.StatusCode != 200 || done.Header.Get("X-Amz-Rdma-Bytes-Transferred") != fmt.Sprint(n) {
		t.Fatalf("get: %s %v", done.Status, done.Header)
	}
	if !bytes.Equal(c.memory[400_000:][:n], c.memory[:n]) || c.memory[400_000+n] != 0 || c.memory[399_999] != 0 {
		t.Error("the bytes are not those")
	}
	canceled := c.prepareHip("PUT", "/bucket/key", 1<<20)
	if full := c.prepareHip("PUT", "/bucket/key", 1); full.prepared.StatusCode != 503 {
		t.Errorf("beyond the memory: %s", full.prepared.Status)
	}
	for range 2 {
		if resp := r.message("/.hipobj-rc/cancel", "Session", canceled.session); resp.StatusCode != 204 {
			t.Errorf("cancel: %s", resp.Status)
		}
	}
	if resp := canceled.ready(0, func() {}); resp.StatusCode != 409 {
		t.Errorf("ready after cancel: %s", resp.Status)
	}
	if large := c.prepareHip("PUT", "/bucket/key", 1<<20+1); large.prepared.StatusCode != 413 {
		t.Errorf("more than the memory: %s", large.prepared.Status)
	}
	if _, err := hex.DecodeString(canceled.session); err != nil || len(canceled.session) != 32 {
		t.Errorf("session %q", canceled.session)
	}
}

// TestHipObjIsOff where it is switched off, refused for an adapter that is not the client's, and the node works.
func TestHipObjIsOff(t *testing.T) {
	for name, s := range map[string]struct {
		change func(*config.Config)
		status int
	}{
		"off":     {func(c *config.Config) { c.RDMA.HipObj = false }, 501},
		"all off": {func(c *config.Config) { c.RDMA.Enabled = false }, 501},
		"foreign": {func(c *config.Config) { c.RDMA.ClientNetworks = nil }, 403},
	} {
		r, nic := hipNode(t, s.change)
		c := newRCClient(t, r, nic.Library(), "fake1")
		if got := c.prepareHip("PUT", "/bucket/key", 1000).prepared; got.StatusCode != s.status {
			t.Errorf("%s: %s %v", name, got.Status, got.Header)
		}
	}
}

// TestHipObjEndsWithItsNode: a session that waits for its second message, and its memory, end with the node.
func TestHipObjEndsWithItsNode(t *testing.T) {
	r, nic := hipNode(t, nil)
	c := newRCClient(t, r, nic.Library(), "fake1")
	if got := c.prepareHip("PUT", "/bucket/other", 1000).prepared; got.StatusCode != 200 {
		t.Errorf("prepare: %s", got.Status)
	}
}
