package client

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// TestCloseDoesNotWaitForADriver: a driver that does not return while a session is opened holds Close up for a while
// only. When it returns, what was opened is fenced, and never used.
func TestCloseDoesNotWaitForADriver(t *testing.T) {
	for _, fabric := range []string{PathRC, PathDC} {
		n := newFakeNode(t, fabric)
		n.objects["/b/k"] = []byte("payload")
		c := n.client(func(cfg *Config) { cfg.MaxAttempts = 1 })
		c.fabrics.openLimit, c.fabrics.closeLimit = 20*time.Millisecond, 20*time.Millisecond
		returns := make(chan struct{})
		c.fabrics.local = func(string) *DeclinedError {
			<-returns
			return nil
		}
		r := region(t, c, 7)
		if _, err := c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{}); !errors.Is(err, errOpenHangs) {
			t.Errorf("%s: %v", fabric, err)
		}
		if err := c.Close(); !errors.Is(err, errOpenHangs) {
			t.Errorf("%s: close: %v", fabric, err)
		}
		close(returns)
		c.fabrics.openers.Wait()
		opened := len(n.sessions)
		if n.count("fence") != opened || n.count("announce") != 0 || c.fabrics.slots[0].current != nil {
			t.Errorf("%s: %d sessions, %d fences, %d announcements", fabric, opened, n.count("fence"), n.count("announce"))
		}
		if fabric == PathDC && opened != 1 { // nothing of it needs the node, so nothing ends it before
			t.Errorf("%d sessions were opened", opened)
		}
	}
}

// TestDCConfig: dc is asked for or not used, and its access key is a number, which no error quotes.
func TestDCConfig(t *testing.T) {
	base := Config{Endpoint: "http://127.0.0.1:1", Credentials: Credentials{AccessKey: "AK", SecretKey: "SK"}}
	for fabric, want := range map[Fabric]bool{DC: true, Auto: false, "": false, RC: false} {
		cfg := base
		cfg.Fabric = fabric
		c, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		has := false
		for _, s := range c.fabrics.slots {
			has = has || s.name == PathDC
		}
		if has != want || c.cfg.DCKey != DefaultDCKey {
			t.Errorf("%q: dc %v, key %q", fabric, has, c.cfg.DCKey)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, key := range []string{"0x", "secret", "-1", "0x10000000000000000", "1.5"} {
		cfg := base
		cfg.DCKey = key
		if _, err := New(cfg); !errors.Is(err, ErrConfig) || strings.Contains(err.Error(), key) && key != "-1" {
			t.Errorf("key %q: %v", key, err)
		}
	}
}
