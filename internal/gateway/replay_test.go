package gateway_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/s3"
)

// TestReplayWindow sends the same signed bytes at other times of the server's clock, to the second: a signature
// in a header holds for 15 minutes around its time, a presigned URL from 15 minutes before it to its end.
func TestReplayWindow(t *testing.T) {
	at := time.Now().UTC().Truncate(time.Second)
	var offset atomic.Int64
	now := func() time.Time { return at.Add(time.Duration(offset.Load())) }
	n := newNode(t, func(o *tweakOptions) { o.Now = now })
	c := n.root()
	makeBucket(t, c, "rdm")
	put(t, c, "rdm", "k", []byte("bytes"))
	key := s3.Credentials{AccessKey: rootID, SecretKey: rootSecret}
	bytesOf := func(expires time.Duration) []byte {
		r := &http.Request{Method: "GET", Host: n.host, Header: http.Header{},
			URL: &url.URL{Scheme: "http", Host: n.host, Path: "/rdm/k"}}
		o := s3.SignOptions{Credentials: key, Region: testRegion, Time: at, Expires: expires}
		var b strings.Builder
		if expires > 0 {
			u, err := n.signer.Presign(r, o)
			if err != nil {
				t.Fatal(err)
			}
			return fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", u.RequestURI(), n.host)
		}
		if err := n.signer.Sign(r, o); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "GET /rdm/k HTTP/1.1\r\nHost: %s\r\n", n.host)
		for name, values := range r.Header {
			fmt.Fprintf(&b, "%s: %s\r\n", name, values[0])
		}
		return []byte(b.String() + "\r\n")
	}
	const skew, week = 15 * time.Minute, 7 * 24 * time.Hour
	for _, c := range []struct {
		expires time.Duration // 0: signed in its header
		at      time.Duration // of the server's clock, from the time of the signature
		code    string        // "": answered
	}{
		{0, 0, ""}, {0, skew - time.Second, ""}, {0, skew, ""}, {0, skew + time.Second, "RequestTimeTooSkewed"},
		{0, -skew + time.Second, ""}, {0, -skew, ""}, {0, -skew - time.Second, "RequestTimeTooSkewed"},
		{0, week, "RequestTimeTooSkewed"},
		{time.Minute, time.Minute, ""}, {time.Minute, time.Minute + time.Second, "AccessDenied"},
		{time.Minute, -skew, ""}, {time.Minute, -skew - time.Second, "AccessDenied"},
		{time.Second, 0, ""}, {time.Second, time.Second, ""}, {time.Second, 2 * time.Second, "AccessDenied"},
		{week, week, ""}, {week, week + time.Second, "AccessDenied"},
	} {
		raw := bytesOf(c.expires)
		offset.Store(int64(c.at))
		resp, text := n.talk(raw)
		ok := resp.StatusCode == 200 && text == "bytes"
		refused := resp.StatusCode == 403 && strings.Contains(text, "<Code>"+c.code+"</Code>")
		if c.code == "" && !ok || c.code != "" && !refused {
			t.Errorf("expires %v, at %v: %d %s, want %q", c.expires, c.at, resp.StatusCode, text, c.code)
		}
		offset.Store(0)
	}
}
