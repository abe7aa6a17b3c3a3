// Package kvtest is the conformance suite that every engine of the kv contract must pass.
//
// Called by: tests of engines only.
//
// What it does not do: measure, test what only one engine promises.
package kvtest
