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
