package hostile

import (
	"bytes"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/penstock-store/penstock/internal/frame"
)

// TestReplay: whoever has seen a signed request sends the same bytes again, while the session lives and the
// region is announced. Whatever the first answer was, the copy is refused, and neither client memory nor the
// bucket changes.
func TestReplay(t *testing.T) {
	n := startNode(t)
	before := n.baseline(1)
	n.expectStatus(200, n.send(n.put("/"+bucket+"/empty", nil)))
	for _, fabric := range []string{"shm", "tcp"} {
		l := n.attacker(n.root, fabric, objectBytes)
		if fabric == "tcp" {
			go l.obey(func(frame.Header) {})
		}
		tok := func(size int64) string { return l.token(1, 0, size) }
		put := n.put("/"+bucket+"/replayed", nil)
		narrow := tok(objectBytes) + ":00007f7c80000000:" + "0000000000001000"
		for what, c := range map[string]struct {
			r      request
			status int
		}{
			"get":       {l.get("object", tok(objectBytes)), 200},
			"range":     {l.get("object", tok(objectBytes)).with("Range", "bytes=5-4000"), 206},
			"put":       {put.with(headerToken, tok(objectBytes)), 200},
			"suffix":    {put.with(headerToken, narrow), 200},
			"empty":     {l.get("empty", tok(10)), 200},
			"none":      {l.get("replayed-later", tok(objectBytes)), 404},
			"bucket":    {request{method: "GET", path: "/no-such-bucket/x"}.with(headerToken, tok(10)), 404},
			"name":      {request{method: "GET", path: "/No_Bucket/x"}.with(headerToken, tok(10)), 404},
			"condition": {l.get("object", tok(objectBytes)).with("If-Match", `"x"`), 412},
			"too large": {l.get("object", tok(10)), 501},
			"outside":   {l.get("object", l.token(1, objectBytes, objectBytes)), 400},
			"agent":     {l.get("object", tok(objectBytes)).with("X-Amz-Rdma-Agent", "other"), 501},
			"header":    {put.with(headerToken, tok(10), "X-Amz-Acl", "public-read"), 400},
			"deadline":  {l.get("object", tok(objectBytes)).with("X-Penstock-Rdma-Deadline-Ms", "soon"), 400},
		} {
			what = fabric + " " + what
			raw := n.raw(c.r)
			a, err := n.talk(raw, c.r.method)
			if err != nil {
				t.Fatal(err)
			}
			if a.status != c.status {
				t.Errorf("%s: status %d, want %d: %s", what, a.status, c.status, a.body)
			}
			n.expectStatus(204, n.send(request{method: "DELETE", path: "/" + bucket + "/replayed"}))
			n.expectStatus(200, n.send(n.put("/"+bucket+"/replayed-later", n.object)))
			fill := pattern(7, objectBytes)
			copy(l.mem.bytes, fill)
			for range 2 {
				a, err := n.talk(raw, c.r.method)
				if err != nil {
					t.Fatal(err)
				}
				n.expectError(what+" replayed", a, 403, "RDMATokenReplayed")
			}
			if !bytes.Equal(l.mem.bytes, fill) {
				t.Errorf("%s: a replay wrote into client memory", what)
			}
			n.expectError(what+" stored by a replay", n.send(
				request{method: "GET", path: "/" + bucket + "/replayed"}), 404, "NoSuchKey")
			n.expectStatus(204, n.send(request{method: "DELETE", path: "/" + bucket + "/replayed-later"}))
		}
		n.copies(fabric, l)
		l.close()
	}
	n.expectStatus(204, n.send(request{method: "DELETE", path: "/" + bucket + "/empty"}))
	n.settled(before, "afterwards")
}

// copies sends the same signed bytes many times at once: one request gets the window.
func (n *node) copies(fabric string, l *link) {
	n.t.Helper()
	for range 5 {
		raw := n.raw(l.get("object", l.token(1, 0, objectBytes)))
		var done, refused atomic.Int32
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				a, err := n.talk(raw, "GET")
				switch {
				case err != nil:
					n.t.Errorf("%s copies: %v", fabric, err)
				case a.status == 200:
					done.Add(1)
				case a.status == 403 && a.code() == "RDMATokenReplayed":
					refused.Add(1)
				default:
					n.t.Errorf("%s copies: %d %s", fabric, a.status, a.body)
				}
			})
		}
		wg.Wait()
		if done.Load() != 1 || refused.Load() != 7 {
			n.t.Errorf("%s: %d of 8 copies moved bytes, %d were refused", fabric, done.Load(), refused.Load())
		}
	}
}

// TestReplayInAnotherSession: a token's number is one of its session; a token that names another session, or
// comes from another principal, uses nothing up.
func TestReplayInAnotherSession(t *testing.T) {
	n := startNode(t)
	before := n.baseline(1)
	for _, fabric := range []string{"shm", "tcp"} {
		l, other := n.attacker(n.root, fabric, objectBytes), n.attacker(n.root, fabric, objectBytes)
		if fabric == "tcp" {
			go l.obey(func(frame.Header) {})
			go other.obey(func(frame.Header) {})
		}
		tok := l.token(1, 0, objectBytes)
		n.expectError(fabric+" stolen", n.send(n.as(n.alice, l.get("object", tok))), 403, "AccessDenied")
		n.expectStatus(200, n.send(l.get("object", tok)))
		n.expectError(fabric+" again", n.send(l.get("object", tok)), 403, "RDMATokenReplayed")
		n.expectError(fabric+" without a number", n.send(
			l.get("object", tokenOf(l.offer, 1, 0, objectBytes))), 403, "RDMATokenReplayed")
		same := other.token(1, 0, objectBytes) // the same number, in a session of its own
		if strings.Split(same, ":")[3] != strings.Split(tok, ":")[3] {
			t.Fatalf("%s: the numbers differ", fabric)
		}
		n.expectStatus(200, n.send(other.get("object", same)))
		l.close()
		other.close()
	}
	n.settled(before, "afterwards")
}
