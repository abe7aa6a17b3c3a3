package shm

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/frame"
)

// attach lets the server open this process's memory and returns the last answer.
func (c *rawClient) attach() frame.Header {
	c.t.Helper()
	c.send(frame.Header{Type: frame.Attach})
	h := c.receive()
	if h.Type != frame.Ask {
		return h
	}
	c.present(h.ID, h.ID)
	return c.receive()
}

// present shows the server a number in memory that holds another one, perhaps.
func (c *rawClient) present(number, held uint64) {
	c.t.Helper()
	c.presentIn(anonymous(c.t, os.Getpagesize()), number, held)
}

func (c *rawClient) presentIn(sign []byte, number, held uint64) {
	c.t.Helper()
	binary.LittleEndian.PutUint64(sign, held)
	c.send(frame.Header{Type: frame.Present, ID: number, Offset: addressOf(sign)})
}

// announce makes the memory region number n.
func (c *rawClient) announce(n uint64, b []byte) frame.Header {
	c.t.Helper()
	c.send(foreignRegion(n, addressOf(b), uint64(len(b))))
	return c.receive()
}

func foreignRegion(n, address, size uint64) frame.Header {
	return frame.Header{Type: frame.Region, Status: frame.StatusForeign, Region: n, Offset: address, Size: size}
}

// attached connects a client whose memory the server has opened.
func attached(t *testing.T, f *Fabric) *rawClient {
	t.Helper()
	c := connect(t, f)
	if h := c.attach(); h.Type != frame.Attached || h.Status != frame.StatusOK {
		t.Fatalf("attach: type %d, %s", h.Type, h.Status)
	}
	return c
}

// open opens the whole of region n.
func (c *rawClient) open(f *Fabric, n uint32, size int64, g fabric.Grant) fabric.Remote {
	c.t.Helper()
	d := c.descriptor(size)
	d.Region += uint64(n) - 1
	g.Principal, g.Bytes = "p", size
	if g.Deadline.IsZero() {
		g.Deadline = time.Now().Add(patience)
	}
	r, err := f.Open(c.t.Context(), d, g)
	if err != nil {
		c.t.Fatal(err)
	}
	return r
}

// anonymous is mapped memory that a test may unmap.
func anonymous(t *testing.T, size int) []byte {
	return mapped(t, -1, size, unix.PROT_READ|unix.PROT_WRITE)
}

func mapped(t *testing.T, file, size, protection int) []byte {
	t.Helper()
	flags := unix.MAP_PRIVATE
	if file < 0 {
		flags |= unix.MAP_ANON
	}
	b, err := unix.Mmap(file, 0, size, protection, flags)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}

func filled(b arena.Buffer, v byte) arena.Buffer {
	for i := range b.Bytes() {
		b.Bytes()[i] = v
	}
	return b
}

// TestForeignRangesRefused announces what no client may: the session lives, and nothing is charged.
func TestForeignRangesRefused(t *testing.T) {
	NeedForeign(t)
	f := newFabric(t, fabric.Limits{MappedBytes: 1 << 20}, "")
	c := attached(t, f)
	page := uint64(os.Getpagesize())
	hole := anonymous(t, 4*int(page))
	if err := unix.MunmapPtr(pointer(addressOf(hole)+2*page), uintptr(page)); err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if _, err := file.Write(make([]byte, page)); err != nil {
		t.Fatal(err)
	}
	at := func(b []byte) uint64 { return addressOf(b) }
	readOnly := at(mapped(t, -1, int(page), unix.PROT_READ))
	nothing := at(mapped(t, -1, int(page), unix.PROT_NONE))
	ofFile := at(mapped(t, int(file.Fd()), int(page), unix.PROT_READ|unix.PROT_WRITE))
	good := at(anonymous(t, 2<<20))
	cases := []struct {
		name          string
		number        uint64
		address, size uint64
		want          frame.Status
	}{
		{"address zero", 1, 0, page, frame.StatusAddress},
		{"below what may be mapped", 1, lowestAddress - 1, page, frame.StatusAddress},
		{"nothing there", 1, lowestAddress, page, frame.StatusAddress},
		{"end of user addresses", 1, addressEnd - page, page, frame.StatusAddress},
		{"over the end of user addresses", 1, addressEnd - page, 2 * page, frame.StatusAddress},
		{"kernel", 1, frame.MaxNumber, page, frame.StatusAddress},
		{"as long as may be said", 1, good, frame.MaxRegionBytes, frame.StatusAddress},
		{"hole in the middle", 1, at(hole), 4 * page, frame.StatusAddress},
		{"hole at the end", 1, at(hole), 2*page + 1, frame.StatusAddress},
		{"begins in a hole", 1, at(hole) + 3*page - 1, page, frame.StatusAddress},
		{"read only", 1, readOnly, page, frame.StatusAddress},
		{"no access", 1, nothing, page, frame.StatusAddress},
		{"file", 1, ofFile, page, frame.StatusAddress},
		{"zero bytes", 1, good, 0, frame.StatusSize},
		{"absurd size", 1, good, frame.MaxNumber, frame.StatusSize},
		{"number too large", 1 << 32, good, page, frame.StatusSize},
		{"over the limit", 1, good, 1<<20 + 1, frame.StatusLimit},
	}
	for _, tc := range cases {
		c.send(foreignRegion(tc.number, tc.address, tc.size))
		if h := c.receive(); h.Type != frame.RegionRefused || h.Status != tc.want {
			t.Errorf("%s: type %d, %s; want %s", tc.name, h.Type, h.Status, tc.want)
		}
	}
	c.send(foreignRegion(1, good, page), memory(t, int64(page), unix.F_SEAL_SHRINK, true))
	if h := c.receive(); h.Status != frame.StatusKind {
		t.Errorf("with a descriptor: %s", h.Status)
	}
	if n := f.Stats().MappedBytes; n != 0 {
		t.Errorf("%d bytes charged for refused regions", n)
	}
	for i, size := range []uint64{1, page, page + 1} { // of any alignment
		c.send(foreignRegion(uint64(i)+1, good+uint64(i), size))
		if h := c.receive(); h.Type != frame.RegionOK {
			t.Errorf("good range %d: %s", i, h.Status)
		}
	}
	c.send(foreignRegion(1, good, page))
	if h := c.receive(); h.Status != frame.StatusDuplicate {
		t.Errorf("number used twice: %s", h.Status)
	}
	c.send(foreignRegion(9, at(hole), 2*page))
	if h := c.receive(); h.Type != frame.RegionOK {
		t.Errorf("up to a hole: %s", h.Status)
	}
}

// TestForeignNeedsProof announces before, between and after wrong proofs.
func TestForeignNeedsProof(t *testing.T) {
	NeedForeign(t)
	f := newFabric(t, fabric.Limits{}, "")
	b := anonymous(t, 4096)
	c := connect(t, f)
	refused := func(when string) {
		t.Helper()
		if h := c.announce(1, b); h.Type != frame.RegionRefused || h.Status != frame.StatusProcess {
			t.Errorf("%s: type %d, %s", when, h.Type, h.Status)
		}
	}
	refused("without attach")
	for name, change := range map[string][2]uint64{ // of the number sent, of the number in memory
		"wrong number": {1, 1}, "wrong number, right memory": {1, 0}, "wrong memory": {0, 1},
	} {
		c.send(frame.Header{Type: frame.Attach})
		ask := c.receive()
		if ask.Type != frame.Ask || ask.ID == 0 {
			t.Fatalf("attach: %+v", ask)
		}
		refused("while the question is open")
		c.present(ask.ID+change[0], ask.ID+change[1])
		if h := c.receive(); h.Type != frame.Attached || h.Status != frame.StatusProcess {
			t.Errorf("%s: type %d, %s", name, h.Type, h.Status)
		}
		refused("after a wrong proof")
	}
	c.send(frame.Header{Type: frame.Attach})
	ask := c.receive()
	c.send(frame.Header{Type: frame.Present, ID: ask.ID, Offset: 8}) // nothing is mapped there
	if h := c.receive(); h.Status != frame.StatusProcess {
		t.Errorf("present of an address that is not mapped: %s", h.Status)
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "sign"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if err := file.Truncate(4096); err != nil {
		t.Fatal(err)
	}
	c.send(frame.Header{Type: frame.Attach})
	ask = c.receive()
	c.presentIn(mapped(t, int(file.Fd()), 4096, unix.PROT_READ|unix.PROT_WRITE), ask.ID, ask.ID)
	if h := c.receive(); h.Status != frame.StatusProcess {
		t.Errorf("number in memory of a file: %s", h.Status)
	}
	if h := c.attach(); h.Status != frame.StatusOK {
		t.Errorf("right proof after wrong ones: %s", h.Status)
	}
	if h := c.announce(1, b); h.Type != frame.RegionOK {
		t.Errorf("after the proof: %s", h.Status)
	}
	if h := c.attach(); h.Type != frame.Attached || h.Status != frame.StatusOK {
		t.Errorf("attach again: type %d, %s", h.Type, h.Status)
	}
	c.send(frame.Header{Type: frame.Present, ID: ask.ID})
	c.ended("present without a question")
}

// TestForeignUnmapped unmaps a half while the region is announced: transfers that touch it fail, the
// session and the other half live, and nothing else changes.
func TestForeignUnmapped(t *testing.T) {
	NeedForeign(t)
	f := newFabric(t, fabric.Limits{}, "")
	c := attached(t, f)
	const half = 512 << 10
	b := anonymous(t, 2*half)
	if h := c.announce(1, b); h.Type != frame.RegionOK {
		t.Fatal(h.Status)
	}
	get := c.open(f, 1, 2*half, fabric.Grant{Direction: fabric.ForGet})
	put := c.open(f, 1, 2*half, fabric.Grant{Direction: fabric.ForPut})
	buffer := filled(newBuffer(t), 7)
	if err := errors.Join(get.Write(t.Context(), 0, buffer), put.Read(t.Context(), 0, buffer)); err != nil {
		t.Fatal(err)
	}
	if err := unix.MunmapPtr(pointer(addressOf(b)+half), half); err != nil {
		t.Fatal(err)
	}
	filled(buffer, 9)
	if err := get.Write(t.Context(), 0, buffer); !errors.Is(err, fabric.ErrTransfer) || errors.Is(err, fabric.ErrFenced) {
		t.Errorf("write: %v", err)
	}
	if err := put.Read(t.Context(), 0, buffer); !errors.Is(err, fabric.ErrTransfer) || errors.Is(err, fabric.ErrFenced) {
		t.Errorf("read: %v", err)
	}
	for _, r := range []fabric.Remote{get, put} {
		if err := r.Close(); !errors.Is(err, fabric.ErrTransfer) {
			t.Errorf("close: %v", err)
		}
	}
	c.alive("after missing pages")
	again := c.open(f, 1, half, fabric.Grant{Direction: fabric.ForGet})
	if err := again.Write(t.Context(), half-4096, filled(buffer, 3).Slice(0, 4096)); err != nil {
		t.Error(err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
	if b[half-1] != 3 || b[half-4096] != 3 || b[half-4097] != 9 {
		t.Errorf("bytes around the last write: %d %d %d", b[half-4097], b[half-4096], b[half-1])
	}
	if n := f.Stats().Faults; n != 2 {
		t.Errorf("%d faults counted", n)
	}
}

// TestForeignLingers plays an operation that does not return from the kernel: Close says so after a bounded
// wait, the client gets no CLOSED, other sessions live, and the end of the operation leaves nothing behind.
func TestForeignLingers(t *testing.T) {
	NeedForeign(t)
	for _, orderly := range []bool{false, true} {
		f := newFabric(t, fabric.Limits{DrainWait: 10 * time.Millisecond}, "")
		other, c := attached(t, f), attached(t, f)
		b := anonymous(t, 64<<10)
		if h := c.announce(1, b); h.Type != frame.RegionOK {
			t.Fatal(h.Status)
		}
		deadline := time.Now().Add(100 * time.Millisecond)
		if orderly {
			deadline = time.Now().Add(patience)
		}
		r := c.open(f, 1, 64<<10, fabric.Grant{Direction: fabric.ForGet, Deadline: deadline}).(*foreignRemote)
		if err := r.window.Enter(); err != nil || !r.memory.enter() {
			t.Fatal("enter", err)
		}
		begin := time.Now()
		if orderly {
			c.send(frame.Header{Type: frame.Close})
		}
		if err := r.Close(); !errors.Is(err, fabric.ErrLingering) || !errors.Is(err, fabric.ErrFenced) {
			t.Errorf("close: %v", err)
		}
		if took := time.Since(begin); took < lingerWait || took > lingerWait+patience/2 {
			t.Errorf("close took %v", took)
		}
		c.ended("lingering operation") // reads to the end: a CLOSED would be a frame
		other.alive("another session")
		if r.memory.enter() {
			t.Error("an operation began after the cut")
		}
		r.memory.leave()
		if err := r.window.Leave(0, nil); !errors.Is(err, fabric.ErrFenced) {
			t.Errorf("late end: %v", err)
		}
	}
}

// TestForeignDeadline cuts a transfer that never stops at its deadline: nothing lands after Close.
func TestForeignDeadline(t *testing.T) {
	NeedForeign(t)
	f := newFabric(t, fabric.Limits{}, "")
	c := attached(t, f)
	const size = 1 << 20
	b := anonymous(t, size)
	if h := c.announce(1, b); h.Type != frame.RegionOK {
		t.Fatal(h.Status)
	}
	r := c.open(f, 1, size, fabric.Grant{Direction: fabric.ForGet, Deadline: time.Now().Add(100 * time.Millisecond)})
	buffer := filled(newBuffer(t), 5)
	moved := make(chan error, 1)
	go func() {
		for {
			if err := r.Write(t.Context(), 0, buffer); err != nil {
				moved <- err
				return
			}
		}
	}()
	soon(t, "deadline passes", func() bool { return !time.Now().Before(r.(*foreignRemote).window.Deadline) })
	if err := r.Close(); !errors.Is(err, fabric.ErrFenced) || errors.Is(err, fabric.ErrLingering) {
		t.Errorf("close: %v", err)
	}
	clear(b)
	if err := <-moved; !errors.Is(err, fabric.ErrFenced) {
		t.Errorf("write: %v", err)
	}
	for i, v := range b {
		if v != 0 {
			t.Fatalf("byte %d landed after the close", i)
		}
	}
}

// TestForeignSessions keeps two sessions of one process apart.
func TestForeignSessions(t *testing.T) {
	NeedForeign(t)
	f := newFabric(t, fabric.Limits{}, "")
	const size = 100_000
	buffer := newBuffer(t)
	var memories [2][]byte
	var clients [2]*rawClient
	for i := range clients {
		clients[i], memories[i] = attached(t, f), anonymous(t, size)
		if h := clients[i].announce(1, memories[i]); h.Type != frame.RegionOK {
			t.Fatal(h.Status)
		}
		r := clients[i].open(f, 1, size, fabric.Grant{Direction: fabric.ForGet})
		if err := errors.Join(r.Write(t.Context(), 10, filled(buffer, byte(i+1)).Slice(0, size-20)), r.Close()); err != nil {
			t.Fatal(err)
		}
	}
	for i, b := range memories {
		for at, v := range b {
			want := byte(i + 1)
			if at < 10 || at >= size-10 {
				want = 0
			}
			if v != want {
				t.Fatalf("memory %d, byte %d: %d", i, at, v)
			}
		}
	}
	clients[0].send(frame.Header{Type: frame.Close})
	if h := clients[0].receive(); h.Type != frame.Closed {
		t.Errorf("fence: %+v", h)
	}
	r := clients[1].open(f, 1, size, fabric.Grant{Direction: fabric.ForPut})
	if err := errors.Join(r.Read(t.Context(), 10, buffer.Slice(0, size-20)), r.Close()); err != nil {
		t.Error(err)
	}
}

// TestForeignSwitchedOff: where foreign memory is switched off, neither the listing nor an answer offers it,
// whatever the kernel would allow, and memfds are taken as ever.
func TestForeignSwitchedOff(t *testing.T) {
	f, err := New(Options{Ledger: fabric.NewLedger(fabric.Limits{}), NoForeign: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}()
	if rail := f.Rails()[0]; rail.Foreign || rail.ForeignReason != "off" {
		t.Errorf("rail: %+v", rail)
	}
	c := connect(t, f)
	if h := c.attach(); h.Type != frame.Attached || h.Status != frame.StatusOff {
		t.Errorf("attach: type %d, %s", h.Type, h.Status)
	}
	if h := c.announce(1, anonymous(t, 4096)); h.Type != frame.RegionRefused || h.Status != frame.StatusProcess {
		t.Errorf("region: type %d, %s", h.Type, h.Status)
	}
	c.send(frame.Header{Type: frame.Region, Region: 1, Size: 4096}, memory(t, 4096, unix.F_SEAL_SHRINK, true))
	if h := c.receive(); h.Type != frame.RegionOK {
		t.Errorf("memfd: %s", h.Status)
	}
}
