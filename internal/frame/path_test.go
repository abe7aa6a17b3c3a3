package frame_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"slices"
	"testing"

	"github.com/penstock-store/penstock/internal/frame"
)

// TestPathLayout checks the byte tables of docs/wire.md against text that was written by hand.
func TestPathLayout(t *testing.T) {
	gid := [16]byte{10: 0xff, 11: 0xff, 12: 10, 13: 0, 14: 1, 15: 2}
	path := frame.PathBody{QPN: 0x112233, PSN: 0x445566, GID: gid, LID: 0x0708, MTU: 3, Device: 1, Reads: 16}
	var b [frame.PathBytes]byte
	path.Encode(b[:])
	want := "33221100" + "66554400" + "00000000000000000000ffff0a000102" + "0807" + "03" + "01" + "10" +
		"0000000000000000000000"
	if got := hex.EncodeToString(b[:]); got != want {
		t.Errorf("path\n%s, want\n%s", got, want)
	}
	if back, err := frame.DecodePath(b[:]); err != nil || back != path {
		t.Errorf("decoded %+v, %v", back, err)
	}
	rails := []frame.Rail{{Index: 2, Up: true, MTU: 5, LID: 0x0102, GID: gid}, {Index: 7, MTU: 1}}
	want = "02" + "01" + "05" + "00" + "0201" + "0000" + "00000000000000000000ffff0a000102" +
		"07" + "00" + "01" + "00" + "0000" + "0000" + "00000000000000000000000000000000"
	text := frame.EncodeRails(rails)
	if got := hex.EncodeToString(text); got != want {
		t.Errorf("rails\n%s, want\n%s", got, want)
	}
	if back, err := frame.DecodeRails(text); err != nil || !slices.Equal(back, rails) {
		t.Errorf("decoded %+v, %v", back, err)
	}
	text = frame.EncodeKeys([]uint32{0x01020304, 5})
	if got := hex.EncodeToString(text); got != "0403020105000000" {
		t.Errorf("keys %s", got)
	}
	if back, err := frame.DecodeKeys(text); err != nil || !slices.Equal(back, []uint32{0x01020304, 5}) {
		t.Errorf("decoded %v, %v", back, err)
	}
}

// TestPathInvalid changes one byte of good bodies at a time.
func TestPathInvalid(t *testing.T) {
	var path [frame.PathBytes]byte
	frame.PathBody{QPN: 2, PSN: 2, MTU: 3, Reads: 1}.Encode(path[:])
	for at, value := range map[int]byte{0: 1, 3: 1, 7: 1, 26: 0, 27: frame.MaxDevices, 28: 0, 29: 1, 39: 1} {
		bad := path
		bad[at] = value
		if _, err := frame.DecodePath(bad[:]); !errors.Is(err, frame.ErrInvalid) {
			t.Errorf("path with byte %d = %d: %v", at, value, err)
		}
	}
	bad := path
	bad[26] = 6
	if _, err := frame.DecodePath(bad[:]); !errors.Is(err, frame.ErrInvalid) {
		t.Errorf("path with unit 6: %v", err)
	}
	for _, qpn := range []uint32{0, 1, 1<<24 - 1} {
		frame.PathBody{QPN: qpn, PSN: 2, MTU: 3, Reads: 1}.Encode(bad[:])
		if _, err := frame.DecodePath(bad[:]); !errors.Is(err, frame.ErrInvalid) {
			t.Errorf("queue pair %d: %v", qpn, err)
		}
	}
	rails := frame.EncodeRails([]frame.Rail{{MTU: 1}})
	for at, value := range map[int]byte{1: 2, 2: 0, 3: 1, 6: 1, 7: 1} {
		bad := slices.Clone(rails)
		bad[at] = value
		if _, err := frame.DecodeRails(bad); !errors.Is(err, frame.ErrInvalid) {
			t.Errorf("rails with byte %d = %d: %v", at, value, err)
		}
	}
	for _, n := range []int{1, frame.RailBytes + 1, (frame.MaxRails + 1) * frame.RailBytes} {
		if _, err := frame.DecodeRails(make([]byte, n)); !errors.Is(err, frame.ErrInvalid) {
			t.Errorf("rails of %d bytes: %v", n, err)
		}
	}
	for _, n := range []int{0, 3, 5, (frame.MaxDevices + 1) * frame.KeyBytes} {
		if _, err := frame.DecodeKeys(make([]byte, n)); !errors.Is(err, frame.ErrInvalid) {
			t.Errorf("keys of %d bytes: %v", n, err)
		}
	}
	for _, h := range []frame.Header{
		{Type: frame.Path}, {Type: frame.PathOK, Length: frame.PathBytes - 1}, {Type: frame.Keyed},
		{Type: frame.Keyed, Length: frame.MaxDevices*frame.KeyBytes + 1}, {Type: frame.Lost, Length: 1},
		{Type: frame.Rails, Length: frame.MaxRails*frame.RailBytes + 1}, {Type: frame.Region, Length: 4},
	} {
		b := make([]byte, frame.HeaderBytes)
		h.Encode(b)
		if _, err := frame.Decode(b); !errors.Is(err, frame.ErrInvalid) {
			t.Errorf("%+v: %v", h, err)
		}
	}
}

// Numbers of MTUs are those of the verbs. Oracle: the byte table of docs/wire.md.
func TestMTUNumbers(t *testing.T) {
	for bytes, want := range map[int]uint8{
		0: 1, 255: 1, 256: 1, 511: 1, 512: 2, 1024: 3, 1500: 3, 2048: 4, 4096: 5, 9000: 5,
	} {
		if got := frame.MTUNumber(bytes); got != want {
			t.Errorf("%d bytes: number %d, want %d", bytes, got, want)
		}
	}
	for number, want := range map[uint8]int{1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096} {
		if got := frame.MTUBytes(number); got != want {
			t.Errorf("number %d: %d bytes, want %d", number, got, want)
		}
	}
}

// FuzzBodies reads anything as each body of the rc fabric: what is taken says the same when it is written again.
func FuzzBodies(f *testing.F) {
	path := make([]byte, frame.PathBytes)
	frame.PathBody{QPN: 1<<24 - 2, PSN: 1<<24 - 1, LID: 7, MTU: 5, Device: frame.MaxDevices - 1, Reads: 255}.Encode(path)
	f.Add(path)
	f.Add(frame.EncodeRails([]frame.Rail{{Index: 255, Up: true, MTU: 5, LID: 9}, {MTU: 1}}))
	f.Add(frame.EncodeKeys([]uint32{0, 1<<32 - 1}))
	f.Add(bytes.Repeat([]byte{1}, frame.MaxRails*frame.RailBytes))
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, err := frame.DecodePath(b); err == nil {
			back := make([]byte, frame.PathBytes)
			if p.Encode(back); !bytes.Equal(back, b) {
				t.Errorf("path %+v", p)
			}
		}
		if rails, err := frame.DecodeRails(b); err == nil && !bytes.Equal(frame.EncodeRails(rails), b) {
			t.Errorf("rails %+v", rails)
		}
		keys, err := frame.DecodeKeys(b)
		if err == nil && (!bytes.Equal(frame.EncodeKeys(keys), b) || len(keys) > frame.MaxDevices) {
			t.Errorf("%d keys", len(keys))
		}
	})
}
