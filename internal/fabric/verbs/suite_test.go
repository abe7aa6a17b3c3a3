package verbs

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"testing"

	"github.com/penstock-store/penstock/client/target"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/fabrictest"
	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// The fake adapter's devices: the server's rails, and the client's devices in the same subnets.
const (
	rail0, rail1     = "fake0", "fake1"
	device0, device1 = "fake2", "fake3"
)

// fakeNetworks is where the fake devices are.
func fakeNetworks() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("10.99.0.0/16")} }

// fakeSetup is the server's end on the fake devices.
func fakeSetup(nic *fakeverbs.NIC, l *fabric.Ledger, memory []byte) setup {
	return setup{
		Options: Options{Ledger: l, Address: "127.0.0.1:0", Networks: fakeNetworks()},
		Library: nic.Library(), Devices: []string{rail0, rail1}, Memory: memory,
	}
}

func fakeNIC(t testing.TB, o fakeverbs.Options) *fakeverbs.NIC {
	t.Helper()
	if o.Devices == nil {
		o.Devices = []fakeverbs.Device{{Name: rail0}, {Name: rail1}, {Name: device0}, {Name: device1}}
	}
	return fakeverbs.New(t, o)
}

// fakeDevices are those of a client.
func fakeDevices(t testing.TB, nic *fakeverbs.NIC, names ...string) *target.Devices {
	t.Helper()
	if names == nil {
		names = []string{device0, device1}
	}
	d, err := target.OpenDevices(nic.Library(), names)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// fakeBed is both ends on one fake adapter.
func fakeBed(t testing.TB) fabrictest.Bed {
	nic := fakeNIC(t, fakeverbs.Options{Poison: true})
	return fabrictest.Bed{
		Name: Name, OneProcess: true, Dial: fabrictest.DialDevices(fakeDevices(t, nic)),
		New: func(l *fabric.Ledger, memory []byte) (fabrictest.Fabric, error) {
			return fakeSetup(nic, l, memory).open()
		},
	}
}

// realBed is both ends on the adapters of this machine, as its client processes see it.
func realBed() fabrictest.Bed {
	return fabrictest.Bed{
		Name: Name,
		Dial: func(ctx context.Context, o fabric.SessionOffer) (fabrictest.Client, error) {
			d, err := target.OpenDevices(nil, nil)
			if err != nil {
				return nil, err
			}
			c, err := fabrictest.DialDevices(d)(ctx, o)
			if err != nil {
				return nil, errors.Join(err, d.Close())
			}
			return ownDevices{c, d}, nil
		},
	}
}

// ownDevices is a client that opened its devices by itself.
type ownDevices struct {
	fabrictest.Client
	devices *target.Devices
}

// Free also closes the devices.
func (c ownDevices) Free() error { return errors.Join(c.Client.Free(), c.devices.Close()) }

func TestMain(m *testing.M) { fabrictest.Main(m, realBed()) }

func TestConformance(t *testing.T) { fabrictest.Run(t, fakeBed(t)) }

// TestConformanceOnDevices is the same on the adapters of this machine, and skipped where there is none, unless the
// environment promises one.
func TestConformanceOnDevices(t *testing.T) {
	skip := t.Skip
	if os.Getenv("PENSTOCK_TEST_VERBS") == "device" {
		skip = t.Fatal
	}
	library, err := native.Open(native.Options{})
	if err != nil {
		skip(err)
	}
	t.Cleanup(func() {
		if err := library.Close(); err != nil {
			t.Error(err)
		}
	})
	devices, err := target.OpenDevices(library, nil)
	if err != nil {
		skip(err)
	}
	if err := devices.Close(); err != nil {
		t.Fatal(err)
	}
	bed := realBed()
	bed.New = func(l *fabric.Ledger, memory []byte) (fabrictest.Fabric, error) {
		o := setup{Options: Options{Ledger: l, Address: "127.0.0.1:0"}, Library: library, Memory: memory}
		return o.open()
	}
	fabrictest.Run(t, bed)
}
