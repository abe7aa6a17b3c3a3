// Package metapb holds the metadata records as protocol buffers; docs/format.md explains them.
//
// Called by: meta, store and work, which read and fill the records. Generated from meta.proto by
// `go generate`.
//
// Rules for changes: a field number is never given a second meaning; a removed field is reserved; an
// old binary keeps the fields it does not know when it rewrites a record.
//
// What it does not do: keys, payloads (package meta).
package metapb

//go:generate go run github.com/penstock-store/penstock/internal/tools/protogen .
