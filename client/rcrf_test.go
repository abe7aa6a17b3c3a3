package client_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/internal/config"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
	"github.com/penstock-store/penstock/test/onenode"
)

// TestRF_46_RCKeepsItsPaths: once session, paths and regions are there, requests make no queue pair and register
// nothing. Oracle: an adapter that would refuse both.
func TestRF_46_RCKeepsItsPaths(t *testing.T) {
	const size = 100_000
	n := startRCNode(t, fakeverbs.Options{})
	c := n.client(client.PathRC, once)
	r := rcBucket(t, c, size)
	n.adapters.Await("paths by both rails", func() bool { return n.rails() == 2 })
	before := n.adapters.Counters()
	var made []*fakeverbs.Fault
	for _, at := range []fakeverbs.Point{fakeverbs.AtCreateQP, fakeverbs.AtRegMR, fakeverbs.AtAllocPD, fakeverbs.AtReset} {
		made = append(made, n.adapters.Inject(fakeverbs.Rule{At: at, Times: fakeverbs.Always, Errno: syscall.EIO}))
	}
	for i := range 50 {
		put, err := c.PutFrom(t.Context(), r.All(), "rails", strconv.Itoa(i%3), client.PutOptions{})
		if err != nil || put.Path != client.PathRC {
			t.Fatalf("put %d: %+v %v", i, put, err)
		}
		get, err := c.GetInto(t.Context(), r.All(), "rails", strconv.Itoa(i%3), client.GetOptions{})
		if err != nil || get.Path != client.PathRC {
			t.Fatalf("get %d: %+v %v", i, get, err)
		}
	}
	for i, f := range made {
		if f.Hits() != 0 {
			t.Errorf("call %d was made %d times", i, f.Hits())
		}
		f.Remove()
	}
	if now := n.adapters.Counters(); now.Open() != before.Open() {
		t.Errorf("%d objects are open, before %d", now.Open(), before.Open())
	}
}

// TestRF_50_NothingSecretIsPrintedOnRC: at the level debug, in good and in failed transfers, neither end logs a token,
// a secret or proof of a session, a key, or a first PSN; nor is one in an error or result. Oracle: the frames on the
// wire.
func TestRF_50_NothingSecretIsPrintedOnRC(t *testing.T) {
	const size = 100_000
	var log safeBuffer
	handler := slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})
	w := newWiretap(t)
	served := onenode.StartRCLogged(t, handler, fakeverbs.Options{}, func(c *config.Config) {
		c.RDMA.RCListen, c.RDMA.RCAdvertise = w.to, w.listener.Addr().String()
	})
	n := nodeOf(t, served)
	c := n.client(client.PathRC, once, func(c *client.Config) { c.Logger = slog.New(handler) })
	r := rcBucket(t, c, size)
	printed := func(what ...any) {
		for _, verb := range []string{"%v", "%+v", "%#v"} {
			for _, o := range what {
				_, _ = fmt.Fprintf(&log, verb+"\n", o)
			}
		}
	}
	for _, op := range []native.Opcode{native.OpWrite, native.OpRead, native.OpWrite} {
		n.adapters.Inject(fakeverbs.Rule{
			At: fakeverbs.AtWork, Do: fakeverbs.Fail, Op: op, Status: fakeverbs.RemoteAccess,
		})
		res, err := c.GetInto(t.Context(), r.All(), "rails", "k", client.GetOptions{})
		var refused *client.Error
		if !errors.As(err, &refused) {
			t.Errorf("%+v %v", res, err)
		}
		printed(err, res, r)
		if res, err = c.GetInto(t.Context(), r.All(), "rails", "k", client.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		printed(res, r.All())
	}
	f := n.adapters.Inject(fakeverbs.Rule{At: fakeverbs.AtRegMR, Times: fakeverbs.Always, Errno: syscall.ENOMEM})
	_, err := c.GetInto(t.Context(), alloc(t, c, size).All(), "rails", "k", client.GetOptions{})
	printed(err)
	f.Remove()
	served.Stop()
	secrets := w.secrets()
	if len(secrets) < 8 {
		t.Fatalf("only %d secrets were seen", len(secrets))
	}
	text := log.bytes()
	if !bytes.Contains(text, []byte("data connection open")) {
		t.Errorf("the log has no lines of the fabric")
	}
	words := map[string]bool{}
	for _, word := range regexp.MustCompile(`[0-9A-Za-z]+`).FindAllString(string(text), -1) {
		word = strings.TrimLeft(strings.TrimPrefix(strings.ToLower(word), "0x"), "0")
		words[word] = true
		if len(word) > 60 && strings.Trim(word, "0123456789abcdef") == "" { // of 64 digits, as secrets and proofs have
			t.Errorf("a secret is printed: %s", word)
		}
	}
	for _, s := range secrets {
		if words[strconv.FormatUint(s, 10)] || words[strconv.FormatUint(s, 16)] {
			t.Errorf("%d (%x) is printed", s, s)
		}
	}
	if bytes.Contains(text, []byte("ps1:")) {
		t.Error("a token is printed")
	}
}

// safeBuffer is a log of several goroutines.
type safeBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *safeBuffer) bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Clone(b.buf.Bytes())
}

// wiretap passes data connections on, and keeps what they carried.
type wiretap struct {
	listener net.Listener
	to       string
	tasks    sync.WaitGroup
	mu       sync.Mutex
	streams  []*safeBuffer
}

func newWiretap(t *testing.T) *wiretap {
	t.Helper()
	free, err := net.Listen("tcp", "127.77.0.1:0") // nobody else takes a port of this address meanwhile
	if err != nil {
		t.Fatal(err)
	}
	w := &wiretap{to: free.Addr().String()}
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	if w.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	w.tasks.Go(w.accept)
	t.Cleanup(func() {
		_ = w.listener.Close()
		w.tasks.Wait()
	})
	return w
}

func (w *wiretap) accept() {
	for {
		near, err := w.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", w.to)
		if err != nil {
			_ = near.Close()
			continue
		}
		for _, p := range [][2]net.Conn{{near, far}, {far, near}} {
			var stream safeBuffer
			w.mu.Lock()
			w.streams = append(w.streams, &stream)
			w.mu.Unlock()
			w.tasks.Go(func() {
				_, _ = io.Copy(io.MultiWriter(p[1], &stream), p[0])
				_, _ = p[0].Close(), p[1].Close()
			})
		}
	}
}

// each calls f with the frames that came by.
func (w *wiretap) each(f func(frame.Header, []byte)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.streams {
		for b := s.bytes(); len(b) >= frame.HeaderBytes; {
			h, err := frame.Decode(b)
			b = b[frame.HeaderBytes:]
			if err != nil || len(b) < int(h.Length) {
				break
			}
			f(h, b[:h.Length])
			b = b[h.Length:]
		}
	}
}

// secrets are the keys and first PSNs; small numbers, which a log has for other reasons, are not among them.
func (w *wiretap) secrets() (all []uint64) {
	w.each(func(h frame.Header, body []byte) {
		var found []byte
		switch h.Type {
		case frame.Path, frame.PathOK:
			found = body[4:8]
		case frame.Keyed:
			found = body
		}
		for ; len(found) >= 4; found = found[4:] {
			if v := binary.LittleEndian.Uint32(found); v > 1<<16 {
				all = append(all, uint64(v))
			}
		}
	})
	return all
}
