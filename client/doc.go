// Package client is the Go client of Penstock and of other S3 stores: objects move by one-sided
// transfers straight into and out of registered memory, or over plain HTTP where that is allowed.
//
// Called by: applications, awsrdma, internal/cli, bench.
//
// A Client holds one HTTP connection pool and, opened at first use, one session per fabric with the
// node behind its endpoint. A Region is memory that the node can reach. GetInto fills a window of a
// Region with an object or a range, PutFrom stores a window as an object; each Result says which
// path carried the bytes ("shm", "rc", "tcp", "dc" or "http") and, when it was not the preferred one, why.
//
//	c, err := client.New(client.Config{Endpoint: "http://127.0.0.1:9000"})
//	r, err := c.Alloc(64 << 20)
//	res, err := c.GetInto(ctx, client.Window{Region: r, Bytes: 64 << 20}, "bucket", "key", client.GetOptions{})
//
// Invariants:
//  1. A GET is done only with reply 200 or 206 and exactly the expected byte count; a PUT only with
//     reply 200 or 204, or with 200, an ETag and our own CRC64NVME echoed. Numbers are strict
//     decimals. See judge.go.
//  2. A declined transfer goes over HTTP only if the configuration allows it, and the Result says so.
//     403, 404, 412 and all other S3 errors are never taken for a decline.
//  3. When GetInto or PutFrom has returned, nothing touches the window any more. A request that
//     ended without an answer, or moved other bytes than its checksum says, and on rc and dc one that failed, is fenced
//     before its call returns: by the end of its session, on dc by the end of its region's keys; when the fence is not
//     acknowledged (on rc and dc: when an adapter does not let go) the Region is abandoned: its memory is never
//     handed out again and further calls with it fail with ErrRegionAbandoned.
//  4. Each attempt mints its own token. Tokens and secrets are never logged.
//  5. Every PUT and every part carries its CRC64NVME, so a server that ignores the token cannot
//     store an empty object and call it success.
//  6. Only operations that may be repeated are retried, a bounded number of times.
//
// Concurrency: Client and Region are safe for concurrent use. Two calls must not overlap in the
// bytes of their windows.
//
// Lock order: Client.mu, then Region.mu. No lock is held across a request.
//
// What it does not do: caching, virtual-host addressing, device memory.
package client
