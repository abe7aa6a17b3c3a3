package hostile

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/vfs/errfs"
)

// lateWait is how long memory is watched for a write that comes late.
const lateWait = 150 * time.Millisecond

const headerToken = "X-Amz-Rdma-Token"

func (l *link) get(key, tok string) request {
	return request{method: "GET", path: "/" + bucket + "/" + key}.with(headerToken, tok)
}

// answered is an answer that comes later.
type answered struct {
	conn   net.Conn
	answer chan answer
	err    chan error
}

func (n *node) begin(r request) *answered {
	n.t.Helper()
	b := &answered{conn: n.dial(), answer: make(chan answer, 1), err: make(chan error, 1)}
	if _, err := b.conn.Write(n.raw(r)); err != nil {
		n.t.Fatal(err)
	}
	go func() {
		defer b.conn.Close()
		a, err := readAnswer(b.conn, r.method)
		if err != nil {
			b.err <- err
			return
		}
		b.answer <- a
	}()
	return b
}

func (b *answered) wait(t testing.TB) answer {
	t.Helper()
	select {
	case a := <-b.answer:
		return a
	case err := <-b.err:
		t.Fatalf("no answer: %v", err)
	case <-time.After(patience):
		t.Fatal("no answer")
	}
	return answer{}
}

// unchanged fills memory and watches it.
func (n *node) unchanged(what string, m *memory, meanwhile func()) {
	n.t.Helper()
	fill := pattern(99, len(m.bytes))
	copy(m.bytes, fill)
	meanwhile()
	if !during(lateWait, func() bool { return bytes.Equal(m.bytes, fill) }) {
		n.t.Errorf("%s: the node wrote into client memory after it had given it up", what)
	}
}

// TestNoLateWrite: a disk hangs in the middle of a GET into mapped memory. The answer comes at the deadline,
// and the hanging read, once it goes on, lands elsewhere.
func TestNoLateWrite(t *testing.T) {
	n := startNode(t)
	h := n.neighbour()
	before := n.baseline(2)
	for _, ending := range []string{"deadline", "peer", "close", "vanish"} {
		l := n.attacker(n.root, "shm", objectBytes)
		release := make(chan struct{})
		armed := n.fs.Add(errfs.Rule{
			Ops: errfs.Read, Path: "*.seg", Nth: 2, Times: 2, Fault: errfs.Stick, Release: release,
		})
		began := time.Now()
		b := n.begin(l.get("object", l.token(1, 0, objectBytes)).with("X-Penstock-Rdma-Deadline-Ms", "500"))
		<-armed.Struck()
		switch ending {
		case "deadline":
			a := b.wait(t)
			if took := time.Since(began); took < 400*time.Millisecond || took > 3*time.Second {
				t.Errorf("answered after %v", took)
			}
			n.expectError(ending, a, 500, "RDMATransferFailed")
		case "peer": // memory belongs to nobody until the fence
			_ = b.conn.Close()
			fence(t, l)
		case "close":
			fence(t, l)
			n.expectError(ending, b.wait(t), 500, "RDMATransferFailed")
		case "vanish": // no answer and no fence: only the deadline is promised
			_ = b.conn.Close()
			_ = l.Close()
			n.quiet(ending)
		}
		n.unchanged(ending, l.mem, func() {
			close(release)
			n.fs.Clear()
			eventually(func() bool { return n.metrics()["penstock_chunk_stuck"] == 0 })
		})
		l.close()
		n.settled(before, ending)
	}
	h.works("afterwards")
}

// fence closes a session in order.
func fence(t testing.TB, l *link) {
	t.Helper()
	if err := frame.WriteFrame(l, frame.Header{Type: frame.Close}, nil); err != nil {
		t.Fatal(err)
	}
	if h, err := l.next(); err != nil || h.Type != frame.Closed {
		t.Errorf("fence: frame of type %d, %v", h.Type, err)
	}
}

// TestNoLateCommit: a disk hangs in the middle of a PUT. What was not acknowledged in time is never seen.
func TestNoLateCommit(t *testing.T) {
	n := startNode(t)
	before := n.baseline(1)
	for _, fabric := range []string{"shm", "tcp"} {
		for _, ending := range []string{"deadline", "peer", "peer behind a pipelined request"} {
			for _, op := range []errfs.Op{errfs.Write, errfs.Sync} {
				what := fmt.Sprint(fabric, " ", ending, " ", op)
				l := n.attacker(n.root, fabric, objectBytes)
				if fabric == "tcp" {
					go l.obey(func(frame.Header) {})
				}
				release := make(chan struct{})
				armed := n.fs.Add(errfs.Rule{Ops: op, Path: "*.seg", Fault: errfs.Stick, Release: release})
				r := n.put("/"+bucket+"/late", nil).with(headerToken, l.token(1, 0, objectBytes))
				if ending == "deadline" {
					r = r.with("X-Penstock-Rdma-Deadline-Ms", "300")
				}
				b := n.begin(r)
				<-armed.Struck()
				if ending == "deadline" {
					n.expectError(what, b.wait(t), 500, "RDMATransferFailed")
				} else {
					if ending != "peer" {
						if _, err := io.WriteString(b.conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
							t.Fatal(err)
						}
					}
					_ = b.conn.Close()
					n.noticed(b)
				}
				close(release)
				n.fs.Clear()
				// Only then: the end of the session would fail the transfer as well.
				if !eventually(func() bool { return n.metrics()["penstock_requests_in_flight"] == 0 }) {
					t.Errorf("%s: the request does not end", what)
				}
				l.close()
				n.settled(before, what)
				n.absent("late")
			}
		}
	}
}

// noticed gives the end of a connection time to reach the node: over loopback that is at once.
func (n *node) noticed(b *answered) {
	<-b.err
	during(20*time.Millisecond, func() bool { return true })
}

// TestOnlyTheAnswer: exactly the bytes of the answer change, at the start of the window.
func TestOnlyTheAnswer(t *testing.T) {
	n := startNode(t)
	before := n.baseline(1)
	for _, fabric := range []string{"shm", "tcp"} {
		l := n.attacker(n.root, fabric, objectBytes)
		if fabric == "tcp" {
			go l.obey(func(frame.Header) {})
		}
		for _, c := range []struct{ off, window, first, last int64 }{
			{0, objectBytes, 0, objectBytes - 1}, {4095, 1 << 20, 1, 65_535}, {1, 200_000, 65_537, 200_000},
			{objectBytes - 10, 10, 5, 14}, {777, 3 << 20, 70_000, 3<<20 - 1}, {1 << 20, 100, 0, 0},
		} {
			copy(l.mem.bytes, pattern(5, objectBytes))
			want := bytes.Clone(l.mem.bytes)
			at := c.off
			if fabric == "tcp" {
				at = 0 // our receiver places at offsets in the window
			}
			copy(want[at:], n.object[c.first:c.last+1])
			r := l.get("object", l.token(1, uint64(c.off), c.window))
			a := n.send(r.with("Range", fmt.Sprintf("bytes=%d-%d", c.first, c.last)))
			if a.status != 206 || a.header.Get("X-Amz-Rdma-Reply") != "206" || len(a.body) != 0 ||
				a.header.Get("X-Amz-Rdma-Bytes-Transferred") != fmt.Sprint(c.last-c.first+1) {
				t.Errorf("%s %+v: %d %v %s", fabric, c, a.status, a.header, a.body)
			}
			if !bytes.Equal(l.mem.bytes, want) {
				t.Errorf("%s %+v: other bytes than those of the answer", fabric, c)
			}
		}
		l.close()
	}
	n.settled(before, "afterwards")
}

// regionOf announces a descriptor and returns the status of the refusal, or ok.
func regionOf(t testing.TB, l *link, number uint64, size uint64, file int) frame.Status {
	t.Helper()
	if err := l.announce(number, size, file); err != nil {
		t.Fatal(err)
	}
	h, err := l.next()
	if err != nil {
		t.Fatal(err)
	}
	return h.Status
}

func memfd(t testing.TB, size int64, seals int) int {
	t.Helper()
	file, err := unix.MemfdCreate("hostile", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(file) })
	if err := unix.Ftruncate(file, size); err != nil {
		t.Fatal(err)
	}
	if seals != 0 {
		if _, err := unix.FcntlInt(uintptr(file), unix.F_ADD_SEALS, seals); err != nil {
			t.Fatal(err)
		}
	}
	return file
}

// TestRegionsThatLie: memory that is sparse, can shrink, is no memory, or is of another size than said.
func TestRegionsThatLie(t *testing.T) {
	n := startNode(t)
	pipe := make([]int, 2)
	if err := unix.Pipe2(pipe, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(pipe[0]); _ = unix.Close(pipe[1]) })
	const mb = 1 << 20
	sparse, unsealed := memfd(t, mb, unix.F_SEAL_SHRINK), memfd(t, mb, 0)
	petabyte, terabyte := memfd(t, 1<<50, unix.F_SEAL_SHRINK), memfd(t, 1<<40, unix.F_SEAL_SHRINK)
	before := n.baseline(1)
	l := n.attacker(n.root, "shm", objectBytes)
	for what, c := range map[string]struct {
		size uint64
		file int
		want frame.Status
	}{
		"sparse":       {mb, sparse, frame.StatusSparse},
		"can shrink":   {mb, unsealed, frame.StatusSeals},
		"a pipe":       {mb, pipe[0], frame.StatusKind},
		"absurd size":  {frame.MaxNumber, l.mem.file, frame.StatusSize},
		"larger":       {objectBytes + 1, l.mem.file, frame.StatusSize},
		"smaller":      {4096, l.mem.file, frame.StatusSize},
		"size of zero": {0, l.mem.file, frame.StatusSize},
		"no file":      {mb, -1, frame.StatusKind},
		"a petabyte":   {1 << 50, petabyte, frame.StatusSize},
		"a terabyte":   {1 << 40, terabyte, frame.StatusSparse},
	} {
		if got := regionOf(t, l, 7, c.size, c.file); got != c.want {
			t.Errorf("%s: %v, want %v", what, got, c.want)
		}
	}
	if err := unix.Ftruncate(l.mem.file, 0); err == nil {
		t.Error("a mapped region was truncated")
	}
	l.close()
	n.settled(before, "afterwards")
}

// TestHolesWhileMapped: the client punches its memory away before and while the node writes or reads it.
func TestHolesWhileMapped(t *testing.T) {
	n := startNode(t)
	before := n.baseline(1)
	l := n.attacker(n.root, "shm", objectBytes)
	punch := func() {
		err := unix.Fallocate(l.mem.file, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, objectBytes)
		if err != nil {
			t.Error(err)
		}
	}
	punch()
	a := n.send(l.get("object", l.token(1, 0, objectBytes)))
	if a.status != 200 || !bytes.Equal(l.mem.bytes, n.object) {
		t.Errorf("into holes: status %d", a.status)
	}
	for _, method := range []string{"GET", "PUT"} {
		b := n.begin(request{method: method, path: "/" + bucket + "/object"}.with(headerToken, l.token(1, 0, objectBytes)))
		for range 20 {
			punch()
		}
		a := b.wait(t)
		if a.status != 200 && a.code() != "RDMATransferFailed" {
			t.Errorf("%s while punching: %d %s", method, a.status, a.body)
		}
	}
	l.close()
	n.settled(before, "afterwards")
	// Whatever the PUT read, it is one consistent object: its sum is verified by every read.
	if a = n.send(request{method: "GET", path: "/" + bucket + "/object"}); a.status != 200 || len(a.body) != objectBytes {
		t.Errorf("after the PUT: %d, %d bytes", a.status, len(a.body))
	}
}

// TestScribbling: the client overwrites its memory while the node verifies it there. The node blames no drive.
func TestScribbling(t *testing.T) {
	n := startNode(t)
	l := n.attacker(n.root, "shm", objectBytes)
	defer l.close()
	b := n.begin(l.get("object", l.token(1, 0, objectBytes)))
	for done := false; !done; {
		select {
		case a := <-b.answer:
			done = true
			if a.status != 200 && a.code() != "RDMATransferFailed" {
				t.Errorf("%d %s", a.status, a.body)
			}
		case err := <-b.err:
			t.Fatal(err)
		default:
			clear(l.mem.bytes[:8<<20])
		}
	}
	if v := n.metrics()[`penstock_chunk_faults_total{kind="corrupt"}`]; v != 0 {
		t.Errorf("%v blocks of the drive are called corrupt", v)
	}
	a := n.send(l.get("object", l.token(1, 0, objectBytes)))
	if a.status != 200 || !bytes.Equal(l.mem.bytes, n.object) {
		t.Errorf("afterwards: status %d", a.status)
	}
}

// TestWindows: windows outside their region, of another principal, of no session, of no region.
func TestWindows(t *testing.T) {
	n := startNode(t)
	before := n.baseline(1)
	for _, fabric := range []string{"shm", "tcp"} {
		l := n.attacker(n.root, fabric, objectBytes)
		alices := n.attacker(n.alice, fabric, objectBytes)
		stranger := l.offer
		stranger.Session[3] ^= 1
		const most = 1<<32 - 1
		for _, method := range []string{"GET", "PUT"} {
			for what, c := range map[string]struct {
				token  string
				status int
				code   string // "" for a decline
			}{
				"offset behind":     {l.token(1, objectBytes, 1), 400, "InvalidRDMAToken"},
				"ends behind":       {l.token(1, 1, objectBytes), 400, "InvalidRDMAToken"},
				"wraps":             {l.token(1, 1<<64-100, 100), 400, "InvalidRDMAToken"},
				"wraps around":      {l.token(1, 1<<64-1, objectBytes), 400, "InvalidRDMAToken"},
				"negative offset":   {l.token(1, 1<<63, 100), 400, "InvalidRDMAToken"},
				"4 GiB":             {l.token(1, 0, most), 400, "InvalidRDMAToken"},
				"no such region":    {l.token(2, 0, 100), 400, "InvalidRDMAToken"},
				"region 0":          {l.token(0, 0, 100), 400, "InvalidRDMAToken"},
				"another principal": {alices.token(1, 0, objectBytes), 403, "AccessDenied"},
				"another session":   {tokenOf(stranger, 1, 0, objectBytes), 501, ""},
				"the other fabric": {strings.NewReplacer("shm", "tcp", "tcp", "shm").Replace(
					l.token(1, 0, objectBytes)), 501, ""},
				"of rc": {strings.Replace(l.token(1, 0, objectBytes), fabric, "rc", 1), 501, ""},
				"narrow by 5G": {l.token(1, 0, 100) + ":" + strings.Repeat("0", 16) +
					":0000000100000000", 400, "InvalidRDMAToken"},
			} {
				what = strings.Join([]string{fabric, method, what}, " ")
				r := request{method: method, path: "/" + bucket + "/window"}.with(headerToken, c.token)
				if method == "GET" {
					r = request{method: method, path: "/" + bucket + "/object"}.with(
						headerToken, c.token, "Range", "bytes=0-0")
				}
				a := n.send(r)
				if c.code != "" {
					n.expectError(what, a, c.status, c.code)
				} else if a.status != 501 || a.header.Get("X-Amz-Rdma-Reply") != "501" || a.header.Get("Etag") != "" {
					t.Errorf("%s: %d %v", what, a.status, a.header)
				}
			}
		}
		for _, m := range []*memory{l.mem, alices.mem} {
			if !bytes.Equal(m.bytes, bytes.Repeat([]byte{0xee}, objectBytes)) {
				t.Errorf("%s: memory was touched", fabric)
			}
		}
		l.close()
		alices.close()
	}
	n.settled(before, "afterwards")
	n.absent("window")
}

// TestRevocation: the key of a principal goes while its transfer runs.
func TestRevocation(t *testing.T) {
	n := startNode(t)
	before := n.baseline(1)
	for _, fabric := range []string{"shm", "tcp"} {
		k := n.newKey("alice")
		n.expectStatus(200, n.send(n.as(k, n.put("/"+alicesBucket+"/o", n.object))))
		l := n.attacker(k, fabric, objectBytes)
		release := make(chan struct{})
		armed := n.fs.Add(errfs.Rule{Ops: errfs.Read, Path: "*.seg", Nth: 2, Fault: errfs.Stick, Release: release})
		r := n.as(k, request{method: "GET", path: "/" + alicesBucket + "/o"}.with(headerToken, l.token(1, 0, objectBytes)))
		b := n.begin(r)
		<-armed.Struck()
		path := "/.penstock/admin/v1/keys/" + k.ID
		n.expectStatus(204, n.send(request{method: "DELETE", path: path}))
		n.unchanged(fabric+" revoked", l.mem, func() {
			close(release)
			n.fs.Clear()
		})
		n.expectError(fabric+" revoked", b.wait(t), 500, "RDMATransferFailed")
		n.expectError(fabric+" afterwards", n.send(r), 403, "InvalidAccessKeyId")
		l.close()
		n.expectStatus(204, n.send(request{method: "DELETE", path: "/" + alicesBucket + "/o"}))
	}
	n.settled(before, "afterwards")
}
