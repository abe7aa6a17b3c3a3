package gateway

import (
	"context"
	"errors"
	"net/http"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/iam"
	"github.com/penstock-store/penstock/internal/s3"
	"github.com/penstock-store/penstock/internal/sink"
	"github.com/penstock-store/penstock/internal/store"
	"github.com/penstock-store/penstock/internal/token"
)

// retryAfterSeconds is told with 503 answers: one second is longer than any queue here.
const retryAfterSeconds = "1"

// mapping is one row of the table from errors below to S3 errors.
type mapping struct {
	err     error
	name    string // as written in its package; a test compares with the sources
	code    s3.Code
	message string // "" takes the code's
}

// mappings has every sentinel of the packages that the gateway calls. The first match counts.
var mappings = []mapping{
	{store.ErrNoSuchBucket, "store.ErrNoSuchBucket", s3.NoSuchBucket, ""},
	{store.ErrBucketExists, "store.ErrBucketExists", s3.BucketAlreadyExists, ""},
	{store.ErrBucketOwned, "store.ErrBucketOwned", s3.BucketAlreadyOwnedByYou, ""},
	{store.ErrBucketNotEmpty, "store.ErrBucketNotEmpty", s3.BucketNotEmpty, ""},
	{store.ErrNoSuchKey, "store.ErrNoSuchKey", s3.NoSuchKey, ""},
	{store.ErrNoSuchUpload, "store.ErrNoSuchUpload", s3.NoSuchUpload, ""},
	{store.ErrInvalidPart, "store.ErrInvalidPart", s3.InvalidPart, ""},
	{store.ErrPartOrder, "store.ErrPartOrder", s3.InvalidPartOrder, ""},
	{store.ErrPartTooSmall, "store.ErrPartTooSmall", s3.EntityTooSmall, ""},
	{store.ErrPrecondition, "store.ErrPrecondition", s3.PreconditionFailed, ""},
	{store.ErrNotModified, "store.ErrNotModified", s3.NotModified, ""},
	{store.ErrConditionConflict, "store.ErrConditionConflict", s3.ConditionalRequestConflict, ""},
	{store.ErrChecksumMismatch, "store.ErrChecksumMismatch", s3.BadDigest, ""},
	{store.ErrSizeMismatch, "store.ErrSizeMismatch", s3.InvalidRequest,
		"The object does not have the declared x-amz-mp-object-size."},
	{store.ErrNoSpace, "store.ErrNoSpace", s3.ServiceUnavailable, "No space is left; deletes still work."},
	{store.ErrCorrupt, "store.ErrCorrupt", s3.InternalError, "Stored bytes fail verification."},
	{store.ErrNoSuchPart, "store.ErrNoSuchPart", s3.InvalidPartNumber, ""},
	{store.ErrRange, "store.ErrRange", s3.InvalidArgument, "The range is not valid for the source object."},
	{store.ErrInvalidMarker, "store.ErrInvalidMarker", s3.InvalidArgument, "A marker is not valid."},
	{store.ErrTooLarge, "store.ErrTooLarge", s3.EntityTooLarge, ""},
	{store.ErrUnavailable, "store.ErrUnavailable", s3.ServiceUnavailable, ""},

	{arena.ErrBusy, "arena.ErrBusy", s3.SlowDown, "All buffers are in use; try again."},
	{arena.ErrMapped, "arena.ErrMapped", s3.RDMATransferFailed, ""},

	{token.ErrInvalid, "token.ErrInvalid", s3.InvalidRDMAToken, ""},

	{fabric.ErrNoSession, "fabric.ErrNoSession", s3.NotImplemented, ""},
	{fabric.ErrUnsupportedToken, "fabric.ErrUnsupportedToken", s3.NotImplemented, ""},
	{fabric.ErrTooLarge, "fabric.ErrTooLarge", s3.NotImplemented, ""},
	{fabric.ErrNoFabric, "fabric.ErrNoFabric", s3.NotImplemented, ""},
	{fabric.ErrNotSupported, "fabric.ErrNotSupported", s3.NotImplemented, ""},
	{fabric.ErrNotGranted, "fabric.ErrNotGranted", s3.AccessDenied, "The session belongs to another principal."},
	{fabric.ErrReplayed, "fabric.ErrReplayed", s3.RDMATokenReplayed, ""},
	{fabric.ErrWindow, "fabric.ErrWindow", s3.InvalidRDMAToken, "The window lies outside its region."},
	{fabric.ErrRegion, "fabric.ErrRegion", s3.InvalidRDMAToken, "The region cannot be used."},
	{fabric.ErrLimit, "fabric.ErrLimit", s3.SlowDown, "A limit of sessions, regions or mapped bytes is reached."},
	{fabric.ErrBusy, "fabric.ErrBusy", s3.SlowDown, "The connection carries another transfer."},
	{fabric.ErrLingering, "fabric.ErrLingering", s3.RDMATransferFailed, ""}, // never answered: call.fail
	{fabric.ErrTransfer, "fabric.ErrTransfer", s3.RDMATransferFailed, ""},
	{fabric.ErrRevoked, "fabric.ErrRevoked", s3.RDMATransferFailed, "The session was revoked."},
	{fabric.ErrPeerGone, "fabric.ErrPeerGone", s3.RDMATransferFailed, "The client's data connection is gone."},
	{fabric.ErrOverdue, "fabric.ErrOverdue", s3.RDMATransferFailed, "The deadline of the transfer passed."},
	{fabric.ErrIdle, "fabric.ErrIdle", s3.RDMATransferFailed, "The session was idle."},
	{fabric.ErrProtocol, "fabric.ErrProtocol", s3.RDMATransferFailed, "The client broke the protocol."},
	{fabric.ErrShutdown, "fabric.ErrShutdown", s3.RDMATransferFailed, "The server is shutting down."},
	{fabric.ErrStalled, "fabric.ErrStalled", s3.RDMATransferFailed, "The client does not take part in the transfer."},
	{fabric.ErrFenced, "fabric.ErrFenced", s3.RDMATransferFailed, "The session was cut off during the transfer."},
	{fabric.ErrStuck, "fabric.ErrStuck", s3.InternalError, ""}, // of the end of the node, not of a request

	{sink.ErrShort, "sink.ErrShort", s3.IncompleteBody, ""},
	{sink.ErrLong, "sink.ErrLong", s3.InvalidRequest, "The body is longer than announced."},

	{iam.ErrNoSuchKey, "iam.ErrNoSuchKey", s3.InvalidAccessKeyID, "There is no access key of this name."},
	{iam.ErrKeyLimit, "iam.ErrKeyLimit", s3.InvalidRequest, "Too many access keys."},
	{iam.ErrRootKey, "iam.ErrRootKey", s3.InvalidRequest, "Root's first key cannot be deleted."},
	{iam.ErrPrincipal, "iam.ErrPrincipal", s3.InvalidArgument, "The principal's name is not valid."},
	{iam.ErrCredentials, "iam.ErrCredentials", s3.InternalError, ""},
}

// answerOf turns any error into the S3 error to answer.
func answerOf(err error) *s3.Error {
	var own *s3.Error
	if errors.As(err, &own) {
		return own
	}
	for _, m := range mappings {
		if errors.Is(err, m.err) {
			return retriable(s3.New(m.code, m.message).Wrap(err))
		}
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return retriable(s3.New(s3.ServiceUnavailable, "The request took too long.").Wrap(err))
	case errors.Is(err, context.Canceled):
		return retriable(s3.New(s3.ServiceUnavailable, "The request was cancelled.").Wrap(err))
	}
	return s3.New(s3.InternalError, "").Wrap(err)
}

func retriable(e *s3.Error) *s3.Error {
	if e.Status == http.StatusServiceUnavailable {
		return e.WithHeader("Retry-After", retryAfterSeconds)
	}
	return e
}

func slowDown(message string) *s3.Error { return retriable(s3.New(s3.SlowDown, message)) }
