// Package drive keeps the payload records of one drive: a directory with a superblock, append-only
// preallocated segment files and an index. The bytes on the medium are described in
// docs/format.md.
//
// Called by: chunk/local (one Drive per drive), work (walks), server (Format, Open, State).
//
// A record is a header, the raw contiguous payload and a footer with one CRC64NVME per 64 KiB of
// payload. Append reserves its place, the Writer's WriteAt fills it, Commit makes it durable and
// visible. Lookup finds it, a Location reads it. Delete hides it durably at once; its space is
// punched out later.
//
// Invariants:
//  1. When Commit returns nil the record is durable: its bytes were covered by an fdatasync that
//     succeeded, and the names of its segment by a sync of the directory before that.
//  2. An index entry is written only after that fdatasync. So an entry means a whole record, and
//     after an unclean stop only records without an entry need their payload checked.
//  3. The index itself is synced before a segment is sealed and by every Delete, not by Commit: a
//     record of an unsealed segment is found again by a scan.
//  4. A record counts in a scan only if its header bears the MAC of this drive's secret for this
//     very place and its footer is the one that the header names. A payload cannot pose as a record.
//  5. A failed fdatasync is never retried. Every write of that segment since the last success
//     fails, and the drive is read-only until it is opened anew.
//  6. A place in a segment is used once. Punched space is never written again.
//  7. A record is punched only when its delete is durable, its grace is over and no pin is left.
//  8. At the first error of a file of the index that Pebble could not mend, nothing more of the index
//     reaches the medium, and the drive is read-only; look-ups and reads go on.
//
// Lock order: Drive.mu, pinShard.mu, readFile.mu, syncer.mu and watch.mu are leaves. None of them is
// held across I/O. pinned.footerMu is, for a footer that only readers of that record wait for. One
// turn of maintenance runs at a time (Drive.turns); only turns, and Close and Open, seal, punch and
// remove segments.
//
// What it does not do: redundancy, placement, verification of payload that is read (callers compare
// with Location.BlockCRCs), deadlines of device operations: a call blocks as long as the device
// does, and memory given to WriteAt or ReadAt belongs to the device until the call returns.
package drive
