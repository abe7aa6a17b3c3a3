package wire_test

import (
	"encoding/hex"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// verdict is what a client makes of an answer.
type verdict string

const (
	moved     verdict = "ok"         // the payload moved by RDMA
	inBody    verdict = "body"       // the payload is the answer's body
	byHTTP    verdict = "http"       // declined: it goes on over HTTP, by itself
	failed    verdict = "err"        // an error to the caller, nothing else happens
	again     verdict = "again"      // another attempt with another token, then an error
	same      verdict = "same"       // another attempt with the same token, then an error
	againHTTP verdict = "again-http" // another attempt with another token, then HTTP
	never     verdict = "-"          // it does not send such a request
)

// ask is what a client is asked to do, and with what.
type ask struct {
	*scenario
	host        string
	bucket, key string
	uploadID    string
	id, secret  string
	at          time.Time
	token       string // of DC grammar, unless the scenario says otherwise
	addr        uint64 // of the window
	window      int64
	payload     []byte // put, part: what is in the window
	sum         string // put, part: CRC64NVME of it, base64
	connection  string // of tokens of another grammar
}

// client is a program that speaks this wire.
type client struct {
	name string
	// falls says that it goes on over HTTP when it is told that RDMA is declined.
	falls bool
	// alias says that its token is in headers of its own, which a node takes only when told to.
	alias bool
	// announces says that its PUTs announce a body, so that they are refused before a decline is thought of.
	announces bool
	// probes says that it asks for the first part by its number when it does not know the size.
	probes bool
	// sends says whether it makes such a request; nil: any.
	sends func(s *scenario) bool
	// request forms a request. It is signed by finish.
	request func(a *ask) *raw
	// talks is for a client whose transfer takes several messages instead; it returns the last answer that counts.
	talks func(tr *trial) answer
	// judge takes an answer, and how many bytes it then takes for valid.
	judge func(a *ask, r *answer) (verdict, int64)
	// cells are the expected verdicts: scenario, verdict when declines are 501, verdict when they are by the
	// specification. A verdict with ! is a false success, one with ? a fallback that is lost.
	cells string
	// listed are the reasons of all verdicts with ! and ?, by the name of a scenario, or by "declines" and the mode for
	// all scenarios in which RDMA is declined.
	listed map[string]string
}

// clients is filled by the files of the clients.
var clients []*client

// stamp is the time as signatures have it.
func (a *ask) stamp() string { return a.at.UTC().Format("20060102T150405Z") }

// method, path and query of the request.
func (a *ask) start() *raw {
	r := &raw{method: "PUT", path: "/" + a.bucket + "/" + a.key}
	if a.first {
		r.query = "partNumber=1"
	}
	switch a.op {
	case get:
		r.method = "GET"
	case part:
		r.query = "partNumber=1&uploadId=" + url.QueryEscape(a.uploadID)
	}
	return r
}

// rangeText is the Range of a ranged read, or of the whole window by clients that always name one.
func (a *ask) rangeText() string {
	off := 0
	if a.ranged {
		off = rangeOffset
	}
	return fmt.Sprintf("bytes=%d-%d", off, int64(off)+a.window-1)
}

// finish adds what the scenario wants, then Authorization before the headers of the transport, which are not signed.
func (a *ask) finish(r *raw, hash string, skip []string, transport ...field) *raw {
	r.with(a.extra)
	s := signing{id: a.id, secret: a.secret, region: "us-east-1", hash: hash, stamp: a.stamp(), skip: skip}
	r.add("Authorization", r.sign(s))
	for _, f := range transport {
		r.add(f.name, f.value)
	}
	return r
}

// dcToken is the grammar of clients of mlx5 adapters.
func dcToken(addr uint64, size int64) string {
	return fmt.Sprintf("%016x:%08x:%08x:%04x:%06x:%d:%032x", addr, size, 0x01f2e973, 0, 0x7a03, 1, 0xffff7f000001)
}

func (r *answer) reply() string { return r.header.Get("X-Amz-Rdma-Reply") }
func (r *answer) etag() string  { return r.header.Get("Etag") }
func (r *answer) ok() bool      { return !r.closed && r.status >= 200 && r.status < 300 }

// count reads the bytes header; −1: absent or no number.
func (r *answer) count() int64 {
	n, err := strconv.ParseInt(r.header.Get("X-Amz-Rdma-Bytes-Transferred"), 10, 64)
	if err != nil || n < 0 {
		return -1
	}
	return n
}

// transient tells whether the SDKs of AWS repeat a request by themselves.
func (r *answer) transient() bool {
	return r.closed || r.status == 500 || r.status == 502 || r.status == 503 || r.status == 504
}

// sdkError is how an SDK takes what is no success; ok: it is one. repeat is what it does when it tries again.
func (r *answer) sdkError(repeat verdict) (v verdict, ok bool) {
	switch {
	case r.ok():
		return "", true
	case r.transient():
		return repeat, false
	}
	return failed, false
}

// hipToken is the binary grammar: transport RC, then QPN, GID, rkey, address, length, port and LID.
func hipToken(addr uint64, size int64) string {
	b := make([]byte, 44)
	b[0] = 1
	little := func(at, n int, v uint64) {
		for i := range n {
			b[at+i] = byte(v >> (8 * i))
		}
	}
	little(1, 4, 0x7a03)
	copy(b[5:], []byte{10: 0xff, 11: 0xff, 12: 127, 15: 1})
	little(21, 4, 0x01f2e973)
	little(25, 8, addr)
	little(33, 8, uint64(size))
	b[41] = 1
	return hex.EncodeToString(b)
}

// expected parses the cells of a client.
func (c *client) expected(t *testing.T) map[string][2]string {
	t.Helper()
	want := map[string][2]string{}
	for line := range strings.Lines(c.cells) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		if _, double := want[f[0]]; double || len(f) != 3 {
			t.Fatalf("%s: cells of %q", c.name, line)
		}
		want[f[0]] = [2]string{f[1], f[2]}
	}
	return want
}

// reads tells whether a client sends whole reads only.
func noRanges(s *scenario) bool { return !s.ranged }

// nonempty leaves out windows of nothing and reads of nothing.
func nonempty(s *scenario) bool { return s.size > 0 }

// noParts leaves out uploads by parts.
func noParts(s *scenario) bool { return s.op != part }

// fits leaves out reads of more than the window by clients that name the window as their range.
func fits(s *scenario) bool { return s.op != get || s.ranged || s.window == 0 || s.window >= s.size }

// both joins conditions.
func both(conditions ...func(*scenario) bool) func(*scenario) bool {
	return func(s *scenario) bool {
		return !slices.ContainsFunc(conditions, func(c func(*scenario) bool) bool { return !c(s) })
	}
}
