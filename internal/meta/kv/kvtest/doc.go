// Package kvtest is the conformance suite that every engine of the kv contract must pass.
//
// Called by: tests of engines only. Run needs an engine; RunCrash needs one on a disk whose power
// can fail.
//
// Its oracles: a sorted map for single transactions; arithmetic invariants, and a search for a
// serial order that explains all results, for concurrent ones; for crashes a record of what any
// caller had been told before the power failed.
//
// What it does not do: measure, test what only one engine promises.
package kvtest
