package rail

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// TestCompareSeesWhatDidNotArrive looks into other memory than the adapter wrote.
func TestCompareSeesWhatDidNotArrive(t *testing.T) {
	nic := fakeverbs.New(t, fakeverbs.Options{})
	rails, _, err := Discover(nic.Library(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	d, err := nic.Library().OpenDevice(rails[0].Device)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	c := loopbackCase{size: 4096}
	l := &loop{device: d, rail: rails[0], options: LoopbackOptions{}.withDefaults(rails[0])}
	if err := l.open([]loopbackCase{c}); err != nil {
		t.Fatal(err)
	}
	mapped := l.memory
	if err := l.compare(t.Context(), c); err != nil {
		t.Error(err)
	}
	l.memory = make([]byte, len(mapped))
	err = l.compare(t.Context(), c)
	var failed *LoopbackError
	if !errors.As(err, &failed) || failed.Step != StepCompare || !errors.Is(err, ErrMismatch) {
		t.Errorf("%v", err)
	}
	l.memory = mapped
	if err := l.close(); err != nil {
		t.Error(err)
	}
}

// TestSurroundedSeesEveryByte changes each byte of a buffer in turn.
func TestSurroundedSeesEveryByte(t *testing.T) {
	const at, n, untouched = 16, 9, 0xa5
	want := make([]byte, 48)
	pattern(want)
	good := slices.Repeat([]byte{untouched}, len(want))
	copy(good[at:at+n], want[at:])
	if err := surrounded(good, want, at, n, untouched); err != nil {
		t.Fatal(err)
	}
	for i := range good {
		bad := slices.Clone(good)
		bad[i] ^= 1
		if err := surrounded(bad, want, at, n, untouched); !errors.Is(err, ErrMismatch) {
			t.Errorf("byte %d changed: %v", i, err)
		}
	}
}

func TestLoopbackOptionsFitThePort(t *testing.T) {
	for _, c := range []struct {
		size int
		max  uint32
		want int
	}{
		{0, 0, DefaultLoopbackSize}, {0, 1 << 31, DefaultLoopbackSize}, {0, 4096, 4096}, {5, 1 << 31, 5},
		{1 << 40, 1 << 31, MaxLoopbackSize},
	} {
		o := LoopbackOptions{Size: c.size, HopLimit: 1}.withDefaults(Rail{MaxMessage: c.max})
		if o.Size != c.want || o.Timeout != 14 || o.Retries != 6 || o.HopLimit != 1 {
			t.Errorf("size %d on a port with %d: %+v, want %d", c.size, c.max, o, c.want)
		}
		for _, l := range loopbackCases(Rail{MaxMessage: c.max}, o) {
			if c.max > 0 && l.size > int(c.max) {
				t.Errorf("an operation of %d bytes on a port with %d", l.size, c.max)
			}
		}
	}
}

func TestTransferRate(t *testing.T) {
	if got := (Transfer{Bytes: 3e9, Duration: 1500 * time.Millisecond}).GBps(); got != 2 {
		t.Errorf("3 GB in 1.5 s are %v GB/s", got)
	}
	if got := (Transfer{}).GBps(); got != 0 {
		t.Errorf("nothing is %v GB/s", got)
	}
}

func TestLoopbackErrorNamesTheStep(t *testing.T) {
	cause := &CompletionError{Status: native.StatusRetry, Vendor: 0x81}
	err := error(&LoopbackError{Rail: "rxe0/1", Step: StepWrite, Size: 4096, Err: cause})
	const want = "rail rxe0/1: loopback write of 4096 bytes: no acknowledgement (adapter's code 0x81)"
	if err.Error() != want || !errors.Is(err, error(cause)) {
		t.Errorf("%q, want %q", err, want)
	}
}
