// Package arena owns the server's registered payload buffers and the contracts by which payload
// bytes move: Sink (where a GET puts them) and Source (where a PUT takes them from).
//
// Called by: chunk engines (read into a Sink, write from a Source), sinks and sources, fabrics.
//
// An Arena is allocated once at start as one anonymous, page-aligned mapping and cut into equal
// buffers. It is divided into shares, so that slow HTTP sockets cannot take the buffers that
// fabric transfers need. A transfer reserves its buffers before it touches client memory; waiting
// for that is bounded, then the caller gets ErrBusy and the request is declined with a reason.
//
// Invariants:
//  1. A buffer is owned by exactly one party at a time. Passing a Buffer to Sink.Deliver or
//     getting it from Source.Next passes the ownership. Whoever owns it calls Release once.
//  2. A buffer goes back only when every operation on it has completed, never because a context
//     ended: a NIC or a stuck disk read may still use it.
//  3. Buffer memory is page aligned and its length is a multiple of the page size and of 64 KiB.
//
// Lock order: a reservation's mutex, then that of a share's free buffers.
//
// What it does not do: verification, I/O, registration with devices (fabrics do that through
// Arena.Memory).
package arena
