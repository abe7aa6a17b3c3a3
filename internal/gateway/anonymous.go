package gateway

import (
	"github.com/penstock-store/penstock/internal/iam"
	"github.com/penstock-store/penstock/internal/s3"
)

// anonymousOps are the operations that a request without a signature may ask for on the test bucket: what a client
// needs that makes a bucket, fills it, reads it and removes it. Copies are not among them, since they name a second
// bucket, nor is anything that belongs to no bucket.
var anonymousOps = [opCount]bool{
	opCreateBucket: true, opHeadBucket: true, opDeleteBucket: true,
	opListObjects: true, opListObjectsV2: true,
	opPutObject: true, opGetObject: true, opHeadObject: true, opDeleteObject: true,
	opCreateUpload: true, opUploadPart: true, opCompleteUpload: true, opAbortUpload: true, opListParts: true,
}

// anonymous takes a request without any signature for the test bucket, and tells whether it did. It then acts as a
// principal of its own, which owns what it makes: a bucket of that name that belongs to somebody else stays closed. The
// bucket is the one that the operation will use, whatever the path looks like. Its connection has proved nothing.
func (c *call) anonymous() bool {
	if name := c.g.o.AnonymousBucket; name == "" || c.target.Bucket != name || !anonymousOps[c.op] {
		return false
	}
	id, ok := s3.Anonymous(&c.request, iam.Anonymous)
	if ok {
		c.identity = id
	}
	return ok
}
