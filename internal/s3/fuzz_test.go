package s3

import (
	"bytes"
	"context"
	"encoding/xml"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"
)

// knownError fails unless err is nil or has a code of the table and a status of a client's fault.
func knownError(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		return
	}
	e := AsError(err)
	if d, ok := codeTable[e.Code]; !ok || d.status != e.Status || e.Status >= 500 {
		t.Fatalf("answer %+v", e)
	}
	var into struct{ Code string }
	if err := xml.Unmarshal(e.AppendXML(nil), &into); err != nil || into.Code != string(e.Code) {
		t.Fatalf("error document: %v", err)
	}
}

func FuzzAuthorization(f *testing.F) {
	r := signed(f, "GET", "http://h/b/k?x", testOptions())
	f.Add(r.Header.Get("Authorization"), "20260304T050607Z", "/b/k", "x", "h")
	f.Add("AWS4-HMAC-SHA256 Credential=a/b/c/d/e/f, SignedHeaders=host, Signature=0", "", "//", "a=%41&&=", "h:80")
	f.Add("AWS AKIA:sig=", "x", "/%zz", "AWSAccessKeyId=1", "")
	f.Fuzz(func(t *testing.T, authorization, date, path, query, host string) {
		in := &Request{Method: "GET", Host: host, RawPath: path, RawQuery: query, Header: http.Header{
			"Authorization": {authorization}, "X-Amz-Date": {date}, "X-Amz-Content-Sha256": {unsignedPayload}}}
		id, err := testVerifier(testNow).Verify(context.Background(), in)
		knownError(t, err)
		if err == nil && id.AccessKey != testKey {
			t.Fatal("somebody else was accepted")
		}
	})
}

func FuzzPresign(f *testing.F) {
	o := testOptions()
	o.Expires = 3600e9
	f.Add(signed(f, "GET", "http://h/b/k?x", o).RawQuery)
	f.Add("X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=&X-Amz-Date=&X-Amz-Expires=1&X-Amz-SignedHeaders=host")
	f.Add("X-Amz-Signature=%00&X-Amz-Signature=%00")
	f.Fuzz(func(t *testing.T, query string) {
		in := &Request{Method: "GET", Host: "h", RawPath: "/b/k", RawQuery: query, Header: http.Header{}}
		_, err := testVerifier(testNow).Verify(context.Background(), in)
		knownError(t, err)
		if _, err := ParseQuery(query); err != nil {
			knownError(t, err)
		}
	})
}

// FuzzChunks: whatever the bytes and however they arrive, the decoder gives the same bytes and the
// same verdict, never more than announced, and an end only with the announced length.
func FuzzChunks(f *testing.F) {
	_, id := signedPut(f, hashChunked, -1, "X-Amz-Decoded-Content-Length", "5")
	f.Add([]byte(encodeBody(PayloadChunked, id, "hello", []int{3}, "")), uint8(0), int64(5))
	_, id = signedPut(f, hashChunked+"-TRAILER", -1, "X-Amz-Decoded-Content-Length", "5")
	f.Add([]byte(encodeBody(PayloadChunkedTrailer, id, "hello", []int{5}, crc32Trailer("hello"))), uint8(1), int64(5))
	f.Add([]byte("5\r\nhello\r\n0\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n"), uint8(2), int64(5))
	f.Add([]byte("1;a=b\r\nh\r\n4\r\nello\r\n0\r\nx-amz-checksum-crc32: x\n\r\n\r\n"), uint8(2), int64(5))
	f.Add([]byte("FFFFFFFFFFFFFFFF\r\n"), uint8(2), int64(1<<40))
	f.Fuzz(func(t *testing.T, wire []byte, m uint8, size int64) {
		mode := streamingModes[m%3]
		if size < 0 || size > maxDecodedLength {
			return
		}
		spec := BodySpec{Mode: mode, Size: size}
		if mode.hasTrailer() {
			spec.Trailers = []string{"x-amz-checksum-crc32"}
		}
		read := func(src io.Reader) ([]byte, error, error) {
			b := NewBody(spec, id, src)
			got, err := io.ReadAll(b)
			return got, err, b.Finish()
		}
		got, err, fin := read(bytes.NewReader(wire))
		knownError(t, err)
		if (err == nil) != (fin == nil) || err == nil && int64(len(got)) != size || int64(len(got)) > size {
			t.Fatalf("%d of %d bytes, %v, %v", len(got), size, err, fin)
		}
		again, err2, _ := read(iotest.OneByteReader(bytes.NewReader(wire)))
		if (err == nil) != (err2 == nil) || err == nil && !bytes.Equal(got, again) {
			t.Fatalf("in single bytes: %v instead of %v", err2, err)
		}
	})
}

func FuzzRange(f *testing.F) {
	for _, s := range []string{"bytes=0-1", "bytes=-5", "bytes=5-", "bytes=1-2,3-4", "bytes=99999999999999999999-"} {
		f.Add(s, int64(10))
	}
	f.Fuzz(func(t *testing.T, header string, size int64) {
		if size < 0 {
			return
		}
		if s, ok := ParseRange(header); ok {
			off, n, partial, err := s.Resolve(size)
			knownError(t, err)
			if err == nil && (off < 0 || n < 0 || off > size || n > size-off || partial && n == 0) {
				t.Fatalf("%q of %d: %d+%d", header, size, off, n)
			}
		}
		if off, n, err := ParseCopyRange(header); err == nil && (off < 0 || header != "" && n < 1) {
			t.Fatalf("%q: %d+%d", header, off, n)
		}
	})
}

func FuzzConditions(f *testing.F) {
	f.Add(`"abc", W/"x"`, "Fri, 02 Jan 2026 02:04:05 GMT")
	f.Add(`*`, "W/")
	f.Add(`"`, `"`)
	f.Fuzz(func(t *testing.T, list, date string) {
		h := http.Header{"If-Match": {list}, "If-None-Match": {list}, "If-Modified-Since": {date},
			"If-Unmodified-Since": {date}}
		c := ParseConditions(h)
		if c.IfMatch != list || c.IfNoneMatch != list || c.IfModifiedSince != c.IfUnmodifiedSince {
			t.Fatalf("%q, %q: %+v", list, date, c)
		}
		for _, s := range []State{{}, {Exists: true, ETag: "abc"}} {
			IfRangeHolds(date, s)
			IfRangeHolds(list, s)
		}
	})
}

func FuzzXML(f *testing.F) {
	f.Add([]byte(deleteBody))
	f.Add([]byte(`<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>"a"</ETag></Part>` +
		`</CompleteMultipartUpload>`))
	f.Add([]byte("<CreateBucketConfiguration><LocationConstraint>x</LocationConstraint></CreateBucketConfiguration>"))
	f.Add([]byte("<Error><Code>NoSuchKey</Code></Error>"))
	f.Add([]byte("<!DOCTYPE x [<!ENTITY a 'b'>]><Delete>&a;</Delete>"))
	f.Fuzz(func(t *testing.T, body []byte) {
		d, err := ReadDelete(bytes.NewReader(body))
		knownError(t, err)
		if err == nil {
			var out DeleteResult
			for _, o := range d.Objects {
				out.Deleted = append(out.Deleted, Deleted{Key: o.Key})
			}
			var back struct{ Deleted []struct{ Key string } }
			if err := xml.Unmarshal(Marshal(out), &back); err != nil || len(back.Deleted) != len(d.Objects) ||
				back.Deleted[0].Key != d.Objects[0].Key {
				t.Fatalf("%q does not come back: %v", d.Objects[0].Key, err)
			}
		}
		_, err = ReadComplete(bytes.NewReader(body))
		knownError(t, err)
		_, err = ReadACL(bytes.NewReader(body))
		knownError(t, err)
		_, err = ReadCreateBucket(bytes.NewReader(body))
		knownError(t, err)
		if ReadError(400, bytes.NewReader(body)) == nil {
			t.Fatal("no error")
		}
	})
}

func FuzzCopySource(f *testing.F) {
	for _, s := range []string{"b/k", "/b/a%2Bb?versionId=x", "b%2Fk", "b/?versionId=", "%"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c, err := ParseCopySource(s)
		knownError(t, err)
		if err == nil && (c.Bucket == "" || CheckKey(c.Key) != nil || strings.Contains(c.Bucket, "/")) {
			t.Fatalf("%q: %q", s, c)
		}
		if err == nil && c.VersionID == "" { // encoded anew it names the same object
			again, err := ParseCopySource(string(appendEscaped(nil, c.Bucket+"/"+c.Key, true)))
			if err != nil || again != c {
				t.Fatalf("%q: %q, again %q %v", s, c, again, err)
			}
		}
	})
}

func FuzzTarget(f *testing.F) {
	f.Add("b.s3.example.com:80", "//k%2F/../")
	f.Add("[::1]:9000", "/b/%41")
	f.Add("", "")
	f.Add(".s3.example.com", "/k")
	f.Fuzz(func(t *testing.T, host, path string) {
		bucket := SplitHost(host, []string{"s3.example.com", "com"})
		target, err := ParseTarget(path, bucket)
		knownError(t, err)
		if err == nil && target.Key != "" && CheckKey(target.Key) != nil {
			t.Fatalf("%q: key %q", path, target.Key)
		}
		if err == nil && bucket == "" && target.Bucket != "" {
			again, err := ParseTarget("/"+string(appendEscaped(nil, target.Bucket, false))+"/"+
				string(appendEscaped(nil, target.Key, true)), "")
			if err != nil || again != target {
				t.Fatalf("%q: %q, again %q %v", path, target, again, err)
			}
		}
		if CheckBucketName(bucket) == nil && (len(bucket) < 3 || len(bucket) > 63 || !utf8.ValidString(bucket)) {
			t.Fatalf("bucket %q", bucket)
		}
	})
}

func FuzzHeaders(f *testing.F) {
	f.Add("Name", "value", "NSRBwg==", "x-amz-checksum-crc32")
	f.Add("", "\x00", "!", "x")
	f.Fuzz(func(t *testing.T, name, value, sum, trailer string) {
		h := http.Header{"X-Amz-Meta-" + name: {value}, "Content-Type": {value}, "Content-Encoding": {value},
			"X-Amz-Checksum-Crc32": {sum}, "Content-Md5": {sum}}
		meta, err := ParseUserMetadata(h)
		knownError(t, err)
		for k, v := range meta {
			if len(k)+len(v) > MaxUserMetadata || strings.ContainsAny(v, "\r\n") {
				t.Fatalf("%q: %q", k, v)
			}
		}
		_, err = ParseContentHeaders(h)
		knownError(t, err)
		_, err = ParseDeclared(h)
		knownError(t, err)
		_, err = ParseDeclared(http.Header{"X-Amz-Trailer": {trailer}, "X-Amz-Sdk-Checksum-Algorithm": {value}})
		knownError(t, err)
		_, err = ParseObjectChecksum(h)
		knownError(t, err)
	})
}
