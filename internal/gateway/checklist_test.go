package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/xml"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// The numbers are those of the list of client behaviours; package s3 settles what is protocol only.

func sendPut(n *node, path string, p []byte, header map[string]string) answer {
	return n.send(request{method: "PUT", path: path, header: header, body: bytes.NewReader(p), length: int64(len(p))})
}

func crc32Text(p []byte) string {
	sum := crc32.ChecksumIEEE(p)
	return b64([]byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)})
}

// TestS3_01_TrailerOverTLS: the SDK's default over TLS, a chunked body with a trailing checksum.
func TestS3_01_TrailerOverTLS(t *testing.T) {
	n := newNode(t)
	srv := httptest.NewTLSServer(n.g)
	defer srv.Close()
	c := awss3.New(awss3.Options{
		Region: testRegion, BaseEndpoint: aws.String(srv.URL), UsePathStyle: true, HTTPClient: srv.Client(),
		Credentials:                credentials.NewStaticCredentialsProvider(rootID, rootSecret, ""),
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenSupported,
	})
	makeBucket(t, c, "tls")
	for _, size := range []int{0, 1, 70_000, 3 << 20} {
		p := randomBytes(size)
		in := &awss3.PutObjectInput{Bucket: aws.String("tls"), Key: aws.String("k"), Body: io.MultiReader(bytes.NewReader(p)),
			ContentLength: aws.Int64(int64(size)), ContentEncoding: aws.String("gzip")}
		out := must(c.PutObject(context.Background(), in))(t)
		if *out.ETag != etagOf(p) || aws.ToString(out.ChecksumCRC32) != crc32Text(p) {
			t.Errorf("%d bytes: %v %v", size, *out.ETag, out.ChecksumCRC32)
		}
		got := n.send(request{method: "GET", path: "/tls/k"})
		if !bytes.Equal(got.body, p) || got.header.Get("Content-Encoding") != "gzip" { // TestS3_03
			t.Errorf("%d bytes: stored %d, encoding %q", size, len(got.body), got.header.Get("Content-Encoding"))
		}
	}
	srv.Client().CloseIdleConnections()
}

// TestS3_06: an upload with an algorithm, parts whose checksum nobody declared.
func TestS3_06(t *testing.T) {
	n := newNode(t)
	c, ctx := n.root(), context.Background()
	makeBucket(t, c, "sum")
	plain := n.sdk(rootID, rootSecret, func(o *awss3.Options) {
		o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
	})
	for _, a := range []types.ChecksumAlgorithm{"CRC32", "CRC32C", "SHA1", "SHA256", "CRC64NVME"} {
		key := aws.String("k" + string(a))
		up := must(c.CreateMultipartUpload(ctx, &awss3.CreateMultipartUploadInput{
			Bucket: aws.String("sum"), Key: key, ChecksumAlgorithm: a,
		}))(t)
		part := must(plain.UploadPart(ctx, &awss3.UploadPartInput{
			Bucket: aws.String("sum"), Key: key, UploadId: up.UploadId, PartNumber: aws.Int32(1),
			Body: strings.NewReader("part"),
		}))(t)
		must(c.CompleteMultipartUpload(ctx, &awss3.CompleteMultipartUploadInput{
			Bucket: aws.String("sum"), Key: key, UploadId: up.UploadId,
			MultipartUpload: &types.CompletedMultipartUpload{Parts: []types.CompletedPart{
				{PartNumber: aws.Int32(1), ETag: part.ETag},
			}},
		}))(t)
	}
}

// TestS3_07_WithoutType: FULL_OBJECT uploads complete without a type and without checksums of parts.
func TestS3_07_WithoutType(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "sum")
	got := n.send(request{method: "POST", path: "/sum/k?uploads", header: map[string]string{
		"X-Amz-Checksum-Algorithm": "CRC32", "X-Amz-Checksum-Type": "FULL_OBJECT"}})
	id := regexp.MustCompile(`<UploadId>(.*)</UploadId>`).FindSubmatch(got.body)[1]
	part := sendPut(n, "/sum/k?partNumber=1&uploadId="+string(id), []byte("hello"), nil)
	doc := []byte("<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>" + part.header.Get("Etag") +
		"</ETag></Part></CompleteMultipartUpload>")
	got = n.send(request{method: "POST", path: "/sum/k?uploadId=" + string(id), body: bytes.NewReader(doc),
		length: int64(len(doc)), header: map[string]string{"X-Amz-Checksum-Crc32": crc32Text([]byte("hello"))}})
	if got.status != 200 || !bytes.Contains(got.body, []byte(crc32Text([]byte("hello")))) {
		t.Errorf("%d %s", got.status, got.body)
	}
	head := n.send(request{method: "HEAD", path: "/sum/k", header: map[string]string{"X-Amz-Checksum-Mode": "ENABLED"}})
	if head.header.Get("X-Amz-Checksum-Type") != "FULL_OBJECT" ||
		head.header.Get("X-Amz-Checksum-Crc32") != crc32Text([]byte("hello")) {
		t.Errorf("%v", head.header)
	}
}

// TestS3_10: DeleteObjects takes a CRC32, an MD5 or neither; a wrong one deletes nothing.
func TestS3_10(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "del")
	doc := []byte("<Delete><Object><Key>k</Key></Object></Delete>")
	for name, c := range map[string]struct {
		header map[string]string
		status int
	}{
		"none":      {nil, 200},
		"crc32":     {map[string]string{"X-Amz-Checksum-Crc32": crc32Text(doc)}, 200},
		"bad crc32": {map[string]string{"X-Amz-Checksum-Crc32": "AAAAAA=="}, 400},
		"bad md5":   {map[string]string{"Content-Md5": "1B2M2Y8AsgTpgAmY7PhCfg=="}, 400},
	} {
		sendPut(n, "/del/k", []byte("x"), nil)
		got := n.send(request{method: "POST", path: "/del?delete", header: c.header, body: bytes.NewReader(doc),
			length: int64(len(doc))})
		left := n.send(request{method: "HEAD", path: "/del/k"}).status
		if got.status != c.status || (c.status == 200) != (left == 404) {
			t.Errorf("%s: %d %s, then HEAD %d", name, got.status, got.body, left)
		}
	}
}

// TestS3_11: configurations that this server does not keep are refused, never taken for success.
func TestS3_11(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "cfg")
	sendPut(n, "/cfg/k", []byte("x"), nil)
	for _, sub := range []string{
		"policy", "versioning", "tagging", "lifecycle", "cors", "encryption", "website", "logging",
		"notification",
		"replication", "object-lock", "publicAccessBlock", "ownershipControls", "accelerate",
		"requestPayment", "metrics",
		"inventory", "analytics", "intelligent-tiering", "uploads", "delete", "versions", "location", "session",
	} {
		for _, method := range []string{"PUT", "DELETE"} {
			if got := n.send(request{method: method, path: "/cfg?" + sub}); got.status != 501 && got.status != 405 {
				t.Errorf("%s ?%s: %d %s", method, sub, got.status, got.body)
			}
		}
		got := n.send(request{method: "GET", path: "/cfg?" + sub})
		if bytes.Contains(got.body, []byte("ListBucketResult")) {
			t.Errorf("GET ?%s was taken for a listing", sub)
		}
	}
	for _, sub := range []string{"retention", "legal-hold", "torrent", "attributes",
		"restore", "select", "renameObject",
	} {
		for _, method := range []string{"GET", "PUT", "DELETE", "POST", "HEAD"} {
			got := n.send(request{method: method, path: "/cfg/k?" + sub})
			if got.status < 400 { // GetObjectAttributes without the header that names them
				t.Errorf("%s object ?%s: %d", method, sub, got.status)
			}
		}
	}
	if got := n.send(request{method: "PUT", path: "/cfg/k?tagging"}); got.status != 501 {
		t.Errorf("PUT ?tagging: %d", got.status)
	}
	if got := n.send(request{method: "GET", path: "/cfg/k"}); string(got.body) != "x" {
		t.Errorf("the object is %q now", got.body)
	}
	for path, code := range map[string]string{
		"/cfg?policy": "NoSuchBucketPolicy", "/cfg?cors": "NoSuchCORSConfiguration",
		"/cfg?lifecycle": "NoSuchLifecycleConfiguration",
		"/cfg?tagging":   "NoSuchTagSet", "/cfg?encryption": "ServerSideEncryptionConfigurationNotFoundError",
		"/cfg?website": "NoSuchWebsiteConfiguration", "/cfg?publicAccessBlock": "NoSuchPublicAccessBlockConfiguration",
	} {
		wantError(t, n.send(request{method: "GET", path: path}), 404, code)
	}
	if got := n.send(request{method: "GET", path: "/cfg?versioning"}); got.status != 200 ||
		!bytes.Contains(got.body, []byte("VersioningConfiguration")) || bytes.Contains(got.body, []byte("Status")) {
		t.Errorf("versioning: %d %s", got.status, got.body)
	}
	for _, h := range [][2]string{
		{"X-Amz-Acl", "public-read"}, {"X-Amz-Grant-Read", "id=1"}, {"X-Amz-Server-Side-Encryption", "AES256"},
		{"X-Amz-Object-Lock-Mode", "GOVERNANCE"}, {"X-Amz-Tagging", "a=b"}, {"X-Amz-Write-Offset-Bytes", "1"},
		{"X-Amz-Server-Side-Encryption-Customer-Algorithm", "AES256"},
	} {
		if got := sendPut(n, "/cfg/k", []byte("y"), map[string]string{h[0]: h[1]}); got.status < 400 {
			t.Errorf("%s: %d", h[0], got.status)
		}
	}
}

// TestS3_13: a range does not carry the checksum of the whole.
func TestS3_13(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "rng")
	sendPut(n, "/rng/k", []byte("0123456789"), map[string]string{
		"X-Amz-Checksum-Crc32": crc32Text([]byte("0123456789")),
	})
	mode := map[string]string{"X-Amz-Checksum-Mode": "ENABLED"}
	if got := n.send(request{
		method: "GET", path: "/rng/k", header: mode,
	}); got.header.Get("X-Amz-Checksum-Crc32") == "" {
		t.Errorf("whole: %v", got.header)
	}
	mode["Range"] = "bytes=2-4"
	for _, method := range []string{"GET", "HEAD"} {
		got := n.send(request{method: method, path: "/rng/k", header: mode})
		if got.status != 206 || got.header.Get("Content-Range") != "bytes 2-4/10" || got.length != 3 {
			t.Errorf("%s: %d %v", method, got.status, got.header)
		}
		for name := range got.header {
			if strings.HasPrefix(name, "X-Amz-Checksum-") {
				t.Errorf("%s: %s on a range", method, name)
			}
		}
	}
}

// TestS3_23: 304 and 204 have no body, 412 has one.
func TestS3_23(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "bod")
	put := sendPut(n, "/bod/k", []byte("x"), nil)
	got := n.send(request{
		method: "GET", path: "/bod/k", header: map[string]string{"If-None-Match": put.header.Get("Etag")},
	})
	if got.status != 304 || len(got.body) != 0 || got.header.Get("Etag") != put.header.Get("Etag") {
		t.Errorf("304: %d %q %v", got.status, got.body, got.header)
	}
	wantError(t, n.send(request{method: "GET", path: "/bod/k", header: map[string]string{"If-Match": `"a"`}}), 412,
		"PreconditionFailed")
	got = n.send(request{method: "HEAD", path: "/bod/k", header: map[string]string{"If-Match": `"a"`}})
	if got.status != 412 || len(got.body) != 0 {
		t.Errorf("HEAD 412: %d %q", got.status, got.body)
	}
	if got := n.send(request{method: "DELETE", path: "/bod/k"}); got.status != 204 || len(got.body) != 0 {
		t.Errorf("204: %d %q", got.status, got.body)
	}
}

// TestS3_26: answers are never compressed on our own.
func TestS3_26(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "gzip")
	p := bytes.Repeat([]byte("a"), 100_000)
	sendPut(n, "/gzip/k", p, map[string]string{"Content-Type": "text/plain"})
	for _, path := range []string{"/gzip/k", "/gzip?list-type=2"} {
		got := n.send(request{method: "GET", path: path, header: map[string]string{"Accept-Encoding": "gzip, br"}})
		if got.header.Get("Content-Encoding") != "" || got.length != int64(len(got.body)) {
			t.Errorf("%s: %v", path, got.header)
		}
	}
}

// TestS3_28: HTTP/1.1 is enough, also over TLS.
func TestS3_28(t *testing.T) {
	n := newNode(t)
	srv := httptest.NewTLSServer(n.g)
	defer srv.Close()
	conn := must(tls.Dial("tcp", srv.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true}))(t)
	defer conn.Close()
	if p := conn.ConnectionState().NegotiatedProtocol; p != "" {
		t.Errorf("negotiated %q without being asked", p)
	}
	if _, err := io.WriteString(conn, "GET /.penstock/livez HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	resp := must(http.ReadResponse(bufio.NewReader(conn), nil))(t)
	if resp.StatusCode != 200 {
		t.Errorf("%d", resp.StatusCode)
	}
	_ = resp.Body.Close()
}

// TestS3_29: what will pass is 503 SlowDown with Retry-After, never 429 or 500.
func TestS3_29(t *testing.T) {
	n := newNode(t, func(o *tweakOptions) { o.Limits.Requests = 0 })
	got := n.send(request{method: "GET", path: "/"})
	if got.status != 503 || !bytes.Contains(got.body, []byte("<Code>SlowDown</Code>")) ||
		got.header.Get("Retry-After") == "" {
		t.Errorf("%d %s %v", got.status, got.body, got.header)
	}
}

// TestS3_31: with "Connection: close", too, a GET has its length, and a range its total.
func TestS3_31(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "crt")
	sendPut(n, "/crt/k", randomBytes(300_000), nil)
	got := n.send(request{method: "GET", path: "/crt/k", unsigned: map[string]string{"Connection": "close"},
		header: map[string]string{"Range": "bytes=0-99999"}})
	if got.status != 206 || got.length != 100_000 || got.header.Get("Content-Range") != "bytes 0-99999/300000" {
		t.Errorf("%d %d %v", got.status, got.length, got.header)
	}
}

// TestS3_32_Routing: decorations in the query do not change the operation.
func TestS3_32_Routing(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "xid")
	if got := sendPut(n, "/xid/k?x-id=PutObject&foo=bar", []byte("v"), nil); got.status != 200 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	if got := n.send(request{method: "GET", path: "/xid/k?x-id=GetObject&x=%2B+"}); string(got.body) != "v" {
		t.Errorf("%d %s", got.status, got.body)
	}
}

// TestS3_38_Region: a wrong region is told the right one, and HEAD of a bucket names it in any case.
func TestS3_38_Region(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "region")
	got := n.send(request{method: "HEAD", path: "/region", id: aliceID, secret: "wrong"})
	if got.status != 403 || got.header.Get("X-Amz-Bucket-Region") != testRegion {
		t.Errorf("%d %v", got.status, got.header)
	}
	got = n.send(request{method: "HEAD", path: "/region", id: aliceID, secret: aliceSecret})
	if got.status != 403 || got.header.Get("X-Amz-Bucket-Region") != testRegion {
		t.Errorf("another's bucket: %d %v", got.status, got.header)
	}
}

// TestS3_45: STS is refused.
func TestS3_45(t *testing.T) {
	n := newNode(t)
	sts := "Action=AssumeRoleWithWebIdentity&Version=2011-06-15"
	got := n.send(request{method: "POST", path: "/", body: strings.NewReader(sts), length: int64(len(sts))})
	wantError(t, got, 501, "NotImplemented")
	if got := n.send(request{method: "POST", path: "/", anonymous: true}); got.status != 403 {
		t.Errorf("unsigned STS: %d", got.status)
	}
}

// TestS3_49: names of directory buckets cannot be made.
func TestS3_49(t *testing.T) {
	n := newNode(t)
	wantError(t, n.send(request{method: "PUT", path: "/dir--use1-az1--x-s3"}), 400, "InvalidBucketName")
}

// TestS3_50: uploads by HTML form are refused, and never taken for something else.
func TestS3_50(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "form")
	wantError(t, n.send(request{method: "POST", path: "/form"}), 501, "NotImplemented")
}

// TestS3_48: x-amz-expected-bucket-owner.
func TestS3_48(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.alice(), "owned")
	for who, want := range map[string]int{"alice": 200, "root": 403, "123456789012": 403} {
		got := n.send(request{
			method: "GET", path: "/owned", header: map[string]string{"X-Amz-Expected-Bucket-Owner": who},
		})
		if got.status != want {
			t.Errorf("%s: %d, want %d", who, got.status, want)
		}
	}
}

// TestS3_51_Listing: what encoding-type=url does in a whole answer.
func TestS3_51_Listing(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "enc")
	sendPut(n, "/enc/a%20b%2Bc/x", nil, nil)
	got := n.send(request{method: "GET", path: "/enc?list-type=2&encoding-type=url&delimiter=/&prefix=a%20"})
	for _, want := range []string{"<Prefix>a+b%2Bc/</Prefix>", "<Prefix>a+</Prefix>", "<EncodingType>url</EncodingType>"} {
		if !bytes.Contains(got.body, []byte(want)) {
			t.Errorf("no %s in %s", want, got.body)
		}
	}
	wantError(t, n.send(request{method: "GET", path: "/enc?encoding-type=base64"}), 400, "InvalidArgument")
	wantError(t, n.send(request{method: "GET", path: "/enc?max-keys=-1"}), 400, "InvalidArgument")
	wantError(t, n.send(request{method: "GET", path: "/enc?max-keys=x"}), 400, "InvalidArgument")
}

// TestS3_52_ControlCharacters: a listing without encoding stays parseable whatever the keys are.
func TestS3_52_ControlCharacters(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "ctl")
	sendPut(n, "/ctl/a%01%0Ab", nil, nil)
	got := n.send(request{method: "GET", path: "/ctl?list-type=2"})
	var doc struct{ Contents []struct{ Key string } }
	if err := xml.Unmarshal(got.body, &doc); err != nil || len(doc.Contents) != 1 {
		t.Errorf("%v in %s", err, got.body)
	}
}

// TestS3_55: leading, doubled and trailing slashes are part of the key; "a" and "a/" are two objects.
func TestS3_55(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "slash")
	paths := []string{"/slash/a", "/slash/a/", "/slash//a", "/slash/a//b", "/slash/a/../b",
		"/slash/./c", "/slash/.", "/slash/..",
	}
	for _, p := range paths {
		if got := sendPut(n, p, []byte(p), nil); got.status != 200 {
			t.Fatalf("%s: %d %s", p, got.status, got.body)
		}
	}
	for _, p := range paths {
		if got := n.send(request{method: "GET", path: p}); string(got.body) != p {
			t.Errorf("%s: %d %q", p, got.status, got.body)
		}
	}
	list := must(n.root().ListObjectsV2(context.Background(), &awss3.ListObjectsV2Input{
		Bucket: aws.String("slash"),
	}))(t)
	if int(*list.KeyCount) != len(paths) {
		t.Errorf("%d keys, want %d", *list.KeyCount, len(paths))
	}
}

// TestS3_57: a HEAD that finds nothing and a listing of one entry at the same time are normal traffic.
func TestS3_57(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "mnt")
	sendPut(n, "/mnt/dir/file", []byte("x"), nil)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if got := n.send(request{method: "HEAD", path: "/mnt/dir"}); got.status != 404 {
				t.Errorf("HEAD: %d", got.status)
			}
		})
		wg.Go(func() {
			got := n.send(request{method: "GET", path: "/mnt?list-type=2&prefix=dir/&delimiter=/&max-keys=1"})
			if !bytes.Contains(got.body, []byte("dir/file")) {
				t.Errorf("list: %d %s", got.status, got.body)
			}
		})
	}
	wg.Wait()
}

// TestS3_58: a listing that starts after a PUT was answered has the key.
func TestS3_58(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "law")
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			key := fmt.Sprintf("k%02d", i)
			sendPut(n, "/law/"+key, []byte("x"), nil)
			got := n.send(request{method: "GET", path: "/law?prefix=" + key})
			if !bytes.Contains(got.body, []byte("<Key>"+key+"</Key>")) {
				t.Errorf("%s is not listed", key)
			}
		})
	}
	wg.Wait()
}

// TestS3_59: dates in XML and in headers.
func TestS3_59(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "date")
	sendPut(n, "/date/k", nil, nil)
	list := n.send(request{method: "GET", path: "/date"})
	if !regexp.MustCompile(`<LastModified>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z</LastModified>`).Match(list.body) {
		t.Errorf("%s", list.body)
	}
	head := n.send(request{method: "HEAD", path: "/date/k"})
	if _, err := time.Parse(http.TimeFormat, head.header.Get("Last-Modified")); err != nil {
		t.Error(err)
	}
}

// TestS3_63_64: ranges of an empty object.
func TestS3_63_64(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "empty")
	sendPut(n, "/empty/k", nil, nil)
	if got := n.send(request{
		method: "GET", path: "/empty/k", header: map[string]string{"Range": "bytes=-5"},
	}); got.status != 200 {
		t.Errorf("suffix: %d", got.status)
	}
	for _, r := range []string{"bytes=0-", "bytes=0-0"} {
		got := n.send(request{method: "GET", path: "/empty/k", header: map[string]string{"Range": r}})
		wantError(t, got, 416, "InvalidRange")
		if got.header.Get("Content-Range") != "bytes */0" {
			t.Errorf("%s: Content-Range %q", r, got.header.Get("Content-Range"))
		}
	}
}

// TestS3_66_IfRange: a range under If-Range, and one under If-Match.
func TestS3_66_IfRange(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "ifr")
	etag := sendPut(n, "/ifr/k", []byte("0123456789"), nil).header.Get("Etag")
	for _, c := range []struct {
		name, value string
		status      int
		body        string
	}{
		{"If-Range", etag, 206, "12"}, {"If-Range", `"other"`, 200, "0123456789"}, {"If-Match", etag, 206, "12"},
	} {
		got := n.send(request{
			method: "GET", path: "/ifr/k", header: map[string]string{"Range": "bytes=1-2", c.name: c.value},
		})
		if got.status != c.status || string(got.body) != c.body {
			t.Errorf("%s %s: %d %q", c.name, c.value, got.status, got.body)
		}
	}
	wantError(t, n.send(request{method: "GET", path: "/ifr/k",
		header: map[string]string{"Range": "bytes=1-2", "If-Match": `"o"`}}), 412, "PreconditionFailed")
}

// TestS3_67: partNumber=1 of an object in one piece.
func TestS3_67(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "part")
	sendPut(n, "/part/k", []byte("0123456789"), nil)
	for _, method := range []string{"GET", "HEAD"} {
		got := n.send(request{method: method, path: "/part/k?partNumber=1"})
		if got.status != 206 || got.header.Get("Content-Range") != "bytes 0-9/10" || got.length != 10 {
			t.Errorf("%s: %d %v", method, got.status, got.header)
		}
	}
	wantError(t, n.send(request{method: "GET", path: "/part/k?partNumber=2"}), 416, "InvalidPartNumber")
	wantError(t, n.send(request{method: "GET", path: "/part/k?partNumber=1",
		header: map[string]string{"Range": "bytes=0-1"}}), 400, "InvalidRequest")
}

// wantOneWinner runs 16 conditional creates at once.
func wantOneWinner(t *testing.T, do func(i int) int) {
	t.Helper()
	var mu sync.Mutex
	var statuses []int
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			s := do(i)
			mu.Lock()
			defer mu.Unlock()
			statuses = append(statuses, s)
		})
	}
	wg.Wait()
	won := 0
	for _, s := range statuses {
		switch s {
		case 200:
			won++
		case 412, 409:
		default:
			t.Errorf("status %d", s)
		}
	}
	if won != 1 {
		t.Errorf("%d won: %v", won, statuses)
	}
}

// TestS3_68: of 16 conditional PUTs one wins.
func TestS3_68(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "race")
	none := map[string]string{"If-None-Match": "*"}
	wantOneWinner(t, func(i int) int { return sendPut(n, "/race/k", []byte{byte(i)}, none).status })
}

// TestS3_69: of 16 conditional uploads of one key one wins.
func TestS3_69(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "race")
	none := map[string]string{"If-None-Match": "*"}
	var ids []string
	var etags []string
	for i := range 16 {
		got := n.send(request{method: "POST", path: "/race/m?uploads"})
		id := string(regexp.MustCompile(`<UploadId>(.*)</UploadId>`).FindSubmatch(got.body)[1])
		part := sendPut(n, "/race/m?partNumber=1&uploadId="+id, []byte(strconv.Itoa(i)), nil)
		ids, etags = append(ids, id), append(etags, part.header.Get("Etag"))
	}
	wantOneWinner(t, func(i int) int {
		doc := "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>" + etags[i] +
			"</ETag></Part></CompleteMultipartUpload>"
		return n.send(request{method: "POST", path: "/race/m?uploadId=" + ids[i], header: none,
			body: strings.NewReader(doc), length: int64(len(doc))}).status
	})
}

// TestS3_21: a client that lost the answer of CompleteMultipartUpload asks again and gets the same.
func TestS3_21(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "again")
	got := n.send(request{method: "POST", path: "/again/k?uploads"})
	id := string(regexp.MustCompile(`<UploadId>(.*)</UploadId>`).FindSubmatch(got.body)[1])
	etag := sendPut(n, "/again/k?partNumber=1&uploadId="+id, []byte("x"), nil).header.Get("Etag")
	doc := "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>" + etag +
		"</ETag></Part></CompleteMultipartUpload>"
	var first string
	for i := range 3 {
		got := n.send(request{method: "POST", path: "/again/k?uploadId=" + id, body: strings.NewReader(doc),
			length: int64(len(doc))})
		if i == 0 {
			first = string(got.body)
		}
		if got.status != 200 || string(got.body) != first {
			t.Errorf("time %d: %d %s, first %s", i, got.status, got.body, first)
		}
	}
}

// TestS3_71: an abort that is repeated.
func TestS3_71(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "abort")
	got := n.send(request{method: "POST", path: "/abort/k?uploads"})
	id := string(regexp.MustCompile(`<UploadId>(.*)</UploadId>`).FindSubmatch(got.body)[1])
	for range 2 {
		if got := n.send(request{method: "DELETE", path: "/abort/k?uploadId=" + id}); got.status != 204 {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
	wantError(t, n.send(request{method: "DELETE", path: "/abort/k?uploadId=never"}), 404, "NoSuchUpload")
}

// TestS3_74_Echo: names of metadata come back in any case, values as they were sent.
func TestS3_74_Echo(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "meta")
	sendPut(n, "/meta/k", nil, map[string]string{"X-Amz-Meta-Some-Name": "=?UTF-8?B?w7w=?="})
	got := n.send(request{method: "HEAD", path: "/meta/k"})
	if got.header.Get("X-Amz-Meta-Some-Name") != "=?UTF-8?B?w7w=?=" {
		t.Errorf("%v", got.header)
	}
}

// TestEveryAnswerHasARequestID: errors say it in their document, too.
func TestEveryAnswerHasARequestID(t *testing.T) {
	n := newNode(t)
	seen := map[string]bool{}
	for _, r := range []request{
		{method: "GET", path: "/"}, {method: "GET", path: "/", anonymous: true}, {method: "GET", path: "/nothing/k"},
		{
			method: "PATCH", path: "/nothing/k",
		}, {method: "GET", path: "/.penstock/none"}, {method: "HEAD", path: "/nothing"},
	} {
		got := n.send(r)
		id := got.header.Get("X-Amz-Request-Id")
		if id == "" || seen[id] {
			t.Errorf("%s %s: id %q", r.method, r.path, id)
		}
		seen[id] = true
		if got.status >= 400 && r.method != "HEAD" &&
			!bytes.Contains(got.body, []byte("<RequestId>"+id+"</RequestId>")) {
			t.Errorf("%s %s: %s", r.method, r.path, got.body)
		}
	}
}

// TestCorruptionIsNoAnswer: bytes that fail verification are 500 before the first byte and a cut
// connection after it, never a wrong answer.
func TestCorruptionIsNoAnswer(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "bad")
	p := randomBytes(9 << 20) // three chunks in this node
	sendPut(n, "/bad/k", p, nil)
	ids := n.chunkIDs()
	if len(ids) != 3 {
		t.Fatalf("%d chunks", len(ids))
	}
	for _, id := range ids {
		n.chunks.Corrupt(id, 100)
	}
	wantError(t, n.send(request{method: "GET", path: "/bad/k"}), 500, "InternalError")
	wantError(t, n.send(withToken("GET", "/bad/k", tokenFor(0, 10<<20))), 500, "InternalError")
	for _, id := range ids {
		n.chunks.Corrupt(id, 100) // flips back
	}
	if got := n.send(request{method: "GET", path: "/bad/k"}); !bytes.Equal(got.body, p) {
		t.Fatalf("%d", got.status)
	}
	cut := 0
	for _, id := range ids {
		n.chunks.Corrupt(id, 100)
		got, err := n.try(request{method: "GET", path: "/bad/k"})
		if err == nil && got.status == 200 {
			t.Error("a corrupt object was answered whole")
		}
		if err != nil {
			cut++
		}
		n.chunks.Corrupt(id, 100)
	}
	if cut == 0 {
		t.Error("no answer was cut off in the middle")
	}
}

// TestAnonymousAndUnknownKeys: who is not known gets 403 of its kind and learns nothing.
func TestAnonymousAndUnknownKeys(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "priv")
	for _, path := range []string{"/", "/priv", "/priv/k", "/nobucket/k"} {
		wantError(t, n.send(request{method: "GET", path: path, anonymous: true}), 403, "AccessDenied")
		wantError(t, n.send(request{method: "GET", path: path, id: "NOBODY", secret: "x"}), 403, "InvalidAccessKeyId")
	}
	if got := n.send(request{method: "OPTIONS", path: "/priv/k", anonymous: true}); got.status != 403 {
		t.Errorf("preflight: %d", got.status)
	}
}

// TestControlPlane: the listing of fabrics and a session, for signed requests only.
func TestControlPlane(t *testing.T) {
	n := newNode(t)
	got := n.send(request{method: "GET", path: "/.penstock/fabric/v1"})
	if got.status != 200 || !bytes.Contains(got.body, []byte(`"name":"tcp"`)) ||
		!bytes.Contains(got.body, []byte(`"host":"test-host"`)) {
		t.Errorf("%d %s", got.status, got.body)
	}
	open := func(body string) answer {
		return n.send(request{method: "POST", path: "/.penstock/fabric/v1/sessions", body: strings.NewReader(body),
			length: int64(len(body))})
	}
	if got := open(`{"fabric":"tcp"}`); got.status != 200 ||
		!regexp.MustCompile(`"secret":"[0-9a-f]{64}"`).Match(got.body) {
		t.Errorf("%d %s", got.status, got.body)
	}
	if got := open(`{"fabric":"warp"}`); got.status != 501 || got.header.Get("X-Penstock-Rdma-Reason") != "no-rail" {
		t.Errorf("%d %s", got.status, got.body)
	}
	wantError(t, open(`{`), 400, "InvalidRequest")
	for _, r := range []request{
		{method: "GET", path: "/.penstock/fabric/v1", anonymous: true},
		{method: "POST", path: "/.penstock/fabric/v1/sessions", anonymous: true},
	} {
		wantError(t, n.send(r), 403, "AccessDenied")
	}
}

// TestRequestsBeyondTheLimit: the limit of requests in flight answers at once and recovers.
func TestRequestsBeyondTheLimit(t *testing.T) {
	n := newNode(t, func(o *tweakOptions) { o.Limits.Requests = 2 })
	makeBucket(t, n.root(), "lim")
	var conns []net.Conn
	for range 2 {
		conn := must(net.Dial("tcp", n.host))(t)
		r := n.raw(request{method: "PUT", path: "/lim/k", unsigned: map[string]string{"Content-Length": "5"}})
		if _, err := conn.Write(r); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	eventually(t, func() bool { return n.g.InFlight() == 2 })
	if got := n.send(request{method: "GET", path: "/"}); got.status != 503 {
		t.Errorf("third: %d", got.status)
	}
	for _, c := range conns {
		_ = c.Close()
	}
	eventually(t, func() bool { return n.g.InFlight() == 0 })
	if got := n.send(request{method: "GET", path: "/"}); got.status != 200 {
		t.Errorf("afterwards: %d", got.status)
	}
}

// TestDrainRefuses: a draining gateway says so and closes the connection.
func TestDrainRefuses(t *testing.T) {
	n := newNode(t)
	n.g.Drain()
	got := n.send(request{method: "GET", path: "/"})
	if got.status != 503 || got.header.Get("Retry-After") == "" {
		t.Errorf("%d %v", got.status, got.header)
	}
}

// TestConditionalDelete: If-Match on DeleteObject.
func TestConditionalDelete(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "cdel")
	etag := sendPut(n, "/cdel/k", []byte("x"), nil).header.Get("Etag")
	r := request{method: "DELETE", path: "/cdel/k", header: map[string]string{"If-Match": `"other"`}}
	wantError(t, n.send(r), 412, "PreconditionFailed")
	r.header["If-Match"] = etag
	if got := n.send(r); got.status != 204 {
		t.Errorf("%d %s", got.status, got.body)
	}
	if got := n.send(request{method: "HEAD", path: "/cdel/k"}); got.status != 404 {
		t.Errorf("%d", got.status)
	}
}
