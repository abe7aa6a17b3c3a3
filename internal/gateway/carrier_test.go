package gateway_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// sendAll sends a GET of which every header is signed, as SDKs do, and then some that are not.
func (n *node) sendAll(path string, header, unsigned map[string]string, secret string) answer {
	n.t.Helper()
	req, err := http.NewRequest("GET", n.url+path, nil)
	if err != nil {
		n.t.Fatal(err)
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	const hash = "UNSIGNED-PAYLOAD"
	req.Header.Set("X-Amz-Content-Sha256", hash)
	keys := aws.Credentials{AccessKeyID: rootID, SecretAccessKey: secret}
	err = v4.NewSigner().SignHTTP(n.t.Context(), keys, req, hash, "s3", testRegion, time.Now())
	if err != nil {
		n.t.Fatal(err)
	}
	for k, v := range unsigned {
		req.Header.Set(k, v)
	}
	resp, err := n.client.Do(req)
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, text, resp.ContentLength}
}

// TestTokenIsClaimedInAnyHeader: a token's number is used up whatever header it came by, switched on or not, and
// also when another one was added on the way so that the request is refused: a copy without it must find nothing.
func TestTokenIsClaimedInAnyHeader(t *testing.T) {
	text := tokenFor(0, 4<<20)
	cuobj := func() map[string]string {
		return map[string]string{
			"X-CuObj-RDMA-Descr": text, "X-CuObj-Content-Length": "4194304", "X-CuObj-Remote-Buf-Start": "140737488355328",
		}
	}
	info, scal := map[string]string{"x-rdma-info": text}, map[string]string{"x-scal-rdma": text}
	for name, c := range map[string]struct {
		aliases                  []string
		header, unsigned         map[string]string
		path                     string
		status, claimed, touched int
	}{
		"info":                {[]string{"x-rdma-info"}, info, nil, "/rdm/k", 200, 1, 1},
		"cuobj":               {[]string{"cuobj"}, cuobj(), nil, "/rdm/k", 200, 1, 1},
		"off":                 {nil, info, nil, "/rdm/k", 501, 1, 0},
		"another is on":       {[]string{"cuobj"}, info, nil, "/rdm/k", 501, 1, 0},
		"never on":            {[]string{"x-rdma-info", "cuobj"}, scal, nil, "/rdm/k", 501, 1, 0},
		"alias added":         {[]string{"x-rdma-info"}, withToken("", "", text).header, info, "/rdm/k", 400, 1, 0},
		"token in the URL":    {[]string{"x-rdma-info"}, nil, nil, "/rdm/k?X-Rdma-Info=" + text, 400, 0, 0},
		"part in the URL":     {[]string{"cuobj"}, nil, nil, "/rdm/k?x-cuobj-content-length=1", 400, 0, 0},
		"alias is not signed": {[]string{"x-rdma-info"}, nil, info, "/rdm/k", 403, 0, 0},
	} {
		n, _ := rdmaNode(t, func(o *tweakOptions) { o.RDMA.Aliases = c.aliases })
		a := n.sendAll(c.path, c.header, c.unsigned, rootSecret)
		touched := len(n.fabric.log())
		if a.status != c.status || n.fabric.claimed != c.claimed || (touched > 0) != (c.touched > 0) {
			t.Errorf("%s: status %d, %d claims, %d accesses; want %d and %d: %s", name, a.status, n.fabric.claimed,
				touched, c.status, c.claimed, a.body)
		}
	}
}

// TestGrantIsNotEchoed: an answer about a wrong signature does not show the token, whatever header it came by.
func TestGrantIsNotEchoed(t *testing.T) {
	n, _ := rdmaNode(t)
	for _, name := range []string{"x-amz-rdma-token", "x-rdma-info", "X-CuObj-RDMA-Descr"} {
		a := n.sendAll("/rdm/k", map[string]string{name: tokenFor(0, 10)}, nil, "x")
		if a.status != 403 || strings.Contains(string(a.body), "ps1:tcp") {
			t.Errorf("%s: status %d: %s", name, a.status, a.body)
		}
	}
}

// TestSpecDeclineIsNoSuccess: with declines by the specification, what fails over HTTP has no reply header, and what
// HTTP could not serve either stays 501.
func TestSpecDeclineIsNoSuccess(t *testing.T) {
	n, p := rdmaNode(t, func(o *tweakOptions) { o.RDMA.SpecDecline = true })
	got := n.send(withToken("GET", "/rdm/k", dcToken))
	if got.status != 200 || got.header.Get("X-Amz-Rdma-Reply") != "501" || !bytes.Equal(got.body, p) ||
		got.header.Get("X-Penstock-Rdma-Reason") != "no-rail" || got.header.Get("X-Amz-Rdma-Bytes-Transferred") != "" {
		t.Errorf("status %d, %d bytes, headers %v", got.status, len(got.body), got.header)
	}
	got = n.send(withToken("GET", "/rdm/k", tokenFor(0, 10)))
	if got.status != 200 || got.header.Get("X-Penstock-Rdma-Need") == "" || !bytes.Equal(got.body, p) {
		t.Errorf("too large: status %d, %d bytes, headers %v", got.status, len(got.body), got.header)
	}
	got = n.send(withToken("PUT", "/rdm/k", dcToken))
	if got.status != 200 || got.header.Get("X-Amz-Rdma-Reply") != "501" || got.header.Get("Etag") != "" ||
		!bytes.Contains(got.body, []byte("<Error><Code>NotImplemented</Code>")) {
		t.Errorf("put: status %d, headers %v: %s", got.status, got.header, got.body)
	}
	if stored := n.send(request{method: "GET", path: "/rdm/k"}); !bytes.Equal(stored.body, p) {
		t.Error("a declined PUT changed the object")
	}
	wantError(t, n.send(withToken("GET", "/rdm/none", dcToken)), 404, "NoSuchKey")
	wantError(t, n.send(withToken("PUT", "/none/k", dcToken)), 404, "NoSuchBucket")
	key := "X-Amz-Server-Side-Encryption-Customer-Algorithm"
	for _, method := range []string{"GET", "PUT"} {
		wantDeclined(t, n, n.send(withToken(method, "/rdm/k", tokenFor(0, 4<<20), key, "AES256")), "encrypted-client-key")
	}
	for _, id := range n.chunkIDs() {
		n.chunks.Corrupt(id, 0)
	}
	wantError(t, n.send(withToken("GET", "/rdm/k", dcToken)), 500, "InternalError")
}
