package gateway_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// TestEmptyConditionsWriteNothing: a program that lost the ETag of its condition sends an empty one. No write takes
// that for none. Oracle: the object as it was.
func TestEmptyConditionsWriteNothing(t *testing.T) {
	n := newNode(t)
	c := n.root()
	makeBucket(t, c, "empty")
	put(t, c, "empty", "k", []byte("old"))
	bucket, key, none := aws.String("empty"), aws.String("k"), aws.String("")
	_, err := c.DeleteObjects(t.Context(), &awss3.DeleteObjectsInput{Bucket: bucket, Delete: &types.Delete{
		Objects: []types.ObjectIdentifier{{Key: key, ETag: none}},
	}})
	wantCode(t, err, "MalformedXML")

	up := n.newUpload("/empty/k", nil)
	part := sendPut(n, "/empty/k?partNumber=1&uploadId="+up, []byte("part"), nil)
	done := completion(part.header.Get("Etag"))
	for _, r := range []struct{ method, path, body, source string }{
		{"PUT", "/empty/k", "new", ""},
		{"PUT", "/empty/k", "", "empty/k"},
		{"POST", "/empty/k?uploadId=" + up, done, ""},
		{"DELETE", "/empty/k", "", ""},
	} {
		for _, value := range []string{"", " ", ","} {
			signed := map[string]string{}
			if r.source != "" {
				signed = map[string]string{"X-Amz-Copy-Source": r.source, "X-Amz-Metadata-Directive": "REPLACE"}
			}
			head := n.raw(request{method: r.method, path: r.path, header: signed, unsigned: map[string]string{
				"If-Match": value, "Content-Length": fmt.Sprint(len(r.body)),
			}})
			resp, body := n.talk(append(head, r.body...))
			if resp.StatusCode != http.StatusPreconditionFailed || !strings.Contains(body, "PreconditionFailed") {
				t.Errorf("%s %s under If-Match %q: %d %s", r.method, r.path, value, resp.StatusCode, body)
			}
		}
	}
	if got := n.send(request{method: "GET", path: "/empty/k"}); string(got.body) != "old" {
		t.Errorf("%d %q", got.status, got.body)
	}
}

// TestEmptyLastPart: a part without bytes is answered as such; a Content-Range of no bytes does not exist (RFC 9110,
// section 14.4).
func TestEmptyLastPart(t *testing.T) {
	n := newNodeOf(t, 1)
	makeBucket(t, n.root(), "empty")
	up := n.newUpload("/empty/k", nil)
	doc := "<CompleteMultipartUpload>"
	for i, body := range []string{"full", ""} {
		part := sendPut(n, fmt.Sprintf("/empty/k?partNumber=%d&uploadId=%s", i+1, up), []byte(body), nil)
		doc += fmt.Sprintf("<Part><PartNumber>%d</PartNumber><ETag>%s</ETag></Part>", i+1, part.header.Get("Etag"))
	}
	doc += "</CompleteMultipartUpload>"
	head := n.raw(request{method: "POST", path: "/empty/k?uploadId=" + up,
		unsigned: map[string]string{"Content-Length": fmt.Sprint(len(doc))}})
	if resp, body := n.talk(append(head, doc...)); resp.StatusCode != 200 {
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
	for _, method := range []string{"GET", "HEAD"} {
		for part, want := range []struct {
			status, length int
			span           string
		}{{206, 4, "bytes 0-3/4"}, {200, 0, ""}} {
			got := n.send(request{method: method, path: fmt.Sprintf("/empty/k?partNumber=%d", part+1)})
			if got.status != want.status || int(got.length) != want.length ||
				got.header.Get("Content-Range") != want.span || got.header.Get("X-Amz-Mp-Parts-Count") != "2" {
				t.Errorf("%s part %d: %d, %d bytes, %v", method, part+1, got.status, got.length, got.header)
			}
		}
	}
}
