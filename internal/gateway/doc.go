// Package gateway is the HTTP side of a node: it turns an S3 request into one operation of the
// store, moves the payload through a sink or a source, and answers.
//
// Called by: server. One file per family of operations.
//
// Invariants:
//  1. Nothing but the request's own headers is looked at before its signature was verified, and
//     nothing of its body is read before authorisation, preconditions and the reservation of buffers:
//     so "100 Continue" is sent only for what will be taken. Only requests for the test bucket, where
//     one is configured, may come without a signature.
//  2. A request names exactly one operation; an unknown sub-resource is refused and never taken for
//     the operation on the object or bucket itself.
//  3. Client memory is touched only after every check that can refuse the request, and never after
//     the answer: the sink is done and the window is closed before the first header is written; for
//     a PUT the window is closed before the commit.
//  4. A request with a token gets reply 200/206 and the exact byte count, or a decline (501, with the
//     reason, without an ETag), or an S3 error without a reply header. Payload bytes never travel in
//     the HTTP body of such a request.
//  5. Every answer carries a request id. Tokens and secrets are never logged.
//     The messages of hipobj-rc-v2 have answers of their own; a success of theirs says how many bytes moved, too.
//  6. Memory for payload comes from the arena only; documents (XML) have a budget of their own.
//  7. A signature of the service hipobj, or one without a payload hash, is good for those messages and nothing else.
//
// Locks: requests share atomic counters, and the crowd's mu when a connection changes its state. A transfer
// has a mu of its own.
//
// What it does not do: signatures and XML (s3), object semantics (store), one-sided transfers
// (fabric, sink), listening (server).
package gateway
