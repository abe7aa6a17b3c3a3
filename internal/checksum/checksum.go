// Package checksum computes CRC64NVME and combines the sums of adjacent pieces.
//
// CRC64NVME is the CRC-64 of the NVM Express NVM Command Set specification (figure "64b CRC
// polynomials", polynomial 0xAD93D23594C93659, reflected, initial value and final XOR all ones).
// It is the checksum of every block on a drive, of every chunk and of every object.
//
// Called by: drive, chunk, store, s3, client, bench.
//
// Invariants:
//  1. Combine(Sum(a), Sum(b), len(b)) == Sum(a ++ b) for all a and b, the empty one included.
//  2. Nothing here allocates on the data path.
//
// What it does not do: other S3 checksum algorithms (package s3).
package checksum
