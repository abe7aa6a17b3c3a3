package gateway_test

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/penstock-store/penstock/internal/s3"
)

// document reads the elements that these tests look at out of any answer.
type document struct {
	XMLName  xml.Name
	ETag     string
	Contents []struct{ Key, ETag string }
	Part     []struct {
		PartNumber int
		ETag       string
	}
	Code, Region, Key                                   string
	RequestTime, ServerTime, MaxAllowedSkewMilliseconds string
	Expires                                             string
}

func parse(t *testing.T, a answer) (d document) {
	t.Helper()
	if err := xml.Unmarshal(a.body, &d); err != nil {
		t.Fatalf("%d %v: %s", a.status, err, a.body)
	}
	return d
}

// TestS3_60: ETags are quoted wherever they are answered but in GetObjectAttributes, the MD5 of one PUT, MD5 of
// MD5s with the number of parts for a multipart upload, the same at every look, and taken in every quoting.
func TestS3_60(t *testing.T) {
	n := newNodeOf(t, 10)
	makeBucket(t, n.root(), "tags")
	p, q := randomBytes(70_000), []byte("last")
	one := etagOf(p)
	sp, sq := md5.Sum(p), md5.Sum(q)
	all := md5.Sum(append(sp[:], sq[:]...))
	multi := `"` + hex.EncodeToString(all[:]) + `-2"`

	if got := sendPut(n, "/tags/one", p, nil).header.Get("Etag"); got != one {
		t.Errorf("PUT: %s", got)
	}
	id := n.newUpload("/tags/two", nil)
	for i, part := range [][]byte{p, q} {
		path := fmt.Sprintf("/tags/two?partNumber=%d&uploadId=%s", i+1, id)
		if got := sendPut(n, path, part, nil).header.Get("Etag"); got != etagOf(part) {
			t.Errorf("part: %s", got)
		}
	}
	if d := parse(t, n.send(request{method: "GET", path: "/tags/two?uploadId=" + id})); len(d.Part) != 2 ||
		d.Part[0].ETag != one || d.Part[1].ETag != etagOf(q) {
		t.Errorf("ListParts: %+v", d.Part)
	}
	doc := "<CompleteMultipartUpload>"
	for i, tag := range []string{strings.Trim(one, `"`), strings.ReplaceAll(etagOf(q), `"`, "&quot;")} {
		doc += fmt.Sprintf("<Part><PartNumber>%d</PartNumber><ETag>%s</ETag></Part>", i+1, tag)
	}
	doc += "</CompleteMultipartUpload>"
	got := n.send(request{method: "POST", path: "/tags/two?uploadId=" + id, body: strings.NewReader(doc),
		length: int64(len(doc))})
	if d := parse(t, got); d.ETag != multi {
		t.Errorf("Complete: %s, want %s", d.ETag, multi)
	}
	for path, want := range map[string]string{"/tags/one": one, "/tags/two": multi} {
		for _, r := range []request{
			{method: "HEAD", path: path}, {method: "GET", path: path}, {method: "HEAD", path: path},
			{method: "GET", path: path, header: map[string]string{"Range": "bytes=1-2"}},
			{method: "GET", path: path + "?partNumber=1"},
			{method: "GET", path: path, header: map[string]string{"If-None-Match": want}},
		} {
			if got := n.send(r).header.Get("Etag"); got != want {
				t.Errorf("%s %s %v: %s, want %s", r.method, r.path, r.header, got, want)
			}
		}
	}
	list := parse(t, n.send(request{method: "GET", path: "/tags?list-type=2"}))
	if len(list.Contents) != 2 || list.Contents[0].ETag != one || list.Contents[1].ETag != multi {
		t.Errorf("listing: %+v", list.Contents)
	}
	copied := parse(t, n.send(request{method: "PUT", path: "/tags/copy", header: map[string]string{
		"X-Amz-Copy-Source": "tags/two"}}))
	if want := etagOf(append(p, q...)); copied.ETag != want {
		t.Errorf("copy of a multipart object: %s, want %s", copied.ETag, want)
	}
	for tag, status := range map[string]int{
		one: 200, strings.Trim(one, `"`): 200, `"x", ` + one: 200, "*": 200, multi: 412, "W/" + one: 412,
		one[:len(one)-1]: 412, one[1:]: 412, one + "x": 412, `"x", *`: 412, strings.ToUpper(one): 412,
	} {
		r := request{method: "GET", path: "/tags/one", header: map[string]string{"If-Match": tag}}
		if got := n.send(r); got.status != status {
			t.Errorf("If-Match %s: %d, want %d", tag, got.status, status)
		}
	}
}

// TestS3_66_Forms: If-Range with every form of ETag and date; several ranges are answered as the whole.
func TestS3_66_Forms(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "forms")
	put := sendPut(n, "/forms/k", []byte("0123456789"), nil)
	tag := put.header.Get("Etag")
	head := n.send(request{method: "HEAD", path: "/forms/k"})
	modified := must(http.ParseTime(head.header.Get("Last-Modified")))(t)
	for value, status := range map[string]int{
		tag: 206, strings.Trim(tag, `"`): 206, "W/" + tag: 200, `"no"`: 200, tag[:8]: 200, "nonsense": 200,
		modified.Format(http.TimeFormat): 206, modified.Add(time.Second).Format(http.TimeFormat): 200,
		modified.Add(-time.Second).Format(http.TimeFormat): 200,
	} {
		for _, method := range []string{"GET", "HEAD"} {
			got := n.send(request{method: method, path: "/forms/k", header: map[string]string{
				"Range": "bytes=2-4", "If-Range": value}})
			want := map[int]int64{206: 3, 200: 10}[status]
			if got.status != status || got.length != want || (got.header.Get("Content-Range") != "") != (status == 206) {
				t.Errorf("%s If-Range %s: %d, %d bytes, %q", method, value, got.status, got.length,
					got.header.Get("Content-Range"))
			}
		}
	}
	for _, several := range []string{"bytes=0-1,4-5", "bytes=0-1, -1", "bytes=,"} {
		got := n.send(request{method: "GET", path: "/forms/k", header: map[string]string{"Range": several}})
		if got.status != 200 || string(got.body) != "0123456789" {
			t.Errorf("%s: %d %q", several, got.status, got.body)
		}
	}
}

// TestResponseOverrides: response-* items of signed requests, on GET and HEAD.
func TestResponseOverrides(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "over")
	sendPut(n, "/over/k", []byte("x"), map[string]string{"Content-Type": "text/old", "Cache-Control": "old"})
	want := map[string]string{"Content-Type": "text/new; charset=utf-8", "Content-Encoding": "br",
		"Content-Disposition": `attachment; filename="a b.txt"`, "Content-Language": "de", "Cache-Control": "no-store",
		"Expires": "Thu, 01 Dec 2033 16:00:00 GMT"}
	q := url.Values{}
	for name, value := range want {
		q.Set("response-"+strings.ToLower(name), value)
	}
	query := strings.ReplaceAll(q.Encode(), "+", "%20")
	for _, method := range []string{"GET", "HEAD"} {
		got := n.send(request{method: method, path: "/over/k?" + query})
		for name, value := range want {
			if got.status != 200 || got.header.Get(name) != value {
				t.Errorf("%s: %d %s: %q", method, got.status, name, got.header.Get(name))
			}
		}
		if got := n.send(request{method: method, path: "/over/k"}); got.header.Get("Cache-Control") != "old" {
			t.Errorf("%s: an override stays", method)
		}
	}
	wantError(t, n.send(request{method: "GET", path: "/over/k?response-expires=a%0Ab"}), 400, "InvalidArgument")
	wantError(t, n.send(request{method: "GET", path: "/over/k?response-expires=a&response-expires=b"}), 400,
		"InvalidArgument")
	wantError(t, n.send(request{method: "GET", path: "/over/k?response-content-type=x", anonymous: true}), 403,
		"AccessDenied")
	got := n.send(request{method: "GET", path: "/over/none?response-content-type=text%2Fplain"})
	if wantError(t, got, 404, "NoSuchKey"); got.header.Get("Content-Type") != "application/xml" {
		t.Errorf("an error of type %s", got.header.Get("Content-Type"))
	}
}

// TestS3_40_ClockSkew: a client whose clock is wrong gets RequestTimeTooSkewed with both times and a Date header,
// and the SDK corrects itself by them.
func TestS3_40_ClockSkew(t *testing.T) {
	var ahead atomic.Int64
	clock := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	n := newNode(t, func(o *tweakOptions) { o.Now = clock })
	c := n.sdk(rootID, rootSecret, func(o *awss3.Options) { o.RetryMaxAttempts = 3 })
	makeBucket(t, n.root(), "skew")
	for _, off := range []time.Duration{time.Hour, -time.Hour} {
		ahead.Store(int64(off))
		got := n.send(request{method: "GET", path: "/skew"})
		wantError(t, got, 403, "RequestTimeTooSkewed")
		d := parse(t, got)
		server, err := time.Parse(time.RFC3339, d.ServerTime)
		if err != nil || server.Sub(clock()).Abs() > 10*time.Second || d.MaxAllowedSkewMilliseconds != "900000" ||
			len(d.RequestTime) != len("20060102T150405Z") {
			t.Errorf("%+v %v", d, err)
		}
		date := must(http.ParseTime(got.header.Get("Date")))(t)
		if date.Sub(clock()).Abs() > 10*time.Second {
			t.Errorf("Date %v, the server's clock says %v", date, clock())
		}
		in := &awss3.ListObjectsV2Input{Bucket: aws.String("skew")}
		must(c.ListObjectsV2(context.Background(), in))(t)
	}
}

// TestS3_40_PresignExpiry: presigned URLs that are over, or not valid yet, say when.
func TestS3_40_PresignExpiry(t *testing.T) {
	var ahead atomic.Int64
	n := newNode(t, func(o *tweakOptions) {
		o.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	makeBucket(t, n.root(), "pre")
	sendPut(n, "/pre/k", []byte("x"), nil)
	in := &awss3.GetObjectInput{Bucket: aws.String("pre"), Key: aws.String("k")}
	u := must(awss3.NewPresignClient(n.root()).PresignGetObject(context.Background(), in,
		awss3.WithPresignExpires(time.Minute)))(t)
	get := func() answer {
		resp := must(n.client.Get(u.URL))(t)
		defer resp.Body.Close()
		return answer{resp.StatusCode, resp.Header, must(io.ReadAll(resp.Body))(t), resp.ContentLength}
	}
	if got := get(); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
	ahead.Store(int64(2 * time.Minute))
	got := get()
	wantError(t, got, 403, "AccessDenied")
	if d := parse(t, got); d.Expires == "" || d.ServerTime == "" || !bytes.Contains(got.body, []byte("expired")) {
		t.Errorf("%s", got.body)
	}
	ahead.Store(int64(-time.Hour))
	got = get()
	wantError(t, got, 403, "AccessDenied")
	if !bytes.Contains(got.body, []byte("not valid yet")) {
		t.Errorf("%s", got.body)
	}
}

// TestS3_38_WrongRegion: where SDKs look for the region of a bucket.
func TestS3_38_WrongRegion(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "where")
	c := n.sdk(rootID, rootSecret, func(o *awss3.Options) { o.Region = "ap-south-7" })
	_, err := c.GetObject(context.Background(), &awss3.GetObjectInput{Bucket: aws.String("where"), Key: aws.String("k")})
	wantCode(t, err, "AuthorizationHeaderMalformed")
	send := func(method, path string) answer {
		req := must(http.NewRequest(method, n.url+path, nil))(t)
		err := n.signer.Sign(req, s3.SignOptions{
			Credentials: s3.Credentials{AccessKey: rootID, SecretKey: rootSecret}, Region: "ap-south-7", Time: time.Now(),
		})
		if err != nil {
			t.Fatal(err)
		}
		resp := must(n.client.Do(req))(t)
		defer resp.Body.Close()
		return answer{resp.StatusCode, resp.Header, must(io.ReadAll(resp.Body))(t), resp.ContentLength}
	}
	for _, path := range []string{"/where", "/where/k", "/other", "/"} {
		got := send("GET", path)
		wantError(t, got, 400, "AuthorizationHeaderMalformed")
		if d := parse(t, got); d.Region != testRegion {
			t.Errorf("%s: %s", path, got.body)
		}
	}
	for _, r := range []request{
		{method: "HEAD", path: "/where"}, {method: "HEAD", path: "/missing"},
		{method: "HEAD", path: "/where", anonymous: true}, {method: "HEAD", path: "/where", id: aliceID, secret: aliceSecret},
		{method: "HEAD", path: "/where", id: aliceID, secret: "wrong"},
	} {
		if got := n.send(r); got.header.Get("X-Amz-Bucket-Region") != testRegion {
			t.Errorf("%+v: %d %v", r, got.status, got.header)
		}
	}
	for _, path := range []string{"/where", "/where/k"} {
		if got := send("HEAD", path); got.status != 400 || got.header.Get("X-Amz-Bucket-Region") != testRegion {
			t.Errorf("HEAD %s with a wrong region: %d %v", path, got.status, got.header)
		}
	}
}

// TestS3_21_LostAnswer: the answer of a completion is lost on the way; the SDK repeats it and succeeds, also after
// the object was replaced or deleted, which stays so. Another list of parts is an error.
func TestS3_21_LostAnswer(t *testing.T) {
	n := newNode(t)
	backend := must(url.Parse(n.url))(t)
	var lose atomic.Int64
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(backend); r.Out.Host = r.In.Host },
		ModifyResponse: func(r *http.Response) error {
			if r.Request.Method == http.MethodPost && r.Request.URL.Query().Has("uploadId") && lose.Add(-1) >= 0 {
				panic(http.ErrAbortHandler) // done, and nobody is told
			}
			return nil
		},
	}
	front := httptest.NewServer(proxy)
	defer front.Close()
	c := n.sdk(rootID, rootSecret, func(o *awss3.Options) {
		o.BaseEndpoint, o.RetryMaxAttempts = aws.String(front.URL), 4
	})
	ctx := context.Background()
	makeBucket(t, n.root(), "lost")
	bucket, key := aws.String("lost"), aws.String("k")
	up := must(c.CreateMultipartUpload(ctx, &awss3.CreateMultipartUploadInput{Bucket: bucket, Key: key}))(t)
	part := func(number int32, p string) types.CompletedPart {
		out := must(c.UploadPart(ctx, &awss3.UploadPartInput{
			Bucket: bucket, Key: key, UploadId: up.UploadId, PartNumber: &number, Body: strings.NewReader(p),
		}))(t)
		return types.CompletedPart{PartNumber: &number, ETag: out.ETag}
	}
	first, second := part(1, "first"), part(2, "second")
	complete := func(parts ...types.CompletedPart) (*awss3.CompleteMultipartUploadOutput, error) {
		return c.CompleteMultipartUpload(ctx, &awss3.CompleteMultipartUploadInput{
			Bucket: bucket, Key: key, UploadId: up.UploadId, IfNoneMatch: aws.String("*"),
			MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
		})
	}
	lose.Store(2)
	out := must(complete(first))(t)
	if got := get(t, n.root(), "lost", "k"); string(got) != "first" || lose.Load() >= 0 {
		t.Errorf("%q, %d answers are left to lose", got, lose.Load())
	}
	_, err := complete(first, second)
	wantCode(t, err, "NoSuchUpload")
	for _, change := range []func(){
		func() { put(t, n.root(), "lost", "k", []byte("new")) },
		func() {
			must(n.root().DeleteObject(ctx, &awss3.DeleteObjectInput{Bucket: bucket, Key: key}))(t)
		},
	} {
		change()
		again := must(complete(first))(t)
		if *again.ETag != *out.ETag {
			t.Errorf("repeated: %s, first %s", *again.ETag, *out.ETag)
		}
	}
	if got := n.send(request{method: "HEAD", path: "/lost/k"}); got.status != 404 {
		t.Error("a repeated completion brought a deleted object back")
	}
}

// TestStartAfterInsideCommonPrefix: S3 leaves out a common prefix that is not greater than the start, even when
// keys below it are.
func TestStartAfterInsideCommonPrefix(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "after")
	for _, key := range []string{"a", "b/1", "b/3", "c/1"} {
		sendPut(n, "/after/"+key, nil, nil)
	}
	for start, want := range map[string]string{
		"b": "b/ c/", "b/": "c/", "b/0": "c/", "b/2": "c/", "b/9": "c/", "b0": "c/",
	} {
		for _, query := range []string{"list-type=2&start-after=", "marker="} {
			got := n.send(request{method: "GET", path: "/after?delimiter=%2F&" + query + url.QueryEscape(start)})
			var d struct{ CommonPrefixes []struct{ Prefix string } }
			if err := xml.Unmarshal(got.body, &d); err != nil {
				t.Fatal(err)
			}
			var prefixes []string
			for _, p := range d.CommonPrefixes {
				prefixes = append(prefixes, p.Prefix)
			}
			if strings.Join(prefixes, " ") != want {
				t.Errorf("%s%s: %q, want %q", query, start, prefixes, want)
			}
		}
	}
}

// TestS3_18_ChunkedTwice: the transfer encoding of HTTP around aws-chunked, without a Content-Length, is normal
// when the decoded length is given.
func TestS3_18_ChunkedTwice(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "twice")
	p := randomBytes(100_000)
	inner := fmt.Sprintf("%x\r\n%s\r\n0\r\nx-amz-checksum-crc32:%s\r\n\r\n", len(p), p, crc32Text(p))
	outer := ""
	for rest := inner; rest != ""; {
		piece := rest[:min(len(rest), 7777)]
		rest = rest[len(piece):]
		outer += fmt.Sprintf("%x\r\n%s\r\n", len(piece), piece)
	}
	resp, body := n.talk(n.raw(request{
		method: "PUT", path: "/twice/k", hash: inPlainTrailer, body: strings.NewReader(outer + "0\r\n\r\n"),
		header: map[string]string{"X-Amz-Decoded-Content-Length": fmt.Sprint(len(p)), "Content-Encoding": "aws-chunked",
			"X-Amz-Trailer": "x-amz-checksum-crc32"},
		unsigned: map[string]string{"Transfer-Encoding": "chunked"},
	}))
	if resp.StatusCode != 200 {
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
	got := n.send(request{method: "GET", path: "/twice/k"})
	if !bytes.Equal(got.body, p) || got.header.Get("Content-Encoding") != "" {
		t.Errorf("%d bytes, encoding %q", len(got.body), got.header.Get("Content-Encoding"))
	}
}

// TestS3_70_Parts: parts in any order, with gaps, one of them twice; the least size of all but the last; their numbers.
func TestS3_70_Parts(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "parts")
	id := n.newUpload("/parts/k", nil)
	send := func(number int, p []byte) answer {
		return sendPut(n, fmt.Sprintf("/parts/k?partNumber=%d&uploadId=%s", number, id), p, nil)
	}
	large, again, last := randomBytes(5<<20), randomBytes(5<<20+1), []byte("the last one")
	for _, part := range []struct {
		number int
		p      []byte
	}{{10000, last}, {500, large}, {3, large}, {500, again}, {77, []byte("small and not listed")}} {
		if got := send(part.number, part.p); got.status != 200 || got.header.Get("Etag") != etagOf(part.p) {
			t.Fatalf("part %d: %d %s", part.number, got.status, got.body)
		}
	}
	for _, number := range []int{0, 10001, -1} {
		wantError(t, send(number, last), 400, "InvalidArgument")
	}
	complete := func(parts ...string) answer {
		doc := "<CompleteMultipartUpload>"
		for i := 0; i < len(parts); i += 2 {
			doc += "<Part><ETag>" + parts[i+1] + "</ETag><PartNumber>" + parts[i] + "</PartNumber></Part>"
		}
		doc += "</CompleteMultipartUpload>"
		return n.send(request{method: "POST", path: "/parts/k?uploadId=" + id, body: strings.NewReader(doc),
			length: int64(len(doc))})
	}
	bare := func(p []byte) string { return strings.Trim(etagOf(p), `"`) }
	wantError(t, complete("3", etagOf(large), "77", etagOf([]byte("small and not listed")), "500", etagOf(again)), 400,
		"EntityTooSmall")
	wantError(t, complete("500", etagOf(again), "3", etagOf(large)), 400, "InvalidPartOrder")
	wantError(t, complete("3", etagOf(large), "3", etagOf(large)), 400, "InvalidPartOrder")
	wantError(t, complete("3", etagOf(large), "500", etagOf(large)), 400, "InvalidPart") // it was replaced
	wantError(t, complete("3", etagOf(large), "4", etagOf(large)), 400, "InvalidPart")
	wantError(t, complete("3", `"`+bare(large)), 400, "InvalidPart")
	wantError(t, complete(), 400, "MalformedXML")
	got := complete("3", bare(large), "500", "&quot;"+bare(again)+"&quot;", "10000", etagOf(last))
	if got.status != 200 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	whole := n.send(request{method: "GET", path: "/parts/k"})
	if !bytes.Equal(whole.body, bytes.Join([][]byte{large, again, last}, nil)) {
		t.Errorf("%d bytes", len(whole.body))
	}
	for number, p := range map[int][]byte{3: large, 500: again, 10000: last} {
		for _, method := range []string{"GET", "HEAD"} {
			got := n.send(request{method: method, path: fmt.Sprintf("/parts/k?partNumber=%d", number)})
			if got.status != 206 || got.length != int64(len(p)) || got.header.Get("X-Amz-Mp-Parts-Count") != "3" ||
				got.header.Get("Etag") != whole.header.Get("Etag") || method == "GET" && !bytes.Equal(got.body, p) {
				t.Errorf("%s part %d: %d %v", method, number, got.status, got.header)
			}
		}
	}
	wantError(t, n.send(request{method: "GET", path: "/parts/k?partNumber=4"}), 416, "InvalidPartNumber")
	if got := n.send(request{method: "GET", path: "/parts/k"}); got.header.Get("X-Amz-Mp-Parts-Count") != "" {
		t.Error("the number of parts of a whole object, and nobody asked")
	}
}

// TestCopySemantics: what a copy takes from its source and what from the request, conditions of both sides, and
// refusals.
func TestCopySemantics(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "sem")
	tag := sendPut(n, "/sem/src", []byte("payload"), map[string]string{
		"Content-Type": "text/a", "Cache-Control": "old", "X-Amz-Meta-M": "old", "X-Amz-Storage-Class": "STANDARD_IA",
		"X-Amz-Website-Redirect-Location": "/elsewhere",
	}).header.Get("Etag")
	send := func(path string, more ...string) answer {
		h := map[string]string{"X-Amz-Copy-Source": "sem/src"}
		for i := 0; i < len(more); i += 2 {
			h[more[i]] = more[i+1]
		}
		return n.send(request{method: "PUT", path: path, header: h})
	}
	head := func(path string) http.Header { return n.send(request{method: "HEAD", path: path}).header }
	if got := send("/sem/a", "Content-Type", "text/b", "X-Amz-Meta-M", "new"); got.status != 200 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	if h := head("/sem/a"); h.Get("Content-Type") != "text/a" || h.Get("X-Amz-Meta-M") != "old" ||
		h.Get("Cache-Control") != "old" || h.Get("X-Amz-Storage-Class") != "" ||
		h.Get("X-Amz-Website-Redirect-Location") != "" || h.Get("Etag") != tag {
		t.Errorf("COPY: %v", h)
	}
	send("/sem/b", "X-Amz-Metadata-Directive", "REPLACE", "Content-Type", "text/b", "X-Amz-Storage-Class", "GLACIER_IR")
	if h := head("/sem/b"); h.Get("Content-Type") != "text/b" || h.Get("X-Amz-Meta-M") != "" ||
		h.Get("Cache-Control") != "" || h.Get("X-Amz-Storage-Class") != "GLACIER_IR" {
		t.Errorf("REPLACE: %v", h)
	}
	wantError(t, send("/sem/src"), 400, "InvalidRequest")
	wantError(t, send("/sem/a", "X-Amz-Metadata-Directive", "MERGE"), 400, "InvalidArgument")
	for _, change := range [][]string{{"X-Amz-Metadata-Directive", "REPLACE"}, {"X-Amz-Storage-Class", "STANDARD"},
		{"X-Amz-Website-Redirect-Location", "/x"}, {"X-Amz-Checksum-Algorithm", "SHA1"}} {
		if got := send("/sem/src", change...); got.status != 200 {
			t.Errorf("onto itself with %s: %d %s", change[0], got.status, got.body)
		}
	}
	if got := n.send(request{method: "GET", path: "/sem/src"}); string(got.body) != "payload" {
		t.Errorf("after copies onto itself: %q", got.body)
	}
	past, future := "Mon, 02 Jan 2006 15:04:05 GMT", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)
	for _, c := range []struct {
		header, value string
		ok            bool
	}{
		{"If-Match", tag, true}, {"If-Match", `"no"`, false}, {"If-None-Match", `"no"`, true}, {"If-None-Match", tag, false},
		{"If-Modified-Since", past, true}, {"If-Modified-Since", future, false},
		{"If-Unmodified-Since", future, true}, {"If-Unmodified-Since", past, false},
	} {
		upload := n.newUpload("/sem/m", nil)
		for _, path := range []string{"/sem/cond", "/sem/m?partNumber=1&uploadId=" + upload} {
			got := send(path, "X-Amz-Copy-Source-"+c.header, c.value)
			if c.ok && got.status != 200 {
				t.Errorf("%s %s: %d %s", c.header, c.value, got.status, got.body)
			} else if !c.ok {
				wantError(t, got, 412, "PreconditionFailed")
			}
		}
	}
	wantError(t, send("/sem/cond", "If-None-Match", "*"), 412, "PreconditionFailed")
	missing := n.send(request{method: "PUT", path: "/sem/x", header: map[string]string{"X-Amz-Copy-Source": "sem/none"}})
	wantError(t, missing, 404, "NoSuchKey")
	if d := parse(t, missing); d.Key != "none" {
		t.Errorf("the missing key is said to be %q", d.Key)
	}
	upload := n.newUpload("/sem/m", nil)
	for value, code := range map[string]string{"bytes=0-7": "InvalidArgument", "bytes=7-7": "InvalidArgument",
		"bytes=3-": "InvalidArgument", "0-3": "InvalidArgument", "bytes=3-1": "InvalidArgument"} {
		wantError(t, send("/sem/m?partNumber=1&uploadId="+upload, "X-Amz-Copy-Source-Range", value), 400, code)
	}
	got := send("/sem/m?partNumber=1&uploadId="+upload, "X-Amz-Copy-Source-Range", "bytes=2-4")
	if d := parse(t, got); d.ETag != etagOf([]byte("ylo")) {
		t.Errorf("range: %s", got.body)
	}
}

// TestS3_14_OverHTTP: x-amz-sdk-checksum-algorithm without a value is a hint, x-amz-checksum-algorithm on a PUT no
// value.
func TestS3_14_OverHTTP(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "hint")
	for _, name := range []string{"X-Amz-Sdk-Checksum-Algorithm", "X-Amz-Checksum-Algorithm"} {
		for _, a := range []string{"CRC32", "SHA256", "XXHASH3"} {
			if got := sendPut(n, "/hint/k", []byte(a), map[string]string{name: a}); got.status != 200 {
				t.Errorf("%s %s: %d %s", name, a, got.status, got.body)
			}
		}
	}
	wantError(t, sendPut(n, "/hint/x", []byte("x"), map[string]string{"X-Amz-Sdk-Checksum-Algorithm": "CRC32",
		"X-Amz-Checksum-Sha1": "AAAAAAAAAAAAAAAAAAAAAAAAAAA="}), 400, "InvalidRequest")
	n.missing("/hint/x")
}

func (n *node) missing(path string) {
	n.t.Helper()
	if got := n.send(request{method: "HEAD", path: path}); got.status != 404 {
		n.t.Errorf("%s is there", path)
	}
}

// TestS3_16_OverHTTP, and 17: digests that are none, and digests of other bytes, store nothing.
func TestS3_16_OverHTTP(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "digests")
	for _, p := range [][]byte{[]byte("small"), randomBytes(200_000)} {
		sum, other := md5.Sum(p), md5.Sum(p[1:])
		for _, c := range []struct{ md5, code string }{
			{"not base64!", "InvalidDigest"}, {b64(sum[:15]), "InvalidDigest"}, {"", "InvalidDigest"},
			{b64(other[:]), "BadDigest"},
		} {
			wantError(t, sendPut(n, "/digests/k", p, map[string]string{"Content-Md5": c.md5}), 400, c.code)
		}
		n.missing("/digests/k")
		put := request{method: "PUT", path: "/digests/k", body: bytes.NewReader(p), length: int64(len(p))}
		put.hash = sha256Hex(p[1:])
		wantError(t, n.send(put), 400, "XAmzContentSHA256Mismatch") // TestS3_17
		n.missing("/digests/k")
		put.hash, put.body = sha256Hex(p), bytes.NewReader(p)
		put.header = map[string]string{"Content-Md5": b64(sum[:])}
		if got := n.send(put); got.status != 200 {
			t.Errorf("%d %s", got.status, got.body)
		}
		n.send(request{method: "DELETE", path: "/digests/k"})
	}
}

func sha256Hex(p []byte) string {
	sum := sha256.Sum256(p)
	return hex.EncodeToString(sum[:])
}

// TestS3_37_Copies: sources with odd keys, in the forms in which clients write them.
func TestS3_37_Copies(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "odd")
	for key, sources := range map[string][]string{
		"a b":           {"odd/a%20b", "/odd/a%20b", "%2Fodd%2Fa%20b", "odd/a b"},
		"a+b%2B":        {"odd/a%2Bb%252B", "/odd/a%2Bb%252B"},
		"/lead":         {"odd//lead", "/odd//lead", "odd/%2Flead"},
		"dir/":          {"odd/dir/", "odd/dir%2F"},
		"what?x=y":      {"odd/what%3Fx%3Dy", "odd/what%3Fx%3Dy?versionId=null"},
		"ü/日本":          {"odd/%C3%BC/%E6%97%A5%E6%9C%AC", "odd/%c3%bc%2F%e6%97%a5%e6%9c%ac"},
		"a&b<c>\"d'e#f": {"odd/a%26b%3Cc%3E%22d%27e%23f"},
	} {
		path := "/odd/" + strings.ReplaceAll(url.PathEscape(key), "%2F", "/")
		if got := sendPut(n, path, []byte(key), nil); got.status != 200 {
			t.Fatalf("%s: %d %s", path, got.status, got.body)
		}
		for _, source := range sources {
			got := n.send(request{method: "PUT", path: "/odd/copy", header: map[string]string{"X-Amz-Copy-Source": source}})
			if got.status != 200 {
				t.Errorf("%q as %s: %d %s", key, source, got.status, got.body)
			}
			if back := n.send(request{method: "GET", path: "/odd/copy"}); string(back.body) != key {
				t.Errorf("%q as %s: copied %q", key, source, back.body)
			}
		}
	}
}

// TestS3_39_LocationConstraint: a bucket is made in the region of the server, whether that is named or not; another
// region is refused; who creates the bucket again is told that it is there, but in us-east-1 that all is well.
func TestS3_39_LocationConstraint(t *testing.T) {
	for region, again := range map[string]int{testRegion: 409, "us-east-1": 200} {
		n := newNode(t, func(o *tweakOptions) { o.AWSRegion = region })
		create := func(bucket, body, id, secret string) answer {
			req := must(http.NewRequest(http.MethodPut, n.url+"/"+bucket, strings.NewReader(body)))(t)
			if err := n.signer.Sign(req, s3.SignOptions{
				Credentials: s3.Credentials{AccessKey: id, SecretKey: secret}, Region: region, Time: time.Now(),
			}); err != nil {
				t.Fatal(err)
			}
			resp := must(n.client.Do(req))(t)
			defer resp.Body.Close()
			return answer{resp.StatusCode, resp.Header, must(io.ReadAll(resp.Body))(t), resp.ContentLength}
		}
		in := func(where string) string {
			return "<CreateBucketConfiguration><LocationConstraint>" + where +
				"</LocationConstraint></CreateBucketConfiguration>"
		}
		wantError(t, create("elsewhere", in("ap-south-7"), rootID, rootSecret), 400, "IllegalLocationConstraintException")
		wantError(t, create("elsewhere", in("No Region"), rootID, rootSecret), 400, "InvalidLocationConstraint")
		for bucket, body := range map[string]string{"plain": "", "named": in(region), "empty": in("")} {
			if got := create(bucket, body, rootID, rootSecret); got.status != 200 || got.header.Get("Location") != "/"+bucket {
				t.Errorf("%s: %s: %d %s", region, bucket, got.status, got.body)
			}
		}
		got := create("plain", "", rootID, rootSecret)
		if got.status != again || again == 409 && !bytes.Contains(got.body, []byte("<Code>BucketAlreadyOwnedByYou<")) {
			t.Errorf("%s: again: %d %s", region, got.status, got.body)
		}
		wantError(t, create("plain", "", aliceID, aliceSecret), 409, "BucketAlreadyExists")
	}
}
