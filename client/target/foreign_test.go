package target_test

import (
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"testing"
	"weak"

	"github.com/penstock-store/penstock/client/target"
	"github.com/penstock-store/penstock/internal/frame"
)

// TestForeignMemory plays the server of foreign memory. It reads this process's memory through the
// kernel, at the addresses that the client names.
func TestForeignMemory(t *testing.T) {
	self, err := os.Open("/proc/self/mem")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = self.Close() }()
	s, c := dial(t, "shm")
	bytes := fill(1000, 5)[3:]
	m := target.WrapMemory(bytes)
	if !m.Foreign() {
		t.Error("wrapped memory is not foreign")
	}
	const number = 0x1122334455667788
	go func() {
		s.expect(frame.Attach)
		s.send(frame.Header{Type: frame.Ask, ID: number}, nil)
		h, _ := s.expect(frame.Present)
		var held [8]byte
		if _, err := self.ReadAt(held[:], int64(h.Offset)); err != nil || h.ID != number ||
			binary.LittleEndian.Uint64(held[:]) != number {
			t.Errorf("present of %#x: memory holds %x, %v", h.ID, held, err)
		}
		s.send(frame.Header{Type: frame.Attached}, nil)
		for range 2 { // the second region needs no question
			h, _ = s.expect(frame.Region)
			got := make([]byte, len(bytes))
			if _, err := self.ReadAt(got, int64(h.Offset)); err != nil || string(got) != string(bytes) ||
				h.Status != frame.StatusForeign || h.Size != uint64(len(bytes)) {
				t.Errorf("region %+v: %v", h, err)
			}
			s.send(frame.Header{Type: frame.RegionOK, Region: h.Region}, nil)
		}
	}()
	for range 2 {
		if _, err := c.Register(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
}

// TestForeignMemoryRefused lets the server refuse at each step: the error has the status, the memory
// stays usable, and only a denial, which may pass, is tried again.
func TestForeignMemoryRefused(t *testing.T) {
	m := target.WrapMemory(make([]byte, 100))
	for status, tries := range map[frame.Status]int{
		frame.StatusOff: 1, frame.StatusUser: 1, frame.StatusProcess: 1, frame.StatusDenied: 3,
	} {
		s, c := dial(t, "shm")
		go func() {
			for range tries {
				s.expect(frame.Attach)
				s.send(frame.Header{Type: frame.Attached, Status: status}, nil)
			}
		}()
		refused := new(frame.RefusedError)
		if _, err := c.Register(t.Context(), m); !errors.As(err, &refused) || refused.Status != status ||
			!errors.Is(err, target.ErrRefused) {
			t.Errorf("status %v: %v", status, err)
		}
	}
	s, c := dial(t, "shm")
	go func() {
		s.expect(frame.Attach)
		s.send(frame.Header{Type: frame.Attached}, nil)
		h, _ := s.expect(frame.Region)
		s.send(frame.Header{Type: frame.RegionRefused, Region: h.Region, Status: frame.StatusAddress}, nil)
	}()
	refused := new(frame.RefusedError)
	if _, err := c.Register(t.Context(), m); !errors.As(err, &refused) || refused.Status != frame.StatusAddress {
		t.Errorf("region: %v", err)
	}
	if m.Abandoned() {
		t.Error("refused memory is abandoned")
	}
}

// TestAbandonedForeignMemoryIsKept: nothing of the program refers to the bytes any more, but the
// collector, which is the oracle, must not take them, since the server may still write there.
func TestAbandonedForeignMemoryIsKept(t *testing.T) {
	for _, abandon := range []bool{true, false} {
		bytes := lostRegion(t, abandon)
		for range 5 {
			runtime.GC()
		}
		if kept := bytes.Value() != nil; kept != abandon {
			t.Errorf("abandoned %v: kept %v", abandon, kept)
		}
	}
}

// lostRegion announces memory and ends the session, with a fence or without.
func lostRegion(t *testing.T, abandon bool) weak.Pointer[[4096]byte] {
	s, c := dial(t, "shm")
	bytes := new([4096]byte)
	m := target.WrapMemory(bytes[:])
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.expect(frame.Attach)
		s.send(frame.Header{Type: frame.Attached}, nil)
		h, _ := s.expect(frame.Region)
		s.send(frame.Header{Type: frame.RegionOK, Region: h.Region}, nil)
		if abandon {
			_ = s.conn.Close()
			return
		}
		s.expect(frame.Close)
		s.send(frame.Header{Type: frame.Closed}, nil)
	}()
	if _, err := c.Register(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if err := c.Fence(t.Context()); abandon != errors.Is(err, target.ErrNotFenced) {
		t.Errorf("abandon %v: fence: %v", abandon, err)
	}
	<-ended
	if m.Abandoned() != abandon {
		t.Errorf("abandoned %v, want %v", m.Abandoned(), abandon)
	}
	return weak.Make(bytes)
}
