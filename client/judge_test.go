package client

import (
	"errors"
	"net/http"
	"testing"
)

// headers builds a header from name, value pairs.
func headers(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

const (
	testCRC  = "AAAAAAAAAAE="
	otherCRC = "AAAAAAAAAAI="
)

// TestJudgeGet goes through the answers that servers of this wire give to a GET, rightly or wrongly,
// and what each must mean. The oracle is the table of docs/wire.md.
func TestJudgeGet(t *testing.T) {
	const want = 100
	for _, tt := range []struct {
		name    string
		status  int
		h       http.Header
		body    int64
		outcome outcome
		reason  string
	}{
		{"done", 200, headers(headerReply, "200", headerBytes, "100"), 0, outcomeDone, ""},
		{"ranged done", 206, headers(headerReply, "206", headerBytes, "100"), 0, outcomeDone, ""},
		{"RF-34 206 with reply 200", 206, headers(headerReply, "200", headerBytes, "100"), 0, outcomeDone, ""},
		{"200 with reply 206", 200, headers(headerReply, "206", headerBytes, "100"), 0, outcomeDone, ""},
		{"length unknown", 200, headers(headerReply, "200", headerBytes, "100"), -1, outcomeDone, ""},
		{"declined", 501, headers(headerReply, "501", headerReason, "arena-busy"), 90, outcomeDeclined, "arena-busy"},
		{"declined without reason", 501, headers(headerReply, "501"), 90, outcomeDeclined, ReasonDeclined},
		{"501 without reply", 501, headers(), 90, outcomeDeclined, ReasonNoReply},
		{"spec mode: data in the body", 200, headers(headerReply, "501"), 100, outcomeDeclined, ReasonDeclined},
		{"RF-41 200, reply 501, XML", 200, headers(headerReply, "501"), 90, outcomeDeclined, ReasonDeclined},
		{"RF-04 token ignored", 200, headers(), 100, outcomeDeclined, ReasonNoReply},
		{"token ignored, range", 206, headers(), 100, outcomeDeclined, ReasonNoReply},
		{"RF-43 no byte count", 200, headers(headerReply, "200"), 0, outcomeBroken, ""},
		{"RF-43 body too", 200, headers(headerReply, "200", headerBytes, "100"), 100, outcomeBroken, ""},
		{"too few bytes", 200, headers(headerReply, "200", headerBytes, "99"), 0, outcomeBroken, ""},
		{"too many bytes", 200, headers(headerReply, "200", headerBytes, "101"), 0, outcomeBroken, ""},
		{"bytes of total", 200, headers(headerReply, "200", headerBytes, "100/200"), 0, outcomeBroken, ""},
		{"negative bytes", 200, headers(headerReply, "200", headerBytes, "-100"), 0, outcomeBroken, ""},
		{"plus sign", 200, headers(headerReply, "200", headerBytes, "+100"), 0, outcomeBroken, ""},
		{"space", 200, headers(headerReply, "200", headerBytes, " 100"), 0, outcomeBroken, ""},
		{"hex", 200, headers(headerReply, "200", headerBytes, "0x64"), 0, outcomeBroken, ""},
		{"two byte counts", 200, headers(headerReply, "200", headerBytes, "100", headerBytes, "7"), 0,
			outcomeBroken, ""},
		{"RF-09 200xyz", 200, headers(headerReply, "200xyz", headerBytes, "100"), 0, outcomeBroken, ""},
		{"two replies", 200, headers(headerReply, "200", headerReply, "501", headerBytes, "100"), 0, outcomeBroken, ""},
		{"empty reply", 200, headers(headerReply, "", headerBytes, "100"), 0, outcomeBroken, ""},
		{"ok", 200, headers(headerReply, "ok", headerBytes, "100"), 0, outcomeBroken, ""},
		{"200 with a token", 200, headers(headerReply, "200:00ff", headerBytes, "100"), 0, outcomeBroken, ""},
		{"reply 204", 200, headers(headerReply, "204", headerBytes, "100"), 0, outcomeBroken, ""},
		{"reply 500 on 200", 200, headers(headerReply, "500", headerBytes, "100"), 0, outcomeBroken, ""},
		{"status 204", 204, headers(headerReply, "200", headerBytes, "100"), 0, outcomeBroken, ""},
		{"RF-08 403", 403, headers(), 90, outcomeRefused, ""},
		{"RF-08 404", 404, headers(), 90, outcomeRefused, ""},
		{"404 with reply 501", 404, headers(headerReply, "501"), 90, outcomeRefused, ""},
		{"404 with reply 200", 404, headers(headerReply, "200", headerBytes, "100"), 0, outcomeRefused, ""},
		{"412", 412, headers(), 90, outcomeRefused, ""},
		{"416", 416, headers(headerReply, "416"), 90, outcomeRefused, ""},
		{"304", 304, headers(), 0, outcomeRefused, ""},
		{"400 bad token", 400, headers(), 90, outcomeRefused, ""},
		{"500 transfer failed", 500, headers(), 90, outcomeRefused, ""},
		{"503", 503, headers(), 90, outcomeRefused, ""},
		{"307", 307, headers(headerReply, "200", headerBytes, "100"), 0, outcomeRefused, ""},
	} {
		checkVerdict(t, tt.name, judgeGet(tt.status, tt.h, want, tt.body), tt.outcome, tt.reason)
	}
}

func checkVerdict(t *testing.T, name string, v verdict, want outcome, reason string) {
	t.Helper()
	if v.outcome != want || v.reason != reason {
		t.Errorf("%s: outcome %d reason %q, want %d %q", name, v.outcome, v.reason, want, reason)
	}
	if (v.outcome == outcomeBroken) != errors.Is(v.err, ErrProtocol) {
		t.Errorf("%s: outcome %d with error %v", name, v.outcome, v.err)
	}
}

// TestJudgePut is TestJudgeGet for PUT and UploadPart of 100 bytes.
func TestJudgePut(t *testing.T) {
	const n = 100
	etag := []string{"ETag", `"00"`}
	with := func(pairs ...string) http.Header { return headers(append(etag, pairs...)...) }
	for _, tt := range []struct {
		name    string
		status  int
		h       http.Header
		outcome outcome
		reason  string
	}{
		{"done", 200, with(headerReply, "200", headerBytes, "100", headerCRC, testCRC), outcomeDone, ""},
		{"done without byte count", 200, with(headerReply, "200"), outcomeDone, ""},
		{"reply 204", 200, with(headerReply, "204"), outcomeDone, ""},
		{"204 and reply 204", 204, headers(headerReply, "204"), outcomeDone, ""},
		{"reply omitted, checksum echoed", 200, with(headerCRC, testCRC), outcomeDone, ""},
		{"RF-01 token ignored, empty object", 200, with(), outcomeDeclined, ReasonNoReply},
		{"RF-02 another checksum", 200, with(headerCRC, otherCRC), outcomeDeclined, ReasonNoReply},
		{"checksum but no ETag", 200, headers(headerCRC, testCRC), outcomeDeclined, ReasonNoReply},
		{"checksum echoed on 204", 204, with(headerCRC, testCRC), outcomeDeclined, ReasonNoReply},
		{"checksum echoed, wrong count", 200, with(headerCRC, testCRC, headerBytes, "0"), outcomeBroken, ""},
		{"declined", 501, headers(headerReply, "501", headerReason, "off"), outcomeDeclined, "off"},
		{"501 without reply", 501, headers(), outcomeDeclined, ReasonNoReply},
		{"RF-41 200 with reply 501", 200, headers(headerReply, "501"), outcomeDeclined, ReasonDeclined},
		{"reply 501 with ETag", 200, with(headerReply, "501", headerCRC, testCRC), outcomeDeclined, ReasonDeclined},
		{"RF-03 any reply", 200, with(headerReply, "1"), outcomeBroken, ""},
		{"RF-09 200xyz", 200, with(headerReply, "200xyz"), outcomeBroken, ""},
		{"reply 206", 200, with(headerReply, "206"), outcomeBroken, ""},
		{"reply 500", 200, with(headerReply, "500"), outcomeBroken, ""},
		{"wrong byte count", 200, with(headerReply, "200", headerBytes, "99"), outcomeBroken, ""},
		{"empty byte count", 200, with(headerReply, "200", headerBytes, ""), outcomeBroken, ""},
		{"other checksum stored", 200, with(headerReply, "200", headerCRC, otherCRC), outcomeBroken, ""},
		{"status 206", 206, with(headerReply, "200"), outcomeBroken, ""},
		{"status 202", 202, with(headerReply, "200"), outcomeBroken, ""},
		{"RF-08 403", 403, headers(), outcomeRefused, ""},
		{"412", 412, headers(headerReply, "501"), outcomeRefused, ""},
		{"409", 409, headers(), outcomeRefused, ""},
		{"400 bad digest", 400, headers(), outcomeRefused, ""},
		{"500 with reply 200", 500, with(headerReply, "200", headerBytes, "100"), outcomeRefused, ""},
		{"503", 503, headers(), outcomeRefused, ""},
	} {
		checkVerdict(t, tt.name, judgePut(tt.status, tt.h, n, testCRC), tt.outcome, tt.reason)
	}
}

// FuzzJudge holds the judges to their rule: a transfer is done only with a permitted reply and the
// exact count, both written as plain decimals.
func FuzzJudge(f *testing.F) {
	f.Add(200, "200", "100", testCRC)
	f.Add(206, "206", "100", "")
	f.Add(501, "501", "", "")
	f.Add(200, "200xyz", "1e2", "")
	f.Fuzz(func(t *testing.T, status int, reply, count, crc string) {
		h := http.Header{headerReply: {reply}, headerBytes: {count}, headerCRC: {crc}, "Etag": {`"x"`}}
		if judgeGet(status, h, 100, 0).outcome == outcomeDone {
			if (reply != "200" && reply != "206") || trimZeros(count) != "100" || (status != 200 && status != 206) {
				t.Fatalf("GET done with status %d reply %q count %q", status, reply, count)
			}
		}
		if judgePut(status, h, 100, testCRC).outcome == outcomeDone {
			if (reply != "200" && reply != "204") || trimZeros(count) != "100" || (status != 200 && status != 204) {
				t.Fatalf("PUT done with status %d reply %q count %q", status, reply, count)
			}
		}
	})
}

func trimZeros(s string) string {
	for len(s) > 1 && s[0] == '0' {
		s = s[1:]
	}
	return s
}

// FuzzContentRange checks that an accepted range is consistent in itself.
func FuzzContentRange(f *testing.F) {
	for _, s := range []string{"bytes 0-9/10", "bytes */0", "bytes 0-9/*", "bytes 5-4/10", "bytes 0-10/10", "x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		cr, ok := parseContentRange(s)
		if !ok {
			return
		}
		if cr.last == -1 && cr.first == 0 && cr.total >= 0 {
			return // "*/total"
		}
		if cr.first < 0 || cr.last < cr.first || (cr.total != -1 && cr.total <= cr.last) {
			t.Fatalf("%q parsed as %+v", s, cr)
		}
	})
}
