// Package rdma is the end-to-end suite of one-sided transfers: a node and its clients, each a process of its own, on
// a fabric that the environment names. It runs on real verbs in the guest of test/guest and on machines with
// adapters, and on tcp and shm everywhere, so that the cases themselves are known to work.
//
// Called by: go test; make test-rdma and make test-rdma-host run the compiled test with these variables:
//
//	PENSTOCK_TEST_VERBS   device: the fabric is rc, and what is not supported is a failure instead of a skip
//	PENSTOCK_TEST_FABRIC  rc, tcp, shm, or some of them with commas; without it tcp and shm
//	PENSTOCK_TEST_BINARY  the penstock binary; without it one is built
//	PENSTOCK_TEST_FLAGS   further flags of penstock serve, separated by spaces
//	PENSTOCK_TEST_SLOW    a factor for all patience and deadlines, for emulated machines
//	PENSTOCK_TEST_LINK    the network device of a rail that may be taken down
//	PENSTOCK_TEST_RECORD  a file that gets a line of JSON for each measured figure
//	PENSTOCK_TEST_LONG    1: the long forms
//	PENSTOCK_TEST_BOUNDS  1: rates below their bounds are failures, and speed takes seven turns
//	PENSTOCK_TEST_CLIENTS a directory of programs of others that speak to the node: s3rdma-client of elbencho,
//	                      v2-data-client of hipObject; what is missing is skipped
//
// Oracles: patterns made from seeds, in objects and around windows; the node's own counters and its access log, for
// payload that must not travel in HTTP bodies and for resources that must come back; perftest, for speed.
//
// What it does not do: contracts of a fabric without a node (fabrictest), power loss, hostile frames of tcp and shm
// (test/hostile).
package rdma
