// Package e2e drives a real node through its wire by every path at once and compares with models.
//
// Called by: go test; PENSTOCK_TEST_LONG=1 (make nightly) runs the long forms.
//
// Oracles: the map-based model of test/model; the same operations by the other paths (http, tcp and
// shm must give the same bytes and metadata, whoever wrote and whoever reads); for keys that several
// clients share, a search for an order of all operations that explains every answer; a pattern in
// client memory for what a transfer must not touch; a counting relay in front of the node, and the
// node's own counters, for payload that must not travel over HTTP.
//
// What it does not do: power loss (internal/store's crash tests), hostile peers (test/hostile).
package e2e
