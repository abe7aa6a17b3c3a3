package client

import (
	"errors"
	"fmt"
	"net/http"
	"syscall"
	"testing"

	"github.com/penstock-store/penstock/client/target"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/native"
)

// An adapter cannot tell windows apart, so on rc every answer that is a failure fences the session before the call
// returns; refusals, declines and successes do not. The answer itself is reported as elsewhere, and the next request
// opens a session. Oracle: the fake node's counts, and the other fabrics.
func TestFailuresFenceOnRC(t *testing.T) {
	for status, failed := range map[int]bool{
		400: false, 403: false, 404: false, 408: true, 409: false, 412: false, 500: true, 501: false,
		502: true, 503: true, 504: true,
	} {
		for _, fabric := range []string{PathSHM, PathTCP, PathRC} {
			t.Run(fmt.Sprintf("%d %s", status, fabric), func(t *testing.T) {
				n := newFakeNode(t, fabric)
				n.objects["/b/k"] = []byte("payload")
				c := n.client(func(cfg *Config) { cfg.MaxAttempts = 1 })
				r := region(t, c, 7)
				n.behave(func(_ *fakeNode, w http.ResponseWriter, _ *http.Request, _ []byte) bool {
					if status == http.StatusNotImplemented {
						w.Header().Set(headerReply, "501")
					}
					writeError(w, status, "SomeError")
					return true
				})
				_, getErr := c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{})
				_, putErr := c.PutFrom(t.Context(), r.All(), "b", "k", PutOptions{})
				for _, err := range []error{getErr, putErr} {
					var s3err *Error
					declined := status == http.StatusNotImplemented && errors.Is(err, ErrDeclined)
					if !declined && (!errors.As(err, &s3err) || s3err.Status != status || s3err.Code != "SomeError") {
						t.Errorf("%v", err)
					}
				}
				fences, sessions := 0, 1
				if failed && fabric == PathRC {
					fences, sessions = 2, 3
				}
				n.behave(nil)
				if _, err := c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{}); err != nil {
					t.Errorf("the next request: %v", err)
				}
				if f, s := n.count("fence"), n.count("session"); f != fences || s != sessions {
					t.Errorf("%d fences and %d sessions, want %d and %d", f, s, fences, sessions)
				}
			})
		}
	}
}

// TestBusyNodeCostsNoSession: a request that a busy node did not begin leaves the session, and what others move on it,
// alone; the same code with another status is no such answer.
func TestBusyNodeCostsNoSession(t *testing.T) {
	for status, sessions := range map[int]int{503: 1, 500: 2} {
		n := newFakeNode(t, PathRC)
		n.objects["/b/k"] = []byte("payload")
		c := n.client(func(cfg *Config) { cfg.MaxAttempts = 1 })
		r := region(t, c, 7)
		n.behave(func(_ *fakeNode, w http.ResponseWriter, _ *http.Request, _ []byte) bool {
			writeError(w, status, "SlowDown")
			return true
		})
		if _, err := c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{}); err == nil {
			t.Error("no error")
		}
		n.behave(nil)
		if _, err := c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{}); err != nil {
			t.Error(err)
		}
		if s := n.count("session"); s != sessions || n.count("fence") != sessions-1 {
			t.Errorf("%d: %d sessions and %d fences, want %d", status, s, n.count("fence"), sessions)
		}
	}
}

// A fence that an adapter refuses abandons the region, also after an answer.
func TestUnfencedFailureAbandonsOnRC(t *testing.T) {
	n := newFakeNode(t, PathRC)
	n.fenceErr = errNotAcknowledged
	c := n.client(nil)
	r := region(t, c, 7)
	n.behave(func(_ *fakeNode, w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		writeError(w, 500, "RDMATransferFailed")
		return true
	})
	_, err := c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{})
	if !errors.Is(err, ErrRegionAbandoned) || !errors.Is(err, errNotAcknowledged) || !r.Abandoned() {
		t.Errorf("%v, abandoned %v", err, r.Abandoned())
	}
}

// Auto takes the first fabric that can be used, says why one before it cannot, and is silent about what is simply not
// there. What this machine rules out is never asked of the node. Oracle: the table, and the sessions asked for.
func TestAutoChooses(t *testing.T) {
	shm := frame.FabricInfo{Name: PathSHM, Up: true, Foreign: true}
	rc := frame.FabricInfo{Name: PathRC, Up: true}
	tcp := frame.FabricInfo{Name: PathTCP, Up: true}
	down := func(f frame.FabricInfo, reason string) frame.FabricInfo {
		f.Up, f.Reason = false, reason
		return f
	}
	noMemory := fmt.Errorf("%w: %w", target.ErrPinned, syscall.ENOMEM)
	notOurs := fmt.Errorf("%w: %w", target.ErrRefused, &frame.RefusedError{Status: frame.StatusGID})
	noPath := fmt.Errorf("%w: nothing", target.ErrRefused)
	for name, c := range map[string]struct {
		host         string
		listed       []frame.FabricInfo
		local        string // why this machine has no rc
		pin, dial    error  // of rc
		path, reason string
		asked        []string
	}{
		"shm on one host": {"", []frame.FabricInfo{tcp, rc, shm}, "", nil, nil, PathSHM, "", []string{PathSHM}},
		"rc before tcp":   {"other", []frame.FabricInfo{tcp, rc, shm}, "", nil, nil, PathRC, "", []string{PathRC}},
		"rc without shm":  {"", []frame.FabricInfo{tcp, rc, down(shm, "off")}, "", nil, nil, PathRC, "off", []string{PathRC}},
		"no verbs here": {"other", []frame.FabricInfo{tcp, rc, shm}, native.ReasonNoCgo, nil, nil, PathTCP, "",
			[]string{PathTCP}},
		"no verbs there": {"other", []frame.FabricInfo{tcp, down(rc, native.ReasonNoDevice), shm}, "", nil, nil, PathTCP, "",
			[]string{PathTCP}},
		"an older node": {"other", []frame.FabricInfo{tcp, shm}, "", nil, nil, PathTCP, "", []string{PathTCP}},
		"port down here": {"other", []frame.FabricInfo{tcp, rc, shm}, "port-down", nil, nil, PathTCP, "port-down",
			[]string{PathTCP}},
		"rails down there": {"other", []frame.FabricInfo{tcp, down(rc, "port-down"), shm}, "", nil, nil, PathTCP, "port-down",
			[]string{PathTCP}},
		"memory not pinned": {"other", []frame.FabricInfo{tcp, rc, shm}, "", noMemory, nil, PathTCP, ReasonMemlock,
			[]string{PathRC, PathTCP}},
		"adapter refuses": {"other", []frame.FabricInfo{tcp, rc, shm}, "", target.ErrPinned, nil, PathTCP, ReasonAdapter,
			[]string{PathRC, PathTCP}},
		"address refused": {"other", []frame.FabricInfo{tcp, rc, shm}, "", nil, notOurs, PathTCP, ReasonAddress,
			[]string{PathRC, PathTCP}},
		"no path": {"other", []frame.FabricInfo{tcp, rc, shm}, "", nil, noPath, PathTCP, ReasonNoPath,
			[]string{PathRC, PathTCP}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newFakeNode(t, PathTCP)
			n.host, n.listed = c.host, c.listed
			n.refuse, n.refuseDial = map[string]error{PathRC: c.pin}, map[string]error{PathRC: c.dial}
			n.objects["/b/k"] = []byte("payload")
			cl := n.client(func(cfg *Config) { cfg.Fabric = Auto })
			cl.fabrics.local = func(fabric string) *DeclinedError {
				if fabric != PathRC || c.local == "" {
					return nil
				}
				return &DeclinedError{Reason: c.local}
			}
			r := region(t, cl, 7)
			for range 2 { // what was refused once is left alone for a while
				res, err := cl.GetInto(t.Context(), r.All(), "b", "k", GetOptions{})
				if err != nil || res.Path != c.path || res.Reason != c.reason {
					t.Errorf("path %q, reason %q, %v", res.Path, res.Reason, err)
				}
			}
			if got := n.count("session"); got != len(c.asked) {
				t.Errorf("%d sessions were asked for", got)
			}
			for _, fabric := range c.asked {
				if n.count("session "+fabric) != 1 {
					t.Errorf("%d sessions of %s", n.count("session "+fabric), fabric)
				}
			}
		})
	}
}

// With Config.Fabric RC nothing else is tried, and the reason is this machine's own; the node is not asked.
func TestRCAloneSaysWhyNot(t *testing.T) {
	n := newFakeNode(t, PathRC)
	c := n.client(func(cfg *Config) { cfg.AllowHTTPFallback = true })
	c.fabrics.local = func(string) *DeclinedError { return &DeclinedError{Reason: native.ReasonNoLibrary} }
	n.objects["/b/k"] = []byte("payload")
	r := region(t, c, 7)
	res, err := c.GetInto(t.Context(), r.All(), "b", "k", GetOptions{})
	if err != nil || res.Path != PathHTTP || res.Reason != native.ReasonNoLibrary || n.count("session") != 0 {
		t.Errorf("%+v %v, %d sessions", res, err, n.count("session"))
	}
	var refused *DeclinedError
	if err := c.Probe(t.Context(), r); !errors.As(err, &refused) || refused.Reason != native.ReasonNoLibrary {
		t.Errorf("probe: %v", err)
	}
}
