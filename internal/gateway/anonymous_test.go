package gateway_test

import (
	"bytes"
	"context"
	"maps"
	"net/http"
	"strings"
	"testing"

	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/gateway"
)

// openBucket is the bucket that takes requests without signatures.
const openBucket = "open-to-all"

func openNode(t *testing.T, tweaks ...tweak) (n *node, p []byte) {
	t.Helper()
	return rdmaNode(t, append(tweaks, func(o *tweakOptions) { o.AnonymousBucket = openBucket })...)
}

// unsigned is a request that nobody signed.
func unsigned(method, path string, header ...string) request {
	r := request{method: method, path: path, anonymous: true, unsigned: map[string]string{}}
	for i := 0; i+1 < len(header); i += 2 {
		r.unsigned[header[i]] = header[i+1]
	}
	return r
}

// contents is what a node stores, by the SDK: the objects of all buckets, with their bytes.
func contents(t *testing.T, n *node) map[string]string {
	t.Helper()
	c, all := n.root(), map[string]string{}
	for _, b := range must(c.ListBuckets(context.Background(), &awss3.ListBucketsInput{}))(t).Buckets {
		all[*b.Name] = "bucket"
		list := must(c.ListObjectsV2(context.Background(), &awss3.ListObjectsV2Input{Bucket: b.Name}))(t)
		for _, o := range list.Contents {
			all[*b.Name+"\x00"+*o.Key] = string(get(t, c, *b.Name, *o.Key))
		}
	}
	return all
}

// TestAnonymousBucket: what a client without keys does with the test bucket, from making to removing it, over HTTP and
// by tokens that nobody signed.
func TestAnonymousBucket(t *testing.T) {
	n, _ := openNode(t)
	want := func(status int, r request) answer {
		t.Helper()
		got := n.send(r)
		if got.status != status {
			t.Errorf("%s %s: status %d, want %d: %s", r.method, r.path, got.status, status, got.body)
		}
		return got
	}
	want(200, unsigned("PUT", "/"+openBucket))
	want(409, unsigned("PUT", "/"+openBucket)) // its owner asks again
	want(200, unsigned("HEAD", "/"+openBucket))
	body := unsigned("PUT", "/"+openBucket+"/k")
	body.body, body.length = strings.NewReader("payload"), 7
	want(200, body)
	if got := want(206, unsigned("GET", "/"+openBucket+"/k", "Range", "bytes=3-5")); string(got.body) != "loa" {
		t.Errorf("range: %q", got.body)
	}
	got := want(200, unsigned("GET", "/"+openBucket+"?list-type=2"))
	if !bytes.Contains(got.body, []byte("<Key>k</Key>")) {
		t.Errorf("list: %s", got.body)
	}

	copy(n.fabric.memory[64:], "from client memory")
	wantDone(t, n, n.send(unsigned("PUT", "/"+openBucket+"/r", "X-Amz-Rdma-Token", tokenFor(64, 18),
		"X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")), 200, 18)
	if g := n.fabric.lastGrant(); g.Principal != "anonymous" || g.Direction != fabric.ForPut {
		t.Errorf("grant %+v", g)
	}
	wantDone(t, n, n.send(unsigned("GET", "/"+openBucket+"/r", "X-Amz-Rdma-Token", tokenFor(1000, 6),
		"Range", "bytes=5-10")), 206, 6)
	if got := string(n.fabric.memory[1000:1006]); got != "client" {
		t.Errorf("client memory has %q", got)
	}
	if got := get(t, n.root(), openBucket, "r"); string(got) != "from client memory" {
		t.Errorf("a signed reader gets %q", got)
	}
	want(204, unsigned("DELETE", "/"+openBucket+"/k"))
	want(204, unsigned("DELETE", "/"+openBucket+"/r"))
	want(204, unsigned("DELETE", "/"+openBucket))
	want(404, unsigned("HEAD", "/"+openBucket))
}

// TestAnonymousOpensNothingElse: no other bucket, no other operation, however the request is written. The oracle is
// what the node stores, and that the bytes of another bucket are in no answer and in no client memory.
func TestAnonymousOpensNothingElse(t *testing.T) {
	n, p := openNode(t)
	if got := n.send(unsigned("PUT", "/"+openBucket)); got.status != 200 {
		t.Fatalf("make the bucket: %d", got.status)
	}
	put(t, n.root(), openBucket, "mine", []byte("open"))
	put(t, n.root(), "rdm", "secret", []byte("another bucket's bytes"))
	before := contents(t, n)

	secret := []byte("another bucket's bytes")
	try := func(r request) answer {
		t.Helper()
		got := n.send(r)
		if bytes.Contains(got.body, secret) || bytes.Contains(got.body, p[:64]) ||
			bytes.Contains(got.body, []byte("<Name>rdm</Name>")) {
			t.Errorf("%s %s %v: tells of another bucket", r.method, r.path, r.unsigned)
		}
		return got
	}
	refused := func(r request) {
		t.Helper()
		if got := try(r); got.status < 400 {
			t.Errorf("%s %s %v: status %d", r.method, r.path, r.unsigned, got.status)
		}
	}
	upper := strings.ToUpper(openBucket)
	paths := []string{
		"/", "/rdm", "/rdm/", "/rdm/secret", "//" + openBucket + "/secret", "//rdm/secret",
		"/" + openBucket + "%2F../rdm/secret", "/" + openBucket + "%2f/secret", "/./" + openBucket + "/secret",
		"/" + openBucket + "x/secret", "/" + upper + "/secret", "/" + openBucket + "%00/secret", "/%2e%2e/rdm/secret",
		"/rdm/../" + openBucket + "/secret", "/rdm%2F..%2F" + openBucket + "/secret", "/.penstock/fabric/v1",
		"/.penstock/fabric/v1/sessions", "/.penstock/admin/v1/keys", "/.penstock/" + openBucket,
	}
	for _, path := range paths {
		for _, method := range []string{"GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS"} {
			refused(unsigned(method, path))
			refused(unsigned(method, path, "X-Amz-Rdma-Token", tokenFor(0, 4<<20)))
		}
		refused(unsigned("POST", path+"?delete"))
	}
	for _, host := range []string{
		"rdm.s3.test", "rdm." + openBucket + ".s3.test", openBucket + ".rdm.s3.test", openBucket,
	} {
		for _, method := range []string{"GET", "PUT", "DELETE"} {
			r := unsigned(method, "/secret")
			r.header = map[string]string{"Host": host}
			refused(r)
		}
	}
	// Inside the bucket dots and slashes are a key's; the key is not there.
	for _, path := range []string{
		"/../rdm/secret", "/%2e%2e/rdm/secret", "/..%2Frdm%2Fsecret", "//rdm/secret", "/%2Frdm/secret",
	} {
		refused(unsigned("GET", "/"+openBucket+path))
		r := unsigned("GET", path)
		r.header = map[string]string{"Host": openBucket + ".s3.test"}
		refused(r)
	}
	for _, source := range []string{
		"/rdm/secret", "rdm/secret", "/" + openBucket + "/../rdm/secret", "/" + openBucket + "/mine",
	} {
		refused(unsigned("PUT", "/"+openBucket+"/copied", "X-Amz-Copy-Source", source))
		refused(unsigned("PUT", "/rdm/copied", "X-Amz-Copy-Source", source))
		refused(unsigned("PUT", "/"+openBucket+"/copied?partNumber=1&uploadId=x", "X-Amz-Copy-Source", source))
	}
	for _, sub := range []string{"acl", "policy", "versions", "uploads", "tagging", "versioning", "location"} {
		refused(unsigned("GET", "/"+openBucket+"?"+sub))
		refused(unsigned("PUT", "/"+openBucket+"?"+sub))
	}
	refused(unsigned("GET", "/"+openBucket+"/mine?acl"))
	refused(unsigned("POST", "/"+openBucket+"?delete"))
	refused(unsigned("PUT", "/"+openBucket+"/mine", "X-Amz-Acl", "public-read"))
	refused(unsigned("GET", "/"+openBucket+"/mine?x-amz-rdma-token="+tokenFor(0, 100)))
	if after := contents(t, n); !maps.Equal(before, after) {
		t.Errorf("what is stored changed: %d entries, were %d", len(after), len(before))
	}
	wantUntouched(t, n)
}

// TestAnonymousIsWithoutAnySignature: a signature that is wrong, incomplete or of another kind stays refused, and so
// does all without the setting.
func TestAnonymousIsWithoutAnySignature(t *testing.T) {
	n, _ := openNode(t)
	put(t, n.root(), "rdm", "x", nil)
	if got := n.send(unsigned("PUT", "/"+openBucket)); got.status != 200 {
		t.Fatalf("make the bucket: %d", got.status)
	}
	path := "/" + openBucket + "?list-type=2"
	for _, r := range []request{
		{method: "GET", path: path, id: rootID, secret: "wrong-secret"},
		{method: "GET", path: path, id: "PSNOBODY", secret: "x"},
		unsigned("GET", path, "Authorization", "AWS4-HMAC-SHA256 Credential=x"),
		unsigned("GET", path, "Authorization", "Basic eDp5"),
		unsigned("GET", path, "Authorization", ""),
		unsigned("GET", path+"&X-Amz-Signature=x"), unsigned("GET", path+"&AWSAccessKeyId=x&Signature=y"),
		unsigned("GET", path+"&X-Amz-Algorithm=AWS4-HMAC-SHA256"), unsigned("GET", path+"&X-Amz-Credential=x"),
		unsigned("GET", path, "X-Amz-Content-Sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"),
		unsigned("GET", path, "X-Amz-Content-Sha256", "?"),
		unsigned("GET", "/"+openBucket+"/k", "X-Penstock-Rdma-Deadline-Ms", "1", "X-Amz-Rdma-Token", tokenFor(0, 1)),
	} {
		if got := n.send(r); got.status < 400 {
			t.Errorf("%s %v: status %d", r.path, r.unsigned, got.status)
		}
	}
	if got := n.send(request{method: "GET", path: path}); got.status != 200 {
		t.Errorf("root, signed: %d", got.status)
	}
	if got := n.send(request{method: "GET", path: path, id: aliceID, secret: aliceSecret}); got.status != 403 {
		t.Errorf("alice, signed, who does not own it: %d", got.status)
	}
	// What is signed keeps its rules: a token that was added on the way is refused here, too.
	added := request{method: "GET", path: "/" + openBucket + "/k",
		unsigned: map[string]string{"X-Amz-Rdma-Token": tokenFor(0, 100)}}
	wantError(t, n.send(added), 403, "AccessDenied")

	closed := newNode(t)
	for _, r := range []request{unsigned("PUT", "/"+openBucket), unsigned("GET", "/"+openBucket+"/k")} {
		wantError(t, closed.send(r), 403, "AccessDenied")
	}
	wantUntouched(t, n)
}

// TestAnonymousOwnsWhatItMade: a bucket of the configured name that belongs to somebody else stays closed.
func TestAnonymousOwnsWhatItMade(t *testing.T) {
	n, _ := openNode(t)
	makeBucket(t, n.alice(), openBucket)
	put(t, n.alice(), openBucket, "k", []byte("alice's"))
	for _, r := range []request{
		unsigned("GET", "/"+openBucket+"/k"), unsigned("GET", "/"+openBucket), unsigned("DELETE", "/"+openBucket+"/k"),
		unsigned("PUT", "/"+openBucket+"/n", "Content-Length", "0"),
		unsigned("GET", "/"+openBucket+"/k", "X-Amz-Rdma-Token", tokenFor(0, 100)),
	} {
		wantError(t, n.send(r), 403, "AccessDenied")
	}
	if got := n.send(unsigned("PUT", "/"+openBucket)); got.status != http.StatusConflict {
		t.Errorf("make it: %d %s", got.status, got.body)
	}
	if got := get(t, n.alice(), openBucket, "k"); string(got) != "alice's" {
		t.Errorf("alice reads %q", got)
	}
	wantUntouched(t, n)
}

// TestAnonymousNameIsABuckets: other names are refused at start.
func TestAnonymousNameIsABuckets(t *testing.T) {
	pool, err := arena.New(arena.Options{Shares: []arena.ShareOption{
		{Name: gateway.ShareFabric, Buffers: 1, BufferBytes: gateway.FabricBufferBytes},
		{Name: gateway.ShareHTTP, Buffers: 1, BufferBytes: gateway.HTTPBufferBytes},
		{Name: gateway.ShareSmall, Buffers: 1, BufferBytes: gateway.SmallBufferBytes},
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for _, name := range []string{"A", "a/b", "..", ".penstock", "x", strings.Repeat("x", 64)} {
		if _, err := gateway.New(gateway.Options{Arena: pool, AnonymousBucket: name}); err == nil {
			t.Errorf("%q is taken", name)
		}
	}
}
