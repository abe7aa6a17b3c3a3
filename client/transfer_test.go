package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func payload(seed uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed)})
	_, _ = r.Read(b)
	return b
}

func httpAllowed(c *Config) { c.AllowHTTPFallback = true }

func TestRoundTripByFabric(t *testing.T) {
	for _, fabric := range []string{PathSHM, PathTCP} {
		n := newFakeNode(t, fabric)
		c := n.client(nil)
		r := region(t, c, 4096)
		want := payload(1, 1000)
		copy(r.Bytes()[100:], want)
		put, err := c.PutFrom(t.Context(), r.Window(100, 1000), "b", "k", PutOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if put.Path != fabric || put.Bytes != 1000 || put.FabricBytes != 1000 || put.Reason != "" || !put.Verified {
			t.Errorf("put: %+v", put)
		}
		got, err := c.GetInto(t.Context(), r.Window(2000, 2000), "b", "k", GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got.Path != fabric || got.Bytes != 1000 || got.Object.Bytes != 1000 || got.Object.ETag != put.Object.ETag {
			t.Errorf("get: %+v", got)
		}
		if got.Verified != (fabric == PathTCP) {
			t.Errorf("verified by default: %v on %s", got.Verified, fabric)
		}
		if !bytes.Equal(r.Bytes()[2000:3000], want) || !allZero(r.Bytes()[3000:]) || !allZero(r.Bytes()[1100:2000]) {
			t.Error("window holds other bytes")
		}
		part, err := c.GetInto(t.Context(), r.Window(3500, 50), "b", "k",
			GetOptions{Range: &Range{Offset: 10, Bytes: 50}, Verify: VerifyOn})
		if err != nil || part.Bytes != 50 || !part.Verified || !bytes.Equal(r.Bytes()[3500:3550], want[10:60]) {
			t.Errorf("range: %+v %v", part, err)
		}
		if n.count("session") != 1 || n.count("announce") != 1 {
			t.Errorf("%d sessions, %d announcements for one region", n.count("session"), n.count("announce"))
		}
	}
}

func allZero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }

func TestRangeBeyondTheEndIsCut(t *testing.T) {
	n := newFakeNode(t, PathSHM)
	c := n.client(nil)
	r := region(t, c, 100)
	n.objects["/b/k"] = payload(1, 30)
	res, err := c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{Range: &Range{Offset: 20, Bytes: 50}})
	if err != nil || res.Bytes != 10 || !allZero(r.Bytes()[10:]) {
		t.Errorf("%+v %v", res, err)
	}
}

func TestObjectLargerThanWindow(t *testing.T) {
	for _, fabric := range []string{PathSHM, string(HTTP)} {
		n := newFakeNode(t, fabric)
		c := n.client(nil)
		r := region(t, c, 100)
		n.objects["/b/k"] = payload(1, 101)
		if _, err := c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{}); !errors.Is(err, ErrTooSmall) {
			t.Errorf("%s: %v", fabric, err)
		}
		if n.count("GET") != 1 {
			t.Errorf("%s: %d attempts", fabric, n.count("GET"))
		}
	}
}

func TestEmptyObject(t *testing.T) {
	n := newFakeNode(t, PathSHM)
	c := n.client(nil)
	r := region(t, c, 100)
	put, err := c.PutFrom(t.Context(), r.Window(0, 0), "b", "k", PutOptions{})
	if err != nil || put.Reason != ReasonEmpty {
		t.Fatal(put, err)
	}
	got, err := c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{})
	if err != nil || got.Bytes != 0 || got.Object.ETag != put.Object.ETag {
		t.Errorf("%+v %v", got, err)
	}
}

// A server that does not know tokens stores the empty body. With the checksum ignored as well there
// is no echo, so the PUT counts as declined; over HTTP the object becomes whole.
func TestRF_01_TokenIgnoredOnPut(t *testing.T) {
	n := newFakeNode(t, PathSHM)
	n.answer = func(n *fakeNode, w http.ResponseWriter, r *http.Request, win []byte) bool {
		if win == nil {
			return false
		}
		n.mu.Lock()
		n.objects[r.URL.Path] = nil
		n.mu.Unlock()
		w.Header().Set("ETag", `"d41d8cd98f00b204e9800998ecf8427e"`)
		return true
	}
	strict := n.client(nil)
	r := region(t, strict, 10)
	_, err := strict.PutFrom(t.Context(), r.All(), "b", "k", PutOptions{})
	var refused *DeclinedError
	if !errors.As(err, &refused) || refused.Reason != ReasonNoReply {
		t.Fatalf("strict: %v", err)
	}
	lax := n.client(httpAllowed)
	r2 := region(t, lax, 10)
	copy(r2.Bytes(), "0123456789")
	res, err := lax.PutFrom(t.Context(), r2.All(), "b", "k", PutOptions{})
	if err != nil || res.Path != PathHTTP || res.Reason != ReasonNoReply || res.FabricBytes != 0 {
		t.Fatalf("%+v %v", res, err)
	}
	if got := n.object("/b/k"); string(got) != "0123456789" {
		t.Errorf("stored %q", got)
	}
}

// RF-02, RF-04: no reply header on a GET is no success, whatever the status.
func TestRF_04_TokenIgnoredOnGet(t *testing.T) {
	n := newFakeNode(t, PathTCP)
	n.objects["/b/k"] = payload(3, 10)
	n.answer = func(n *fakeNode, w http.ResponseWriter, r *http.Request, win []byte) bool {
		if win != nil {
			n.get(w, r, nil) // the body carries the data, the window nothing
		}
		return win != nil
	}
	strict := n.client(nil)
	r := region(t, strict, 10)
	if _, err := strict.GetInto(t.Context(), r.All(), "b", "k", GetOptions{}); !errors.Is(err, ErrDeclined) {
		t.Fatalf("strict: %v", err)
	}
	lax := n.client(httpAllowed)
	r2 := region(t, lax, 10)
	res, err := lax.GetInto(t.Context(), r2.All(), "b", "k", GetOptions{})
	if err != nil || res.Path != PathHTTP || res.Reason != ReasonNoReply || !bytes.Equal(r2.Bytes(), payload(3, 10)) {
		t.Errorf("%+v %v", res, err)
	}
}

// RF-05, RF-15: a fabric that cannot be opened is not tried again on every request.
func TestRF_15_DeadFabricIsLeftAlone(t *testing.T) {
	n := newFakeNode(t, PathSHM)
	n.offerStatus = 500
	n.objects["/b/k"] = payload(1, 10)
	c := n.client(httpAllowed)
	r := region(t, c, 10)
	for range 20 {
		res, err := c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{})
		if err != nil || res.Path != PathHTTP || res.Reason != ReasonNoSession {
			t.Fatalf("%+v %v", res, err)
		}
	}
	if n.count("session") != 1 {
		t.Errorf("%d attempts to open a session for 20 requests", n.count("session"))
	}
}

// RF-08: 403, 404 and 412 are answers, not declines: never a second request over HTTP.
func TestRF_08_ErrorsAreNotDeclines(t *testing.T) {
	for status, sentinel := range map[int]error{403: ErrAccessDenied, 404: ErrNotFound, 412: ErrPrecondition} {
		n := newFakeNode(t, PathSHM)
		n.answer = func(_ *fakeNode, w http.ResponseWriter, _ *http.Request, _ []byte) bool {
			writeError(w, status, "SomeCode")
			return true
		}
		c := n.client(httpAllowed)
		r := region(t, c, 10)
		_, err := c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{})
		var s3err *Error
		if !errors.Is(err, sentinel) || !errors.As(err, &s3err) ||
			s3err.Code != "SomeCode" || s3err.RequestID != "REQ1" {
			t.Errorf("get %d: %v", status, err)
		}
		if _, err := c.PutFrom(t.Context(), r.All(), "b", "k", PutOptions{}); !errors.Is(err, sentinel) {
			t.Errorf("put %d: %v", status, err)
		}
		if n.count("GET") != 1 || n.count("PUT") != 1 {
			t.Errorf("%d: %d GETs, %d PUTs", status, n.count("GET"), n.count("PUT"))
		}
	}
}

// A refusal of the control plane shows through when HTTP is not allowed.
func TestRF_08_ControlPlaneRefusalIsNamed(t *testing.T) {
	n := newFakeNode(t, PathSHM)
	n.offerStatus = 403
	c := n.client(nil)
	r := region(t, c, 10)
	_, err := c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{})
	if !errors.Is(err, ErrDeclined) || !errors.Is(err, ErrAccessDenied) {
		t.Errorf("%v", err)
	}
}

// RF-11, RF-12: windows above the 32-bit size of tokens are cut, never truncated.
func TestRF_12_PlanParts(t *testing.T) {
	for _, tt := range []struct{ total, wanted, part int64 }{
		{1 << 30, 64 << 20, 64 << 20},
		{1 << 30, 1, MinPartBytes},
		{1 << 40, 5 << 20, (1<<40 + MaxParts - 1) / MaxParts},
		{10 << 40, 1 << 40, 1<<32 - 1},
	} {
		part, err := planParts(tt.total, tt.wanted)
		if err != nil || part != tt.part || (tt.total+part-1)/part > MaxParts {
			t.Errorf("%d by %d: %d, %v", tt.total, tt.wanted, part, err)
		}
	}
	if _, err := planParts(MaxParts*(1<<32), 1); !errors.Is(err, ErrWindow) {
		t.Errorf("too large: %v", err)
	}
}

// RF-13: every part goes by the fabric with its own checksum, and Complete carries the whole one
// (which the fake compares with the bytes).
func TestRF_13_MultipartByFabric(t *testing.T) {
	n := newFakeNode(t, PathSHM)
	c := n.client(func(c *Config) { c.PartBytes, c.MultipartBytes = MinPartBytes, MinPartBytes })
	const size = 3*MinPartBytes + 12345
	r := region(t, c, size)
	want := payload(9, size)
	copy(r.Bytes(), want)
	res, err := c.PutFrom(t.Context(), r.All(), "b", "big", PutOptions{Metadata: map[string]string{"a": "1"}})
	if err != nil {
		t.Fatal(err)
	}
	if res.Path != PathSHM || res.Parts != 4 || res.FabricBytes != size || !bytes.Equal(n.object("/b/big"), want) {
		t.Errorf("%+v", res)
	}
	if n.headers["/b/big"].Get("X-Amz-Meta-A") != "1" {
		t.Error("metadata not on create")
	}
	clear(r.Bytes())
	got, err := c.GetInto(t.Context(), r.All(), "b", "big", GetOptions{})
	if err != nil || got.Parts != 4 || got.Path != PathSHM || !bytes.Equal(r.Bytes(), want) {
		t.Errorf("%+v %v", got, err)
	}
}

func TestMultipartIsAbortedAfterAnError(t *testing.T) {
	n := newFakeNode(t, PathSHM)
	n.answer = func(_ *fakeNode, w http.ResponseWriter, r *http.Request, _ []byte) bool {
		if r.URL.Query().Get("partNumber") != "2" {
			return false
		}
		writeError(w, 403, "AccessDenied")
		return true
	}
	c := n.client(func(c *Config) { c.PartBytes, c.MultipartBytes = MinPartBytes, MinPartBytes })
	r := region(t, c, 3*MinPartBytes)
	if _, err := c.PutFrom(t.Context(), r.All(), "b", "k", PutOptions{}); !errors.Is(err, ErrAccessDenied) {
		t.Fatal(err)
	}
	if n.count("abort") != 1 || n.count("complete") != 0 {
		t.Errorf("%d aborts, %d completes", n.count("abort"), n.count("complete"))
	}
}

// RF-23: options of a PUT are carried on its control request.
func TestRF_23_OptionsAreCarried(t *testing.T) {
	n := newFakeNode(t, PathTCP)
	c := n.client(nil)
	r := region(t, c, 10)
	_, err := c.PutFrom(t.Context(), r.All(), "b", "k", PutOptions{
		ContentType: "text/plain", CacheControl: "no-cache", Metadata: map[string]string{"colour": "blue"},
		Conditions: Conditions{IfNoneMatch: "*"},
	})
	if err != nil {
		t.Fatal(err)
	}
	h := n.headers["/b/k"]
	for name, want := range map[string]string{
		"Content-Type": "text/plain", "Cache-Control": "no-cache", "X-Amz-Meta-Colour": "blue", "If-None-Match": "*",
		"X-Amz-Content-Sha256": "UNSIGNED-PAYLOAD", "Content-Length": "0",
	} {
		if h.Get(name) != want {
			t.Errorf("%s is %q, want %q", name, h.Get(name), want)
		}
	}
}

// RF-32: HEAD never carries a token (the fake fails the test if it does) and reports the length.
func TestRF_32_HeadWithoutToken(t *testing.T) {
	n := newFakeNode(t, PathSHM)
	n.objects["/b/k"] = payload(1, 77)
	c := n.client(nil)
	info, err := c.Head(t.Context(), "b", "k")
	if err != nil || info.Bytes != 77 {
		t.Errorf("%+v %v", info, err)
	}
}

// holdUntilGone answers token requests only after the client has given up.
func holdUntilGone(n *fakeNode, _ http.ResponseWriter, r *http.Request, win []byte) bool {
	if win == nil {
		return false
	}
	<-r.Context().Done()
	return true
}

// RF-35, RF-36: a request that ends without an answer is fenced before its call returns.
func TestRF_35_NoAnswerIsFenced(t *testing.T) {
	n := newFakeNode(t, PathSHM)
	n.answer = holdUntilGone
	n.objects["/b/k"] = payload(1, 10)
	c := n.client(nil)
	r := region(t, c, 10)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for n.count("token") == 0 { // wait until the request has arrived
			<-time.After(time.Millisecond)
		}
		cancel()
	}()
	_, err := c.GetInto(ctx, r.All(), "b", "k", GetOptions{})
	if !errors.Is(err, ErrNoAnswer) || !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if n.count("fence") != 1 {
		t.Fatalf("%d fences", n.count("fence"))
	}
	if r.Abandoned() {
		t.Error("abandoned although the fence was acknowledged")
	}
	// The session is opened again by itself.
	n.behave(nil)
	res, err := c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{})
	if err != nil || res.Path != PathSHM || n.count("session") != 2 || n.count("announce") != 2 {
		t.Errorf("%+v %v: %d sessions", res, err, n.count("session"))
	}
}

// RF-42, RF-45: without an acknowledged fence the memory is never used again.
func TestRF_42_UnacknowledgedFenceAbandonsTheRegion(t *testing.T) {
	n := newFakeNode(t, PathSHM)
	n.fenceErr = errNotAcknowledged
	n.answer = holdUntilGone
	c := n.client(func(c *Config) { c.AllowHTTPFallback, c.MaxAttempts = true, 4 })
	r, other := region(t, c, 10), region(t, c, 10)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := c.PutFrom(ctx, r.All(), "b", "k", PutOptions{})
	if !errors.Is(err, ErrRegionAbandoned) || !errors.Is(err, ErrNoAnswer) {
		t.Fatal(err)
	}
	if n.count("PUT") != 1 {
		t.Errorf("%d attempts", n.count("PUT"))
	}
	n.behave(nil)
	if _, err := c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{}); !errors.Is(err, ErrRegionAbandoned) {
		t.Errorf("abandoned region: %v", err)
	}
	// A region without an unanswered request goes on, in a new session.
	if _, err := c.PutFrom(t.Context(), other.All(), "b", "k", PutOptions{}); err != nil {
		t.Errorf("other region: %v", err)
	}
}

// A lie about the end of the transfer makes the whole answer untrustworthy: the session is fenced and
// there is no fallback that would hide it.
func TestRF_43_BrokenAnswersFence(t *testing.T) {
	for name, lie := range map[string]func(http.Header){
		"count":    func(h http.Header) { h.Set(headerBytes, "9") },
		"no count": func(h http.Header) { h.Del(headerBytes) },
		"RF-09":    func(h http.Header) { h.Set(headerReply, "200xyz") },
	} {
		n := newFakeNode(t, PathSHM)
		n.objects["/b/k"] = payload(1, 10)
		n.answer = func(n *fakeNode, w http.ResponseWriter, r *http.Request, win []byte) bool {
			h := w.Header()
			h.Set("Content-Range", "bytes 0-9/10")
			h.Set(headerReply, "206")
			h.Set(headerBytes, "10")
			lie(h)
			w.WriteHeader(206)
			return true
		}
		c := n.client(httpAllowed)
		r := region(t, c, 10)
		if _, err := c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{}); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
		if n.count("GET") != 1 || n.count("fence") != 1 {
			t.Errorf("%s: %d requests, %d fences", name, n.count("GET"), n.count("fence"))
		}
	}
}

// An answer whose Content-Range is not what was asked for cannot be judged by its own numbers.
func TestContentRangeMustAnswerTheRequest(t *testing.T) {
	for _, cr := range []string{"bytes 1-10/11", "bytes 0-8/10", "bytes 0-9/*", "", "bytes 0-9"} {
		n := newFakeNode(t, PathSHM)
		n.answer = func(_ *fakeNode, w http.ResponseWriter, _ *http.Request, _ []byte) bool {
			w.Header().Set("Content-Range", cr)
			w.Header().Set(headerReply, "206")
			w.Header().Set(headerBytes, "10")
			w.WriteHeader(206)
			return true
		}
		c := n.client(nil)
		r := region(t, c, 10)
		if _, err := c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{}); !errors.Is(err, ErrProtocol) {
			t.Errorf("%q: %v", cr, err)
		}
	}
}

// The moved bytes are compared with the server's checksum; a mismatch is tried again.
func TestChecksumMismatchIsRetried(t *testing.T) {
	n := newFakeNode(t, PathTCP)
	n.objects["/b/k"] = payload(1, 10)
	var first atomic.Bool
	n.answer = func(n *fakeNode, w http.ResponseWriter, r *http.Request, win []byte) bool {
		if first.Swap(true) {
			return false
		}
		n.get(w, r, win)
		win[3] ^= 1
		return true
	}
	c := n.client(nil)
	r := region(t, c, 10)
	res, err := c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{})
	if err != nil || !res.Verified || n.count("GET") != 2 || !bytes.Equal(r.Bytes(), payload(1, 10)) {
		t.Errorf("%+v %v after %d", res, err, n.count("GET"))
	}
}

// RF-39: each attempt has its own token, and parts are held to one version by If-Match.
func TestRF_39_FreshTokensAndOneVersion(t *testing.T) {
	n := newFakeNode(t, PathSHM)
	n.objects["/b/k"] = payload(1, 2*MinPartBytes)
	var gets atomic.Int64
	n.answer = func(n *fakeNode, w http.ResponseWriter, r *http.Request, _ []byte) bool {
		if r.Method != http.MethodGet || gets.Add(1) > 3 {
			return false
		}
		writeError(w, 503, "SlowDown")
		return true
	}
	c := n.client(func(c *Config) { c.MaxAttempts, c.PartBytes, c.Concurrency = 6, MinPartBytes, 1 })
	r := region(t, c, 2*MinPartBytes)
	if _, err := c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{}); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, token := range n.tokens {
		if seen[token] {
			t.Errorf("token %s was sent twice", token)
		}
		seen[token] = true
	}
	if len(n.tokens) != 5 {
		t.Errorf("%d tokens", len(n.tokens))
	}
	// The object changes between HEAD and the ranges.
	n.behave(func(n *fakeNode, w http.ResponseWriter, r *http.Request, _ []byte) bool {
		if r.Method == http.MethodGet {
			n.mu.Lock()
			n.objects["/b/k"] = payload(2, 2*MinPartBytes)
			n.mu.Unlock()
		}
		return false
	})
	if _, err := c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{}); !errors.Is(err, ErrPrecondition) {
		t.Errorf("changed object: %v", err)
	}
}

// A conditional PUT that may have been done is not repeated: its own success would refuse it.
func TestConditionalPutIsNotRepeated(t *testing.T) {
	n := newFakeNode(t, PathSHM)
	n.answer = func(_ *fakeNode, w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		writeError(w, 500, "InternalError")
		return true
	}
	c := n.client(func(c *Config) { c.MaxAttempts = 4 })
	r := region(t, c, 10)
	for _, cond := range []Conditions{{IfNoneMatch: "*"}, {}} {
		before := n.count("PUT")
		if _, err := c.PutFrom(t.Context(), r.All(), "b", "k", PutOptions{Conditions: cond}); err == nil {
			t.Fatal("no error")
		}
		want := 4
		if cond.IfNoneMatch != "" {
			want = 1
		}
		if got := n.count("PUT") - before; got != want {
			t.Errorf("condition %q: %d attempts, want %d", cond.IfNoneMatch, got, want)
		}
	}
}

// A decline with no-session ends the session; the next attempt opens another.
func TestRevokedSessionIsReplaced(t *testing.T) {
	n := newFakeNode(t, PathTCP)
	n.objects["/b/k"] = payload(1, 10)
	var first atomic.Bool
	n.answer = func(_ *fakeNode, w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		if first.Swap(true) {
			return false
		}
		w.Header().Set(headerReply, "501")
		w.Header().Set(headerReason, ReasonNoSession)
		writeError(w, 501, "NotImplemented")
		return true
	}
	c := n.client(nil)
	r := region(t, c, 10)
	res, err := c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{})
	if err != nil || res.Path != PathTCP || n.count("session") != 2 {
		t.Errorf("%+v %v, %d sessions", res, err, n.count("session"))
	}
}

// A region that the node refuses is a reason, not an error, where HTTP is allowed.
func TestRefusedRegion(t *testing.T) {
	n := newFakeNode(t, PathSHM)
	n.announceErr = errors.New("sparse")
	n.objects["/b/k"] = payload(1, 10)
	c := n.client(httpAllowed)
	r := region(t, c, 10)
	res, err := c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{})
	if err != nil || res.Path != PathHTTP || res.Reason != ReasonRegion {
		t.Errorf("%+v %v", res, err)
	}
}

// RF-18, RF-19: many calls at once over one session, a fence in the middle of them.
func TestRF_18_ConcurrentCallsAndFences(t *testing.T) {
	n := newFakeNode(t, PathSHM)
	const objects, size = 32, 1 << 12
	for i := range objects {
		n.objects["/b/"+strconv.Itoa(i)] = payload(uint64(i), size)
	}
	var requests atomic.Int64
	n.answer = func(n *fakeNode, w http.ResponseWriter, r *http.Request, win []byte) bool {
		if win == nil || requests.Add(1)%40 != 0 {
			return false
		}
		panic(http.ErrAbortHandler) // the connection ends without an answer
	}
	c := n.client(func(c *Config) { c.MaxAttempts = 8 })
	r := region(t, c, objects*size)
	for range 10 {
		var reqs []GetRequest
		for i := range objects {
			reqs = append(reqs, GetRequest{Window: r.Window(int64(i*size), size), Bucket: "b", Key: strconv.Itoa(i)})
		}
		clear(r.Bytes())
		for i, o := range c.GetMany(t.Context(), reqs, 8) {
			if o.Err != nil || !bytes.Equal(r.Bytes()[i*size:(i+1)*size], payload(uint64(i), size)) {
				t.Fatalf("%d: %+v %v", i, o.Result, o.Err)
			}
		}
	}
	if n.count("fence") == 0 {
		t.Error("no fence happened")
	}
}

func TestGetManyStopsWithItsContext(t *testing.T) {
	n := newFakeNode(t, PathSHM)
	c := n.client(nil)
	r := region(t, c, 10)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, o := range c.GetMany(ctx, []GetRequest{{Window: r.All(), Bucket: "b", Key: "k"}, {}}, 0) {
		if !errors.Is(o.Err, context.Canceled) {
			t.Errorf("%v", o.Err)
		}
	}
	if n.count("GET") != 0 {
		t.Errorf("%d requests", n.count("GET"))
	}
}

// RF-50: no token and no secret in errors or logs.
func TestRF_50_NothingSecretIsPrinted(t *testing.T) {
	n := newFakeNode(t, PathSHM)
	n.answer = func(n *fakeNode, w http.ResponseWriter, r *http.Request, win []byte) bool {
		panic(http.ErrAbortHandler)
	}
	var mu sync.Mutex
	var log bytes.Buffer
	c := n.client(func(c *Config) {
		c.Logger = slog.New(slog.NewTextHandler(lockedWriter{&mu, &log}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	r := region(t, c, 10)
	_, err := c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{})
	mu.Lock()
	text := fmt.Sprintf("%v %+v %#v %v", err, err, c.cfg.Credentials, c.cfg) + log.String()
	mu.Unlock()
	if strings.Contains(text, "ps1:fake") || strings.Contains(text, "SK") {
		t.Errorf("secret in %s", text)
	}
}

type lockedWriter struct {
	mu *sync.Mutex
	w  *bytes.Buffer
}

func (l lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

func TestWindowBounds(t *testing.T) {
	n := newFakeNode(t, PathSHM)
	c := n.client(nil)
	r := region(t, c, 100)
	for _, w := range []Window{
		{}, r.Window(-1, 5), r.Window(0, 101), r.Window(100, 1), r.Window(50, -1), r.Window(1<<62, 1<<62),
		r.Window(0, 0),
	} {
		if _, err := c.GetInto(t.Context(), w, "b", "k", GetOptions{}); !errors.Is(err, ErrWindow) {
			t.Errorf("%d+%d: %v", w.Offset, w.Bytes, err)
		}
	}
	if _, err := c.GetInto(t.Context(), r.Window(0, 10), "b", "k",
		GetOptions{Range: &Range{Offset: 0, Bytes: 11}}); !errors.Is(err, ErrWindow) {
		t.Errorf("range longer than window: %v", err)
	}
}

func TestClosedRegionAndClient(t *testing.T) {
	n := newFakeNode(t, PathSHM)
	c := n.client(nil)
	r := region(t, c, 10)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.GetInto(t.Context(), Window{r, 0, 10}, "b", "k", GetOptions{}); !errors.Is(err, ErrClosed) {
		t.Errorf("closed region: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Head(t.Context(), "b", "k"); !errors.Is(err, ErrClosed) {
		t.Errorf("closed client: %v", err)
	}
}

// Retry-After is honoured: the second attempt comes no earlier.
func TestRetryAfter(t *testing.T) {
	n := newFakeNode(t, string(HTTP))
	n.objects["/b/k"] = payload(1, 10)
	var first atomic.Bool
	n.answer = func(_ *fakeNode, w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		if first.Swap(true) {
			return false
		}
		w.Header().Set("Retry-After", "1")
		writeError(w, 503, "SlowDown")
		return true
	}
	c := n.client(nil)
	r := region(t, c, 10)
	start := time.Now()
	res, err := c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{})
	if err != nil || res.Reason != ReasonConfigured || !res.Verified {
		t.Fatalf("%+v %v", res, err)
	}
	if d := time.Since(start); d < time.Second {
		t.Errorf("tried again after %v", d)
	}
}

// The HTTP path never trusts a body of the wrong length or with other bytes.
func TestHTTPBodiesAreChecked(t *testing.T) {
	n := newFakeNode(t, string(HTTP))
	n.objects["/b/k"] = payload(1, 10)
	n.answer = func(n *fakeNode, w http.ResponseWriter, r *http.Request, _ []byte) bool {
		w.Header().Set(headerCRC, testCRC)
		w.Header().Set("ETag", `"x"`)
		_, _ = w.Write(n.object("/b/k"))
		return true
	}
	c := n.client(nil)
	r := region(t, c, 10)
	if _, err := c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{}); !errors.Is(err, ErrChecksum) {
		t.Errorf("wrong bytes: %v", err)
	}
	n.behave(func(n *fakeNode, w http.ResponseWriter, r *http.Request, _ []byte) bool {
		w.Header().Set("Content-Range", "bytes 0-4/10")
		w.WriteHeader(206)
		_, _ = w.Write([]byte("1234"))
		return true
	})
	_, err := c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{Range: &Range{Offset: 0, Bytes: 5}})
	if !errors.Is(err, ErrProtocol) {
		t.Errorf("wrong length: %v", err)
	}
}
