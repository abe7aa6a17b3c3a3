package gateway

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/checksum"
	"github.com/penstock-store/penstock/internal/sink"
)

// fabricETag is the ETag of what came by a fabric: 16 bytes of which the first 8 are the CRC64NVME and
// the others random, and a suffix that tells tools that it is no MD5.
func fabricETag(crc uint64) string {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], crc)
	_, _ = rand.Read(b[8:]) // never returns an error
	return hex.EncodeToString(b[:]) + "-1"
}

// emptySource is the payload of an empty window.
type emptySource struct{}

// Size implements arena.Source.
func (emptySource) Size() int64 { return 0 }

// Next implements arena.Source.
func (emptySource) Next(context.Context) (arena.Buffer, error) { return arena.Buffer{}, io.EOF }

// hashedSource sums what passes.
type hashedSource struct {
	arena.Source
	hash io.Writer
}

// Next implements arena.Source.
func (h hashedSource) Next(ctx context.Context) (arena.Buffer, error) {
	b, err := h.Source.Next(ctx)
	if err == nil {
		_, _ = h.hash.Write(b.Bytes()) // a Digester never fails
	}
	return b, err
}

// summing is a sink that also knows the CRC64NVME of what passes. Engines deliver buffers that they
// have just verified, so the bytes are still in the cache; of mapped ranges they tell the sum.
type summing struct {
	sink.Sink
	mapper arena.Mapper // nil unless the inner sink is one

	mu     sync.Mutex
	pieces []piece // guarded by mu
}

type piece struct {
	off, n int64
	crc    uint64
}

// sumOf wraps a sink; the result is a Mapper exactly when the sink is one.
func sumOf(inner arena.Sink) (*summing, arena.Sink) {
	s := &summing{}
	s.Sink, _ = inner.(sink.Sink)
	if m, ok := inner.(arena.Mapper); ok {
		s.mapper = m
		return s, mappedSumming{s}
	}
	return s, s
}

// Deliver implements arena.Sink.
func (s *summing) Deliver(ctx context.Context, off int64, b arena.Buffer) error {
	s.add(piece{off, int64(b.Len()), checksum.Sum(b.Bytes())})
	return s.Sink.Deliver(ctx, off, b)
}

func (s *summing) add(p piece) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pieces = append(s.pieces, p)
}

// total is the sum over [0, n), which the pieces must cover exactly once.
func (s *summing) total(n int64) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.SortFunc(s.pieces, func(a, b piece) int { return cmp.Compare(a.off, b.off) })
	var crc uint64
	var at int64
	for _, p := range s.pieces {
		if p.off != at {
			return 0, fmt.Errorf("gateway: sum of an answer: piece at %d, want %d: %w", p.off, at, sink.ErrShort)
		}
		if at == 0 {
			crc = p.crc
		} else {
			crc = checksum.Combine(crc, p.crc, p.n)
		}
		at += p.n
	}
	if at != n {
		return 0, fmt.Errorf("gateway: sum of an answer: %d of %d bytes: %w", at, n, sink.ErrShort)
	}
	return crc, nil
}

// mappedSumming takes the sums of mapped ranges from the engine, which read none of them from client
// memory.
type mappedSumming struct{ *summing }

// Map implements arena.Mapper.
func (s mappedSumming) Map(off int64, n int) ([]byte, error) { return s.mapper.Map(off, n) }

// Unmap implements arena.Mapper.
func (s mappedSumming) Unmap(off int64, n int, v arena.Verdict) {
	if v.Verified {
		s.add(piece{off, int64(n), v.CRC64NVME})
	}
	s.mapper.Unmap(off, n, v)
}
