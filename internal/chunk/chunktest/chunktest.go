// Package chunktest is the conformance suite of chunk.Engine. Every engine runs it.
//
// Called by: tests of chunk/chunkmem, chunk/local and of every later engine.
//
// Its oracle is the payload in memory: whatever is read back must be equal to what was written, and
// whatever a sink got before an error must be equal too. Every sink and source counts its buffers, so
// that a buffer that is not returned fails the test that lost it.
//
// Invariants:
//  1. The suite talks to the engine only through package chunk's contract and the hooks of Subject.
//  2. Every call has a time limit, so an engine that waits for a second buffer while it holds the only
//     one fails a test and does not hang it.
//
// What it does not do: durability and crashes (the engine's own tests), speed.
package chunktest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/checksum"
	"github.com/penstock-store/penstock/internal/chunk"
)

// callLimit bounds each call of the engine: far above what a slow machine needs for 64 MiB under
// the race detector, far below the limit of a test binary.
const callLimit = 60 * time.Second

// bufferBytes of the suite's arena: two blocks, so that buffer borders and block borders differ.
const bufferBytes = 2 * arena.BlockSize

// Subject is an engine under test with the hooks that only its maker can give.
type Subject struct {
	Engine chunk.Engine
	// Corrupt changes the stored payload byte at off, as a bad drive would.
	Corrupt func(ref chunk.Ref, off int64) error
	// Close ends the engine and everything under it; every goroutine must be gone then.
	Close func() error
}

// Run runs the suite; open returns an empty engine each time.
func Run(t *testing.T, open func(t *testing.T) Subject) {
	for _, c := range []struct {
		name string
		test func(*suite)
	}{
		{"sizes and ranges", (*suite).testSizes},
		{"one buffer", (*suite).testOneBuffer},
		{"bad sizes", (*suite).testBadSizes},
		{"bad ranges", (*suite).testBadRanges},
		{"bad sources", (*suite).testBadSources},
		{"write cancelled", (*suite).testWriteCancelled},
		{"read cancelled", (*suite).testReadCancelled},
		{"failing sinks", (*suite).testFailingSinks},
		{"not found", (*suite).testNotFound},
		{"forged reference", (*suite).testForgedReference},
		{"corrupt payload", (*suite).testCorrupt},
		{"scribbling client", (*suite).testScribble},
		{"faulting client", (*suite).testFault},
		{"pins", (*suite).testPins},
		{"walk", (*suite).testWalk},
		{"concurrent", (*suite).testConcurrent},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := goleak.IgnoreCurrent()
			s := newSuite(t, open(t))
			c.test(s)
			s.close()
			goleak.VerifyNone(t, before)
		})
	}
}

type suite struct {
	t       *testing.T
	subject Subject
	engine  chunk.Engine
	arena   *arena.Arena
}

func newSuite(t *testing.T, subject Subject) *suite {
	t.Helper()
	a, err := arena.New(arena.Options{
		Shares: []arena.ShareOption{{Name: "test", Buffers: 64, BufferBytes: bufferBytes}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return &suite{t: t, subject: subject, engine: subject.Engine, arena: a}
}

// close checks that every buffer is back: the arena refuses to close otherwise.
func (s *suite) close() {
	s.t.Helper()
	if err := s.subject.Close(); err != nil {
		s.t.Errorf("close engine: %v", err)
	}
	if err := s.arena.Close(); err != nil {
		s.t.Error(err)
	}
}

// checkBuffers fails when buffers are out. Every call of the engine is followed by it.
func (s *suite) checkBuffers(what string) {
	s.t.Helper()
	if n := s.arena.InUse(); n != 0 {
		s.t.Fatalf("%s: %d arena buffers are not back", what, n)
	}
}

func (s *suite) context() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), callLimit)
}

// put writes p with a source of the given number of buffers and checks the reference.
func (s *suite) put(p []byte, buffers int) chunk.Ref {
	s.t.Helper()
	ctx, cancel := s.context()
	defer cancel()
	ref, err := s.engine.Write(ctx, owner(1), chunk.Scheme{}, s.source(p, buffers))
	if err != nil {
		s.t.Fatalf("write %d bytes: %v", len(p), err)
	}
	if want := checksum.Sum(p); ref.Length != int64(len(p)) || ref.CRC64NVME != want {
		s.t.Fatalf("reference says %d bytes with %#x, want %d with %#x", ref.Length, ref.CRC64NVME, len(p), want)
	}
	s.checkBuffers("after write")
	return ref
}

// get reads a range into the sink, ends the sink and returns the error of either.
func (s *suite) get(ref chunk.Ref, r chunk.Range, dst modelSink) error {
	s.t.Helper()
	ctx, cancel := s.context()
	defer cancel()
	return s.getContext(ctx, ref, r, dst)
}

func (s *suite) getContext(ctx context.Context, ref chunk.Ref, r chunk.Range, dst modelSink) error {
	s.t.Helper()
	err := s.engine.Read(ctx, ref, r, dst)
	if dst.doneCalled() {
		s.t.Error("the engine called Done")
	}
	err = errors.Join(err, dst.Done(ctx))
	s.checkBuffers(fmt.Sprintf("after read of [%d, +%d)", r.Off, r.Len))
	if err := dst.balanced(); err != nil {
		s.t.Fatal(err)
	}
	return err
}

// mustGet reads a range of p and compares.
func (s *suite) mustGet(ref chunk.Ref, p []byte, r chunk.Range, kind sinkKind, buffers int) {
	s.t.Helper()
	dst := s.sink(kind, p[r.Off:r.Off+r.Len], buffers)
	if err := s.get(ref, r, dst); err != nil {
		s.t.Fatalf("%v sink: read [%d, +%d) of %d bytes: %v", kind, r.Off, r.Len, len(p), err)
	}
	if err := dst.complete(); err != nil {
		s.t.Fatalf("%v sink: read [%d, +%d) of %d bytes: %v", kind, r.Off, r.Len, len(p), err)
	}
}

func whole(ref chunk.Ref) chunk.Range { return chunk.Range{Len: ref.Length} }

func owner(n byte) chunk.Owner { return chunk.Owner{ID: [16]byte{n, 0xFF}, Epoch: uint64(n)} }

// stored lists what the engine holds, or nil and false when it is no Walker.
func (s *suite) stored() (map[chunk.Ref]chunk.Owner, bool) {
	s.t.Helper()
	w, ok := s.engine.(chunk.Walker)
	if !ok {
		return nil, false
	}
	ctx, cancel := s.context()
	defer cancel()
	all := map[chunk.Ref]chunk.Owner{}
	if err := w.Walk(ctx, func(r chunk.Ref, o chunk.Owner) error {
		all[r] = o
		return nil
	}); err != nil {
		s.t.Fatalf("walk: %v", err)
	}
	return all, true
}

func (s *suite) checkNothingStored(what string) {
	s.t.Helper()
	if all, ok := s.stored(); ok && len(all) != 0 {
		s.t.Fatalf("%s: %d chunks are stored", what, len(all))
	}
}
