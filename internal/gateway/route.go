package gateway

import (
	"net/http"
	"net/url"

	"github.com/penstock-store/penstock/internal/s3"
)

// op is one operation.
type op uint8

// The operations.
const (
	opNone op = iota
	opListBuckets
	opCreateBucket
	opHeadBucket
	opDeleteBucket
	opBucketLocation
	opBucketConfig // a configuration that no bucket has: answered as such
	opListObjects
	opListObjectsV2
	opListVersions
	opListUploads
	opDeleteObjects
	opGetObject
	opHeadObject
	opPutObject
	opCopyObject
	opDeleteObject
	opObjectTags
	opObjectAttributes
	opGetACL
	opPutACL
	opCreateUpload
	opUploadPart
	opUploadPartCopy
	opCompleteUpload
	opAbortUpload
	opListParts
	opControl
	opHipPrepare // of hipobj-rc-v2; a transfer is the operation that it was prepared for
	opHipReady
	opHipCancel
	opRefused // known to S3, not offered here
	opCount
)

// opNames are the names in metrics; they are S3's.
var opNames = [opCount]string{
	"None", "ListBuckets", "CreateBucket", "HeadBucket", "DeleteBucket", "GetBucketLocation", "GetBucketConfiguration",
	"ListObjects", "ListObjectsV2", "ListObjectVersions", "ListMultipartUploads", "DeleteObjects",
	"GetObject", "HeadObject", "PutObject",
	"CopyObject", "DeleteObject", "GetObjectTagging", "GetObjectAttributes", "GetAcl", "PutAcl",
	"CreateMultipartUpload", "UploadPart", "UploadPartCopy", "CompleteMultipartUpload", "AbortMultipartUpload",
	"ListParts", "Control", "HipObjPrepare", "HipObjReady", "HipObjCancel", "Refused",
}

// String is the S3 name.
func (o op) String() string { return opNames[o] }

// subresources are the query items that select something other than the bucket or object itself.
// The list is that of the Amazon S3 API reference.
var subresources = map[string]struct{}{
	"abac": {}, "accelerate": {}, "acl": {}, "analytics": {}, "append": {}, "attributes": {}, "cors": {}, "delete": {},
	"encryption": {}, "intelligent-tiering": {}, "inventory": {}, "legal-hold": {}, "lifecycle": {}, "location": {},
	"logging": {}, "metadataConfiguration": {}, "metadataInventoryTable": {}, "metadataJournalTable": {},
	"metadataTable": {}, "metrics": {}, "notification": {}, "object-lock": {}, "ownershipControls": {}, "policy": {},
	"policyStatus": {}, "publicAccessBlock": {}, "renameObject": {}, "replication": {}, "requestPayment": {},
	"restore": {}, "retention": {}, "select": {}, "session": {}, "tagging": {}, "torrent": {}, "uploads": {},
	"uploadId": {}, "versioning": {}, "versions": {}, "website": {},
}

// subresource returns the first sub-resource named in the query and how many there are.
func subresource(q url.Values) (name string, n int) {
	for item := range q {
		if _, ok := subresources[item]; ok {
			n++
			if name == "" || item < name {
				name = item
			}
		}
	}
	return name, n
}

// route names the operation. Unknown query items (x-id, SDK decorations) do not matter; known
// sub-resources that do not fit are refused, so that they never reach the operation without them.
func route(method string, t s3.Target, q url.Values, h http.Header) (op, error) {
	sub, n := "", 0
	if len(q) > 0 {
		sub, n = subresource(q)
	}
	if n > 1 {
		return opRefused, s3.New(s3.InvalidArgument, "The request names more than one sub-resource.")
	}
	switch {
	case t.Bucket == "":
		return routeService(method, sub)
	case t.Key == "":
		return routeBucket(method, sub, q)
	default:
		return routeObject(method, sub, q, h)
	}
}

func routeService(method, sub string) (op, error) {
	switch {
	case method == http.MethodGet && sub == "":
		return opListBuckets, nil
	case method == http.MethodPost:
		return opRefused, s3.New(s3.NotImplemented, "This endpoint offers no STS.")
	}
	return opRefused, s3.New(s3.MethodNotAllowed, "")
}

func routeBucket(method, sub string, q url.Values) (op, error) {
	switch method + " " + sub {
	case "GET ":
		if q.Get("list-type") == "2" {
			return opListObjectsV2, nil
		}
		return opListObjects, nil
	case "GET location":
		return opBucketLocation, nil
	case "GET acl":
		return opGetACL, nil
	case "PUT acl":
		return opPutACL, nil
	case "GET versions":
		return opListVersions, nil
	case "GET uploads":
		return opListUploads, nil
	case "HEAD ":
		return opHeadBucket, nil
	case "PUT ":
		return opCreateBucket, nil
	case "DELETE ":
		return opDeleteBucket, nil
	case "POST delete":
		return opDeleteObjects, nil
	case "POST ":
		return opRefused, s3.New(s3.NotImplemented, "Uploads by HTML form are not offered.")
	}
	if _, ok := absentConfigs[sub]; ok && method == http.MethodGet {
		return opBucketConfig, nil
	}
	return opRefused, refusal(method, sub)
}

func routeObject(method, sub string, q url.Values, h http.Header) (op, error) {
	_, part := q["partNumber"]
	_, copies := h["X-Amz-Copy-Source"]
	switch method + " " + sub {
	case "GET ":
		return opGetObject, nil
	case "GET uploadId":
		return opListParts, nil
	case "GET tagging":
		return opObjectTags, nil
	case "GET attributes":
		return opObjectAttributes, nil
	case "GET acl":
		return opGetACL, nil
	case "PUT acl":
		return opPutACL, nil
	case "HEAD ":
		return opHeadObject, nil
	case "PUT ":
		switch {
		case part:
			return opRefused, s3.New(s3.InvalidArgument, "A partNumber needs an uploadId.")
		case copies:
			return opCopyObject, nil
		}
		return opPutObject, nil
	case "PUT uploadId":
		switch {
		case !part:
			return opRefused, s3.New(s3.InvalidArgument, "An uploadId needs a partNumber.")
		case copies:
			return opUploadPartCopy, nil
		}
		return opUploadPart, nil
	case "DELETE ":
		return opDeleteObject, nil
	case "DELETE uploadId":
		return opAbortUpload, nil
	case "POST uploads":
		return opCreateUpload, nil
	case "POST uploadId":
		return opCompleteUpload, nil
	}
	return opRefused, refusal(method, sub)
}

func refusal(method, sub string) error {
	switch {
	case method == http.MethodOptions:
		return s3.New(s3.AccessDenied, "No CORS configuration exists.")
	case sub == "":
		return s3.New(s3.MethodNotAllowed, "")
	}
	return s3.Errorf(s3.NotImplemented, "This server does not offer %s on ?%s.", method, sub)
}
