package gateway

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/iam"
	"github.com/penstock-store/penstock/internal/s3"
	"github.com/penstock-store/penstock/internal/sink"
	"github.com/penstock-store/penstock/internal/store"
	"github.com/penstock-store/penstock/internal/token"
)

// Forms of the headers, as docs/wire.md has them.
var (
	psnForm    = regexp.MustCompile(`^[0-9a-fA-F]{1,8}$`)
	cookieForm = regexp.MustCompile(`^[0-9a-fA-F]{8}$`)
	numberForm = regexp.MustCompile(`^(0|[1-9][0-9]*)$`)
	tokenForm  = regexp.MustCompile(`^01[0-9a-fA-F]{86}(:[0-9a-fA-F]{1,16}:[0-9a-fA-F]{1,16})?$`)
	queryForm  = regexp.MustCompile(`^[^?]*\?[^?]*$`)
)

// TestMessageErrors: every error that a message can meet has a status of docs/wire.md's table; a 501 says which
// protocol it is about, and what clients try again is a 503.
func TestMessageErrors(t *testing.T) {
	special := map[error]int{fabric.ErrNoSession: 409, fabric.ErrNotGranted: 403, fabric.ErrTooLarge: 413,
		fabric.ErrNoFabric: 501, fabric.ErrNotSupported: 501, fabric.ErrUnsupportedToken: 501, fabric.ErrLimit: 503,
		fabric.ErrOverdue: 408, fabric.ErrTransfer: 500, fabric.ErrFenced: 500, fabric.ErrRevoked: 500,
		store.ErrNoSuchKey: 404, store.ErrNoSuchBucket: 404, store.ErrNoSuchUpload: 404, store.ErrPrecondition: 412,
		store.ErrNotModified: 304, store.ErrRange: 400, arena.ErrBusy: 503, token.ErrInvalid: 400, iam.ErrNoSuchKey: 403}
	documented := []int{304, 400, 403, 404, 408, 409, 412, 413, 416, 500, 501, 503}
	for _, m := range mappings {
		err := messageError(fmt.Errorf("message: %w", m.err))
		status, marker := 0, ""
		var d *declined
		if errors.As(err, &d) {
			status, marker = http.StatusNotImplemented, d.status
		} else {
			e := answerOf(err)
			status, marker = e.Status, e.Header[headerProtocolStatus]
		}
		if want := special[m.err]; want != 0 && status != want || !slices.Contains(documented, status) {
			t.Errorf("%s is answered %d, want %d", m.name, status, want)
		}
		if (status == http.StatusNotImplemented) != (marker == "unsupported") {
			t.Errorf("%s is answered %d, protocol status %q", m.name, status, marker)
		}
	}
	// What a transfer makes of an error on its way is not hidden.
	for cause, want := range map[error]int{errDeadline: 408, fabric.ErrOverdue: 408, context.DeadlineExceeded: 408,
		fabric.ErrTransfer: 500, errPeerGone: 500, sink.ErrShort: 500, store.ErrNoSpace: 503,
		&declined{reason: reasonArenaBusy}: 503} {
		if e := answerOf(messageError(transferError(cause))); e.Status != want {
			t.Errorf("%v is answered %d, want %d", cause, e.Status, want)
		}
	}
}

// FuzzHipObjPrepare: what the parser takes has the form of docs/wire.md, by regular expressions and net/url, and means
// what it says; every error is one that is answered with a status below 500, or 501. No error repeats a value.
func FuzzHipObjPrepare(f *testing.F) {
	peer := "0101000200" + strings.Repeat("0", 20) + "ffff7f000001" + strings.Repeat("0", 40) + "010000"
	for _, s := range [][7]string{
		{peer, "000001", "1a2b3c4d", "GET", "/bucket/key", "64", ""},
		{peer, "ffffff", "00000001", "GET", "/bucket/a%20b/../c", "2147483647", "9223372036854775807"},
		{peer + ":0:0", "1", "ffffffff", "PUT", "/bucket/key?partNumber=1&uploadId=0a", "1", ""},
		{peer, "0", "00000000", "POST", "/bucket/key?versionId=null", "2147483648", "18446744073709551616"},
		{peer[:86], "-1", "+a2b3c4d", "put", "bucket/%", "007", "-0"},
		{"00" + peer[2:], "1000000", "zzzzzzzz", "GET", "//", "", "x"},
	} {
		f.Add(s[0], s[1], s[2], s[3], s[4], s[5], s[6])
	}
	f.Fuzz(func(t *testing.T, tok, psn, cookie, op, target, size, offset string) {
		h := http.Header{headerToken: {tok}, headerPSN: {psn}, headerCookie: {cookie}, headerOp: {op},
			headerTarget: {target}, headerSize: {size}}
		if offset != "" {
			h[headerOffset] = []string{offset}
		}
		m, err := parsePrepare(h)
		if err != nil {
			checkRefusal(t, err, h)
			return
		}
		n, sizeErr := strconv.ParseInt(size, 10, 64)
		p, psnErr := strconv.ParseUint(psn, 16, 64)
		k, cookieErr := strconv.ParseUint(cookie, 16, 64)
		if !psnForm.MatchString(psn) || !cookieForm.MatchString(cookie) || !numberForm.MatchString(size) ||
			!tokenForm.MatchString(tok) || errors.Join(sizeErr, psnErr, cookieErr) != nil ||
			n < 1 || n > 1<<31-1 || p < 1 || p > 1<<24-1 || k < 1 {
			t.Fatalf("taken: %q", h)
		}
		if m.size != n || uint64(m.psn) != p || uint64(m.cookie) != k || (op == "GET") != (m.direction == fabric.ForGet) ||
			(op == "PUT") != (m.direction == fabric.ForPut) {
			t.Fatalf("%q means %+v", h, m)
		}
		raw, _ := hex.DecodeString(tok[:88])
		if q := binary.LittleEndian.Uint32(raw[1:]); q != m.token.QPN || q < 2 || q >= 1<<24 ||
			m.token.GID != [16]byte(raw[5:]) || m.token.GID == [16]byte{} {
			t.Fatalf("%q is queue pair %d", tok, m.token.QPN)
		}
		checkOffset(t, &m, offset)
		checkTarget(t, &m, target)
	})
}

func checkRefusal(t *testing.T, err error, h http.Header) {
	t.Helper()
	var d *declined
	if errors.As(err, &d) {
		if d.status != "unsupported" {
			t.Errorf("declined without its status: %v", d)
		}
		return
	}
	e := answerOf(err)
	if e.Status < 400 || e.Status > 499 {
		t.Errorf("%q is answered %d: %v", h, e.Status, err)
	}
	if text := h.Get(headerToken); len(text) > 40 && (strings.Contains(e.Message,
		text) || strings.Contains(err.Error(), text)) {
		t.Errorf("the error repeats the token: %v", err)
	}
	if errors.Is(err, token.ErrInvalid) != (e.Code == s3.InvalidRDMAToken) && e.Code != s3.InvalidRDMAToken {
		t.Errorf("%v is answered as %s", err, e.Code)
	}
}

func checkOffset(t *testing.T, m *hipPrepare, offset string) {
	t.Helper()
	if offset == "" {
		if m.offset != 0 {
			t.Fatalf("offset %d from nothing", m.offset)
		}
		return
	}
	n, err := strconv.ParseInt(offset, 10, 64)
	if !numberForm.MatchString(offset) || m.direction != fabric.ForGet {
		t.Fatalf("offset %q taken", offset)
	}
	if err != nil || n > 1<<62 {
		n = 1 << 62
	}
	if m.offset != n {
		t.Fatalf("offset %q is %d", offset, m.offset)
	}
}

// checkTarget compares with net/url, which decodes paths by rules of its own.
func checkTarget(t *testing.T, m *hipPrepare, target string) {
	t.Helper()
	path, query, _ := strings.Cut(target, "?")
	decoded, err := url.PathUnescape(path)
	bucket, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	plain, bucketErr := url.PathUnescape(bucket)
	if err != nil || bucketErr != nil || m.target.Bucket != plain || "/"+plain+"/"+m.target.Key != decoded ||
		m.target.Key == "" || m.target.Bucket == "" {
		t.Fatalf("%q is %+v", target, m.target)
	}
	if (m.part > 0) != (query != "") || m.part > 10_000 || m.part > 0 && m.direction != fabric.ForPut {
		t.Fatalf("%q is part %d", target, m.part)
	}
	if m.part == 0 {
		return
	}
	if !queryForm.MatchString(target) && strings.Count(target, "?") < 2 {
		t.Fatalf("query of %q", target)
	}
	if !strings.Contains(query, "%") && !strings.Contains(query, "+") { // others may spell the names otherwise
		q, err := url.ParseQuery(query)
		if err == nil && (len(q) != 2 || q.Get("uploadId") != m.uploadID || q.Get("partNumber") != strconv.Itoa(m.part)) {
			t.Fatalf("%q is part %d of %q", query, m.part, m.uploadID)
		}
	}
}
