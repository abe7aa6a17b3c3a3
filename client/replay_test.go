package client

import (
	"errors"
	"net/http"
	"testing"
)

// TestReplayedAnswerFences: the node says that a token was used before, so another copy of the request is
// there and may be under way: the session is fenced before the caller gets the window back, and the answer is
// no success, no refusal and no decline.
func TestReplayedAnswerFences(t *testing.T) {
	n := newFakeNode(t, PathSHM)
	n.objects["/b/k"] = payload(1, 10)
	n.behave(func(_ *fakeNode, w http.ResponseWriter, _ *http.Request, win []byte) bool {
		if win == nil {
			return false
		}
		writeError(w, 403, "RDMATokenReplayed")
		return true
	})
	c := n.client(func(cfg *Config) { cfg.MaxAttempts, cfg.AllowHTTPFallback = 1, true })
	r := region(t, c, 10)
	_, getErr := c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{})
	_, putErr := c.PutFrom(t.Context(), r.All(), "b", "other", PutOptions{})
	for _, err := range []error{getErr, putErr} {
		if !errors.Is(err, ErrNoAnswer) || errors.Is(err, ErrAccessDenied) || errors.Is(err, ErrDeclined) {
			t.Errorf("%v", err)
		}
	}
	if n.count("fence") != 2 || n.count("session") != 2 {
		t.Errorf("%d fences, %d sessions", n.count("fence"), n.count("session"))
	}
	n.behave(func(_ *fakeNode, w http.ResponseWriter, _ *http.Request, win []byte) bool {
		writeError(w, 403, "AccessDenied")
		return true
	})
	if _, err := c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{}); !errors.Is(err, ErrAccessDenied) {
		t.Errorf("another 403: %v", err)
	}
	if n.count("fence") != 2 {
		t.Error("another 403 fenced the session")
	}
}

// TestReplayedAnswerIsRepeated: the attempt after it has a session and a token of its own.
func TestReplayedAnswerIsRepeated(t *testing.T) {
	n := newFakeNode(t, PathSHM)
	n.objects["/b/k"] = payload(1, 10)
	n.behave(func(n *fakeNode, w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		if n.count("token") > 1 {
			return false
		}
		writeError(w, 403, "RDMATokenReplayed")
		return true
	})
	c := n.client(nil)
	r := region(t, c, 10)
	if res, err := c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{}); err != nil || res.Path != PathSHM {
		t.Errorf("%+v %v", res, err)
	}
	if n.count("session") != 2 || len(n.tokens) != 2 || n.tokens[0] == n.tokens[1] {
		t.Errorf("%d sessions, tokens %d", n.count("session"), len(n.tokens))
	}
}

// TestNothingResends: a kept connection breaks after a request with a token was sent on it. Nothing below the
// client may send the same bytes again: the first copy can be under way.
func TestNothingResends(t *testing.T) {
	for _, method := range []string{"GET", "PUT"} {
		n := newFakeNode(t, PathSHM)
		n.objects["/b/k"] = payload(1, 10)
		n.behave(func(n *fakeNode, _ http.ResponseWriter, _ *http.Request, win []byte) bool {
			if win == nil || n.count("token") == 1 {
				return false
			}
			panic(http.ErrAbortHandler) // closes the connection
		})
		c := n.client(func(cfg *Config) { cfg.MaxAttempts = 1 })
		r := region(t, c, 10)
		transfer := func() error {
			if method == "PUT" {
				_, err := c.PutFrom(t.Context(), r.All(), "b", "o", PutOptions{})
				return err
			}
			_, err := c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{})
			return err
		}
		if err := transfer(); err != nil { // on a connection that is kept
			t.Fatal(err)
		}
		if err := transfer(); !errors.Is(err, ErrNoAnswer) {
			t.Errorf("%s: %v", method, err)
		}
		if n.count("token") != 2 || n.count("fence") != 1 {
			t.Errorf("%s: %d requests with a token for 2 attempts, %d fences", method, n.count("token"), n.count("fence"))
		}
	}
}

// TestSpentSession: a session without numbers left is replaced.
func TestSpentSession(t *testing.T) {
	n := newFakeNode(t, PathSHM)
	n.objects["/b/k"] = payload(1, 10)
	n.spent.Store(true)
	c := n.client(nil)
	r := region(t, c, 10)
	if res, err := c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{}); err != nil || res.Path != PathSHM {
		t.Errorf("%+v %v", res, err)
	}
	if n.count("session") != 2 || n.count("fence") != 1 {
		t.Errorf("%d sessions, %d fences", n.count("session"), n.count("fence"))
	}
}
