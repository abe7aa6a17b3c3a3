package pebble

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/penstock-store/penstock/internal/meta/kv"
	"github.com/penstock-store/penstock/internal/vfs/osfs"
)

// openReal opens an engine on real files in the test's directory.
func openReal(b *testing.B) *Engine {
	b.Helper()
	e, err := Open(Config{FS: osfs.FS{}, Dir: b.TempDir() + "/kv"})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := e.Close(); err != nil {
			b.Error(err)
		}
	})
	return e
}

// benchTxn runs durable transactions of two writes and one read by a number of writers.
func benchTxn(b *testing.B, writers, valueBytes int) {
	e := openReal(b)
	ctx := context.Background()
	var left, key atomic.Int64
	left.Store(int64(b.N))
	value := make([]byte, valueBytes)
	for i := range value {
		value[i] = byte(i * 7919 >> 3)
	}
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				n := key.Add(1) * 2654435761 % (1 << 32)
				err := e.Txn(ctx, func(tx kv.Tx) error {
					head := fmt.Appendf(nil, "bucket/object-%012d", n)
					if _, err := tx.Get(ctx, head); err == nil {
						return nil
					}
					if err := tx.Put(head, value); err != nil {
						return err
					}
					return tx.Put(fmt.Appendf(nil, "version/object-%012d", n), []byte("v"))
				})
				if err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "txn/s")
}

func BenchmarkTxn64(b *testing.B)    { benchTxn(b, 64, 100) }
func BenchmarkTxn1(b *testing.B)     { benchTxn(b, 1, 100) }
func BenchmarkTxn16x4K(b *testing.B) { benchTxn(b, 16, 4<<10) }

func benchFilled(b *testing.B) *Engine {
	e := openReal(b)
	ctx := context.Background()
	for i := 0; i < 100000; i += 1000 {
		err := e.Txn(ctx, func(tx kv.Tx) error {
			for j := i; j < i+1000; j++ {
				if err := tx.Put(fmt.Appendf(nil, "bucket/object-%012d", j), make([]byte, 300)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	return e
}

func BenchmarkGet(b *testing.B) {
	e := benchFilled(b)
	ctx := context.Background()
	s, err := e.Snapshot(ctx)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, err := s.Get(ctx, fmt.Appendf(nil, "bucket/object-%012d", i*7919%100000)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSnapshot(b *testing.B) {
	e := openReal(b)
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		s, err := e.Snapshot(ctx)
		if err != nil {
			b.Fatal(err)
		}
		_ = s.Close()
	}
}

func BenchmarkScan(b *testing.B) {
	e := benchFilled(b)
	ctx := context.Background()
	s, err := e.Snapshot(ctx)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	for b.Loop() {
		n := 0
		err := s.Scan(ctx, []byte("bucket/"), nil, func(_, _ []byte) (kv.Next, error) {
			n++
			return kv.Next{Stop: n == 1000}, nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}
