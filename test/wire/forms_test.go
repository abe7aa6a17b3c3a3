package wire_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	own "github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/internal/config"
)

// TestTokensAsSeen: what clients put around their tokens changes nothing, and what is no token of ours is told apart.
func TestTokensAsSeen(t *testing.T) {
	b := newBench(t)
	plain := &client{request: func(a *ask) *raw {
		r := a.start()
		for _, f := range []field{{"Host", a.host}, {"x-amz-date", a.stamp()}, {"x-amz-content-sha256", unsigned},
			{"x-amz-rdma-token", a.token}} {
			r.add(f.name, f.value)
		}
		if a.op != get {
			r.add("Content-Length", "0")
		}
		return a.finish(r, unsigned, nil)
	}}
	whole := dcToken(memoryBase+64, objectBytes)
	for _, c := range []struct {
		name, token string
		status      int
		reason      string
	}{
		{"plain", whole, 200, ""},
		{"semicolon", whole + ";", 200, ""},
		{"suffix", fmt.Sprintf("%s:%016x:%016x", whole, memoryBase+64, objectBytes), 200, ""},
		{"unpadded", fmt.Sprintf("%x:%x:1f2e973:0:7a03:1:ffff7f000001", memoryBase+64, objectBytes), 200, ""},
		{"upper case", fmt.Sprintf("%X:%X:1F2E973:0:7A03:1:FFFF7F000001", memoryBase+64, objectBytes), 200, ""},
		{"connection", fmt.Sprintf("rc:%032x:%016x:%08x:%08x", 7, memoryBase+64, objectBytes, 1), 200, ""},
		{"hipObject", hipToken(memoryBase+64, objectBytes), 501, "unsupported-token"},
		{"hipObject with suffix", fmt.Sprintf("%s:%016x:%016x", hipToken(memoryBase+64, objectBytes), memoryBase+64,
			objectBytes), 501, "unsupported-token"},
		{"libfabric", fmt.Sprintf("%x:%x:ofi1:verbs:0a0b:0c", memoryBase+64, objectBytes), 501, "unsupported-token"},
		{"base64", "MDAwMDdmN2M4MDAwMDAwMDowMDQwMDAwMA==", 400, ""},
		{"suffix outside", fmt.Sprintf("%s:%016x:%016x", whole, memoryBase, objectBytes), 400, ""},
	} {
		for _, o := range []op{get, put} {
			tr := b.prepare(&scenario{name: "seen", op: o, size: objectBytes})
			tr.token = c.token
			r := tr.exchange(plain)
			if r.status != c.status || r.header.Get("X-Penstock-Rdma-Reason") != c.reason {
				t.Errorf("%s: status %d, reason %q", c.name, r.status, r.header.Get("X-Penstock-Rdma-Reason"))
			}
			if o == put {
				if stored, changed := tr.stored(); stored != (c.status == 200) || changed != stored {
					t.Errorf("%s: stored %v, changed %v", c.name, stored, changed)
				}
			} else if content, _ := b.memory.content(); bytes.Equal(content[64:64+objectBytes], tr.want) != (c.status == 200) {
				t.Errorf("%s: wrong bytes in memory", c.name)
			}
		}
	}
}

// TestAliasesOff: a node that does not take a client's headers declines, since the client takes any 2xx for a transfer.
func TestAliasesOff(t *testing.T) {
	for _, mode := range []string{config.Decline501, config.DeclineSpec} {
		b := newBench(t, func(c *config.Config) { c.RDMA.Aliases, c.RDMA.Decline = nil, mode })
		for _, c := range clients {
			if !c.alias {
				continue
			}
			for _, o := range []op{get, put} {
				tr := b.prepare(&scenario{name: "off", op: o, size: objectBytes, declined: true})
				r := tr.exchange(c)
				if v, _ := c.judge(tr.ask, &r); v != failed || r.header.Get("X-Penstock-Rdma-Reason") != "alias-off" {
					t.Errorf("%s: %s by status %d, reason %q", c.name, v, r.status, r.header.Get("X-Penstock-Rdma-Reason"))
				}
				if _, changed := tr.changed(); changed {
					t.Errorf("%s: something moved", c.name)
				}
			}
		}
	}
}

// TestOffIsADecline: a node without RDMA is judged as one without a rail, by every client.
func TestOffIsADecline(t *testing.T) {
	for i, mode := range []string{config.Decline501, config.DeclineSpec} {
		b := newBench(t, func(c *config.Config) { c.RDMA.Enabled, c.RDMA.Decline = false, mode })
		for _, c := range clients {
			want := c.expected(t)
			for name, o := range map[string]op{"get-no-rail": get, "put-no-rail": put, "part-no-rail": part} {
				s := &scenario{name: "off", op: o, size: objectBytes, declined: true}
				if want[name][i] == string(never) {
					continue
				}
				if got := b.prepare(s).run(c, mode == config.DeclineSpec); got != want[name][i] {
					t.Errorf("%s, declines by %s: %s is %s, want %s", c.name, mode, name, got, want[name][i])
				}
			}
		}
	}
}

// changed tells whether memory or bucket are not as before.
func (tr *trial) changed() (stored, changed bool) {
	if tr.op == get {
		content, _ := tr.b.memory.content()
		return false, !bytes.Equal(content, tr.filling)
	}
	return tr.stored()
}

// TestAliasRules: a token in two headers, unsigned, or with a part that lies outside is refused, and a part that lies
// inside is what moves.
func TestAliasRules(t *testing.T) {
	b := newBench(t)
	type setting struct {
		token, length, start string
		canonical, info      string
		unsigned             string // header that is left out of the signature
	}
	send := func(o op, s setting) (*trial, answer) {
		tr := b.prepare(&scenario{name: "alias", op: o, size: objectBytes})
		return tr, tr.exchange(&client{request: func(a *ask) *raw {
			r := a.start()
			r.add("Host", a.host)
			r.add("x-amz-date", a.stamp())
			r.add("x-amz-content-sha256", unsigned)
			for _, f := range []field{{"X-CuObj-RDMA-Descr", s.token}, {"X-CuObj-Content-Length", s.length},
				{"X-CuObj-Remote-Buf-Start", s.start}, {"x-amz-rdma-token", s.canonical}, {"x-rdma-info", s.info}} {
				if f.value != "" {
					r.add(f.name, f.value)
				}
			}
			if a.op != get {
				r.add("Content-Length", "0")
			}
			return a.finish(r, unsigned, []string{s.unsigned})
		}})
	}
	descr := dcToken(memoryBase+64, objectBytes)
	start, length := strconv.Itoa(memoryBase+64), strconv.Itoa(objectBytes)
	for _, c := range []struct {
		name   string
		s      setting
		status int
	}{
		{"all three", setting{token: descr, length: length, start: start}, 200},
		{"info", setting{info: descr}, 200},
		{"no length", setting{token: descr, start: start}, 400},
		{"no start", setting{token: descr, length: length}, 400},
		{"no token", setting{length: length, start: start}, 400},
		{"hex length", setting{token: descr, length: "0x9c40", start: start}, 400},
		{"negative start", setting{token: descr, length: length, start: "-1"}, 400},
		{"longer", setting{token: descr, length: strconv.Itoa(objectBytes + 1), start: start}, 400},
		{"below", setting{token: descr, length: "1", start: strconv.Itoa(memoryBase + 63)}, 400},
		{"beyond", setting{token: descr, length: length, start: strconv.Itoa(memoryBase + 65)}, 400},
		{"with the usual header", setting{token: descr, length: length, start: start, canonical: descr}, 400},
		{"info with the usual header", setting{info: descr, canonical: descr}, 400},
		{"both", setting{token: descr, length: length, start: start, info: descr}, 400},
		{"token unsigned", setting{token: descr, length: length, start: start, unsigned: "x-cuobj-rdma-descr"}, 403},
		{"length unsigned", setting{token: descr, length: length, start: start, unsigned: "x-cuobj-content-length"}, 403},
		{"start unsigned", setting{token: descr, length: length, start: start, unsigned: "x-cuobj-remote-buf-start"}, 403},
		{"info unsigned", setting{info: descr, unsigned: "x-rdma-info"}, 403},
	} {
		for _, o := range []op{get, put} {
			tr, r := send(o, c.s)
			if r.status != c.status || (r.reply() != "") != (c.status == 200) {
				t.Errorf("%s: status %d, reply %q: %s", c.name, r.status, r.reply(), r.body)
			}
			if _, changed := tr.changed(); changed != (c.status == 200) {
				t.Errorf("%s: changed %v", c.name, changed)
			}
		}
	}
	tr, r := send(put, setting{token: descr, length: "1000", start: strconv.Itoa(memoryBase + 164)})
	if r.status != 200 || !bytes.Equal(b.read(tr.key), tr.filling[164:1164]) {
		t.Errorf("a part of the window: status %d, or other bytes", r.status)
	}
}

// TestUnsignedRequestsAreRefused: elbencho's test client signs nothing, and finds out cleanly.
func TestUnsignedRequestsAreRefused(t *testing.T) {
	b := newBench(t)
	for _, o := range []op{get, put} {
		tr := b.prepare(&scenario{name: "unsigned", op: o, size: objectBytes})
		r := tr.exchange(&client{request: elbenchoPlain})
		if r.status != 403 || r.reply() != "" {
			t.Errorf("status %d, reply %q", r.status, r.reply())
		}
		if _, changed := tr.changed(); changed {
			t.Error("something moved")
		}
	}
}

// TestAnnouncedBodyIsNotAwaited: a client that announces a body and sends none is answered at once, a GET as a PUT, and
// nothing moves.
func TestAnnouncedBodyIsNotAwaited(t *testing.T) {
	b := newBench(t)
	announced := func(fields ...field) *client {
		return &client{request: func(a *ask) *raw {
			r := a.start()
			r.add("Host", a.host)
			r.fields = append(r.fields, fields...)
			for _, f := range []field{{"x-amz-rdma-token", a.token}, {"x-amz-date", a.stamp()},
				{"x-amz-content-sha256", unsigned}} {
				r.add(f.name, f.value)
			}
			return a.finish(r, unsigned, []string{"transfer-encoding"})
		}}
	}
	length := field{"Content-Length", strconv.Itoa(objectBytes)}
	for name, c := range map[string]*client{
		"length": announced(length), "chunks": announced(field{"Transfer-Encoding", "chunked"}),
		"more than is thrown away": announced(field{"Content-Length", "10000000"}),
	} {
		for _, o := range []op{get, put} {
			for status, s := range map[int]scenario{400: {}, 403: {forged: true}} {
				s.name, s.op, s.size = "announced", o, objectBytes
				tr := b.prepare(&s)
				began := time.Now()
				r := tr.exchange(c)
				if took := time.Since(began); r.status != status || r.reply() != "" || took > 2*time.Second {
					t.Errorf("%s: status %d, reply %q after %v, want %d", name, r.status, r.reply(), took, status)
				}
				if _, changed := tr.changed(); changed {
					t.Errorf("%s: something moved", name)
				}
			}
		}
	}
}

// TestBodyWithATokenIsAnswered: a client that first sends its whole body and then reads finds the answer, however
// slowly it sends. Oracle: a connection that takes every byte, and the status that comes back on it.
func TestBodyWithATokenIsAnswered(t *testing.T) {
	b := newBench(t)
	const pause = 150 * time.Millisecond
	for _, c := range []struct {
		bytes, times int
		pause        time.Duration
	}{{100_000, 1, 0}, {32 << 20, 1, 0}, {30_000, 3, pause}, {2 << 20, 3, pause}} {
		for _, o := range []op{get, put} {
			s := scenario{name: "sent", op: o, size: objectBytes}
			tr := b.prepare(&s)
			r := tr.start()
			r.add("Host", tr.host)
			for _, f := range []field{{"x-amz-rdma-token", tr.token}, {"x-amz-date", tr.stamp()},
				{"x-amz-content-sha256", unsigned}} {
				r.add(f.name, f.value)
			}
			tr.finish(r, unsigned, nil, field{"Content-Length", strconv.Itoa(c.bytes * c.times)})
			conn, err := net.Dial("tcp", b.host)
			if err != nil {
				t.Fatal(err)
			}
			if err := conn.SetDeadline(time.Now().Add(ioWait)); err != nil {
				t.Fatal(err)
			}
			_, err = conn.Write(r.bytes())
			for range c.times {
				<-time.After(c.pause)
				if err == nil {
					_, err = conn.Write(random(c.bytes))
				}
			}
			if err != nil {
				t.Errorf("%d bytes %d times: sent: %v", c.bytes, c.times, err)
			}
			resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: r.method})
			if err != nil {
				t.Errorf("%d bytes %d times: %v", c.bytes, c.times, err)
			} else if resp.StatusCode != 400 || !resp.Close {
				t.Errorf("%d bytes %d times: status %d, connection ends: %v", c.bytes, c.times, resp.StatusCode, resp.Close)
			}
			_ = conn.Close()
			if _, changed := tr.changed(); changed {
				t.Errorf("%d bytes %d times: something moved", c.bytes, c.times)
			}
		}
	}
}

// TestOwnClientAndSpecDeclines: our own client takes a decline by the specification for one, over HTTP where it may and
// as an error where not.
func TestOwnClientAndSpecDeclines(t *testing.T) {
	b := newBench(t, func(c *config.Config) { c.RDMA.TCP, c.RDMA.Decline = true, config.DeclineSpec })
	object := random(objectBytes)
	b.put("get", object)
	for _, may := range []bool{true, false} {
		c, err := own.New(own.Config{Endpoint: b.node.Endpoint, Credentials: b.node.Credentials, Fabric: own.TCP,
			AllowHTTPFallback: may, MaxAttempts: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		r, err := c.Alloc(objectBytes)
		if err != nil {
			t.Fatal(err)
		}
		w := own.Window{Region: r, Bytes: objectBytes}
		if res, err := c.GetInto(t.Context(), w, bucket, "get", own.GetOptions{}); err != nil || res.Path != own.PathTCP {
			t.Fatalf("before: path %q, %v", res.Path, err)
		}
		clear(r.Bytes())
		release := b.hold()
		got, getErr := c.GetInto(t.Context(), w, bucket, "get", own.GetOptions{})
		filled := bytes.Equal(r.Bytes(), object)
		put, putErr := c.PutFrom(t.Context(), w, bucket, "put", own.PutOptions{})
		release()
		if !may {
			if !errors.Is(getErr, own.ErrDeclined) || !errors.Is(putErr, own.ErrDeclined) {
				t.Errorf("without HTTP: %v, %v", getErr, putErr)
			}
			continue
		}
		for _, res := range []own.Result{got, put} {
			if res.Path != own.PathHTTP || res.Reason != own.ReasonArenaBusy || res.Bytes != objectBytes {
				t.Errorf("path %q, reason %q, %d bytes", res.Path, res.Reason, res.Bytes)
			}
		}
		if getErr != nil || putErr != nil || !filled || !bytes.Equal(b.read("put"), object) {
			t.Errorf("over HTTP: %v, %v, or other bytes", getErr, putErr)
		}
		b.drop("put")
	}
	if b.read("put") != nil {
		t.Error("a declined PUT stored something")
	}
	resp, err := http.Get(b.node.Metrics)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{`penstock_rdma_declines_total{op="GetObject",reason="arena-busy"} 2`,
		`penstock_rdma_declines_total{op="PutObject",reason="arena-busy"} 2`} {
		if !strings.Contains(string(text), line+"\n") {
			t.Errorf("metrics lack %s", line)
		}
	}
}
