// Package pebble is the embedded engine of the metadata: the kv contract on Pebble v2.
//
// Called by: server, which opens it, and tests. Everybody else sees kv.Engine.
//
// How a transaction runs: its reads come from a Pebble snapshot taken at the first read, its writes
// stay in memory. To commit, under commits.mu, its read set (keys and the parts of ranges that it
// scanned) is compared with what was written since the snapshot, and its batch is applied without
// waiting for the disk. Then, outside the mutex, it waits for a sync of the log that covers it. One
// of those who wait leads: it syncs for all who have applied by then (group commit).
//
// Invariants:
//
//  1. Sequence numbers are given, batches applied and log records written in one order, that of
//     commits.mu. So a sync after the record of number n covers all numbers up to n.
//
//  2. Snapshot returns the version that the last finished sync published. It holds exactly what had
//     been applied when that sync began: nothing unsynced is in it, and nothing that was
//     acknowledged is missing. It never waits.
//
//  3. A transaction may read unsynced writes of others. It returns, with success or with fn's
//     error, only after a sync that covers everything it read.
//
//  4. The first error of the log, the manifest or a directory sync ends writing for good: Txn
//     returns kv.ErrClosed, nothing further reaches the disk, the failed call is never repeated,
//     and Config.OnFatal is told. Snapshots of the last published version go on.
//
//  5. Locks of Tx.Lock are granted first come, first served. A cycle of waiting transactions is
//     found when it would close; the youngest in it starts again.
//
//  6. A transaction that has lost several times makes others wait, for a bounded time, before they
//     commit, so that it can win.
//
//  7. Tables that cannot be written (a full disk) do not end writing: Pebble tries again with growing
//     pauses, and until it succeeds commits are refused with kv.ErrUnavailable.
//
// Lock order: commits.mu and versions.mu, of which nobody holds both, before Pebble's own locks;
// guard.mu and failure.mu after those. lockTable.mu is a leaf.
//
// What it does not do: replicate, keep history, order transactions by time, check what is stored.
package pebble
