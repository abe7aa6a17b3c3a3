//go:build cgo

package native_test

import (
	"bytes"
	"context"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// nextEvent waits for an event of one of these types and passes over others.
func nextEvent(t *testing.T, d *native.Device, types ...native.EventType) native.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), enough)
	defer cancel()
	for {
		e, err := d.NextEvent(ctx)
		if err != nil {
			t.Fatalf("wait for an event of %d: %v", types, err)
		}
		if slices.Contains(types, e.Type) {
			return e
		}
	}
}

// TestEvents: a faked adapter's events come as what they are, of the port and queue pair that they concern.
func TestEvents(t *testing.T) {
	nic := fakeverbs.New(t, fakeverbs.Options{})
	d, port, gid := deviceOf(t, nic.Library())
	p := newPairOn(t, d, port, gid, all)

	nic.PortDown("fake0")
	if e := nextEvent(t, d, native.EventPortDown, native.EventPortUp); e.Type != native.EventPortDown || e.Port != 1 {
		t.Errorf("port down: %+v", e)
	}
	if got, err := d.Port(1); err != nil || got.State != native.PortDown {
		t.Errorf("port is %+v %v", got, err)
	}
	nic.PortUp("fake0")
	if e := nextEvent(t, d, native.EventPortDown, native.EventPortUp); e.Type != native.EventPortUp || e.Port != 1 {
		t.Errorf("port up: %+v", e)
	}
	if got, err := d.Port(1); err != nil || got.State != native.PortActive {
		t.Errorf("port is %+v %v", got, err)
	}

	address := netip.MustParseAddr("10.77.1.2")
	nic.SetAddr("fake0", address)
	if e := nextEvent(t, d, native.EventGIDs); e.Port != 1 {
		t.Errorf("address changed: %+v", e)
	}
	got, err := d.Port(1)
	if err != nil {
		t.Fatal(err)
	}
	want := native.GID{Index: gid.Index, Raw: address.As16(), Type: native.GIDRoCEv2, Network: gid.Network}
	if !slices.Contains(got.GIDs, want) {
		t.Errorf("GIDs %+v lack %+v", got.GIDs, want)
	}

	nic.FailQP(p.near.qp.Number())
	if e := nextEvent(t, d, native.EventQPFatal); e.QPN != p.near.qp.Number() || e.Port != 0 {
		t.Errorf("queue pair failed: %+v", e)
	}
	nic.Kill("fake0")
	nextEvent(t, d, native.EventDeviceFatal)
}

// TestPortEvents: a port of soft-RoCE on a network device that the test makes goes down and up, and gets an address.
func TestPortEvents(t *testing.T) {
	if !onDevice() || os.Geteuid() != 0 {
		t.Skip("needs root, and soft-RoCE in the kernel")
	}
	run := func(command string) error {
		fields := strings.Fields(command)
		out, err := exec.Command(fields[0], fields[1:]...).CombinedOutput()
		if err != nil {
			t.Logf("%s: %v\n%s", command, err, out)
		}
		return err
	}
	must := func(command string) {
		t.Helper()
		if run(command) != nil {
			t.FailNow()
		}
	}
	const network, name = "pstest0", "pstestrxe0"
	must("ip link add " + network + " type dummy")
	t.Cleanup(func() { closes(t, run("ip link delete "+network)) })
	must("ip link set " + network + " up")
	if run("rdma link add "+name+" type rxe netdev "+network) != nil {
		t.Skip("no soft-RoCE")
	}
	t.Cleanup(func() { closes(t, run("rdma link delete "+name)) })

	d, err := open(t).OpenDevice(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closes(t, d.Close()) })
	state := func(want native.PortState) native.PortInfo {
		t.Helper()
		port, err := d.Port(1)
		if err != nil || port.State != want {
			t.Errorf("state %d %v, want %d", port.State, err, want)
		}
		return port
	}
	state(native.PortActive)
	must("ip link set " + network + " down")
	nextEvent(t, d, native.EventPortDown)
	state(native.PortDown)
	must("ip link set " + network + " up")
	nextEvent(t, d, native.EventPortUp)
	state(native.PortActive)
	must("ip address add 10.111.1.2/24 dev " + network)
	nextEvent(t, d, native.EventGIDs)
	want := netip.MustParseAddr("10.111.1.2").As16()
	for _, gid := range state(native.PortActive).GIDs {
		if bytes.Equal(gid.Raw[:], want[:]) && gid.Type == native.GIDRoCEv2 && gid.Network == network {
			return
		}
	}
	t.Errorf("no GID of the new address")
}
