package gateway_test

import (
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/fabric"
)

// TestTokenIsClaimedOnce: every request whose signature is right uses its token's number up, before anything
// is known of the object, and whatever the answer; no other request does.
func TestTokenIsClaimedOnce(t *testing.T) {
	bare := func(change func(*request)) request {
		r := withToken("GET", "/rdm/k", tokenFor(0, 10))
		change(&r)
		return r
	}
	for what, c := range map[string]struct {
		r       request
		status  int
		claimed int
	}{
		"get":                  {withToken("GET", "/rdm/k", tokenFor(0, 4<<20)), 200, 1},
		"put":                  {withToken("PUT", "/rdm/n", tokenFor(0, 10)), 200, 1},
		"part of no upload":    {withToken("PUT", "/rdm/n?partNumber=1&uploadId=x", tokenFor(0, 10)), 404, 1},
		"no key":               {withToken("GET", "/rdm/none", tokenFor(0, 10)), 404, 1},
		"no bucket":            {withToken("GET", "/none/k", tokenFor(0, 10)), 404, 1},
		"too small":            {withToken("GET", "/rdm/k", tokenFor(0, 10)), 501, 1},
		"bad name":             {withToken("GET", "/A_B/k", tokenFor(0, 10)), 404, 1},
		"bad header":           {withToken("PUT", "/rdm/n", tokenFor(0, 10), "X-Amz-Acl", "public-read"), 400, 1},
		"head ignores it":      {withToken("HEAD", "/rdm/k", tokenFor(0, 10)), 200, 0},
		"no token at all":      {request{method: "GET", path: "/rdm/empty"}, 200, 0},
		"not a token":          {withToken("GET", "/rdm/k", "x"), 400, 0},
		"of another grammar":   {withToken("GET", "/rdm/k", dcToken), 501, 0},
		"token not signed":     {bare(func(r *request) { r.header, r.unsigned = nil, r.header }), 403, 0},
		"signature is wrong":   {bare(func(r *request) { r.id, r.secret = rootID, "x" }), 403, 0},
		"not signed":           {bare(func(r *request) { r.anonymous = true }), 403, 0},
		"another's bucket":     {bare(func(r *request) { r.id, r.secret = aliceID, aliceSecret }), 403, 1},
		"copy does not use it": {withToken("PUT", "/rdm/n", tokenFor(0, 10), "X-Amz-Copy-Source", "/rdm/empty"), 200, 0},
	} {
		n, _ := rdmaNode(t)
		if a := n.send(c.r); a.status != c.status || n.fabric.claimed != c.claimed {
			t.Errorf("%s: status %d, %d claims; want %d and %d: %s", what, a.status, n.fabric.claimed,
				c.status, c.claimed, a.body)
		}
	}
}

// TestRefusedTokenIsClaimed: a request that is turned away for a limit is answered, so its client takes the
// memory back. A copy that comes when there is room again must not touch it.
func TestRefusedTokenIsClaimed(t *testing.T) {
	n := newNode(t, func(o *tweakOptions) { o.Limits.Requests = 0 })
	good := withToken("GET", "/rdm/k", tokenFor(0, 10))
	wrong := good
	wrong.id, wrong.secret = rootID, "x"
	for i, r := range []request{wrong, good, {method: "GET", path: "/rdm/k"}} {
		wantError(t, n.send(r), 503, "SlowDown")
		if n.fabric.claimed != min(i, 1) {
			t.Errorf("request %d: %d claims", i, n.fabric.claimed)
		}
	}
	n.g.Drain()
	wantError(t, n.send(good), 503, "ServiceUnavailable")
	if n.fabric.claimed != 2 {
		t.Errorf("draining: %d claims", n.fabric.claimed)
	}
	wantUntouched(t, n)
}

// TestClaimErrors: a replay and another principal's token are refused at once; a session that is gone is a
// decline, after the S3 errors.
func TestClaimErrors(t *testing.T) {
	n, _ := rdmaNode(t)
	for _, c := range []struct {
		err    error
		path   string
		status int
		code   string
	}{
		{fabric.ErrReplayed, "/rdm/k", 403, "RDMATokenReplayed"}, {fabric.ErrReplayed, "/rdm/none", 403, "RDMATokenReplayed"},
		{fabric.ErrReplayed, "/none/k", 403, "RDMATokenReplayed"}, {fabric.ErrNotGranted, "/rdm/none", 403, "AccessDenied"},
		{fabric.ErrNoSession, "/rdm/none", 404, "NoSuchKey"},
	} {
		n.fabric.claims = c.err
		for _, method := range []string{"GET", "PUT"} {
			if method == "PUT" && c.status == 404 {
				continue
			}
			wantError(t, n.send(withToken(method, c.path, tokenFor(0, 4<<20))), c.status, c.code)
		}
	}
	wantUntouched(t, n)
}

// TestSkewedTokenIsClaimed: a request that is refused for its time alone is answered, too. When the clocks agree
// again, its copy would be valid.
func TestSkewedTokenIsClaimed(t *testing.T) {
	for _, ahead := range []time.Duration{-time.Hour, time.Hour} {
		n := newNode(t, func(o *tweakOptions) { o.Now = func() time.Time { return time.Now().Add(ahead) } })
		good := withToken("GET", "/rdm/k", tokenFor(0, 10))
		wrong := good
		wrong.id, wrong.secret = rootID, "x"
		for i, r := range []request{wrong, good, {method: "GET", path: "/rdm/k"}} {
			wantError(t, n.send(r), 403, "RequestTimeTooSkewed")
			if n.fabric.claimed != min(i, 1) {
				t.Errorf("request %d: %d claims", i, n.fabric.claimed)
			}
		}
		wantUntouched(t, n)
	}
}
