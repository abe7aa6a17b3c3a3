// Package crashfs is an in-memory vfs.FS that models power loss.
//
// Called by: tests of drive, kv and store.
//
// It keeps, for every file, the bytes as a process sees them, the bytes as the medium holds them,
// and the list of unsynced changes between the two; the same for the entries of every directory.
// Image builds an independent FS as the machine would find it after the power returned:
//
//   - LoseAll: nothing unsynced is there.
//   - KeepAll: everything is there.
//   - KeepSome: a seeded choice. Of each unsynced write none, all, a prefix or scattered 512-byte
//     sectors survive, the last one of each file is torn at a sector or at any byte; a size may
//     survive without its bytes (they read as zero); truncations, preallocations and punches
//     survive one by one. Of each directory a prefix of the unsynced entry changes survives, each
//     directory on its own. (ext4 and XFS journal them in one order for all directories.)
//   - Scatter: as KeepSome, but any subset of the entry changes of a directory survives. POSIX
//     allows that; ext4 and XFS do not do it, and Pebble relies on the order inside a directory.
//
// Invariants:
//  1. Sync of a file makes its bytes and size durable, never its name; SyncDir makes the names in
//     one directory durable, never the bytes or the entries of its children.
//  2. A rename is atomic, as on every journalling file system: after a crash the change is there
//     whole or not at all. It is durable once either of its directories is synced.
//  3. An image shares pages with its origin until one of them changes; both may be used
//     concurrently. Locks do not survive into an image.
//  4. Mutating operations are numbered 1, 2, … in the order they took effect; the Hook runs at the
//     end of each, with the FS standing still.
//
// Lock order: FS.mu is a leaf; a Hook runs under it and may use only its Point and images.
//
// What it does not do: injected errors (errfs), except a lost sync through DropUnsynced.
package crashfs
