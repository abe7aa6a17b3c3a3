package client

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// Header names of the wire; see docs/wire.md.
const (
	headerToken      = "X-Amz-Rdma-Token"
	headerReply      = "X-Amz-Rdma-Reply"
	headerBytes      = "X-Amz-Rdma-Bytes-Transferred"
	headerReason     = "X-Penstock-Rdma-Reason"
	headerDeadlineMS = "X-Penstock-Rdma-Deadline-Ms"
	headerMoved      = "X-Penstock-Rdma-Checksum"
	headerNeed       = "X-Penstock-Rdma-Need"
	headerCRC        = "X-Amz-Checksum-Crc64nvme"
	headerRequestID  = "X-Amz-Request-Id"
	headerCRCType    = "X-Amz-Checksum-Type"
)

const (
	// codeReplayed is the code of a request whose token was used before.
	codeReplayed = "RDMATokenReplayed"
	// codeSlowDown is the code of a request that a busy node did not begin; the code of one whose transfer broke off is
	// another, whatever else went wrong.
	codeSlowDown = "SlowDown"
)

// Reasons given by the client itself for a payload that no fabric carried. Others come from the
// server in x-penstock-rdma-reason.
const (
	ReasonConfigured = "configured" // Config.Fabric is HTTP
	ReasonNoFabric   = "no-fabric"  // the node offers no fabric that reaches this process
	ReasonNoReply    = "no-reply"   // the answer carried no reply header: the token was ignored
	ReasonDeclined   = "declined"   // reply 501 without a reason
	ReasonNoSession  = "no-session" // the session could not be opened
	ReasonRegion     = "region"     // the node refused the region
	ReasonEmpty      = "empty"      // zero bytes: nothing to move
)

// ReasonArenaBusy is the server's word for a shortage of buffers, which passes.
const ReasonArenaBusy = "arena-busy"

type outcome int

const (
	outcomeDone     outcome = iota + 1 // the payload moved by the fabric, exactly
	outcomeDeclined                    // the payload did not move; HTTP may carry it
	outcomeRefused                     // an S3 error answer: status and XML say which
	outcomeBroken                      // the answer contradicts the protocol: nothing may be assumed
)

// verdict is what a judge concludes from status and headers.
type verdict struct {
	outcome outcome
	reason  string // outcomeDeclined
	err     error  // outcomeBroken
}

func broken(format string, args ...any) verdict {
	return verdict{outcome: outcomeBroken, err: fmt.Errorf("%w: "+format, append([]any{ErrProtocol}, args...)...)}
}

func declined(h http.Header) verdict {
	reason := h.Get(headerReason)
	if reason == "" {
		reason = ReasonDeclined
	}
	return verdict{outcome: outcomeDeclined, reason: reason}
}

// judgeStatus takes the decisions that GET and PUT share; ok is false when the caller must go on
// with a 2xx answer that has a numeric reply.
func judgeStatus(status int, h http.Header) (v verdict, reply int64, ok bool) {
	text, present := single(h, headerReply)
	switch {
	case status == http.StatusNotImplemented:
		if !present {
			return verdict{outcome: outcomeDeclined, reason: ReasonNoReply}, 0, false
		}
		return declined(h), 0, false
	case status < 200 || status > 299:
		// 403, 404, 412, 500 … mean what they say, whatever a reply header claims.
		return verdict{outcome: outcomeRefused}, 0, false
	case !present:
		return verdict{outcome: outcomeDeclined, reason: ReasonNoReply}, 0, false
	}
	reply, valid := parseDecimal(text)
	if !valid || strconv.FormatInt(reply, 10) != text { // "0200" is no status
		return broken("reply header %q is not a decimal status", text), 0, false
	}
	if reply == http.StatusNotImplemented {
		return declined(h), 0, false
	}
	return verdict{}, reply, true
}

// judgeGet decides what became of a GET that carried a token. want is the expected byte count;
// contentLength that of the answer (-1 unknown).
func judgeGet(status int, h http.Header, want, contentLength int64) verdict {
	v, reply, ok := judgeStatus(status, h)
	if !ok {
		return v
	}
	if status != http.StatusOK && status != http.StatusPartialContent {
		return broken("GET answered with status %d", status)
	}
	// 206 with reply 200 and 200 with reply 206 are both in use for ranges.
	if reply != http.StatusOK && reply != http.StatusPartialContent {
		return broken("GET with reply %d", reply)
	}
	moved, ok := movedBytes(h)
	if !ok {
		return broken("GET with reply %d and byte count %q", reply, h.Get(headerBytes))
	}
	if moved != want {
		return broken("GET moved %d bytes, expected %d", moved, want)
	}
	if contentLength > 0 {
		return broken("GET moved by the fabric has a body of %d bytes too", contentLength)
	}
	return verdict{outcome: outcomeDone}
}

// judgePut decides what became of a PUT of n bytes that carried a token and the CRC64NVME crc (base64;
// empty: another checksum, which proves nothing here).
func judgePut(status int, h http.Header, n int64, crc string) verdict {
	v, reply, ok := judgeStatus(status, h)
	if v.outcome == outcomeDeclined && v.reason == ReasonNoReply && status == http.StatusOK && crc != "" &&
		h.Get("Etag") != "" && h.Get(headerCRC) == crc {
		// One server moves the payload but omits the reply; our own checksum proves that it did.
		if moved, present := single(h, headerBytes); present {
			if got, valid := parseDecimal(moved); !valid || got != n {
				return broken("PUT of %d bytes with byte count %q", n, moved)
			}
		}
		return verdict{outcome: outcomeDone}
	}
	if !ok {
		return v
	}
	if status != http.StatusOK && status != http.StatusNoContent {
		return broken("PUT answered with status %d", status)
	}
	if reply != http.StatusOK && reply != http.StatusNoContent {
		return broken("PUT with reply %d", reply)
	}
	if text, present := single(h, headerBytes); present {
		if moved, valid := parseDecimal(text); !valid || moved != n {
			return broken("PUT of %d bytes with byte count %q", n, text)
		}
	}
	if echoed := h.Get(headerCRC); crc != "" && echoed != "" && echoed != crc {
		return broken("PUT with checksum %s, sent %s", echoed, crc)
	}
	return verdict{outcome: outcomeDone}
}

// movedBytes reads the byte count; a missing or malformed one is not ok.
func movedBytes(h http.Header) (int64, bool) {
	text, present := single(h, headerBytes)
	if !present {
		return 0, false
	}
	return parseDecimal(text)
}

// single returns the header's value. A repeated header joins its values, so that it fails the
// strict parse instead of hiding one of them.
func single(h http.Header, name string) (string, bool) {
	values := h.Values(name)
	if len(values) == 0 {
		return "", false
	}
	return strings.Join(values, ","), true
}

// parseDecimal accepts digits only: no sign, no space, no suffix, at most 18 digits.
func parseDecimal(s string) (int64, bool) {
	if len(s) == 0 || len(s) > 18 {
		return 0, false
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil
}

// contentRange is a parsed Content-Range of a byte range.
type contentRange struct {
	first, last, total int64 // last inclusive; total -1 when the server says "*"
}

// parseContentRange reads "bytes first-last/total" and "bytes */total" (then first is 0, last -1).
func parseContentRange(s string) (contentRange, bool) {
	rest, ok := strings.CutPrefix(s, "bytes ")
	if !ok {
		return contentRange{}, false
	}
	span, size, ok := strings.Cut(rest, "/")
	if !ok {
		return contentRange{}, false
	}
	cr := contentRange{last: -1, total: -1}
	if size != "*" {
		if cr.total, ok = parseDecimal(size); !ok {
			return contentRange{}, false
		}
	}
	if span == "*" {
		return cr, cr.total >= 0
	}
	first, last, ok := strings.Cut(span, "-")
	if !ok {
		return contentRange{}, false
	}
	var ok1, ok2 bool
	cr.first, ok1 = parseDecimal(first)
	cr.last, ok2 = parseDecimal(last)
	if !ok1 || !ok2 || cr.first > cr.last || (cr.total >= 0 && cr.last >= cr.total) {
		return contentRange{}, false
	}
	return cr, true
}
