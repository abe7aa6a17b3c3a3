package client

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

var (
	// ErrNotFound matches an *Error with status 404 (NoSuchKey, NoSuchBucket, NoSuchUpload …).
	ErrNotFound = errors.New("client: not found")
	// ErrAccessDenied matches an *Error with status 401 or 403.
	ErrAccessDenied = errors.New("client: access denied")
	// ErrPrecondition matches an *Error with status 412, or 409 ConditionalRequestConflict.
	ErrPrecondition = errors.New("client: precondition failed")
	// ErrNotModified matches an *Error with status 304.
	ErrNotModified = errors.New("client: not modified")
	// ErrDeclined says that the fabric did not carry the payload and HTTP was not allowed to.
	ErrDeclined = errors.New("client: transfer declined by the fabric")
	// ErrProtocol says that an answer contradicts the wire protocol. The window is undefined and a
	// PUT may or may not have been stored.
	ErrProtocol = errors.New("client: answer breaks the protocol")
	// ErrChecksum says that the bytes received do not match the checksum that came with them.
	ErrChecksum = errors.New("client: checksum mismatch")
	// ErrNoAnswer says that a fabric request ended without an answer. The session was fenced.
	ErrNoAnswer = errors.New("client: request ended without an answer")
	// ErrRegionAbandoned says that a fence was not acknowledged, so that the region's memory may
	// still be written to; allocate another one.
	ErrRegionAbandoned = errors.New("client: region abandoned")
	// ErrWindow says that a window lies outside its region or exceeds the limit of one request.
	ErrWindow = errors.New("client: window outside the region")
	// ErrTooSmall says that an object is larger than the window given for it.
	ErrTooSmall = errors.New("client: window smaller than the object")
	// ErrClosed says that the client or the region has been closed.
	ErrClosed = errors.New("client: closed")
	// ErrConfig says that the configuration cannot work.
	ErrConfig = errors.New("client: configuration")
)

// Error is an S3 error answer.
type Error struct {
	Code       string        // S3 code, as NoSuchKey; made up from the status when there was no XML
	Status     int           // HTTP status
	Message    string        // text for people
	Resource   string        // bucket or key it is about, as the server says
	RequestID  string        // x-amz-request-id
	RetryAfter time.Duration // from Retry-After; 0 when absent
}

// Error names code, status and request id.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "s3: %s (status %d)", e.Code, e.Status)
	if e.Message != "" {
		b.WriteString(": " + e.Message)
	}
	if e.RequestID != "" {
		b.WriteString(" [request " + e.RequestID + "]")
	}
	return b.String()
}

// Is lets errors.Is tell classes of errors apart by status.
func (e *Error) Is(target error) bool {
	switch target {
	case ErrNotFound:
		return e.Status == http.StatusNotFound
	case ErrAccessDenied:
		return e.Status == http.StatusForbidden || e.Status == http.StatusUnauthorized
	case ErrPrecondition:
		return e.Status == http.StatusPreconditionFailed ||
			(e.Status == http.StatusConflict && e.Code == "ConditionalRequestConflict")
	case ErrNotModified:
		return e.Status == http.StatusNotModified
	}
	return false
}

// DeclinedError is ErrDeclined with the reason that the server or the client gave.
type DeclinedError struct {
	Reason string // short fixed word: x-penstock-rdma-reason, or one of the Reason constants
	Cause  error  // what kept the fabric from being used; may be nil
}

func (e *DeclinedError) Error() string {
	if e.Cause != nil {
		return ErrDeclined.Error() + ": " + e.Reason + ": " + e.Cause.Error()
	}
	return ErrDeclined.Error() + ": " + e.Reason
}

// Unwrap returns the cause.
func (e *DeclinedError) Unwrap() error { return e.Cause }

// Is matches ErrDeclined.
func (e *DeclinedError) Is(target error) bool { return target == ErrDeclined }

// maxErrorBody bounds how much of an error answer is read: S3 errors are under 2 KiB.
const maxErrorBody = 64 << 10

type errorXML struct {
	XMLName   xml.Name `xml:"Error"`
	Code      string
	Message   string
	Resource  string
	RequestID string `xml:"RequestId"`
}

// readError turns an answer into an *Error and closes the body.
func readError(resp *http.Response) *Error {
	defer resp.Body.Close()
	e := &Error{
		Status:     resp.StatusCode,
		RequestID:  resp.Header.Get("x-amz-request-id"),
		RetryAfter: retryAfter(resp.Header),
	}
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody)) // the status alone is an answer
	e.fromXML(body)
	if e.Code == "" {
		e.Code = codeOfStatus(resp.StatusCode)
	}
	return e
}

func (e *Error) fromXML(body []byte) {
	var x errorXML
	if len(body) == 0 || xml.Unmarshal(body, &x) != nil {
		return
	}
	e.Code, e.Message, e.Resource = x.Code, x.Message, x.Resource
	if e.RequestID == "" {
		e.RequestID = x.RequestID
	}
}

func codeOfStatus(status int) string {
	if t := http.StatusText(status); t != "" {
		return strings.ReplaceAll(t, " ", "")
	}
	return "Status" + strconv.Itoa(status)
}

// retryAfter reads Retry-After in seconds; dates are not used by S3 servers.
func retryAfter(h http.Header) time.Duration {
	n, ok := parseDecimal(h.Get("Retry-After"))
	if !ok || n > int64(maxRetryAfter/time.Second) {
		return 0
	}
	return time.Duration(n) * time.Second
}
