// Package bench measures a node over http and its fabrics, and the machine's floors beside it: the same
// bytes moved by a bare loop, without a store.
//
// Called by: internal/cli (bench, bench worker, demo).
//
// A measurement is a Task, run by worker processes (this binary, started again), so that client CPU
// is that of a client alone and the number of client processes can be chosen. Rounds are interleaved:
// every task runs once per round, so that what disturbs the machine disturbs all alike. Medians of
// the rounds are compared.
//
// Invariants:
//  1. Nothing is allocated, registered or opened inside a timed section.
//  2. A GET or PUT counts only for the path that its Result names; a payload that took another path
//     fails the measurement.
//  3. 1 GB is 10^9 bytes.
//
// What it does not do: plots, comparisons with other servers.
package bench
