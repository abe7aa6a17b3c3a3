// Package model is an S3 store as a map, and a machine that does random operations on a real one and
// on the map and compares every answer.
//
// Called by: tests of store (directly) and of the whole server (over HTTP and fabrics).
//
// Invariants:
//  1. The oracle shares no code with the store: ETags are computed here from the bytes, listings by
//     sorting and cutting all keys.
//  2. A Machine is used by one goroutine. Several may work on one bucket with disjoint key prefixes.
//
// What it does not do: concurrency on one key; the races have tests of their own.
package model
