package gateway_test

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// TestHipObjSigning: messages as different clients sign them are taken, and what was added on the way is not.
func TestHipObjSigning(t *testing.T) {
	n, x, p := hipNode(t)
	gateways := func(m message) message { // as the client of a gateway signs: its length too, and a hash
		m.service, m.hash = "s3", nothingSHA
		return m
	}
	for name, c := range map[string]struct {
		change func(*message)
		status int
	}{
		"data client":      {func(*message) {}, 200},
		"gateway's client": {func(m *message) { *m = gateways(*m) }, 200},
		"unsigned payload": {func(m *message) { m.hash = "UNSIGNED-PAYLOAD" }, 200},
		"node's region":    {func(m *message) { m.region = testRegion }, 200},
		"host with port":   {func(m *message) { m.host = n.host }, 200},
		"other service":    {func(m *message) { m.service = "s3express" }, 400},
		"other region":     {func(m *message) { m.region = "us-west-2" }, 400},
		"other hash":       {func(m *message) { m.hash = strings.Repeat("ab", 32) }, 400},
		"other secret":     {func(m *message) { m.secret = "x" }, 403},
		"old":              {func(m *message) { m.at = time.Now().Add(-16 * time.Minute) }, 403},
		"early":            {func(m *message) { m.at = time.Now().Add(16 * time.Minute) }, 403},
		"added offset":     {func(m *message) { m.unsigned = [][2]string{{"x-amz-rdma-offset", "5"}} }, 403},
		"added unknown":    {func(m *message) { m.unsigned = [][2]string{{"X-AMZ-RDMA-New", "5"}} }, 403},
		"second protocol": {func(m *message) {
			m.unsigned = [][2]string{{"x-amz-rdma-protocol",
				"hipobj-rc-v2"}}
		}, 400},
		"second token": {func(m *message) {
			m.unsigned = [][2]string{{"x-amz-rdma-token", peerToken(1, 7, peerGID)}}
		}, 403},
		"query":  {func(m *message) { m.query = "x=1" }, 400},
		"body":   {func(m *message) { m.body = "x" }, 400},
		"method": {func(m *message) { m.method = "GET" }, 405},
		"PUT":    {func(m *message) { m.method = "PUT" }, 405},
	} {
		for _, make := range []func() message{
			func() message { return preparing("GET", "/rdm/k", 100) },
			func() message { return readying(n.prepare(preparing("GET", "/rdm/k", 100)), 0) },
			func() message { return cancelling(n.prepare(preparing("GET", "/rdm/k", 100))) },
		} {
			m := make()
			c.change(&m)
			want := c.status
			got := n.say(m.bytes())
			if strings.HasSuffix(m.path, "cancel") && want == 200 {
				want = 204
			}
			if got.status != want {
				t.Errorf("%s, %s: %d, want %d: %s", name, m.path, got.status, want, got.body)
			}
			if got.status >= 400 && bytes.Contains(got.body, []byte(peerToken(1, peerQPN, peerGID))) {
				t.Errorf("%s: the answer has the token", name)
			}
			if got.status >= 400 {
				wantUntouched(t, n)
			}
			n.fabric.log()
			x.expire()
		}
	}
	final := n.say(gateways(readying(n.prepare(gateways(preparing("GET", "/rdm/k", 100))), 0)).bytes())
	wantFinal(t, n, final, 200, p[:100])
}

// TestHipObjServiceIsNoOther: a request for anything but a message that is signed as one is refused, also where its
// path looks like that of a message.
func TestHipObjServiceIsNoOther(t *testing.T) {
	n, x, p := hipNode(t)
	for _, c := range []struct{ method, path, query, host string }{
		{"GET", "/rdm/k", "", ""}, {"PUT", "/rdm/new", "", ""}, {"DELETE", "/rdm/k", "", ""}, {"GET", "/", "", ""},
		{"GET", "/rdm", "list-type=2", ""}, {"PUT", "/rdn", "", ""}, {"POST", "/rdm/k", "uploads=", ""},
		{"GET", "/.penstock/fabric/v1", "", ""}, {"POST", "/.penstock/fabric/v1/sessions", "", ""},
		{"POST", "/.hipobj-rcx/prepare", "", ""}, {"POST", "/.hipobj-rc", "", ""},
		{"POST", "/.s3rdma-rc/connect", "", ""}, {"POST", "//.hipobj-rc/prepare", "", ""},
		{"PUT", "/rdm/.hipobj-rc/prepare", "", ""}, {"POST", "/.hipobj-rc/prepare", "", "rdm.s3.test"},
		{"PUT", "/.hipobj-rc/prepare", "", "rdm.s3.test"}, {"GET", "/.hipobj-rc/ready", "", "rdm.s3.test"},
	} {
		for _, hash := range []string{"", nothingSHA, "UNSIGNED-PAYLOAD"} {
			m := preparing("GET", "/rdm/k", 5)
			m.method, m.path, m.query, m.host, m.hash = c.method, c.path, c.query, c.host, hash
			got := n.say(m.bytes())
			if got.status < 400 || got.status == 404 {
				t.Errorf("%s %s at %q: %d %s", c.method, c.path, c.host, got.status, got.body)
			}
		}
		if m := preparing("GET", "/rdm/k", 5); c.method != "POST" {
			// Without a hash, the service of S3 does not help either.
			m.method, m.path, m.query, m.host, m.service = c.method, c.path, c.query, c.host, "s3"
			if got := n.say(m.bytes()); got.status != 400 {
				t.Errorf("%s %s without a hash: %d %s", c.method, c.path, got.status, got.body)
			}
		}
	}
	// The signature of a message holds for its path in any encoding; only the plain one is a message.
	for _, path := range []string{"/%2ehipobj-rc/prepare", "/.hipobj-rc%2fprepare", "/.hipobj-rc/%70repare"} {
		raw := bytes.Replace(preparing("GET", "/rdm/k", 5).bytes(), []byte("/.hipobj-rc/prepare"), []byte(path), 1)
		if got := n.say(raw); got.status < 400 {
			t.Errorf("%s: %d", path, got.status)
		}
	}
	if len(x.seen) != 0 || !bytes.Equal(get(t, n.root(), "rdm", "k"), p) {
		t.Error("something was prepared, or an object changed")
	}
	if got := n.send(request{method: "HEAD", path: "/rdm/new"}); got.status != 404 {
		t.Error("something was stored")
	}
	wantUntouched(t, n)
}
