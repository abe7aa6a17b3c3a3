package target_test

import (
	"bytes"
	"io"
	"net"
	"testing"

	"github.com/penstock-store/penstock/client/target"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// FuzzRCServer sends anything to the client's receiver, with a path up, memory announced and a window granted: the
// session ends, the queue pairs are dead, and the memory is what it was, since no queue pair of the server sent
// anything.
func FuzzRCServer(f *testing.F) {
	frames := func(headers ...frame.Header) (out []byte) {
		for _, h := range headers {
			var b [frame.HeaderBytes]byte
			h.Encode(b[:])
			out = append(append(out, b[:]...), make([]byte, h.Length)...)
		}
		return out
	}
	rails := func(list ...frame.Rail) []byte {
		body := frame.EncodeRails(list)
		return append(frames(frame.Header{Type: frame.Rails, Length: uint32(len(body))})[:frame.HeaderBytes], body...)
	}
	answer := func(id uint64, p frame.PathBody) []byte {
		b := frames(frame.Header{Type: frame.PathOK, ID: id, Length: frame.PathBytes})
		p.Encode(b[frame.HeaderBytes:])
		return b
	}
	gid := [16]byte{10: 0xff, 11: 0xff, 12: 10, 13: 99, 15: 1}
	lost := frames(frame.Header{Type: frame.Lost, ID: 1})
	f.Add(append(lost, frames(frame.Header{Type: frame.PathRefused, ID: 2, Status: frame.StatusGID})...))
	f.Add(append(lost, answer(2, frame.PathBody{QPN: 99, PSN: 3, GID: gid, MTU: 3, Reads: 1})...))
	f.Add(append(lost, answer(2, frame.PathBody{QPN: 99, PSN: 3, GID: gid, MTU: 3, Reads: 255})...))
	f.Add(append(rails(frame.Rail{MTU: 3, GID: gid}), rails(frame.Rail{Index: 5, Up: true, MTU: 5, GID: gid})...))
	f.Add(rails())
	f.Add(frames(frame.Header{Type: frame.Pong}, frame.Header{Type: frame.Forgotten, Region: 1}))
	f.Add(frames(frame.Header{Type: frame.RegionRefused, Region: 1, Status: frame.StatusLimit}))
	f.Fuzz(func(t *testing.T, b []byte) {
		n := faked(t, fakeverbs.Options{})
		s, c, paths := dialRC(t, openDevices(t, n.library, "fake1"), n.library, upRails(t, n.library)[0])
		m := target.WrapMemory(fill(1000, 9))
		r, _ := registerRC(t, s, c, m)
		g := expectWindow(t, c, r, 100, 300, target.ForGet)
		drained := make(chan struct{})
		go func() {
			defer close(drained)
			_, _ = io.Copy(io.Discard, s.conn)
		}()
		_, _ = s.conn.Write(b)
		_ = s.conn.(*net.TCPConn).CloseWrite()
		s.closed(c)
		_ = g.End()
		<-drained
		if !bytes.Equal(m.Bytes(), fill(1000, 9)) {
			t.Error("memory changed")
		}
		n.dead(t, paths[0].peer.QPN)
	})
}
