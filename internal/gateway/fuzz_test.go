package gateway_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/s3"
)

// FuzzRequests serves signed requests with one header and a body of the fuzzer's choice. Whatever comes, the
// answer is one of S3's, no handler panics and no buffer stays out.
func FuzzRequests(f *testing.F) {
	for _, seed := range []struct{ method, target, name, value, body string }{
		{"GET", "/fuzz/k", "Range", "bytes=1-2", ""},
		{"GET", "/fuzz/k?partNumber=1", "If-None-Match", `"x"`, ""},
		{"GET", "/fuzz/k", "X-Amz-Rdma-Token", tokenFor(0, 100), ""},
		{"PUT", "/fuzz/k2", "X-Amz-Rdma-Token", tokenFor(8, 9), ""},
		{"PUT", "/fuzz/k2", "X-Amz-Copy-Source", "/fuzz/k%20?versionId=null", ""},
		{"PUT", "/fuzz/k3?partNumber=1&uploadId=0123", "Content-Md5", "1B2M2Y8AsgTpgAmY7PhCfg==", "x"},
		{"POST", "/fuzz?delete", "", "", "<Delete><Object><Key>k</Key></Object></Delete>"},
		{"POST", "/fuzz/k?uploads", "X-Amz-Checksum-Algorithm", "CRC32", ""},
		{"POST", "/fuzz/k?uploadId=00", "", "", "<CompleteMultipartUpload/>"},
		{"GET", "/fuzz?list-type=2&continuation-token=MWE&max-keys=2&delimiter=/", "", "", ""},
		{"GET", "/fuzz?uploads&key-marker=a&upload-id-marker=b", "", "", ""},
		{"GET", "/?max-buckets=1", "X-Amz-Expected-Bucket-Owner", "root", ""},
		{"PUT", "/fuzz2", "", "", "<CreateBucketConfiguration/>"},
		{"POST", "/.penstock/fabric/v1/sessions", "", "", `{"fabric":"tcp"}`},
		{"HEAD", "/fuzz/%00", "X-Penstock-Rdma-Deadline-Ms", "1", ""},
	} {
		f.Add(seed.method, seed.target, seed.name, seed.value, seed.body)
	}
	var log syncBuffer
	n := newNode(f, func(o *tweakOptions) { o.Log = debugLogger(&log) })
	makeBucket(f, n.root(), "fuzz")
	f.Fuzz(func(t *testing.T, method, target, name, value, body string) {
		if !strings.HasPrefix(target, "/") || len(target)+len(value)+len(body) > 1<<16 {
			return
		}
		req, err := http.NewRequest(method, n.url+target, bytes.NewReader([]byte(body)))
		if err != nil {
			return
		}
		if name != "" {
			req.Header.Set(name, value)
		}
		o := s3.SignOptions{
			Credentials: s3.Credentials{AccessKey: rootID, SecretKey: rootSecret}, Region: testRegion, Time: time.Now(),
		}
		if err := n.signer.Sign(req, o); err != nil {
			return
		}
		req.RequestURI = target
		req.RemoteAddr = "127.0.0.1:1"
		w := httptest.NewRecorder()
		watchdog := time.AfterFunc(20*time.Second, func() {
			panic(fmt.Sprintf("%s %q %s=%q %q hangs", method, target, name, value, body))
		})
		defer watchdog.Stop()
		n.g.ServeHTTP(w, req)
		if w.Code == 500 || w.Code < 200 || w.Code > 503 {
			t.Errorf("%s %q %s=%q: %d %s", method, target, name, value, w.Code, w.Body.String())
		}
		if strings.Contains(log.String(), "panicked") {
			t.Fatal(log.String())
		}
		log.Reset()
		if used := n.arena.InUse(); used != 0 {
			t.Errorf("%s %q: %d buffers are out", method, target, used)
		}
	})
}
