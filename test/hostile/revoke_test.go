package hostile

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/iam"
)

func (n *node) revoke(k iam.Key) {
	n.t.Helper()
	n.expectStatus(204, n.send(request{method: "DELETE", path: "/.penstock/admin/v1/keys/" + k.ID}))
}

// interrupted is a connection in whose handshake something happens.
type interrupted struct {
	io.ReadWriter
	when string
	read bool
	run  func()
}

func (i *interrupted) Write(p []byte) (int, error) {
	if i.when == "offered" || i.when == "challenged" && i.read {
		i.run()
	}
	return i.ReadWriter.Write(p)
}

func (i *interrupted) Read(p []byte) (int, error) {
	if i.when == "greeted" {
		i.run()
	}
	i.read = true
	return i.ReadWriter.Read(p)
}

// TestRevokedOffer: a key goes between the offer of a session and its data connection, or in the middle of the
// handshake. The secret that the client holds is worth nothing any more.
func TestRevokedOffer(t *testing.T) {
	n := startNode(t)
	before := n.baseline(1)
	for _, fabric := range []string{"shm", "tcp"} {
		for _, when := range []string{"offered", "greeted", "challenged"} {
			k := n.newKey("alice")
			offer := n.offer(k, fabric)
			revoke := func() { n.revoke(k) }
			c, err := net.Dial(offer.Network, offer.Address)
			if err != nil {
				t.Fatal(err)
			}
			_ = c.SetDeadline(time.Now().Add(patience))
			_, err = frame.Connect(&interrupted{ReadWriter: c, when: when, run: sync.OnceFunc(revoke)},
				offer.Session, offer.Secret.Reveal(), 0)
			if refused := new(frame.RefusedError); !errors.As(err, &refused) {
				t.Errorf("%s, revoked when %s: %v", fabric, when, err)
			}
			_ = c.Close()
		}
	}
	n.settled(before, "afterwards")
}

// TestRevokedSession: one of two keys of a principal goes. Its sessions end, whichever key opened them; a request
// signed by the other key does not reach their memory, and no data connection joins them.
func TestRevokedSession(t *testing.T) {
	n := startNode(t)
	before := n.baseline(1)
	for _, fabric := range []string{"shm", "tcp"} {
		k := n.newKey("alice")
		n.expectStatus(200, n.send(n.as(n.alice, n.put("/"+alicesBucket+"/o", n.object))))
		l := n.attacker(k, fabric, objectBytes)
		get := request{method: "GET", path: "/" + alicesBucket + "/o"}
		raw := n.raw(n.as(n.alice, get.with(headerToken, l.token(1, 0, objectBytes))))
		n.revoke(k)
		n.unchanged(fabric+" revoked", l.mem, func() {
			a, err := n.talk(raw, "GET")
			if err != nil {
				t.Fatal(err)
			}
			n.expectDeclined(fabric+" token of an ended session", a, "no-session")
		})
		if _, err := connect(l.offer); err == nil {
			t.Errorf("%s: a data connection joins a revoked session", fabric)
		}
		l.close()
		n.expectStatus(204, n.send(n.as(n.alice, request{method: "DELETE", path: "/" + alicesBucket + "/o"})))
	}
	n.settled(before, "afterwards")
}

// TestRestart: the node is restarted on its directory, with the same id and the same keys. Tokens of sessions
// from before name nothing, and clients find out, fence what they can, and go on.
func TestRestart(t *testing.T) {
	n := startNode(t)
	for _, f := range []client.Fabric{client.SHM, client.TCP} {
		l := n.attacker(n.root, string(f), objectBytes)
		raw := n.raw(l.get("object", l.token(1, 0, objectBytes)))
		host := n.host
		n.stop()
		n.config.HTTP.Listen = host
		n.open()
		n.unchanged(string(f)+" restarted", l.mem, func() {
			a, err := n.talk(raw, "GET")
			if err != nil {
				t.Fatal(err)
			}
			n.expectDeclined(string(f)+" token from before the restart", a, "no-session")
		})
		if _, err := connect(l.offer); err == nil {
			t.Errorf("%s: a data connection joins a session from before the restart", f)
		}
		l.close()

		c := n.client(f)
		old, err := c.Alloc(objectBytes)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.GetInto(t.Context(), old.All(), bucket, "object", client.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		clear(old.Bytes())
		n.stop()
		n.open()
		r := old
		if f == client.SHM { // nobody acknowledged that the node that mapped the memory has let go of it
			_, err := c.GetInto(t.Context(), old.All(), bucket, "object", client.GetOptions{})
			if !errors.Is(err, client.ErrRegionAbandoned) || !old.Abandoned() {
				t.Errorf("shm region of a session that ended without a fence: %v", err)
			}
			if r, err = c.Alloc(objectBytes); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := c.GetInto(t.Context(), r.All(), bucket, "object", client.GetOptions{}); err != nil {
			t.Errorf("%s after the restart: %v", f, err)
		}
		if !bytes.Equal(r.Bytes(), n.object) {
			t.Errorf("%s after the restart: other bytes", f)
		}
		if err := c.Close(); err != nil {
			t.Errorf("%s close: %v", f, err)
		}
		if err := errors.Join(old.Close(), r.Close()); err != nil {
			t.Errorf("%s: %v", f, err)
		}
	}
}
