// Package kill kills a real node under load, again and again, and checks what is left of the data.
//
// Called by: go test; PENSTOCK_TEST_LONG=1 (make nightly) runs 50 rounds instead of 5.
//
// The oracle is a ledger beside the load: for every key the last state that the node acknowledged,
// and the states that were asked for and not answered. Contents are a function of key and
// generation alone. After each kill every key must be in the acknowledged state or in one of the
// unanswered ones, whole, and the listing must agree with what can be read.
//
// What it does not do: power loss (that needs a file system that forgets; see test/crash).
package kill
