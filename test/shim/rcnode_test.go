package shim_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/bench"
	"github.com/penstock-store/penstock/internal/config"
	"github.com/penstock-store/penstock/internal/s3"
	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
	"github.com/penstock-store/penstock/native/shimlib"
	"github.com/penstock-store/penstock/test/onenode"
)

// verbsFiles are those of package native that the library has in it.
func verbsFiles() []string {
	var names []string
	for _, name := range []string{"lib", "device", "queue", "none"} {
		names = append(names, filepath.Join(source, "..", "nv_"+name+".c"))
	}
	return names
}

// withTable lists the files of the shim with one of testdata in the place of the one that opens libibverbs.
func withTable(t testing.TB, other string) []string {
	t.Helper()
	var names []string
	for _, name := range files(t) {
		if filepath.Base(name) != "cs_verbs.c" {
			names = append(names, name)
		}
	}
	return append(names, filepath.Join("testdata", other))
}

// inProcess is a node with faked adapters in the test's process, and the library beside it.
type inProcess struct {
	*node
	library *shimlib.Library
	nic     *fakeverbs.NIC
}

func startInProcess(t *testing.T, o fakeverbs.Options, change ...func(*config.Config)) *inProcess {
	t.Helper()
	compiler(t)
	n := onenode.StartRC(t, o, change...)
	so := shared(t, withTable(t, "table.c")...) // one for each test: what is loaded stays, with its session
	library, err := shimlib.Load(so)
	if err != nil {
		t.Fatal(err)
	}
	library.UseVerbs(n.Adapters.Table())
	for name, value := range map[string]string{
		"AWS_ENDPOINT_URL": n.Endpoint, "AWS_ENDPOINT_URL_S3": "", "PENSTOCK_CUOBJ_ENDPOINT": "",
		"AWS_ACCESS_KEY_ID": n.Credentials.AccessKey, "AWS_SECRET_ACCESS_KEY": n.Credentials.SecretKey,
		"AWS_SESSION_TOKEN": "", "AWS_REGION": "", "PENSTOCK_CUOBJ_FABRIC": "rc", "PENSTOCK_CUOBJ_DEVICES": "",
	} {
		t.Setenv(name, value)
	}
	p := &inProcess{library: library, nic: n.Adapters, node: &node{
		Node: &bench.Node{
			Endpoint: n.Endpoint, AccessKey: n.Credentials.AccessKey, SecretKey: n.Credentials.SecretKey,
		},
		t: t, signer: s3.NewSigner(),
	}}
	t.Cleanup(func() { // the node's end is the session's, whose receiver then lets all adapters go
		n.Stop()
		p.nic.Await("the library to let its adapters go", func() bool {
			return p.library.Available() != nil && p.nic.Counters().Open() == 0
		})
	})
	if a := p.send(http.MethodPut, "/buck", nil, nil); a.status != http.StatusOK {
		t.Fatalf("make bucket: %d %s", a.status, a.body)
	}
	return p
}

// memory is outside of Go's heap, full of the pattern, and registered.
func (p *inProcess) memory(size int, seed uint64) []byte {
	p.t.Helper()
	m, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = unix.Munmap(m) })
	copy(m, pattern(seed, int64(size)))
	if err := p.library.Register(m); err != nil {
		p.t.Fatal(err)
	}
	return m
}

func (p *inProcess) token(m []byte, size, offset int, put bool) string {
	p.t.Helper()
	text, err := p.library.Token(m, size, offset, put)
	if err != nil {
		p.t.Fatal(err)
	}
	if !strings.HasPrefix(text, "ps1:rc:") {
		p.t.Fatal("a token of another fabric")
	}
	return text
}

func (p *inProcess) put(token string) {
	p.t.Helper()
	if err := p.library.Put(token); err != nil {
		p.t.Error(err)
	}
}

// TestRC: put, get, ranged get and a window in the middle of registered memory, over faked adapters. Oracles: the
// pattern, the node over HTTP, and the adapter, which remembers what was touched: the granted window and nothing else,
// and nothing once the token was put back.
func TestRC(t *testing.T) {
	p := startInProcess(t, fakeverbs.Options{})
	before := p.nic.Counters().MRs
	for i, size := range []int{1, 4097, 300_000, 2<<20 + 5} {
		path, seed := fmt.Sprintf("/buck/k%d", size), uint64(i+1)
		m := p.memory(size+200, seed)
		mark := p.nic.Mark()
		put := p.token(m, size, 0, true)
		if a := p.move(http.MethodPut, path, put); a.rdma() != fmt.Sprintf("200 200 %d 0", size) {
			t.Fatalf("put %d: %s %s", size, a.rdma(), a.body)
		}
		p.put(put)
		if a := p.send(http.MethodGet, path, nil, nil); !bytes.Equal(a.body, pattern(seed, int64(size))) {
			t.Errorf("put %d: the object differs", size)
		}
		if len(p.nic.Touched(m[size:], mark)) != 0 {
			t.Errorf("put %d: bytes behind the window were read", size)
		}
		copy(m, pattern(77, int64(len(m))))
		get := p.token(m, size, 100, false)
		mark = p.nic.Mark()
		if a := p.move(http.MethodGet, path, get); a.rdma() != fmt.Sprintf("200 200 %d 0", size) {
			t.Fatalf("get %d: %s %s", size, a.rdma(), a.body)
		}
		if !bytes.Equal(m[100:100+size], pattern(seed, int64(size))) {
			t.Errorf("get %d: other bytes", size)
		}
		p.put(get)
		if len(p.nic.Touched(m[:100], mark))+len(p.nic.Touched(m[100+size:], mark)) != 0 ||
			!bytes.Equal(m[:100], pattern(77, 100)) {
			t.Errorf("get %d: memory around the window was touched", size)
		}
		if size > 4096 {
			part := p.token(m, 100, 0, false)
			if a := p.move(http.MethodGet, path, part, "Range", "bytes=8-107"); a.rdma() != "206 206 100 0" ||
				!bytes.Equal(m[:100], pattern(seed, 108)[8:]) {
				t.Errorf("range: %s %s", a.rdma(), a.body)
			}
			p.put(part)
		}
		mark = p.nic.Mark()
		if a := p.move(http.MethodGet, path, get); a.status < 400 || len(p.nic.Touched(m, mark)) != 0 {
			t.Errorf("a token that was put back: %s", a.rdma())
		}
		if err := p.library.Deregister(m); err != nil {
			t.Error(err)
		}
	}
	if n := p.nic.Counters().MRs; n != before {
		t.Errorf("%d registrations are left, of which the node has %d", n, before)
	}
}

// TestRCDirection: memory of a token for a PUT is not written, whatever request carries the token. Oracles: the bytes,
// and what the adapter remembers.
func TestRCDirection(t *testing.T) {
	const size = 70_000
	p := startInProcess(t, fakeverbs.Options{})
	m := p.memory(size, 3)
	put := p.token(m, size, 0, true)
	if a := p.move(http.MethodPut, "/buck/k", put); a.rdma() != fmt.Sprintf("200 200 %d 0", size) {
		t.Fatalf("put: %s %s", a.rdma(), a.body)
	}
	p.put(put)
	copy(m, pattern(4, size))
	mark := p.nic.Mark()
	put = p.token(m, size, 0, true)
	if a := p.move(http.MethodGet, "/buck/k", put); a.status < 400 {
		t.Errorf("a GET by a token for a PUT: %s", a.rdma())
	}
	p.put(put)
	for _, touch := range p.nic.Touched(m, mark) {
		if touch.Write {
			t.Fatalf("memory of a PUT was written: %+v", touch)
		}
	}
	if !bytes.Equal(m, pattern(4, size)) {
		t.Error("memory of a PUT changed")
	}
	get := p.token(m, size, 0, false)
	if a := p.move(http.MethodGet, "/buck/k", get); a.status != http.StatusOK || !bytes.Equal(m, pattern(3, size)) {
		t.Errorf("the next request: %s %s", a.rdma(), a.body)
	}
	p.put(get)
}

// TestRCMany: 32 requests at a time, each with a key of its own.
func TestRCMany(t *testing.T) {
	const count, size = 32, 200_000
	p := startInProcess(t, fakeverbs.Options{Seed: 5, Latency: 1000, Jitter: 100_000})
	var wg sync.WaitGroup
	for i := range count {
		m := p.memory(size, uint64(i+100))
		wg.Go(func() {
			path := fmt.Sprintf("/buck/many%d", i)
			for _, method := range []string{http.MethodPut, http.MethodGet} {
				tok, err := p.library.Token(m, size, 0, method == http.MethodPut)
				if err != nil {
					t.Error(err)
					return
				}
				a, err := p.try(context.Background(), method, path, map[string]string{"x-amz-rdma-token": tok}, nil)
				if err != nil || a.rdma() != fmt.Sprintf("200 200 %d 0", size) {
					t.Errorf("%s %d: %v %s %s", method, i, err, a.rdma(), a.body)
				}
				if err := p.library.Put(tok); err != nil {
					t.Error(err)
				}
				if method == http.MethodGet && !bytes.Equal(m, pattern(uint64(i+100), size)) {
					t.Errorf("get %d: other bytes", i)
				}
				clear(m)
			}
		})
	}
	wg.Wait()
}

// TestRCFailures: whatever fails at the adapters, nothing of a window is touched after its token was put back, and the
// next request works, by another path or another session.
func TestRCFailures(t *testing.T) {
	const size = 3<<20 + 5
	for name, rule := range map[string]fakeverbs.Rule{
		"refused write": {At: fakeverbs.AtWork, Do: fakeverbs.Fail, Op: native.OpWrite, Skip: 1,
			Status: fakeverbs.RemoteAccess, Bytes: 4096},
		"lie":          {At: fakeverbs.AtWork, Do: fakeverbs.Lie, Op: native.OpWrite, Skip: 1, Bytes: 4096},
		"lost packets": {At: fakeverbs.AtWritePacket, Do: fakeverbs.Fail, Skip: 20, Times: 2000},
		"gives up":     {At: fakeverbs.AtWork, Do: fakeverbs.Fail, Skip: 2, Status: fakeverbs.RetryExceeded, Bytes: 2048},
	} {
		t.Run(name, func(t *testing.T) {
			p := startInProcess(t, fakeverbs.Options{})
			m := p.memory(size, 3)
			put := p.token(m, size, 0, true)
			if a := p.move(http.MethodPut, "/buck/k", put); a.status != http.StatusOK {
				t.Fatalf("%s %s", a.rdma(), a.body)
			}
			p.put(put)
			p.nic.Inject(rule)
			get := p.token(m, size, 0, false)
			p.move(http.MethodGet, "/buck/k", get)
			p.put(get)
			copy(m, pattern(9, size))
			mark := p.nic.Mark()
			p.nic.Await("the node to let go", func() bool { return !p.nic.Busy() })
			if touched := p.nic.Touched(m, mark); len(touched) != 0 || !bytes.Equal(m, pattern(9, size)) {
				t.Errorf("memory was touched afterwards: %+v", touched)
			}
			get = p.token(m, size, 0, false)
			if a := p.move(http.MethodGet, "/buck/k", get); a.status != http.StatusOK ||
				!bytes.Equal(m, pattern(3, size)) {
				t.Errorf("the next request: %s %s", a.rdma(), a.body)
			}
			p.put(get)
		})
	}
}

// TestRCPortDown: a session goes on by the other rail, and takes the first one again when it is back.
func TestRCPortDown(t *testing.T) {
	const size = 100_000
	p := startInProcess(t, fakeverbs.Options{})
	m := p.memory(size, 3)
	for i, down := range []string{"", "fake0", "fake1", "fake0"} {
		if down != "" {
			p.nic.PortDown(down)
		}
		path := fmt.Sprint("/buck/k", i)
		p.nic.Await("a PUT without "+down, func() bool { // declined until the other rail has its path again
			tok := p.token(m, size, 0, true)
			a := p.move(http.MethodPut, path, tok)
			p.put(tok)
			if a.status != http.StatusNotImplemented && a.rdma() != fmt.Sprintf("200 200 %d 0", size) {
				t.Errorf("without %s: %s %s", down, a.rdma(), a.body)
			}
			return a.status == http.StatusOK
		})
		if a := p.send(http.MethodGet, path, nil, nil); !bytes.Equal(a.body, pattern(3, size)) {
			t.Errorf("without %s: other bytes", down)
		}
		if down != "" {
			p.nic.PortUp(down)
		}
	}
}

// TestRCByChoice: auto takes rc where shm is off and an adapter reaches the node, and tcp where none does.
func TestRCByChoice(t *testing.T) {
	p := startInProcess(t, fakeverbs.Options{}, func(c *config.Config) { c.RDMA.Shm = false })
	t.Setenv("PENSTOCK_CUOBJ_FABRIC", "auto")
	m := p.memory(1000, 1)
	p.put(p.token(m, 1000, 0, true))
	q := startInProcess(t, fakeverbs.Options{}, func(c *config.Config) { c.RDMA.Shm = false })
	t.Setenv("PENSTOCK_CUOBJ_FABRIC", "auto")
	t.Setenv("PENSTOCK_CUOBJ_DEVICES", "none")
	m = q.memory(1000, 1)
	text, err := q.library.Token(m, 1000, 0, true)
	if err != nil || !strings.HasPrefix(text, "ps1:tcp:") {
		t.Errorf("without an adapter: %.8s %v", text, err)
	}
	q.put(text)
}

// TestRCDevices: the variable restricts the adapters, and says so when none is left.
func TestRCDevices(t *testing.T) {
	p := startInProcess(t, fakeverbs.Options{})
	t.Setenv("PENSTOCK_CUOBJ_DEVICES", "other0, fake1/2")
	if err := p.library.Available(); err == nil || !strings.Contains(err.Error(), "no port") {
		t.Errorf("no device: %v", err)
	}
}
