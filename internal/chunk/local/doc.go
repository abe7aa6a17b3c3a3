// Package local stores chunks on the drives of this node.
//
// Called by: store (through chunk.Engine), work, server (New, Stats, Close). Calls: drive.
//
// In this version a node has one drive and chunks have the scheme none: one shard, the whole chunk.
//
// A write takes buffers from the source, sums each 64 KiB block while it is in the cache, and writes
// behind: up to writeDepth buffers are with the device while the source fills the next one. A buffer goes
// back as soon as its own write has ended. The checksum of the chunk is combined from those of its blocks.
//
// A read into mapped client memory reads pieces of pieceBytes straight into it and verifies each one
// while it is in the cache. Blocks that the range covers only in part, and pieces that faulted or do
// not verify, go through an arena buffer; only when the bytes are bad there too is the drive to
// blame. A read into buffers fills, verifies and delivers one buffer after the other; the sink
// overlaps that with its own deliveries. Either way one request uses more than one goroutine only when
// cores would idle otherwise, or when the device turns out to be slow (readDepth).
//
// Copies of payload bytes: none on a write (the device takes them from the arena buffer), one on a read
// (the kernel's, from the page cache; none with O_DIRECT).
//
// Invariants:
//  1. No call outlives its context by more than Options.StuckAfter plus the time that its sink or
//     source takes to return, whatever the device does: Read, Write and Verify run in a goroutine
//     that the Engine owns. A call that returns before its device operation has ended is counted as
//     stuck; its goroutine never touches the sink or source again, and keeps buffers, mapped ranges and
//     the pin of the record until the device lets go of them.
//  2. At most maxStuck such calls exist; beyond that reads and writes are ErrUnavailable at once.
//  3. A write that was given up leaves nothing: a commit that succeeds late is deleted again.
//
// Lock order: call.gate, then the locks of the sink or source; Engine.mu and writing.mu are leaves.
//
// What it does not do: placement, redundancy, repair, visibility.
package local
