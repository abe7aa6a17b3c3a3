package gateway_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-store/penstock/internal/meta/kv"
	"github.com/penstock-store/penstock/internal/store"
)

// steppedKV counts the calls of the store, and runs something between two of them.
type steppedKV struct {
	kv.Engine

	mu   sync.Mutex
	left int // calls until then; 0: never
	then func()
}

// after arms: then runs once, behind the nth call from now on.
func (s *steppedKV) after(n int, then func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left, s.then = n, then
}

// disarm tells whether then has run.
func (s *steppedKV) disarm() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ran := s.left == 0
	s.left, s.then = 0, nil
	return ran
}

func (s *steppedKV) step() {
	s.mu.Lock()
	then := s.then
	if s.left > 0 {
		s.left--
	}
	if s.left > 0 {
		then = nil
	}
	if then != nil {
		s.then = nil
	}
	s.mu.Unlock()
	if then != nil {
		then()
	}
}

// Snapshot implements kv.Engine.
func (s *steppedKV) Snapshot(ctx context.Context) (kv.Snap, error) {
	defer s.step()
	return s.Engine.Snapshot(ctx)
}

// Txn implements kv.Engine.
func (s *steppedKV) Txn(ctx context.Context, fn func(kv.Tx) error) error {
	defer s.step()
	return s.Engine.Txn(ctx, fn)
}

// swapBed has alice's bucket "swap", which turns into bob's under her hands, and another one of hers.
type swapBed struct {
	t      *testing.T
	n      *node
	alices []byte
	bobs   []byte
	upload string
	done   bool // bob has it
}

func (b *swapBed) root(method, path string, body []byte) answer {
	b.t.Helper()
	r := request{method: method, path: path}
	if body != nil {
		r.body, r.length = bytes.NewReader(body), int64(len(body))
	}
	return b.n.send(r)
}

func (b *swapBed) must(a answer, status int) answer {
	b.t.Helper()
	if a.status != status {
		b.t.Fatalf("status %d, want %d: %s", a.status, status, a.body)
	}
	return a
}

func (b *swapBed) bucket(name, owner string) {
	b.t.Helper()
	info := store.BucketInfo{Name: name, Owner: owner}
	if _, err := b.n.store.CreateBucket(context.Background(), info); err != nil {
		b.t.Fatal(err)
	}
}

var uploadIDText = regexp.MustCompile("<UploadId>([0-9a-f]+)</UploadId>")

// reset makes it alice's again, with an object and an upload that has a part.
func (b *swapBed) reset() (part string) {
	b.t.Helper()
	for _, key := range []string{"k", "new", "m"} {
		b.root("DELETE", "/swap/"+key, nil)
	}
	b.root("DELETE", "/swap", nil)
	b.root("DELETE", "/mine/dst", nil)
	b.bucket("swap", "alice")
	b.done = false
	b.must(b.root("PUT", "/swap/k", b.alices), 200)
	b.upload = uploadIDText.FindStringSubmatch(string(b.must(b.root("POST", "/swap/m?uploads", nil), 200).body))[1]
	a := b.must(b.root("PUT", "/swap/m?partNumber=1&uploadId="+b.upload, b.alices), 200)
	return a.header.Get("Etag")
}

// swap deletes it and makes it bob's, with an object of the same name, or empty.
func (b *swapBed) swap(empty bool) func() {
	return func() {
		b.root("DELETE", "/swap/k", nil)
		b.root("DELETE", "/swap/new", nil)
		if b.root("DELETE", "/swap", nil).status != 204 {
			return // the operation was faster
		}
		b.bucket("swap", "bob")
		b.done = true
		if !empty {
			b.must(b.root("PUT", "/swap/k", b.bobs), 200)
		}
	}
}

// unharmed checks that alice has done nothing to bob's bucket and got nothing out of it.
func (b *swapBed) unharmed(what string, a answer, empty bool) {
	b.t.Helper()
	if !b.done {
		return
	}
	if info, err := b.n.store.HeadBucket(context.Background(), "swap"); err != nil || info.Owner != "bob" {
		b.t.Errorf("%s: bob's bucket: %+v %v", what, info, err)
		return
	}
	got := b.root("GET", "/swap?list-type=2", nil)
	want := 1
	if empty {
		want = 0
	}
	if n := bytes.Count(got.body, []byte("<Key>")); n != want || bytes.Contains(got.body, []byte("<Key>new<")) {
		b.t.Errorf("%s: bob's bucket has %s", what, got.body)
	}
	if !empty && !bytes.Equal(b.root("GET", "/swap/k", nil).body, b.bobs) {
		b.t.Errorf("%s: bob's object was changed", what)
	}
	if up := b.root("GET", "/swap?uploads", nil); bytes.Contains(up.body, []byte("<Upload>")) {
		b.t.Errorf("%s: bob's bucket has uploads: %s", what, up.body)
	}
	a.header.Del("X-Amz-Request-Id") // random digits
	tag := strings.Trim(etagOf(b.bobs), `"`)
	if bytes.Contains(a.body, b.bobs[:40]) || bytes.Contains(a.body, []byte("<ID>bob<")) ||
		bytes.Contains(a.body, []byte(tag)) ||
		strings.Contains(fmt.Sprint(a.header), tag) || strings.Contains(fmt.Sprint(a.header), fmt.Sprint(len(b.bobs))) {
		b.t.Errorf("%s: alice learns of bob's object: %v %.300s", what, a.header, a.body)
	}
	if bytes.Contains(b.n.fabric.memory, b.bobs[:40]) {
		b.t.Errorf("%s: alice's memory has bob's bytes", what)
	}
	if bytes.Equal(b.root("GET", "/mine/dst", nil).body, b.bobs) {
		b.t.Errorf("%s: alice has a copy of bob's object", what)
	}
}

// TestBucketSwap: a bucket is deleted and taken by somebody else while a request of its former owner is under
// way, at every point between two looks at the metadata. The request finds its own bucket or none.
func TestBucketSwap(t *testing.T) {
	n := newNode(t)
	b := &swapBed{t: t, n: n, alices: bytes.Repeat([]byte("alice"), 1000), bobs: bytes.Repeat([]byte("bob's"), 1999)}
	b.bucket("mine", "alice")
	b.must(b.root("PUT", "/mine/src", b.alices), 200)
	copyOf := func(path, source string) func(string) request {
		return func(string) request {
			return request{method: "PUT", path: path, header: map[string]string{"X-Amz-Copy-Source": source}}
		}
	}
	simple := func(method, path string, body ...string) func(string) request {
		return func(string) request {
			r := request{method: method, path: strings.ReplaceAll(path, "ID", b.upload)}
			if len(body) > 0 {
				r.body, r.length = strings.NewReader(body[0]), int64(len(body[0]))
			}
			return r
		}
	}
	for _, op := range []struct {
		name string
		make func(part string) request
	}{
		{"get", simple("GET", "/swap/k")}, {"head", simple("HEAD", "/swap/k")},
		{"get by fabric", func(string) request { return withToken("GET", "/swap/k", tokenFor(0, 1<<20)) }},
		{"put by fabric", func(string) request { return withToken("PUT", "/swap/new", tokenFor(1<<20, 70_000)) }},
		{"put", simple("PUT", "/swap/new", "alice")}, {"overwrite", simple("PUT", "/swap/k", "alice")},
		{"delete", simple("DELETE", "/swap/k")},
		{"delete many", simple("POST", "/swap?delete", "<Delete><Object><Key>k</Key></Object></Delete>")},
		{"list", simple("GET", "/swap?list-type=2&fetch-owner=true")}, {"list 1", simple("GET", "/swap")},
		{"versions", simple("GET", "/swap?versions")}, {"uploads", simple("GET", "/swap?uploads")},
		{"acl", simple("GET", "/swap/k?acl")}, {"bucket acl", simple("GET", "/swap?acl")},
		{"put acl", func(string) request {
			return request{method: "PUT", path: "/swap?acl", header: map[string]string{"X-Amz-Acl": "private"}}
		}},
		{"tags", simple("GET", "/swap/k?tagging")}, {"attributes", func(string) request {
			return request{method: "GET", path: "/swap/k?attributes",
				header: map[string]string{"X-Amz-Object-Attributes": "ETag,ObjectSize"}}
		}},
		{"create upload", simple("POST", "/swap/new?uploads")},
		{"part", simple("PUT", "/swap/m?partNumber=1&uploadId=ID", "alice")},
		{"parts", simple("GET", "/swap/m?uploadId=ID")}, {"abort", simple("DELETE", "/swap/m?uploadId=ID")},
		{"complete", func(part string) request {
			return simple("POST", "/swap/m?uploadId=ID", "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>"+
				part+"</ETag></Part></CompleteMultipartUpload>")("")
		}},
		{"copy into", copyOf("/swap/new", "/mine/src")}, {"copy out", copyOf("/mine/dst", "/swap/k")},
		{"copy within", copyOf("/swap/new", "/swap/k")},
		{"copy part into", func(string) request {
			return copyOf("/swap/m?partNumber=2&uploadId="+b.upload, "/mine/src")("")
		}},
		{"delete bucket", simple("DELETE", "/swap")},
	} {
		empty := op.name == "delete bucket"
		swapped := 0
		for step := 1; step < 12; step++ {
			part := b.reset()
			if empty {
				b.must(b.root("DELETE", "/swap/k", nil), 204)
			}
			r := op.make(part)
			r.id, r.secret = aliceID, aliceSecret
			clear(n.fabric.memory[:1<<20])
			n.kv.after(step, b.swap(empty))
			a := n.send(r)
			if !n.kv.disarm() && a.status != http.StatusNotImplemented {
				break
			}
			if b.done || a.status == http.StatusNotImplemented {
				swapped++
			}
			b.unharmed(fmt.Sprintf("%s, swapped after step %d, status %d", op.name, step, a.status), a, empty)
		}
		if swapped == 0 {
			t.Errorf("%s: no step at which to swap", op.name)
		}
	}
}

// TestKeyRevokedDuringOpen: a key is deleted after the request was verified, and before its window is open. Its
// principal's transfers were ended before this one was there, so this one must not go on: a token without a session
// would open.
func TestKeyRevokedDuringOpen(t *testing.T) {
	for _, method := range []string{"PUT", "GET"} {
		n := newNode(t)
		send := func(method, path string) answer {
			r := withToken(method, path, tokenFor(0, 1000))
			r.id, r.secret = aliceID, aliceSecret
			return n.send(r)
		}
		made := n.send(request{method: "PUT", path: "/alices", id: aliceID, secret: aliceSecret})
		if put := send("PUT", "/alices/k"); made.status != 200 || put.status != 200 {
			t.Fatalf("%d, %d %s", made.status, put.status, put.body)
		}
		n.fabric.log()
		n.fabric.opening = func() {
			if err := n.keys.Delete(context.Background(), aliceID); err != nil {
				t.Error(err)
			}
		}
		wantError(t, send(method, "/alices/k"), 403, "InvalidAccessKeyId")
		for _, event := range n.fabric.log() {
			if event == "write" || event == "read" {
				t.Errorf("%s: bytes move for a key that is revoked", method)
			}
		}
	}
}

// TestKeyRevokedDuringOffer: a key is deleted after the request for a session was verified. Its principal's
// sessions were ended before the new one existed, so the new one must not be left over.
func TestKeyRevokedDuringOffer(t *testing.T) {
	n := newNode(t)
	body := `{"fabric":"tcp"}`
	offer := func() answer {
		return n.send(request{method: "POST", path: "/.penstock/fabric/v1/sessions", body: strings.NewReader(body),
			length: int64(len(body)), id: aliceID, secret: aliceSecret})
	}
	if a := offer(); a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	n.fabric.log()
	n.fabric.offered = func() {
		if err := n.keys.Delete(context.Background(), aliceID); err != nil {
			t.Error(err)
		}
	}
	a := offer()
	wantError(t, a, 403, "InvalidAccessKeyId")
	if bytes.Contains(a.body, []byte("secret")) {
		t.Errorf("the secret of a session goes to a revoked key: %s", a.body)
	}
	if events := n.fabric.log(); len(events) != 1 || events[0] != "revoke alice" {
		t.Errorf("events %v", events)
	}
}
