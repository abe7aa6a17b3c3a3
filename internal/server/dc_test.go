//go:build cgo

package server_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/internal/s3"
	"github.com/penstock-store/penstock/internal/server"
	"github.com/penstock-store/penstock/internal/token"
	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// dcClient is what an existing client has: memory, and a DCT on an adapter of its own.
type dcClient struct {
	memory []byte
	token  token.Descriptor
}

func newDCClient(t *testing.T, library *native.Library, device string, key uint64) *dcClient {
	t.Helper()
	memory, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	must := func(what string) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	must("mmap")
	d, err := library.OpenDevice(device)
	must("device")
	port, err := d.Port(1)
	must("port")
	pd, err := d.NewPD()
	must("pd")
	cq, err := d.NewCQ(4)
	must("cq")
	mr, err := pd.Register(memory, native.LocalWrite|native.RemoteWrite|native.RemoteRead)
	must("register")
	dct, err := pd.NewDCT(cq, key)
	must("dct")
	number, err := dct.Answer(native.Path{Port: 1, GIDIndex: 1, HopLimit: 64, MinRNRTimer: 12,
		Access: native.RemoteWrite | native.RemoteRead}, port.MTU)
	must("answer")
	t.Cleanup(func() {
		for _, o := range []io.Closer{dct, mr, cq, pd, d} {
			if err := o.Close(); err != nil {
				t.Errorf("close %T: %v", o, err)
			}
		}
		_ = unix.Munmap(memory)
	})
	c := &dcClient{memory: memory, token: token.Descriptor{Kind: token.DC, Addr: mr.Addr(), RKey: mr.RKey(), QPN: number,
		HasGID: true}}
	for _, g := range port.GIDs {
		if g.Index == 1 {
			c.token.GID = g.Raw
		}
	}
	return c
}

// window is the token of n bytes at an offset.
func (c *dcClient) window(off, n int) string {
	d := c.token
	d.Addr += uint64(off)
	d.Size = int64(n)
	return d.Encode()
}

// withToken sends a signed request with a token and no body.
func (r *running) withToken(method, path, token string) *http.Response {
	r.t.Helper()
	req, err := http.NewRequest(method, "http://"+r.s.Addr().String()+path, http.NoBody)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("X-Amz-Rdma-Token", token)
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

// TestDCTokens: a client that has a DCT, and no session, puts and gets an object; the bytes go by the adapters. The log
// says at the start what was never tried.
func TestDCTokens(t *testing.T) {
	nic := fakeverbs.New(t, fakeverbs.Options{Devices: []fakeverbs.Device{{}, {}}, Poison: true})
	conf := configFor(t, t.TempDir())
	conf.RDMA.DC, conf.RDMA.DCKey, conf.RDMA.Devices = true, "0x1234", []string{"fake0"}
	conf.RDMA.ClientNetworks = []string{"10.99.0.2/32"}
	var log bytes.Buffer
	s, err := server.NewOn(t.Context(), server.Ground{Verbs: nic.Library()}, conf,
		slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "DC: not yet run on hardware") || strings.Contains(log.String(), "everybody") {
		t.Errorf("the log says\n%s", log.String())
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx) }()
	r := &running{t: t, s: s, signer: s3.NewSigner(), key: s.Root(), web: &http.Client{Transport: &http.Transport{}}}
	c := newDCClient(t, nic.Library(), "fake1", 0x1234)
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
	const n = 300_001
	for i := range n {
		c.memory[i] = byte(i*7 + i>>8)
	}
	put := r.withToken("PUT", "/bucket/key", c.window(0, n))
	if put.StatusCode != 200 || put.Header.Get("X-Amz-Rdma-Reply") != "200" ||
		put.Header.Get("X-Amz-Rdma-Bytes-Transferred") != fmt.Sprint(n) {
		text, _ := io.ReadAll(put.Body)
		t.Fatalf("put: %s %v %s", put.Status, put.Header, text)
	}
	get := r.withToken("GET", "/bucket/key", c.window(400_000, n+7))
	if get.StatusCode != 200 || get.Header.Get("X-Amz-Rdma-Reply") != "200" || get.ContentLength != 0 {
		text, _ := io.ReadAll(get.Body)
		t.Fatalf("get: %s %v %s", get.Status, get.Header, text)
	}
	if !bytes.Equal(c.memory[400_000:][:n], c.memory[:n]) || c.memory[400_000+n] != 0 || c.memory[399_999] != 0 {
		t.Error("the bytes are not those")
	}
	if status, text := r.do("GET", "/bucket/key", nil); status != 200 || !bytes.Equal(text, c.memory[:n]) {
		t.Errorf("by HTTP: %d, %d bytes", status, len(text))
	}
	// Memory of another machine, as far as the node knows.
	foreign := c.token
	foreign.GID[15] = 9
	foreign.Size = n
	if resp := r.withToken("GET", "/bucket/key", foreign.Encode()); resp.StatusCode != 403 ||
		resp.Header.Get("X-Amz-Rdma-Reply") != "" {
		t.Errorf("foreign: %s", resp.Status)
	}
	// A key of memory that the client does not have.
	wrong := c.token
	wrong.RKey ^= 0x5500
	wrong.Size = n
	if resp := r.withToken("GET", "/bucket/key", wrong.Encode()); resp.StatusCode != 500 {
		t.Errorf("wrong key: %s", resp.Status)
	}
}

// TestDCOff: an adapter without dynamic connections costs the node nothing else, and tokens are declined.
func TestDCOff(t *testing.T) {
	nic := fakeverbs.New(t, fakeverbs.Options{Devices: []fakeverbs.Device{{NoDC: true}}})
	conf := configFor(t, t.TempDir())
	conf.RDMA.DC = true
	var log bytes.Buffer
	s, err := server.NewOn(t.Context(), server.Ground{Verbs: nic.Library()}, conf,
		slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "DC off") || !strings.Contains(log.String(), native.ReasonNoDC) ||
		strings.Contains(log.String(), "not yet run") {
		t.Errorf("the log says\n%s", log.String())
	}
}
