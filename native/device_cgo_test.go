//go:build cgo

package native_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock-store/penstock/native"
)

// sysfs reads an attribute of a device.
func sysfs(t *testing.T, path ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(append([]string{"/sys/class/infiniband"}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// guid is the kernel's way to write eight bytes.
func guid(n uint64) string {
	b := binary.BigEndian.AppendUint64(nil, n)
	return fmt.Sprintf("%02x%02x:%02x%02x:%02x%02x:%02x%02x", b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7])
}

// rawGID is the kernel's way to write a GID.
func rawGID(raw [16]byte) string {
	var b strings.Builder
	for i := 0; i < 16; i += 2 {
		fmt.Fprintf(&b, ":%02x%02x", raw[i], raw[i+1])
	}
	return b.String()[1:]
}

// TestDeviceIsAsTheKernelSays: names, GUID, firmware, port and GIDs are those of sysfs.
func TestDeviceIsAsTheKernelSays(t *testing.T) {
	if !onDevice() {
		t.Skip("the kernel knows nothing of a faked adapter")
	}
	d, port, _ := device(t)
	info := d.Info()
	if want := sysfs(t, info.Name, "node_guid"); guid(info.GUID) != want {
		t.Errorf("GUID %s, want %s", guid(info.GUID), want)
	}
	ports, err := os.ReadDir("/sys/class/infiniband/" + info.Name + "/ports")
	if err != nil || len(ports) != info.Ports {
		t.Errorf("%d ports, want %d %v", info.Ports, len(ports), err)
	}
	if info.MaxQP < 2 || info.MaxCQ < 2 || info.MaxCQDepth < 256 || info.MaxQPDepth < 64 || info.MaxMR < 2 ||
		info.MaxMRBytes < 1<<20 || info.MaxReads < 1 || info.MaxIssued < 1 || info.NUMANode < -1 {
		t.Errorf("limits %+v", info)
	}
	at := []string{info.Name, "ports", fmt.Sprint(port.Number)}
	of := func(name ...string) string { return sysfs(t, append(at, name...)...) }
	if state := of("state"); !strings.HasSuffix(state, ": ACTIVE") {
		t.Errorf("port is %s", state)
	}
	if link := of("link_layer"); link == "Ethernet" != (port.Link == native.LinkEthernet) {
		t.Errorf("link layer %d, want %s", port.Link, link)
	}
	byIndex := map[string]native.GID{}
	for _, gid := range port.GIDs {
		byIndex[fmt.Sprint(gid.Index)] = gid
	}
	entries, err := os.ReadDir(filepath.Join("/sys/class/infiniband", filepath.Join(at...), "gids"))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, e := range entries {
		raw := of("gids", e.Name())
		if strings.Trim(raw, "0:") == "" {
			continue
		}
		found++
		gid, ok := byIndex[e.Name()]
		if !ok || rawGID(gid.Raw) != raw {
			t.Errorf("entry %s is %s, want %s", e.Name(), rawGID(gid.Raw), raw)
		}
		if port.Link != native.LinkEthernet {
			continue
		}
		if want := of("gid_attrs", "types", e.Name()); (want == "RoCE v2") != (gid.Type == native.GIDRoCEv2) {
			t.Errorf("entry %s has type %d, want %s", e.Name(), gid.Type, want)
		}
		if want := of("gid_attrs", "ndevs", e.Name()); gid.Network != want {
			t.Errorf("entry %s is of %q, want %q", e.Name(), gid.Network, want)
		}
	}
	if found == 0 || len(port.GIDs) != found {
		t.Errorf("%d entries, want %d", len(port.GIDs), found)
	}
}

// TestListedAsOpened: Devices and OpenDevice tell the same.
func TestListedAsOpened(t *testing.T) {
	l := open(t)
	d, _, _ := deviceOf(t, l)
	infos, err := l.Devices()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(infos, d.Info()) {
		t.Errorf("%+v is not among %+v", d.Info(), infos)
	}
	if _, err := l.OpenDevice("none"); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("open none: %v", err)
	}
}

// TestWrongArguments: what the structs of C cannot hold is refused before it is cut, and nothing is made.
func TestWrongArguments(t *testing.T) {
	p := newPair(t, all)
	huge := 1 << 40
	path := p.near.path
	wide := path
	wide.GIDIndex = 256
	psn := path
	psn.PSN = 1 << 24
	calls := map[string]func() error{
		"port 0":     func() error { _, err := p.device.Port(0); return err },
		"port 256":   func() error { _, err := p.device.Port(257); return err },
		"port -1":    func() error { _, err := p.device.Port(-1); return err },
		"entry -1":   func() error { _, err := p.device.PortEntry(1, -1); return err },
		"CQ of none": func() error { _, err := p.device.NewCQ(0); return err },
		"CQ of -1":   func() error { _, err := p.device.NewCQ(-1); return err },
		"huge CQ":    func() error { _, err := p.device.NewCQ(huge); return err },
		"QP of none": func() error { _, err := p.pd.NewQP(p.near.cq, native.PairOptions{}); return err },
		"huge QP":    func() error { _, err := p.pd.NewQP(p.near.cq, native.PairOptions{Depth: huge}); return err },
		"no memory":  func() error { _, err := p.pd.Register(nil, all); return err },
		"no buffer":  func() error { _, err := p.pd.RegisterDMABuf(0, 0, 0, 0, all); return err },
		"GID 256":    func() error { return p.near.qp.Receive(wide, native.Peer{MTU: 1024}) },
		"PSN":        func() error { return p.near.qp.Send(psn, native.Peer{MTU: 1024}) },
		"QPN":        func() error { return p.near.qp.Receive(path, native.Peer{QPN: 1 << 24, MTU: 1024}) },
		"reads":      func() error { return p.near.qp.Send(path, native.Peer{Reads: 257}) },
		"MTU":        func() error { return p.near.qp.Receive(path, native.Peer{MTU: 1500}) },
		"opcode": func() error {
			_, err := p.near.qp.Post([]native.Work{p.work(1, 9, 0, 1)})
			return err
		},
	}
	for name, call := range calls {
		if err := call(); !errors.Is(err, native.ErrVerbs) || !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", name, err)
		}
	}
	fill(p.near.memory, 1)
	p.near.post(p.work(1, native.OpWrite, 0, 100))
	p.near.want(1, native.StatusOK)
}

// TestCloseOrder: what has something made from it does not close, goes on working, and closes afterwards.
func TestCloseOrder(t *testing.T) {
	p := newPair(t, all)
	for name, object := range map[string]interface{ Close() error }{"device": p.device, "PD": p.pd, "CQ": p.near.cq} {
		if err := object.Close(); !errors.Is(err, syscall.EBUSY) || !errors.Is(err, native.ErrVerbs) {
			t.Errorf("%s: %v", name, err)
		}
	}
	p.near.post(p.work(1, native.OpWrite, 0, 100))
	p.near.want(1, native.StatusOK)
}

// TestClosed: a closed object answers each call by ErrClosed, and closes again without an error.
func TestClosed(t *testing.T) {
	d, _, _ := device(t)
	pd, err := d.NewPD()
	if err != nil {
		t.Fatal(err)
	}
	cq, err := d.NewCQ(8)
	if err != nil {
		t.Fatal(err)
	}
	qp, err := pd.NewQP(cq, native.PairOptions{Depth: 8})
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range []interface{ Close() error }{qp, cq, pd, qp, cq, pd} {
		closes(t, object.Close())
	}
	calls := map[string]func() error{
		"state":    func() error { _, err := qp.State(); return err },
		"init":     func() error { return qp.Init(native.Path{}) },
		"receive":  func() error { return qp.Receive(native.Path{}, native.Peer{}) },
		"send":     func() error { return qp.Send(native.Path{}, native.Peer{}) },
		"fail":     qp.Fail,
		"reset":    qp.Reset,
		"post":     func() error { _, err := qp.Post(make([]native.Work, 1)); return err },
		"poll":     func() error { _, err := cq.Poll(make([]native.Completion, 1)); return err },
		"arm":      cq.Arm,
		"wait":     func() error { return cq.Wait(t.Context()) },
		"register": func() error { _, err := pd.Register(make([]byte, 1), all); return err },
		"dma-buf":  func() error { _, err := pd.RegisterDMABuf(0, 0, 1, 0, all); return err },
		"new QP":   func() error { _, err := pd.NewQP(cq, native.PairOptions{Depth: 1}); return err },
	}
	for name, call := range calls {
		if err := call(); !errors.Is(err, native.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPortEntry: each entry alone is that of the whole table, and there is none behind it.
func TestPortEntry(t *testing.T) {
	d, port, _ := device(t)
	if len(port.GIDs) == 0 {
		t.Fatal("the table is empty")
	}
	for _, gid := range port.GIDs {
		if one, err := d.PortEntry(port.Number, gid.Index); err != nil || !slices.Equal(one.GIDs, []native.GID{gid}) {
			t.Errorf("entry %d alone: %+v, %v", gid.Index, one.GIDs, err)
		}
	}
	if none, err := d.PortEntry(port.Number, 1<<20); err != nil || len(none.GIDs) != 0 || none.State != port.State {
		t.Errorf("entry behind the table: %+v, %v", none, err)
	}
}

// TestEventsEnd: NextEvent ends with its context, and with the device.
func TestEventsEnd(t *testing.T) {
	d, _, _ := device(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { _, err := d.NextEvent(ctx); ended <- err }()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	go func() { _, err := d.NextEvent(t.Context()); ended <- err }()
	closes(t, d.Close())
	if err := <-ended; !errors.Is(err, native.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	if _, err := d.NewPD(); !errors.Is(err, native.ErrClosed) {
		t.Errorf("PD: %v", err)
	}
	if _, err := d.NewCQ(1); !errors.Is(err, native.ErrClosed) {
		t.Errorf("CQ: %v", err)
	}
	if _, err := d.Port(1); !errors.Is(err, native.ErrClosed) {
		t.Errorf("port: %v", err)
	}
}

// TestRegionHidesItsKeys: no verb of fmt prints a key.
func TestRegionHidesItsKeys(t *testing.T) {
	p := newPair(t, all)
	for _, verb := range []string{"%v", "%+v", "%#v", "%d", "%x", "%s"} {
		text := []byte(fmt.Sprintf(verb+verb, p.far.mr, []*native.MR{p.far.mr}))
		for _, key := range []string{fmt.Sprint(p.far.mr.RKey()), fmt.Sprintf("%x", p.far.mr.RKey())} {
			if len(key) > 2 && bytes.Contains(text, []byte(key)) {
				t.Errorf("%s prints a key", verb)
			}
		}
	}
}
