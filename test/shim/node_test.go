package shim_test

import (
	"context"
	"encoding/xml"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/test/realnode"
)

var sanitizers = []struct{ name, flags string }{
	{"address", "address,undefined"}, {"thread", "thread"},
}

// TestRequests: put, get, ranged get and multipart by tokens of the shim on a real node, on each fabric and under each
// sanitizer. The oracle is the pattern in the driver's memory, what the node gives over HTTP, and guard bytes.
func TestRequests(t *testing.T) {
	n := startNode(t)
	for _, s := range sanitizers {
		binary := program(t, "driver", s.flags)
		for _, fabric := range []string{"shm", "tcp", "auto"} {
			t.Run(s.name+"/"+fabric, func(t *testing.T) {
				d := newDriver(t, binary, n.environment(fabric)...)
				if got := d.ask("available"); got != "1 " {
					t.Fatalf("available: %s", got)
				}
				n := &node{Node: n.Node, t: t, signer: n.signer}
				requests(t, n, d, fabric, s.name == "thread")
				manyTokens(t, n, d)
				d.want("0 ", "threads 16 10")
			})
		}
	}
}

// requests: early has tokens put back before memory is looked at, since the thread sanitizer does not know that an
// answer of the node comes after the bytes.
func requests(t *testing.T, n *node, d *driver, fabric string, early bool) {
	for i, size := range []int64{1, 4097, 300_000, 2<<20 + 5} {
		path, memory, seed := fmt.Sprintf("/buck/k%d", size), i, uint64(i+1)
		d.memory(memory, size+200, seed)
		put := d.token(memory, size, 0, true)
		if fabric != "auto" && !strings.HasPrefix(put, "ps1:"+fabric+":") {
			t.Fatalf("token of another fabric")
		}
		if a := n.move(http.MethodPut, path, put); a.rdma() != fmt.Sprintf("200 200 %d 0", size) {
			t.Fatalf("put %d: %s %s", size, a.rdma(), a.body)
		}
		d.want("0", "put %s", put)
		if a := n.send(http.MethodGet, path, nil, nil); !slices.Equal(a.body, pattern(seed, size)) {
			t.Errorf("put %d: the object differs", size)
		}
		d.want("0", "fill %d 77", memory)
		get := d.token(memory, size, 100, false)
		if a := n.move(http.MethodGet, path, get); a.rdma() != fmt.Sprintf("200 200 %d 0", size) {
			t.Fatalf("get %d: %s %s", size, a.rdma(), a.body)
		}
		if early {
			d.want("0", "put %s", get)
		}
		d.want("same", "check %d 100 %d %d", memory, size, seed)
		d.want("same", "check %d 0 100 77", memory)
		d.want("0", "put %s", get)
		d.want("0", "put %s", get) // unknown by now
		if size > 4096 {
			part := d.token(memory, 100, 0, false)
			a := n.move(http.MethodGet, path, part, "Range", "bytes=8-107")
			if a.rdma() != "206 206 100 0" {
				t.Errorf("range: %s %s", a.rdma(), a.body)
			}
			if want := pattern(seed, 108)[8:]; !slices.Equal(want, n.send(http.MethodGet, path,
				map[string]string{"Range": "bytes=8-107"}, nil).body) {
				t.Error("range over HTTP differs")
			}
			d.want("0", "put %s", part)
		}
		d.want("0", "deregister %d", memory)
		if got := d.ask("deregister %d", memory); !strings.Contains(got, "not registered") {
			t.Errorf("twice: %s", got)
		}
		// the token is dead with its registration
		if a := n.move(http.MethodGet, path, get); a.status < 400 {
			t.Errorf("a token that was put back: %s", a.rdma())
		}
		d.want("0", "free %d", memory)
	}
	multipart(t, n, d)
}

func multipart(t *testing.T, n *node, d *driver) {
	const part, last = 5 << 20, 1<<20 + 3
	d.memory(9, part+last, 5)
	a := n.send(http.MethodPost, "/buck/multi?uploads=", nil, nil)
	var created struct{ UploadId string }
	if err := xml.Unmarshal(a.body, &created); err != nil {
		t.Fatal(err)
	}
	complete := "<CompleteMultipartUpload>"
	for i, size := range []int64{part, last} {
		token := d.token(9, size, int64(i)*part, true)
		a := n.move(http.MethodPut, fmt.Sprintf("/buck/multi?partNumber=%d&uploadId=%s", i+1, created.UploadId), token)
		if a.rdma() != fmt.Sprintf("200 200 %d 0", size) {
			t.Fatalf("part: %s %s", a.rdma(), a.body)
		}
		complete += fmt.Sprintf("<Part><PartNumber>%d</PartNumber><ETag>%s</ETag></Part>", i+1, a.header.Get("ETag"))
		d.want("0", "put %s", token)
	}
	complete += "</CompleteMultipartUpload>"
	a = n.send(http.MethodPost, "/buck/multi?uploadId="+created.UploadId, nil, []byte(complete))
	if a.status != http.StatusOK {
		t.Fatalf("complete: %s", a.body)
	}
	if got := n.send(http.MethodGet, "/buck/multi", nil, nil).body; !slices.Equal(got, pattern(5, part+last)) {
		t.Error("multipart object differs")
	}
	d.want("0", "deregister 9")
	d.want("0", "free 9")
}

// manyTokens has requests with 32 tokens under way at a time.
func manyTokens(t *testing.T, n *node, d *driver) {
	const size, count = 200_000, 32
	var tokens []string
	for i := range count {
		d.memory(i, size, uint64(i+100))
		tokens = append(tokens, d.token(i, size, 0, true))
	}
	for _, method := range []string{http.MethodPut, http.MethodGet} {
		var wg sync.WaitGroup
		for i, token := range tokens {
			wg.Go(func() {
				h := map[string]string{"x-amz-rdma-token": token}
				a, err := n.try(t.Context(), method, fmt.Sprintf("/buck/many%d", i), h, nil)
				if err != nil || a.rdma() != fmt.Sprintf("200 200 %d 0", size) {
					t.Errorf("%s %d: %v %s %s", method, i, err, a.rdma(), a.body)
				}
			})
		}
		wg.Wait()
		for i := range count {
			d.want("0", "put %s", tokens[i])
			if method == http.MethodPut {
				d.want("0", "fill %d 1", i)
				tokens[i] = d.token(i, size, 0, false)
			} else {
				d.want("same", "check %d 0 %d %d", i, size, i+100)
				d.want("0", "deregister %d", i)
				d.want("0", "free %d", i)
			}
		}
	}
}

// TestBounds: what was not registered is not granted, and a token is for its direction only.
func TestBounds(t *testing.T) {
	n := startNode(t)
	d := newDriver(t, program(t, "driver", "address,undefined"), n.environment("tcp")...)
	if got := d.ask("register 5"); !strings.HasPrefix(got, "-1 ") {
		t.Errorf("NULL: %s", got)
	}
	d.memory(1, 1000, 1)
	for _, window := range []string{"1001 0", "1 1000", "1000 1", "0 0", "1 18446744073709551615",
		"18446744073709551615 1", "4294967296 0"} {
		if got := d.ask("token 1 %s 1", window); strings.HasPrefix(got, "ps1:") {
			t.Errorf("window %s was granted", window)
		}
	}
	if a := n.send(http.MethodPut, "/buck/k", nil, []byte("xyz")); a.status != http.StatusOK {
		t.Fatal(a.status)
	}
	token := d.token(1, 1000, 0, true)
	if a := n.move(http.MethodGet, "/buck/k", token); a.status == http.StatusOK {
		t.Errorf("GET by a token for PUT: %s", a.rdma())
	}
	d.want("same", "check 1 0 1000 1")
	d.want("0", "register 1") // twice
	d.want("0", "deregister 1")
	d.want("0", "put %s", d.token(1, 1000, 0, true))
	d.token(1, 1, 0, true) // left to the deregistration
	d.want("0", "deregister 1")
	if got := d.ask("token 1 1 0 1"); strings.HasPrefix(got, "ps1:") {
		t.Error("memory that is not registered was granted")
	}
}

// TestFork: a child of the client has a session of its own and its parent's lives on; also while other threads work.
func TestFork(t *testing.T) {
	n := startNode(t)
	binary := program(t, "driver", "address,undefined")
	for _, fabric := range []string{"shm", "tcp"} {
		t.Run(fabric, func(t *testing.T) {
			n := &node{Node: n.Node, t: t, signer: n.signer}
			d := newDriver(t, binary, n.environment(fabric)...)
			d.memory(1, 100_000, 1)
			parent := d.token(1, 100_000, 0, true)
			d.want("child 0", "fork")
			if got := d.ask("token 1 10 0 1"); strings.HasPrefix(got, "ps1:") {
				t.Error("the child has its parent's registration")
			}
			d.want("0", "put %s", parent) // unknown to the child: its parent's is not touched
			d.want("0", "register 1")
			child := d.token(1, 100_000, 0, true)
			if parent[:len("ps1:shm:")+32] == child[:len("ps1:shm:")+32] {
				t.Error("the child has its parent's session")
			}
			if a := n.move(http.MethodPut, "/buck/child", child); a.rdma() != "200 200 100000 0" {
				t.Errorf("child: %s %s", a.rdma(), a.body)
			}
			d.want("0", "put %s", child)
			d.want("0", "exit")
			if got := d.hear(); got != "parent 0" {
				t.Fatal(got)
			}
			if a := n.move(http.MethodPut, "/buck/parent", parent); a.rdma() != "200 200 100000 0" {
				t.Errorf("parent: %s %s", a.rdma(), a.body)
			}
			d.want("0", "put %s", parent)
			d.want("0", "deregister 1")
		})
	}
}

// TestServerKilled: see killed.
func TestServerKilled(t *testing.T) {
	binary := program(t, "driver", "address,undefined")
	for _, fabric := range []string{"shm", "tcp"} {
		t.Run(fabric, func(t *testing.T) { killed(t, binary, fabric, 128<<20) })
	}
}

// killed ends the server in the middle of a GET: memory comes back, since a process that is gone writes nothing, and
// there is no token without a server. That it was the middle is seen in the memory: some of the object is there, and
// not all.
func killed(t *testing.T, binary, fabric string, size int64) {
	const blank, content, tries = 1, 2, 5
	for range tries {
		n := startNode(t)
		if a := n.send(http.MethodPut, "/buck/k", nil, pattern(content, size)); a.status != http.StatusOK {
			t.Fatalf("put: %d %s", a.status, a.body)
		}
		d := newDriver(t, binary, n.environment(fabric)...)
		d.memory(1, size, blank)
		get := d.token(1, size, 0, false)
		var wg sync.WaitGroup
		wg.Go(func() {
			_, _ = n.try(context.Background(), http.MethodGet, "/buck/k", map[string]string{"x-amz-rdma-token": get}, nil)
		})
		d.want("changed", "await 1 %d", blank)
		realnode.Kill(t, n.Node)
		wg.Wait()
		d.want("0", "put %s", get)
		middle := d.ask("check 1 0 %d %d", size, content) != "same"
		d.want("0", "fill 1 %d", blank)
		if got := d.ask("token 1 10 0 1"); strings.HasPrefix(got, "ps1:") {
			t.Error("a token without a server")
		}
		d.want("0", "deregister 1")
		d.want("same", "check 1 0 %d %d", size, blank)
		d.want("0", "free 1")
		if middle {
			return
		}
	}
	t.Errorf("%d transfers were over before the server was", tries)
}

// TestStoppedServer: memory that a server which does not answer may still touch is given out again in no way, until the
// server's process has ended; and only the first token waits for that.
func TestStoppedServer(t *testing.T) {
	const lost, size, count = "the memory must not be reused", 1000, 8
	n := startNode(t)
	d := newDriver(t, program(t, "driver", "address,undefined"), n.environment("shm")...)
	refused := func(format string, args ...any) {
		t.Helper()
		if got := d.ask(format, args...); !strings.Contains(got, lost) {
			t.Errorf(format+": %s", append(args, got)...)
		}
	}
	signal := func(s syscall.Signal) {
		if err := syscall.Kill(n.PID(), s); err != nil {
			t.Fatal(err)
		}
	}
	var tokens []string
	for i := range count {
		d.memory(i, size, 1)
		tokens = append(tokens, d.token(i, size, 0, false))
	}
	signal(syscall.SIGSTOP)
	if err := unix.Waitid(unix.P_PID, n.PID(), nil, unix.WSTOPPED|unix.WNOWAIT, nil); err != nil { // each of its threads
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(n.PID(), syscall.SIGCONT) }) // it may be gone
	began := time.Now()
	for _, token := range tokens {
		refused("put %s", token)
	}
	if took := time.Since(began); took > 25*time.Second { // 8 + 2 for FORGOTTEN, 3 for CLOSED
		t.Errorf("%d tokens took %v", count, took)
	}
	signal(syscall.SIGCONT)
	refused("token 0 %d 0 0", size) // it is registered still
	refused("token 0 1 %d 1", size-1)
	refused("register 0")
	refused("deregister 0")
	d.memory(count, size, 1)
	d.want("0", "put %s", d.token(count, size, 0, false)) // other memory, and a session of its own
	realnode.Kill(t, n.Node)
	d.want("0", "deregister 1")
	if got := d.ask("deregister 0"); !strings.Contains(got, "not registered") {
		t.Errorf("memory whose server is gone: %s", got)
	}
}
