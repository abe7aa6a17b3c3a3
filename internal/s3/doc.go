// Package s3 is the S3 REST protocol without a server: signatures, payload encodings, checksums,
// ranges, conditions, names, XML and errors. It decides what bytes and headers mean; it opens no
// socket, keeps no object and knows no store.
//
// Called by: gateway and iam (server side: Verifier, Body, Digester, parsers, messages), client
// (Signer and the readers of answers).
//
// Invariants:
//  1. No input makes this package panic, and no parser reads more than its named limit.
//  2. A Body never reports io.EOF, and Finish never returns nil, unless the exact decoded length
//     arrived and every signature, literal hash and announced trailer was verified.
//  3. The canonical request is made from the request target as received: it is never cleaned, and
//     decoded and encoded once.
//  4. Secrets and signing keys are compared in constant time and never appear in an error or a String.
//  5. Every *Error that leaves this package has a code of the table in error.go.
//
// Lock order: the signing-key cache has one lock, a leaf, held for a map look-up.
//
// What it does not do: authorisation, routing to operations, storage, anything of RDMA beyond
// refusing an unsigned capability header. Facts about the protocol come from the Amazon S3 API
// reference (version 2006-03-01) and RFC 9110.
package s3
