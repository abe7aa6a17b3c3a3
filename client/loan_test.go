package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"testing"
)

// A loan is settled by the judges of the wire: each answer, what becomes of the window, and whether the
// session was fenced for it.
func TestLoanIsSettledByTheAnswer(t *testing.T) {
	h := func(pairs ...string) http.Header {
		h := http.Header{}
		for i := 0; i < len(pairs); i += 2 {
			h.Set(pairs[i], pairs[i+1])
		}
		return h
	}
	for name, c := range map[string]struct {
		method string
		status int
		header http.Header
		body   string
		want   Settlement
		err    error
	}{
		"get": {http.MethodGet, 200, h(headerReply, "200", headerBytes, "7"), "", Settlement{Moved: true, Bytes: 7}, nil},
		"range": {http.MethodGet, 206, h(headerReply, "206", headerBytes, "7", "Content-Range", "bytes 3-9/100"), "",
			Settlement{Moved: true, Bytes: 7}, nil},
		"empty": {http.MethodGet, 200, h(headerReply, "200", headerBytes, "0"), "", Settlement{Moved: true}, nil},
		"range of another length": {http.MethodGet, 206,
			h(headerReply, "206", headerBytes, "7", "Content-Range", "bytes 3-10/100"), "", Settlement{}, ErrProtocol},
		"range without its place": {http.MethodGet, 206, h(headerReply, "206", headerBytes, "7"), "",
			Settlement{}, ErrProtocol},
		"more than the window": {http.MethodGet, 200, h(headerReply, "200", headerBytes, "11"), "",
			Settlement{}, ErrProtocol},
		"no count": {http.MethodGet, 200, h(headerReply, "200"), "", Settlement{}, ErrProtocol},
		"too large": {http.MethodGet, 501, h(headerReply, "501", headerReason, "too-large", headerNeed, "99"), "",
			Settlement{Reason: "too-large", Need: 99}, nil},
		"no reply": {http.MethodGet, 200, h(), "payload", Settlement{Reason: ReasonNoReply}, nil},
		"error":    {http.MethodGet, 404, h(), "<Error><Code>NoSuchKey</Code></Error>", Settlement{}, nil},
		"replayed": {http.MethodPut, 403, h(), "<Error><Code>RDMATokenReplayed</Code></Error>", Settlement{}, ErrNoAnswer},
		"put": {http.MethodPut, 200, h(headerReply, "200", headerBytes, "10"), "",
			Settlement{Moved: true, Bytes: 10}, nil},
		"put of less": {http.MethodPut, 200, h(headerReply, "200", headerBytes, "9"), "",
			Settlement{}, ErrProtocol},
		// The checksum that this request declared is no CRC64NVME, so its absence on both sides proves nothing.
		"put without reply": {http.MethodPut, 200, h("Etag", `"x"`), "", Settlement{Reason: ReasonNoReply}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			n := newFakeNode(t, PathSHM)
			cl := n.client(nil)
			r := region(t, cl, 10)
			l, err := cl.Lend(t.Context(), r.All(), c.method)
			if err != nil {
				t.Fatal(err)
			}
			sent := http.Header{}
			l.SetHeader(sent)
			if sent.Get(headerToken) == "" || sent.Get(headerDeadlineMS) == "" {
				t.Errorf("headers %d", len(sent))
			}
			l.sent.Store(true)
			got, err := l.Settle(&http.Response{
				StatusCode: c.status, Header: c.header, Body: io.NopCloser(strings.NewReader(c.body)),
				ContentLength: int64(len(c.body)),
			}, nil)
			if got != c.want || !errors.Is(err, c.err) {
				t.Errorf("%+v %v, want %+v %v", got, err, c.want, c.err)
			}
			if fences := n.count("fence"); (fences != 0) != (c.err != nil) {
				t.Errorf("%d fences", fences)
			}
			if err := r.Close(); err != nil { // waits for windows in use: none is left
				t.Error(err)
			}
		})
	}
}

// A request that was never sent costs nothing; one that may have been is fenced, which is every one that
// was handed to a transport that does not say what it did with it.
func TestLoanWithoutAnAnswer(t *testing.T) {
	cause := errors.New("connection lost")
	for name, c := range map[string]struct {
		send  func(context.Context)
		fence bool
	}{
		"not handed out":   {nil, false},
		"no connection":    {func(ctx context.Context) { httptrace.ContextClientTrace(ctx).GetConn("host:80") }, false},
		"silent transport": {func(context.Context) {}, true},
		"connection": {func(ctx context.Context) {
			httptrace.ContextClientTrace(ctx).GetConn("host:80")
			httptrace.ContextClientTrace(ctx).GotConn(httptrace.GotConnInfo{})
		}, true},
	} {
		n := newFakeNode(t, PathSHM)
		cl := n.client(nil)
		r := region(t, cl, 10)
		l, err := cl.Lend(t.Context(), r.All(), http.MethodPut)
		if err != nil {
			t.Fatal(err)
		}
		if c.send != nil {
			ctx, cancel := l.Context(t.Context())
			c.send(ctx)
			cancel()
		}
		_, err = l.Settle(nil, cause)
		if !errors.Is(err, cause) || errors.Is(err, ErrNoAnswer) != c.fence || (n.count("fence") != 0) != c.fence {
			t.Errorf("%s: %v, %d fences", name, err, n.count("fence"))
		}
	}
}
