package client

import (
	"bytes"
	"errors"
	"net/http"
	"strconv"
	"testing"
)

// RF-02: an echoed checksum of other bytes (here: of nothing) proves nothing.
func TestRF_02_EmptyObjectIsNoSuccess(t *testing.T) {
	n := newFakeNode(t, PathSHM)
	n.answer = func(_ *fakeNode, w http.ResponseWriter, _ *http.Request, win []byte) bool {
		w.Header().Set("ETag", `"d41d8cd98f00b204e9800998ecf8427e"`)
		w.Header().Set(headerCRC, SumChecksum(nil))
		return win != nil
	}
	c := n.client(nil)
	r := region(t, c, 10)
	if _, err := c.PutFrom(t.Context(), r.All(), "b", "k", PutOptions{}); !errors.Is(err, ErrDeclined) {
		t.Errorf("%v", err)
	}
}

// RF-03, RF-09: a reply header is no success by being there; it has to be 200 or 204, in digits.
func TestRF_03_AnyReplyIsNoSuccess(t *testing.T) {
	for _, reply := range []string{"1", "ok", "", "200xyz", " 200", "+200", "0x200", "206", "299", "500"} {
		n := newFakeNode(t, PathSHM)
		n.answer = func(_ *fakeNode, w http.ResponseWriter, _ *http.Request, _ []byte) bool {
			w.Header().Set("ETag", `"00"`)
			w.Header()[headerReply] = []string{reply}
			return true
		}
		c := n.client(httpAllowed)
		r := region(t, c, 10)
		_, err := c.PutFrom(t.Context(), r.All(), "b", "k", PutOptions{})
		// net/http trims the space, as HTTP demands: " 200" arrives as "200".
		if ok := reply == " 200"; ok != (err == nil) || (!ok && !errors.Is(err, ErrProtocol)) {
			t.Errorf("reply %q: %v", reply, err)
		}
	}
}

// RF-05: a region that the node refuses is not announced again on every request.
func TestRF_05_RefusedRegionIsLeftAlone(t *testing.T) {
	n := newFakeNode(t, PathSHM)
	n.announceErr = errors.New("sparse")
	n.objects["/b/k"] = payload(1, 10)
	c := n.client(httpAllowed)
	r := region(t, c, 10)
	for range 20 {
		res, err := c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{})
		if err != nil || res.Reason != ReasonRegion {
			t.Fatalf("%+v %v", res, err)
		}
	}
	if n.count("announce") != 1 {
		t.Errorf("%d announcements for 20 requests", n.count("announce"))
	}
}

func TestRF_09_StrictDecimals(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "200": 200, "007": 7, "999999999999999999": 999999999999999999} {
		if got, ok := parseDecimal(text); !ok || got != want {
			t.Errorf("%q: %d %v", text, got, ok)
		}
	}
	for _, text := range []string{
		"", " ", "200xyz", "xyz200", "2 00", "+1", "-1", "1.0", "1e3", "0x10", "٣", "1000000000000000000", "1\n",
	} {
		if got, ok := parseDecimal(text); ok {
			t.Errorf("%q is taken as %d", text, got)
		}
	}
}

// RF-34: the status and the reply of a range need not be the same number.
func TestRF_34_StatusAndReplyMayDiffer(t *testing.T) {
	for _, pair := range [][2]int{{206, 206}, {206, 200}} {
		n := newFakeNode(t, PathSHM)
		n.answer = func(_ *fakeNode, w http.ResponseWriter, _ *http.Request, win []byte) bool {
			copy(win, "0123456789")
			w.Header().Set("Content-Range", "bytes 0-9/10")
			w.Header().Set(headerReply, strconv.Itoa(pair[1]))
			w.Header().Set(headerBytes, "10")
			w.WriteHeader(pair[0])
			return true
		}
		c := n.client(nil)
		r := region(t, c, 10)
		res, err := c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{})
		if err != nil || res.Bytes != 10 || string(r.Bytes()) != "0123456789" {
			t.Errorf("%v: %+v %v", pair, res, err)
		}
	}
}

// RF-41: HTTP 200 with reply 501 and an XML error is a decline: never stored, and HTTP stores it.
func TestRF_41_Status200WithReply501(t *testing.T) {
	n := newFakeNode(t, PathTCP)
	n.answer = func(_ *fakeNode, w http.ResponseWriter, _ *http.Request, win []byte) bool {
		if win == nil {
			return false
		}
		w.Header().Set(headerReply, "501")
		writeError(w, 200, "ServiceUnavailable")
		return true
	}
	strict := n.client(nil)
	r := region(t, strict, 10)
	if _, err := strict.PutFrom(t.Context(), r.All(), "b", "k", PutOptions{}); !errors.Is(err, ErrDeclined) {
		t.Errorf("strict: %v", err)
	}
	if n.object("/b/k") != nil {
		t.Error("stored")
	}
	lax := n.client(httpAllowed)
	r2 := region(t, lax, 10)
	copy(r2.Bytes(), "abcdefghij")
	res, err := lax.PutFrom(t.Context(), r2.All(), "b", "k", PutOptions{})
	if err != nil || res.Path != PathHTTP || res.Reason != ReasonDeclined || !bytes.Equal(n.object("/b/k"), r2.Bytes()) {
		t.Errorf("%+v %v", res, err)
	}
}

// RF-10: memory that only a fabric may touch cannot reach HTTP code: the client takes host memory only,
// and the HTTP path works on the very bytes of the region.
func TestRF_10_HTTPUsesTheRegionItself(t *testing.T) {
	n := newFakeNode(t, string(HTTP))
	n.objects["/b/k"] = payload(4, 100)
	c := n.client(nil)
	mem := make([]byte, 100)
	r, err := c.Register(mem)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	_, err = c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{})
	if err != nil || !bytes.Equal(mem, payload(4, 100)) {
		t.Errorf("%v", err)
	}
}

// RF-14: a call that fails in any way keeps neither the window nor a grant.
func TestRF_14_NothingStaysPinned(t *testing.T) {
	n := newFakeNode(t, PathSHM)
	c := n.client(nil)
	r, err := c.Register(make([]byte, 10))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.GetInto(t.Context(), r.All(), "b", "missing", GetOptions{}); !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	n.mu.Lock()
	left := len(n.grants)
	n.mu.Unlock()
	if left != 0 {
		t.Errorf("%d grants left", left)
	}
	if err := r.Close(); err != nil { // waits for windows in use
		t.Error(err)
	}
	if n.count("forget") != 1 {
		t.Errorf("region was forgotten %d times", n.count("forget"))
	}
}
