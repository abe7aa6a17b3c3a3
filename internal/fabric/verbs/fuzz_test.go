package verbs

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// FuzzFrames sends anything after an honest handshake, with a path up, a region announced and a read under way: the
// session ends, the node lives, client memory stays what it is, and nothing is left.
func FuzzFrames(f *testing.F) {
	frames := func(headers ...frame.Header) (out []byte) {
		for _, h := range headers {
			var b [frame.HeaderBytes]byte
			h.Encode(b[:])
			out = append(append(out, b[:]...), make([]byte, h.Length)...)
		}
		return out
	}
	path := func(id, rail uint64, change func(*frame.PathBody)) []byte {
		body := frame.PathBody{QPN: 77, PSN: 7, GID: mapped("10.99.0.3"), MTU: 3, Reads: 4}
		change(&body)
		b := frames(frame.Header{Type: frame.Path, ID: id, Region: rail})
		b[4] = frame.PathBytes
		return append(b, encode(body)...)
	}
	same := func(*frame.PathBody) {}
	f.Add(frames(frame.Header{Type: frame.Ping}, frame.Header{Type: frame.Keyed, Region: 2, Size: 5, Length: 8},
		frame.Header{Type: frame.Forget, Region: 2}, frame.Header{Type: frame.Fenced, ID: 1}))
	f.Add(frames(frame.Header{Type: frame.Forget, Region: 1}, frame.Header{Type: frame.Close}))
	f.Add(append(path(2, 0, same), frames(frame.Header{Type: frame.PathUp, ID: 2})...))
	f.Add(append(path(2, 1, same),
		frames(frame.Header{Type: frame.Fenced, ID: 2}, frame.Header{Type: frame.PathUp, ID: 2})...))
	f.Add(append(path(2, 9, same), path(3, 0, func(p *frame.PathBody) { p.GID[15] = 200 })...))
	f.Add(path(2, 1, func(p *frame.PathBody) { p.QPN, p.PSN, p.MTU, p.Reads = 1<<24-2, 1<<24-1, 5, 255 }))
	f.Add(path(1, 0, same))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		fab := newBench(t, fakeverbs.Options{Poison: true})
		c := fab.connect("p", device0)
		c.path(0)
		memory := c.region(1000)
		fill(memory, 3)
		before := bytes.Clone(memory)
		r := c.mustOpen(fabric.ForPut, 1000, patience)
		buf := fab.buffer(1000)
		defer buf.Release()
		read := make(chan error, 1)
		go func() { read <- errors.Join(r.Read(context.Background(), 0, buf), r.Close()) }()
		if _, err := c.conn.Write(b); err == nil {
			_ = c.conn.CloseWrite()
		}
		c.ended("the frames are over")
		if err := <-read; err == nil && !bytes.Equal(buf.Bytes(), memory) {
			t.Error("read other bytes")
		} else if !documented(err) {
			t.Error(err)
		}
		soon(t, "session ends", func() bool { return fab.fabric.Stats().Sessions == 0 })
		if !bytes.Equal(memory, before) {
			t.Error("client memory changed")
		}
	})
}
