package fabrictest

import (
	"context"
	"sync"
	"testing"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/fabric"
)

// Bench moves 64 MiB windows, four in flight, from and into arena buffers of 1 MiB that are read or
// written by nothing else: what a fabric costs by itself.
func Bench(b *testing.B, bed Bed) {
	b.Run("Get", func(b *testing.B) { bench(b, bed, fabric.ForGet) })
	b.Run("Put", func(b *testing.B) { bench(b, bed, fabric.ForPut) })
}

func bench(b *testing.B, bed Bed, d fabric.Direction) {
	const size, inFlight = 64 << 20, 4
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	a, err := arena.New(arena.Options{Shares: []arena.ShareOption{
		{Name: "fabric", Buffers: 4 * inFlight, BufferBytes: 1 << 20},
	}})
	if err != nil {
		b.Fatal(err)
	}
	f, err := bed.New(fabric.NewLedger(fabric.Limits{}), a.Memory())
	if err != nil {
		b.Fatal(err)
	}
	o, err := offer(f, principal)
	if err != nil {
		b.Fatal(err)
	}
	c, err := bed.Dial(ctx, o)
	if err != nil {
		b.Fatal(err)
	}
	r, err := c.Register(ctx, size*inFlight)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(size)
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	work := make(chan struct{})
	for i := range int64(inFlight) {
		wg.Go(func() {
			for range work {
				if err := (benched{f, a, r}).transfer(ctx, i*size, d); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for range b.N {
		work <- struct{}{}
	}
	close(work)
	wg.Wait()
	b.StopTimer()
	if err := c.Fence(ctx); err != nil {
		b.Error(err)
	}
	if err := c.Free(); err != nil {
		b.Error(err)
	}
	if err := f.Close(); err != nil {
		b.Error(err)
	}
	if err := a.Close(); err != nil {
		b.Error(err)
	}
}

type benched struct {
	fabric Fabric
	arena  *arena.Arena
	region Region
}

// transfer is one transfer with four operations in flight.
func (x benched) transfer(ctx context.Context, at int64, d fabric.Direction) error {
	const size, depth = 64 << 20, 4
	w, err := x.region.Grant(at, size, d)
	if err != nil {
		return err
	}
	remote, err := x.fabric.Open(ctx, w.Descriptor(), request(d, size))
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	for i := range int64(depth) {
		wg.Go(func() {
			buf, err := x.arena.Share("fabric").Alloc(ctx)
			if err != nil {
				return
			}
			defer buf.Release()
			for off := i << 20; off < size; off += depth << 20 {
				if d == fabric.ForGet {
					err = remote.Write(ctx, off, buf)
				} else {
					err = remote.Read(ctx, off, buf)
				}
				if err != nil {
					return // Close reports it
				}
			}
		})
	}
	wg.Wait()
	if err := remote.Close(); err != nil {
		return err
	}
	return w.EndContext(ctx)
}
