package s3

import (
	"errors"
	"fmt"
	"net/http"
)

// Code is an S3 error code as it stands in the XML answer.
type Code string

// Error is an answer other than success. It is immutable once returned by a parser; the gateway
// sets Resource and RequestID on its own copy (see Complete).
type Error struct {
	Code      Code
	Status    int
	Message   string
	Resource  string
	RequestID string
	HostID    string
	Fields    []Field           // further XML elements, in order
	Header    map[string]string // headers that belong to the answer, e.g. Content-Range of a 416
	cause     error
}

// Field is one further element of an error answer, such as Region or ServerTime.
type Field struct{ Name, Value string }

// New returns the error of a code, with the table's status; a nil-like empty message takes the
// table's message.
func New(code Code, message string) *Error {
	d, ok := codeTable[code]
	if !ok {
		d = codeTable[InternalError]
	}
	if message == "" {
		message = d.message
	}
	return &Error{Code: code, Status: d.status, Message: message}
}

// Errorf is New with a formatted message.
func Errorf(code Code, format string, args ...any) *Error {
	return New(code, fmt.Sprintf(format, args...))
}

// With returns a copy with one more XML element.
func (e *Error) With(name, value string) *Error {
	c := *e
	c.Fields = append(append([]Field(nil), e.Fields...), Field{name, value})
	return &c
}

// WithHeader returns a copy with one more answer header.
func (e *Error) WithHeader(name, value string) *Error {
	c := *e
	c.Header = map[string]string{name: value}
	for k, v := range e.Header {
		c.Header[k] = v
	}
	return &c
}

// Wrap returns a copy that carries a cause for the log; the cause is not answered.
func (e *Error) Wrap(cause error) *Error {
	c := *e
	c.cause = cause
	return &c
}

// Complete returns a copy with the resource and request id set.
func (e *Error) Complete(resource, requestID string) *Error {
	c := *e
	c.Resource, c.RequestID = resource, requestID
	return &c
}

// Error implements error.
func (e *Error) Error() string {
	if e.cause != nil {
		return fmt.Sprintf("s3: answer %s: %v", e.Code, e.cause)
	}
	return fmt.Sprintf("s3: answer %s: %s", e.Code, e.Message)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.cause }

// Is makes errors.Is(err, s3.New(code, "")) compare codes.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// AsError returns the *Error in err's chain, or InternalError wrapping err.
func AsError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return New(InternalError, "").Wrap(err)
}

// IsCode says whether err carries the code.
func IsCode(err error, code Code) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == code
}

// HasBody says whether an answer to method with this status has a body.
func HasBody(method string, status int) bool {
	return method != http.MethodHead && status != http.StatusNotModified &&
		status != http.StatusNoContent && status >= 200
}
