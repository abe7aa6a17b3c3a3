package client

import (
	"errors"
	"net/http"
	"testing"
)

// TestAnswersOfProxies: a failure that the node did not write says nothing about the transfer, so the session is
// fenced before the call returns; the node's own failure ends it. Oracle: the fake node's counts.
func TestAnswersOfProxies(t *testing.T) {
	for _, method := range []string{http.MethodGet, http.MethodPut} {
		for status, doubted := range map[int]bool{
			408: true, 500: true, 502: true, 503: true, 504: true, 599: true, 400: false, 404: false, 413: false, 501: false,
		} {
			for _, byNode := range []bool{true, false} {
				n := newFakeNode(t, PathSHM)
				c := n.client(func(cfg *Config) { cfg.MaxAttempts = 1 })
				r := region(t, c, 7)
				n.behave(func(_ *fakeNode, w http.ResponseWriter, _ *http.Request, _ []byte) bool {
					if byNode {
						w.Header().Set("X-Amz-Request-Id", "1")
					}
					w.WriteHeader(status)
					return true
				})
				var err error
				if method == http.MethodGet {
					_, err = c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{})
				} else {
					_, err = c.PutFrom(t.Context(), r.All(), "b", "k", PutOptions{})
				}
				want := 0
				if doubted && !byNode {
					want = 1
				}
				if got := n.count("fence"); err == nil || got != want || errors.Is(err, ErrNoAnswer) != (want == 1) {
					t.Errorf("%s answered %d, by the node %v: %d fences, error %v", method, status, byNode, got, err)
				}
			}
		}
	}
}
