// Package wire runs requests as other programs form them against a node, and judges its answers as they do.
//
// Called by: go test.
//
// A client is one file, client_*_test.go: its requests or messages (headers, their order, what is signed, how the
// payload is declared), the rules by which it takes an answer for success, decline or failure, and the expected
// verdicts. The scenarios are the same for all. Requests go out as raw bytes, signed by code that the node does not
// share. The node is a whole one; only client memory and the adapter that reaches it are a stand-in, which takes every
// grammar of tokens and can refuse, stop half way, hang or never come back.
//
// The truth of a scenario is what the memory holds, what the body holds, and what another S3 client reads back: a
// verdict of success without it is a false success. One that is known and cannot be helped is listed, with its reason,
// by the client; every other fails, and so does a listed one that is not there any more.
//
// What it does not do: real adapters (test/rdma), clients as processes of their own (test/clients).
package wire
