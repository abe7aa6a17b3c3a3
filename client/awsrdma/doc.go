// Package awsrdma lets a program that uses aws-sdk-go-v2 move its payloads by one-sided transfers, by
// one option:
//
//	session := awsrdma.New(penstock, awsrdma.Options{}) // penstock is a *client.Client
//	defer session.Close()
//	svc := s3.NewFromConfig(cfg, awsrdma.Enable(session))
//
// PutObject, UploadPart and GetObject, ranges and part numbers included, then move by the fabric of the
// session; the transfer managers work unchanged on such a client. All other operations and presigned
// URLs are untouched. The SDK keeps signing, retrying and naming errors. ResultOf says which path
// carried the bytes of one operation, Session.Stats of all.
//
// Called by: applications.
//
// How it hooks in. An option for each operation adds four steps to the SDK's middleware stack:
//
//   - before its retries: the payload of an upload is read once into a region (one copy) and summed in the
//     same pass; after them the result is recorded;
//   - inside each retry: a token is minted, so it is signed, and good for this attempt only; a decline
//     is answered by a second, ordinary request of the same attempt;
//   - inside the deserializer: the answer of a moved GET gets the region's bytes as its body;
//   - next to the HTTP client: the request is sent and the window settled before anyone sees the answer.
//
// Three names of the SDK are relied on: those of its retries and of its presigner, which are the ids of
// exported types, and "OperationDeserializer". Without the first and the last the steps go to the ends of
// their phases: an SDK that renames them costs speed, never correctness. An HTTP client that rewrites
// requests would be simpler, but the token must be signed, so it would have to hold the keys and sign again.
//
// Checksums. An upload carries the checksum that the SDK would have computed, of the payload, in a
// header; one that the caller set is kept. What the server finds to differ is refused and not stored. Of a
// GET with checksum mode ENABLED, the default of a loaded configuration, the bytes are compared while they
// are copied to the caller, in the place of the SDK's own comparison: with the CRC64NVME that the server
// sends of what it moved, also of ranges. Over tcp they are compared in any case.
//
// Memory. Regions come from a bounded pool. A response body owns its region until it was read to the
// end, closed, or found unreachable. WithBuffer puts a window of the caller in the place of the pool: a
// GET lands there, and a PUT is stored from there.
//
// Invariants:
//  1. A region goes back to the pool only after its transfer was settled (see client.Loan); an abandoned
//     region never does.
//  2. Nothing of the caller's is touched after an operation has returned, except by reads of its body.
//  3. A token goes only to the endpoint of the session, and only under a signature that covers it. The
//     SDK's logs do not show it.
//  4. What went over HTTP says why: Result.Reason. With Options.Strict it is an error instead.
//
// Lock order: body.reading, then body.mu, then pool.mu.
//
// What it does not do: directory buckets, payload encryption (the tcp fabric is plain beside an HTTPS
// endpoint; client.Config.Fabric = client.SHM rules it out), payload of unknown length, SHA-512 and xxHash.
package awsrdma
