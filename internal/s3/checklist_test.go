package s3

import (
	"context"
	"crypto/md5"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Tests that each settle one line of the list of client behaviours and have no table elsewhere.

// TestS3_07: without a type the algorithm decides, and FULL_OBJECT needs no ChecksumType again.
func TestS3_07_ChecksumType(t *testing.T) {
	for a, want := range map[Algorithm]ChecksumType{CRC64NVME: FullObject, CRC32: Composite, SHA256: Composite} {
		if got, err := ParseChecksumType("", a); got != want || err != nil {
			t.Errorf("%v: %v %v", a, got, err)
		}
	}
}

// TestS3_10/11: any one declared digest satisfies an operation that needs one.
func TestS3_10_AnyDigest(t *testing.T) {
	sum := md5.Sum([]byte("abc"))
	for _, h := range []http.Header{{"Content-Md5": {b64(sum[:])}}, {"X-Amz-Checksum-Crc32": {"NSRBwg=="}},
		{"X-Amz-Trailer": {"x-amz-checksum-sha1"}}} {
		if d, err := ParseDeclared(h); err != nil || !d.Any() {
			t.Errorf("%v: %v", h, err)
		}
	}
	if d, err := ParseDeclared(http.Header{}); err != nil || d.Any() {
		t.Error(d, err)
	}
}

// TestS3_12: x-amz-checksum-mode.
func TestS3_12_ChecksumMode(t *testing.T) {
	for v, want := range map[string]bool{"ENABLED": true, "enabled": true, "": false, "DISABLED": false} {
		if ParseChecksumMode(http.Header{"X-Amz-Checksum-Mode": {v}}) != want {
			t.Error(v)
		}
	}
}

// TestS3_14: the SDK's header is a hint, x-amz-checksum-algorithm no value.
func TestS3_14_Hint(t *testing.T) {
	d, err := ParseDeclared(http.Header{"X-Amz-Sdk-Checksum-Algorithm": {"CRC32"},
		"X-Amz-Checksum-Algorithm": {"CRC32"}})
	if err != nil || d.Any() || d.Hint != CRC32 {
		t.Error(d, err)
	}
	if _, err := NewDigester(d, DigestOptions{MD5: true}).Finish(Final{}); err != nil {
		t.Error(err)
	}
}

// TestS3_16: Content-MD5 that is no MD5, and one of other bytes.
func TestS3_16_ContentMD5(t *testing.T) {
	if _, err := ParseDeclared(http.Header{"Content-Md5": {"not base64!"}}); !IsCode(err, InvalidDigest) ||
		AsError(err).Status != 400 {
		t.Error(err)
	}
	sum := md5.Sum([]byte("other"))
	d, err := ParseDeclared(http.Header{"Content-Md5": {b64(sum[:])}})
	if err != nil {
		t.Fatal(err)
	}
	g := NewDigester(d, DigestOptions{})
	io.WriteString(g, "abc")
	if _, err := g.Finish(Final{}); !IsCode(err, BadDigest) || AsError(err).Status != 400 {
		t.Error(err)
	}
}

// TestS3_17: a body that is not the signed one.
func TestS3_17_SHA256(t *testing.T) {
	r, id := signedPut(t, hexSHA("abc"), 3)
	for body, want := range map[string]bool{"abc": true, "abd": false} {
		spec, err := ParseBodySpec(r, id)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.ReadAll(NewBody(spec, id, strings.NewReader(body)))
		if want != (err == nil) || !want && !IsCode(err, XAmzContentSHA256Mismatch) {
			t.Errorf("%q: %v", body, err)
		}
	}
}

// signHeaders signs headers that the Signer leaves out, from a canonical request written here.
func signHeaders(t *testing.T, h http.Header, names string) *Request {
	t.Helper()
	h.Set("X-Amz-Date", testNow.Format(amzTime))
	h.Set("X-Amz-Content-Sha256", unsignedPayload)
	r := &Request{Method: "PUT", Host: "h", RawPath: "/b/k", Header: h, ContentLength: 7}
	scope := scopeKey{testKey, "20260304", "us-east-1", "s3"}
	full := "20260304/us-east-1/s3/aws4_request"
	key := deriveKey(testSecret, scope)
	canonical := "PUT\n/b/k\n\n"
	for name := range strings.SplitSeq(names, ";") {
		value := strings.Join(h.Values(name), ",")
		if name == "host" {
			value = "h"
		}
		canonical += name + ":" + value + "\n"
	}
	canonical += "\n" + names + "\n" + unsignedPayload
	signature := sign(key[:], appendStringToSign(nil, h.Get("X-Amz-Date"), full, []byte(canonical)))
	h.Set("Authorization", "AWS4-HMAC-SHA256 Credential="+testKey+"/"+full+",SignedHeaders="+names+
		",Signature="+string(signature[:]))
	return r
}

// TestS3_19: a proxy that takes Expect out does not break the signature; so with headers that
// net/http keeps elsewhere.
func TestS3_19_Expect(t *testing.T) {
	r := signHeaders(t, http.Header{"Expect": {"100-continue"}, "Content-Length": {"7"},
		"Transfer-Encoding": {"chunked"}},
		"content-length;expect;host;transfer-encoding;x-amz-content-sha256;x-amz-date")
	for _, name := range []string{"Expect", "Content-Length", "Transfer-Encoding"} {
		r.Header.Del(name)
	}
	r.TransferEncoding = []string{"chunked"}
	if _, err := verify(r); err != nil {
		t.Error(err)
	}
}

// TestS3_25: a signed Accept-Encoding counts as received.
func TestS3_25_AcceptEncoding(t *testing.T) {
	r := signHeaders(t, http.Header{"Accept-Encoding": {"identity"}},
		"accept-encoding;host;x-amz-content-sha256;x-amz-date")
	if _, err := verify(r); err != nil {
		t.Error(err)
	}
	r.Header.Set("Accept-Encoding", "gzip")
	if _, err := verify(r); !IsCode(err, SignatureDoesNotMatch) {
		t.Error(err)
	}
}

// TestS3_27: a signed Range that a cache took out.
func TestS3_27_RangeRemoved(t *testing.T) {
	r := signed(t, "GET", objectURL, testOptions(), "Range", "bytes=0-1")
	if _, err := verify(r); err != nil {
		t.Fatal(err)
	}
	r.Header.Del("Range")
	if _, err := verify(r); !IsCode(err, SignatureDoesNotMatch) {
		t.Error(err)
	}
}

// TestS3_30: presigned URLs with long session tokens.
func TestS3_30_LongToken(t *testing.T) {
	token := strings.Repeat("t/+=", 2000)
	v := NewVerifier(VerifierConfig{Now: func() time.Time { return testNow },
		Lookup: func(context.Context, string) (Secret, bool, error) {
			return Secret{SecretKey: testSecret, SessionToken: token}, true, nil
		}})
	o := testOptions()
	o.Credentials.SessionToken = token
	for _, expires := range []time.Duration{0, time.Hour} {
		o.Expires = expires
		if _, err := v.Verify(context.Background(), signed(t, "GET", objectURL, o)); err != nil {
			t.Error(err)
		}
	}
}

// TestS3_34: the path is signed and read as it is.
func TestS3_34_PathIsNotCleaned(t *testing.T) {
	for _, path := range []string{"/b/.", "/b//..", "/b/a//b", "/b/a/./b/../c/", "/b//"} {
		r := signed(t, "GET", "http://h"+path, testOptions())
		if _, err := verify(r); err != nil || r.RawPath != path {
			t.Errorf("%q: %q %v", path, r.RawPath, err)
		}
		if target, err := ParseTarget(path, ""); err != nil || target.Key != path[3:] {
			t.Errorf("%q: %q %v", path, target, err)
		}
	}
}

// TestS3_35: a plus in the path is a plus, raw or encoded; a space is %20.
func TestS3_35_Plus(t *testing.T) {
	for path, key := range map[string]string{"/b/a+b": "a+b", "/b/a%2Bb": "a+b", "/b/a%20b": "a b"} {
		r := signed(t, "GET", "http://h"+path, testOptions())
		if _, err := verify(r); err != nil {
			t.Errorf("%q: %v", path, err)
		}
		if target, err := ParseTarget(r.RawPath, ""); err != nil || target.Key != key {
			t.Errorf("%q: %q %v", path, target, err)
		}
	}
}

// TestS3_42: SigV4A is a clear 400.
func TestS3_42_SigV4A(t *testing.T) {
	r := signed(t, "GET", objectURL, testOptions())
	r.Header.Set("Authorization", "AWS4-ECDSA-P256-SHA256 Credential=a/20260304/s3/aws4_request, SignedHeaders=host, "+
		"Signature=30")
	r.Header.Set("X-Amz-Region-Set", "*")
	if _, err := verify(r); AsError(err).Status != 400 || !strings.Contains(AsError(err).Message, algorithmV4A) {
		t.Error(err)
	}
}

// TestS3_61: the namespace is written always and wanted never.
func TestS3_61_Namespace(t *testing.T) {
	for _, m := range []Message{ListBucketsResult{}, ListResult{}, ListV2Result{},
		ListVersionsResult{}, LocationResult{}, ACLResult{}, DeleteResult{},
		CopyObjectResult{}, CopyPartResult{}, InitiateResult{}, CompleteResult{}, ListPartsResult{},
		ListUploadsResult{}} {
		decode(t, Marshal(m), &struct{}{})
	}
	for _, ns := range []string{"", ` xmlns="` + Namespace + `"`, ` xmlns="urn:other"`} {
		body := "<Delete" + ns + "><Object><Key>k</Key></Object></Delete>"
		if d, err := ReadDelete(strings.NewReader(body)); err != nil || d.Objects[0].Key != "k" {
			t.Errorf("%s: %v", body, err)
		}
	}
}

// TestS3_64: any range from the start of an empty object is 416 with Content-Range.
func TestS3_64_EmptyObject(t *testing.T) {
	s, ok := ParseRange("bytes=0-8388607")
	_, _, _, err := s.Resolve(0)
	if e := AsError(err); !ok || e.Status != 416 || e.Header["Content-Range"] != "bytes */0" {
		t.Error(ok, err)
	}
}

// TestS3_66: If-Range answers the whole when the object has changed.
func TestS3_66_Changed(t *testing.T) {
	now := State{Exists: true, ETag: "new", Modified: testNow}
	if IfRangeHolds(`"old"`, now) || !IfRangeHolds(`"new"`, now) {
		t.Error("If-Range")
	}
}

// A request may be dated by its Date header alone.
func TestDateHeader(t *testing.T) {
	for date, want := range map[string]Code{"Wed, 04 Mar 2026 05:06:07 GMT": SignatureDoesNotMatch, "": AccessDenied,
		"2026-03-04": AccessDenied, "Wed, 04 Mar 2026 06:06:07 GMT": RequestTimeTooSkewed} {
		r := signed(t, "GET", objectURL, testOptions())
		r.Header.Del("X-Amz-Date")
		r.Header.Set("Date", date)
		if _, err := verify(r); !IsCode(err, want) { // x-amz-date was signed and is gone
			t.Errorf("%q: %v", date, err)
		}
	}
	r := signHeaders(t, http.Header{}, "host;x-amz-content-sha256")
	r.Header.Del("X-Amz-Date")
	r.Header.Set("Date", "Wed, 04 Mar 2026 05:06:07 GMT")
	if _, err := verify(r); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"20260304T050607", "2026-03-04T05:06Z", "20261304T050607Z", ""} {
		r := signed(t, "GET", objectURL, testOptions())
		r.Header.Set("X-Amz-Date", bad)
		if _, err := verify(r); !IsCode(err, AccessDenied) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
