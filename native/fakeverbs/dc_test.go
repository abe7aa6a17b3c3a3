package fakeverbs_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// dcEnd is a device with a completion queue and memory, and on it a DCI or DCTs.
type dcEnd struct {
	t    *testing.T
	nic  *fakeverbs.NIC
	dev  *native.Device
	pd   *native.PD
	cq   *native.CQ
	mr   *native.MR
	mem  []byte
	path native.Path
}

const dcKey = 0xffeeddcc

func newDCEnd(t *testing.T, nic *fakeverbs.NIC, device string, access native.Access) *dcEnd {
	t.Helper()
	e := &dcEnd{t: t, nic: nic, mem: make([]byte, 1<<16)}
	var err error
	must := func(what string) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	e.dev, err = nic.Library().OpenDevice(device)
	must("open device")
	e.pd, err = e.dev.NewPD()
	must("new pd")
	e.cq, err = e.dev.NewCQ(256)
	must("new cq")
	e.mr, err = e.pd.Register(e.mem, access)
	must("register")
	e.path = native.Path{Port: 1, GIDIndex: 1, HopLimit: 64, TrafficClass: 96,
		Access: native.RemoteRead | native.RemoteWrite,
		PSN:    0xfffff0, Timeout: 14, Retries: 7, RNRRetries: 7, MinRNRTimer: 12}
	t.Cleanup(func() {
		for _, o := range []interface{ Close() error }{e.cq, e.mr, e.pd, e.dev} {
			closedWell(t, o)
		}
	})
	return e
}

func closedWell(t *testing.T, o interface{ Close() error }) {
	t.Helper()
	if err := o.Close(); err != nil {
		t.Errorf("close %T: %v", o, err)
	}
}

// dci makes one that may be posted to.
func (e *dcEnd) dci() *native.DCI {
	e.t.Helper()
	d, err := e.pd.NewDCI(e.cq, native.PairOptions{Depth: 64})
	if err != nil {
		e.t.Fatalf("new dci: %v", err)
	}
	e.t.Cleanup(func() { closedWell(e.t, d) })
	e.connect(d)
	return d
}

func (e *dcEnd) connect(d *native.DCI) {
	e.t.Helper()
	if err := d.Connect(e.path, native.Peer{MTU: 1024, Reads: 4}); err != nil {
		e.t.Fatalf("connect: %v", err)
	}
}

// dct makes one that answers, and returns its number.
func (e *dcEnd) dct(key uint64) (*native.DCT, uint32) {
	e.t.Helper()
	d, err := e.pd.NewDCT(e.cq, key)
	if err != nil {
		e.t.Fatalf("new dct: %v", err)
	}
	e.t.Cleanup(func() { closedWell(e.t, d) })
	number, err := d.Answer(e.path, 1024)
	if err != nil || number == 0 {
		e.t.Fatalf("answer: %d %v", number, err)
	}
	return d, number
}

// to is where a DCT of another end is, seen from this one.
func (e *dcEnd) to(o *dcEnd, dct uint32) native.Destination {
	e.t.Helper()
	port, err := o.dev.Port(1)
	if err != nil {
		e.t.Fatal(err)
	}
	peer := native.PeerPort{LID: port.LID}
	for _, g := range port.GIDs {
		if g.Index == o.path.GIDIndex {
			peer.GID, peer.HasGID = g.Raw, true
		}
	}
	a, err := e.pd.NewAddress(e.path, peer)
	if err != nil {
		e.t.Fatalf("new address: %v", err)
	}
	e.t.Cleanup(func() { closedWell(e.t, a) })
	return native.Destination{Address: a, DCT: dct, Key: dcKey}
}

// work is one work request between the same offsets of both ends' memory.
func (e *dcEnd) work(id uint64, o *dcEnd, op native.Opcode, at, n int) native.Work {
	return native.Work{ID: id, Op: op, Local: e.mr.Addr() + uint64(at), Remote: o.mr.Addr() + uint64(at),
		Length: uint32(n), LKey: e.mr.LKey(), RKey: o.mr.RKey(), Signal: true}
}

func (e *dcEnd) post(d *native.DCI, to native.Destination, work ...native.Work) {
	e.t.Helper()
	if n, err := d.Post(to, work); err != nil || n != len(work) {
		e.t.Fatalf("post: %d of %d: %v", n, len(work), err)
	}
}

// wait polls until n completions have come.
func (e *dcEnd) wait(n int) []native.Completion {
	e.t.Helper()
	var got []native.Completion
	e.nic.Await("completions", func() bool {
		var list [64]native.Completion
		k, err := e.cq.Poll(list[:])
		if err != nil {
			e.t.Fatalf("poll: %v", err)
		}
		got = append(got, list[:k]...)
		return len(got) >= n
	})
	return got
}

// expect waits for completions with these statuses, numbered from first on.
func (e *dcEnd) expect(first uint64, want ...native.Status) {
	e.t.Helper()
	for i, c := range e.wait(len(want)) {
		if i >= len(want) || c.ID != first+uint64(i) || c.Status != want[i] {
			e.t.Fatalf("completion %d is %+v, want %d with %v", i, c, first+uint64(i), want)
		}
	}
}

func noViolation(t *testing.T, nic *fakeverbs.NIC) {
	t.Helper()
	if v := nic.Violations(); len(v) > 0 {
		t.Errorf("violations: %q", v)
	}
}

func aViolation(t *testing.T, nic *fakeverbs.NIC, about string) {
	t.Helper()
	for _, v := range nic.Violations() {
		if strings.Contains(v, about) {
			return
		}
	}
	t.Errorf("no violation about %q: %q", about, nic.Violations())
}

// TestDCMoves: WRITEs and READs of one DCI with several DCTs, one after another and mixed, of two devices and of two
// keys of memory; the bytes are those, in the order of the posts. Oracle: the memory itself.
func TestDCMoves(t *testing.T) {
	for _, infiniband := range []bool{false, true} {
		o := fakeverbs.Options{Poison: true, Seed: 3, Latency: 5 * time.Microsecond, Jitter: 5 * time.Microsecond,
			Devices: []fakeverbs.Device{{InfiniBand: infiniband}, {InfiniBand: infiniband}}}
		nic := fakeverbs.New(t, o)
		a := newDCEnd(t, nic, "fake0", native.LocalWrite)
		b, c := newDCEnd(t, nic, "fake1", all), newDCEnd(t, nic, "fake1", all)
		for _, e := range []*dcEnd{a, b, c} {
			if infiniband {
				e.path.GIDIndex = 0
			}
		}
		d := a.dci()
		_, one := b.dct(dcKey)
		_, two := c.dct(dcKey)
		toB, toC := a.to(b, one), a.to(c, two)
		fill(a.mem[:20000], 1)
		fill(b.mem[30000:40000], 2)
		want := bytes.Clone(a.mem[:20000])
		a.post(d, toB, a.work(1, b, native.OpWrite, 0, 10000))
		a.post(d, toC, a.work(2, c, native.OpWrite, 10000, 10000))
		a.post(d, toB, a.work(3, b, native.OpRead, 30000, 10000), a.work(4, b, native.OpRead, 60000, 1))
		a.post(d, toC, a.work(5, c, native.OpWrite, 5000, 5000))
		a.expect(1, native.StatusOK, native.StatusOK, native.StatusOK, native.StatusOK, native.StatusOK)
		if !bytes.Equal(b.mem[:10000], want[:10000]) || !bytes.Equal(c.mem[5000:20000], want[5000:]) ||
			!bytes.Equal(a.mem[30000:40000], b.mem[30000:40000]) || b.mem[10000] != 0 {
			t.Errorf("infiniband %v: the bytes are not those", infiniband)
		}
		if q, ok := nic.QP(one); !ok || q.WriteBytes != 10000 {
			t.Errorf("DCT %d: %+v", one, q)
		}
	}
}

// TestDCRefused: what the memory's key, the DCT's access key, its number or its MTU does not allow moves nothing; the
// DCT goes on for others, and the DCI after a reset.
func TestDCRefused(t *testing.T) {
	nic := fakeverbs.New(t, fakeverbs.Options{Poison: true, Devices: []fakeverbs.Device{{}, {}}})
	a, b := newDCEnd(t, nic, "fake0", native.LocalWrite), newDCEnd(t, nic, "fake1", all)
	fill(a.mem, 1)
	d, other := a.dci(), a.dci()
	_, number := b.dct(dcKey)
	right := a.to(b, number)
	wrongKey, wrongNumber := right, right
	wrongKey.Key++
	wrongNumber.DCT ^= 0x800000
	beyond := a.work(1, b, native.OpWrite, 100, 1000)
	beyond.Remote = b.mr.Addr() + uint64(len(b.mem)) - 999
	badRKey := a.work(1, b, native.OpRead, 100, 10)
	badRKey.RKey ^= 0x5500
	cases := []struct {
		what string
		to   native.Destination
		work native.Work
		want native.Status
	}{
		{"access key", wrongKey, a.work(1, b, native.OpWrite, 0, 10), native.StatusRetry},
		{"number", wrongNumber, a.work(1, b, native.OpWrite, 0, 10), native.StatusRetry},
		{"bounds", right, beyond, native.StatusRemoteAccess},
		{"key of memory", right, badRKey, native.StatusRemoteAccess},
	}
	for _, c := range cases {
		next := a.work(2, b, native.OpWrite, 50, 1)
		a.post(d, c.to, c.work, next)
		a.expect(1, c.want, native.StatusFlushed)
		if s, err := d.State(); err != nil || s != native.QPError {
			t.Errorf("%s: state %v %v", c.what, s, err)
		}
		if b.mem[0] != 0 || b.mem[50] != 0 || b.mem[len(b.mem)-1] != 0 {
			t.Errorf("%s: something moved", c.what)
		}
		a.post(other, right, a.work(9, b, native.OpWrite, 200, 10))
		a.expect(9, native.StatusOK)
		if err := d.Reset(); err != nil {
			t.Fatal(err)
		}
		a.connect(d)
		a.post(d, right, a.work(8, b, native.OpWrite, 300, 10))
		a.expect(8, native.StatusOK)
	}
	narrow := a.dci()
	if err := narrow.Reset(); err != nil {
		t.Fatal(err)
	}
	if err := narrow.Connect(a.path, native.Peer{MTU: 512, Reads: 4}); err != nil {
		t.Fatal(err)
	}
	a.post(narrow, right, a.work(1, b, native.OpWrite, 1000, 2000))
	a.expect(1, native.StatusRemoteOther)
}

// TestDCGone: a DCT that was destroyed answers nobody, one that does not answer yet neither.
func TestDCGone(t *testing.T) {
	nic := fakeverbs.New(t, fakeverbs.Options{Devices: []fakeverbs.Device{{}, {}}})
	a, b := newDCEnd(t, nic, "fake0", native.LocalWrite), newDCEnd(t, nic, "fake1", all)
	fill(a.mem, 1)
	d := a.dci()
	dct, number := b.dct(dcKey)
	to := a.to(b, number)
	a.post(d, to, a.work(1, b, native.OpWrite, 0, 10))
	a.expect(1, native.StatusOK)
	if err := dct.Close(); err != nil {
		t.Fatal(err)
	}
	a.post(d, to, a.work(2, b, native.OpWrite, 100, 10))
	a.expect(2, native.StatusRetry)
	if b.mem[100] != 0 {
		t.Error("a DCT that is gone took something")
	}
}

// TestDCLatePackets: what is in the network when a DCI is reset arrives, as on a real one; but not once the DCI has
// connected anew.
func TestDCLatePackets(t *testing.T) {
	for _, anew := range []bool{false, true} {
		nic := fakeverbs.New(t, fakeverbs.Options{Stepped: true, Latency: 10 * time.Microsecond,
			Devices: []fakeverbs.Device{{}, {}}})
		a, b := newDCEnd(t, nic, "fake0", native.LocalWrite), newDCEnd(t, nic, "fake1", all)
		fill(a.mem, 1)
		d := a.dci()
		_, number := b.dct(dcKey)
		to := a.to(b, number)
		held := nic.Inject(fakeverbs.Rule{At: fakeverbs.AtWritePacket, Do: fakeverbs.Hold})
		a.post(d, to, a.work(1, b, native.OpWrite, 0, 100))
		nic.Advance(20 * time.Microsecond)
		if held.Hits() != 1 {
			t.Fatalf("%d packets held", held.Hits())
		}
		if err := d.Reset(); err != nil {
			t.Fatal(err)
		}
		if anew {
			a.connect(d)
			a.post(d, to, a.work(2, b, native.OpWrite, 1000, 100))
			nic.Run()
			a.expect(2, native.StatusOK)
		}
		held.Release()
		nic.Run()
		if moved := b.mem[0] == a.mem[0]; moved == anew {
			t.Errorf("connected anew %v: the late packet moved %v", anew, moved)
		}
	}
}

// TestDCOwnership: memory and addresses belong to the adapter until the completion is polled, or the DCI is reset.
func TestDCOwnership(t *testing.T) {
	nic := fakeverbs.New(t, lenient(fakeverbs.Options{Stepped: true, Poison: true, Latency: time.Microsecond}))
	a := newDCEnd(t, nic, "fake0", all)
	d := a.dci()
	_, number := a.dct(dcKey)
	to := a.to(a, number)
	a.post(d, to, a.work(1, a, native.OpRead, 0, 4000))
	if !nic.Owned(a.mem[3999:4000]) || nic.Owned(a.mem[4000:4001]) {
		t.Error("what is owned after a post")
	}
	nic.Run()
	if !nic.Owned(a.mem[:1]) {
		t.Error("not owned before its completion was polled")
	}
	a.expect(1, native.StatusOK)
	if nic.Owned(a.mem[:1]) {
		t.Error("owned after its completion was polled")
	}
	a.post(d, to, a.work(2, a, native.OpWrite, 0, 4000))
	if err := d.Reset(); err != nil {
		t.Fatal(err)
	}
	if nic.Owned(a.mem[:1]) {
		t.Error("owned after a reset")
	}
	a.connect(d)
	noViolation(t, nic)
	early := a.to(a, number)
	a.post(d, early, a.work(3, a, native.OpWrite, 0, 10))
	if err := early.Address.Close(); err != nil {
		t.Fatal(err)
	}
	aViolation(t, nic, "destroy_ah: 1 work requests")
	nic.Run()
	a.wait(1)
	a.post(d, to, a.work(4, a, native.OpWrite, 0, 4000))
	a.mem[5]++
	nic.Run()
	a.wait(1)
	aViolation(t, nic, "changed while the adapter owned it")
}

// TestDCPost: of a chain all is taken or nothing; more than the depth is a violation.
func TestDCPost(t *testing.T) {
	nic := fakeverbs.New(t, lenient(fakeverbs.Options{Stepped: true}))
	a := newDCEnd(t, nic, "fake0", all)
	d := a.dci()
	_, number := a.dct(dcKey)
	to := a.to(a, number)
	nic.Inject(fakeverbs.Rule{At: fakeverbs.AtPost, Errno: syscall.EIO, Batch: 1})
	chain := make([]native.Work, 30)
	for i := range chain {
		chain[i] = a.work(uint64(i), a, native.OpWrite, i, 1)
	}
	n, err := d.Post(to, chain)
	if n != 0 || nic.Owned(a.mem) {
		t.Errorf("%d of a chain that fails, owned %v", n, nic.Owned(a.mem))
	}
	wantErrno(t, "post", err, syscall.EIO)
	for range 2 {
		if n, err := d.Post(to, chain); n != 30 || err != nil {
			t.Errorf("%d %v", n, err)
		}
	}
	noViolation(t, nic)
	n, err = d.Post(to, chain)
	wantErrno(t, "post", err, syscall.ENOMEM)
	if q, _ := nic.QP(d.Number()); n != 0 || q.Owned != 60 {
		t.Errorf("%d posted, %+v", n, q)
	}
	aViolation(t, nic, "has 60 of its 64 work requests posted, and 30 more")
	if err := d.Reset(); err != nil {
		t.Fatal(err)
	}
	n, err = d.Post(to, chain[:1])
	wantErrno(t, "post after a reset", err, syscall.EINVAL)
	if n != 0 {
		t.Errorf("%d posted after a reset", n)
	}
}

// TestDCStates: a DCI connects from its reset, once; a device without DC says so; calls fail as told.
func TestDCStates(t *testing.T) {
	nic := fakeverbs.New(t, lenient(fakeverbs.Options{Devices: []fakeverbs.Device{{}, {NoDC: true}}}))
	a, none := newDCEnd(t, nic, "fake0", all), newDCEnd(t, nic, "fake1", all)
	if err := nic.Library().DC(); err != nil {
		t.Errorf("library: %v", err)
	}
	if err := a.dev.DC(); err != nil {
		t.Errorf("device: %v", err)
	}
	var unavailable *native.UnavailableError
	if err := none.dev.DC(); !errors.As(err, &unavailable) || unavailable.Reason != native.ReasonNoDC {
		t.Errorf("device without DC: %v", err)
	}
	_, err := none.pd.NewDCI(none.cq, native.PairOptions{Depth: 1})
	wantErrno(t, "DCI of a device without DC", err, syscall.ENOTSUP)
	d := a.dci()
	wantErrno(t, "connected twice", d.Connect(a.path, native.Peer{MTU: 1024, Reads: 4}), syscall.EINVAL)
	if err := d.Fail(); err != nil {
		t.Error(err)
	}
	if s, err := d.State(); err != nil || s != native.QPError {
		t.Errorf("state %v %v", s, err)
	}
	wantErrno(t, "MTU beyond the port's", a.reset(d).Connect(a.path, native.Peer{MTU: 4096, Reads: 4}), syscall.EINVAL)
	dct, number := a.dct(1)
	if _, err := dct.Answer(a.path, 1024); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("answers twice: %v", err)
	}
	for _, at := range []fakeverbs.Point{fakeverbs.AtCreateAddress, fakeverbs.AtCreateQP} {
		nic.Inject(fakeverbs.Rule{At: at, Errno: syscall.ENOSPC})
	}
	_, err = a.pd.NewAddress(a.path, native.PeerPort{HasGID: true, GID: [16]byte{15: 1}})
	wantErrno(t, "address", err, syscall.ENOSPC)
	_, err = a.pd.NewDCT(a.cq, 1)
	wantErrno(t, "DCT", err, syscall.ENOSPC)
	_, err = a.pd.NewAddress(a.path, native.PeerPort{LID: 3})
	wantErrno(t, "address by LID on Ethernet", err, syscall.EINVAL)
	extra, err := a.pd.NewAddress(a.path, native.PeerPort{HasGID: true, GID: [16]byte{15: 1}})
	if err != nil {
		t.Fatal(err)
	}
	nic.Inject(fakeverbs.Rule{At: fakeverbs.AtDestroyAddress, Errno: syscall.EBUSY})
	wantErrno(t, "close of an address", extra.Close(), syscall.EBUSY)
	closedWell(t, extra)
	if _, ok := nic.QP(number); !ok {
		t.Error("no counters of a DCT")
	}
	noViolation(t, nic)
}

func (e *dcEnd) reset(d *native.DCI) *native.DCI {
	e.t.Helper()
	if err := d.Reset(); err != nil {
		e.t.Fatal(err)
	}
	return d
}

// TestDCLoss: packets of all kinds are lost and doubled; what completes well has moved its bytes and nothing else, and
// what does not leaves the DCT to others. Oracle: a copy of both memories.
func TestDCLoss(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 1))
		nic := fakeverbs.New(t, fakeverbs.Options{Poison: true, Seed: seed + 1, Latency: 3 * time.Microsecond,
			Jitter: 9 * time.Microsecond, ReuseNumbers: true, KeepCompletions: seed%2 == 0,
			Devices: []fakeverbs.Device{{}, {}}})
		a := newDCEnd(t, nic, "fake0", native.LocalWrite)
		peers := []*dcEnd{newDCEnd(t, nic, "fake1", all), newDCEnd(t, nic, "fake1", all)}
		var to []native.Destination
		for _, p := range peers {
			_, number := p.dct(dcKey)
			to = append(to, a.to(p, number))
			fill(p.mem, rng.IntN(99))
		}
		d := a.dci()
		for id := range uint64(30) {
			at := []fakeverbs.Point{fakeverbs.AtWritePacket, fakeverbs.AtReadRequest, fakeverbs.AtReadResponse, fakeverbs.AtAck}
			nic.Inject(fakeverbs.Rule{At: at[rng.IntN(4)], Do: []fakeverbs.Effect{fakeverbs.Fail, fakeverbs.Twice}[rng.IntN(2)],
				Times: 1 + rng.IntN(4), Skip: rng.IntN(5)})
			k, from := rng.IntN(2), rng.IntN(50000)
			n := 1 + rng.IntN(len(a.mem)-from)
			w := a.work(id, peers[k], native.OpWrite, from, n)
			if rng.IntN(2) == 0 {
				w.Op = native.OpRead
			} else {
				fill(a.mem[from:from+n], rng.IntN(99))
			}
			mine, theirs := bytes.Clone(a.mem), bytes.Clone(peers[k].mem)
			if w.Op == native.OpRead {
				copy(mine[from:from+n], theirs[from:])
			} else {
				copy(theirs[from:from+n], mine[from:])
			}
			a.post(d, to[k], w)
			if c := a.wait(1); c[0].ID != id || c[0].Status != native.StatusOK {
				if c[0].Status != native.StatusRetry {
					t.Fatalf("seed %d: %+v", seed, c)
				}
				a.connect(a.reset(d))
				continue
			}
			if !bytes.Equal(a.mem, mine) || !bytes.Equal(peers[k].mem, theirs) {
				t.Fatalf("seed %d: work %d moved other bytes", seed, id)
			}
		}
	}
}
