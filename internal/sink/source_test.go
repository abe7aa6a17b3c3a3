package sink_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/penstock-store/penstock/internal/sink"
)

func TestBody(t *testing.T) {
	for _, n := range append([]int{0}, sizes...) {
		p := randomBytes(n)
		for name, r := range map[string]io.Reader{
			"whole":          bytes.NewReader(p),
			"halves":         iotest.HalfReader(bytes.NewReader(p)),
			"EOF with bytes": iotest.DataErrReader(bytes.NewReader(p)),
		} {
			src := sink.NewBody(r, newReservation(t, 1), int64(n))
			got, err := drain(newContext(t), src)
			if err != nil || !bytes.Equal(got, p) || src.Bytes() != int64(n) || src.Size() != int64(n) {
				t.Errorf("%d bytes, %s: %v, equal: %v", n, name, err, bytes.Equal(got, p))
			}
			if _, err := src.Next(context.Background()); err != io.EOF {
				t.Errorf("after the end: got %v, want io.EOF", err)
			}
		}
	}
}

func TestBodyOfAnotherSize(t *testing.T) {
	for _, n := range sizes {
		p := randomBytes(n)
		src := sink.NewBody(bytes.NewReader(p), newReservation(t, 1), int64(n)+1)
		if _, err := drain(newContext(t), src); !errors.Is(err, sink.ErrShort) {
			t.Errorf("%d bytes, a byte missing: got %v, want ErrShort", n, err)
		}
		if _, err := src.Next(newContext(t)); !errors.Is(err, sink.ErrShort) {
			t.Errorf("the error is not final: %v", err)
		}
		src = sink.NewBody(bytes.NewReader(p), newReservation(t, 1), int64(n)-1)
		if _, err := drain(newContext(t), src); !errors.Is(err, sink.ErrLong) {
			t.Errorf("%d bytes, one too many: got %v, want ErrLong", n, err)
		}
	}
}

func TestBodyFails(t *testing.T) {
	p := randomBytes(3*full + 9)
	for _, after := range []int{0, 1, full, 2*full - 1, 3*full + 9} {
		r := io.MultiReader(bytes.NewReader(p[:after]), iotest.ErrReader(errModel))
		got, err := drain(newContext(t), sink.NewBody(r, newReservation(t, 1), int64(len(p))))
		if !errors.Is(err, errModel) {
			t.Errorf("after %d bytes: got %v, want the reader's error", after, err)
		}
		if !bytes.HasPrefix(p, got) {
			t.Errorf("after %d bytes: wrong bytes", after)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	src := sink.NewBody(bytes.NewReader(p), newReservation(t, 1), int64(len(p)))
	if _, err := src.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
}

func TestRemoteSource(t *testing.T) {
	for _, n := range append([]int{0}, sizes...) {
		for buffers := 1; buffers <= 4; buffers++ {
			ctx := newContext(t)
			w := newWindow(n + 10) // the window is larger than the payload
			p := randomBytes(n + 10)
			copy(w.memory, p)
			src := sink.NewRemoteSource(w, newReservation(t, buffers), int64(n))
			got, err := drain(ctx, src)
			if err := errors.Join(err, src.Close(ctx)); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, p[:n]) || src.Bytes() != int64(n) {
				t.Fatalf("%d bytes with %d buffers: wrong bytes", n, buffers)
			}
			for i, times := range w.reads {
				if want := map[bool]int{true: 1}[i < n]; times != want {
					t.Fatalf("%d bytes: byte %d was read %d times", n, i, times)
				}
			}
		}
	}
}

func TestRemoteSourceRunsAhead(t *testing.T) {
	ctx := newContext(t)
	w := newWindow(3 * full)
	w.gate, w.started = make(chan struct{}), make(chan struct{}, 3)
	src := sink.NewRemoteSource(w, newReservation(t, 3), 3*full)
	go func() { // once all three reads are under way, let them end
		for range 3 {
			<-w.started
		}
		close(w.gate)
	}()
	if _, err := drain(ctx, src); err != nil {
		t.Fatal(err)
	}
	if err := src.Close(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestRemoteSourceFailsAnywhere(t *testing.T) {
	for at := range 5 {
		for buffers := 1; buffers <= 4; buffers++ {
			ctx := newContext(t)
			w := newWindow(4*full + 10)
			w.failAt = at
			src := sink.NewRemoteSource(w, newReservation(t, buffers), 4*full+10)
			_, err := drain(ctx, src)
			if !errors.Is(err, errModel) {
				t.Errorf("failing at call %d: got %v, want the fabric's error", at, err)
			}
			if _, err := src.Next(ctx); !errors.Is(err, errModel) {
				t.Errorf("the error is not final: %v", err)
			}
			if err := src.Close(ctx); err != nil {
				t.Error(err)
			}
			if slices.Max(w.reads) > 1 {
				t.Error("a byte was read twice")
			}
		}
	}
}

func TestRemoteSourceIsClosedEarly(t *testing.T) {
	ctx, cancel := context.WithCancel(newContext(t))
	w := newWindow(6 * full)
	w.gate, w.gateFrom = make(chan struct{}), 3*full // reads from there on hang
	r := newReservation(t, 3)
	src := sink.NewRemoteSource(w, r, 6*full)
	for range 3 {
		b, err := src.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		b.Release()
	}
	cancel()
	if _, err := src.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
	if err := src.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("close with hanging reads: got %v, want the context's error", err)
	}
	close(w.gate) // as fabric.Remote.Close does
	if err := src.Close(newContext(t)); err != nil {
		t.Error(err)
	}
}
