package main

import (
	"context"
	"fmt"
)

// order is one thing that a client is told to do. Library clients get it as a line of JSON.
type order struct {
	Op           string            `json:"op"`
	Bucket       string            `json:"bucket,omitempty"`
	Key          string            `json:"key,omitempty"`
	File         string            `json:"file,omitempty"` // local file or directory, source or target
	FromBucket   string            `json:"frombucket,omitempty"`
	FromKey      string            `json:"fromkey,omitempty"`
	Range        string            `json:"range,omitempty"`
	IfMatch      string            `json:"ifmatch,omitempty"`
	IfNoneMatch  string            `json:"ifnonematch,omitempty"`
	IfModified   int64             `json:"ifmodified,omitempty"`   // seconds since 1970
	IfUnmodified int64             `json:"ifunmodified,omitempty"` // seconds since 1970
	Meta         map[string]string `json:"meta,omitempty"`
	Type         string            `json:"type,omitempty"`
	Encoding     string            `json:"encoding,omitempty"`
	Cache        string            `json:"cache,omitempty"`
	Algo         string            `json:"algo,omitempty"` // CRC32, CRC32C, SHA1, SHA256, CRC64NVME
	Sum          string            `json:"sum,omitempty"`  // base64, what the caller claims
	Part         int64             `json:"part,omitempty"` // part size in bytes, 0: the client's own
	Prefix       string            `json:"prefix,omitempty"`
	Delimiter    string            `json:"delimiter,omitempty"`
	Keys         []string          `json:"keys,omitempty"`
	ID           string            `json:"id,omitempty"` // of an upload
	Way          string            `json:"way,omitempty"`
}

// conditional tells whether the order is to be refused unless a condition holds.
func (o order) conditional() bool {
	return o.IfMatch != "" || o.IfNoneMatch != "" || o.IfModified != 0 || o.IfUnmodified != 0
}

// item is one line of a listing.
type item struct {
	Key  string `json:"key"`
	Size int64  `json:"size"`
	ETag string `json:"etag"`
}

// upload is one unfinished multipart upload.
type upload struct {
	Key string `json:"key"`
	ID  string `json:"id"`
}

// answer is what a client says about an order. A field that a client cannot tell stays empty.
type answer struct {
	Error  string `json:"error"` // text of the refusal; empty: done
	Status int    `json:"status"`
	Code   string `json:"code"`
	Cannot string `json:"cannot"` // the client has no such thing

	Size     int64             `json:"size"`
	ETag     string            `json:"etag"`
	Meta     map[string]string `json:"meta"`
	Type     string            `json:"type"`
	Encoding string            `json:"encoding"`
	Cache    string            `json:"cache"`
	Sums     map[string]string `json:"sums"`
	Items    []item            `json:"items"`
	Prefixes []string          `json:"prefixes"`
	URL      string            `json:"url"`
	ID       string            `json:"id"`
	Uploads  []upload          `json:"uploads"`
	Versions string            `json:"versions"`
}

// client carries out orders with somebody else's code. The error is about the client's process;
// what the node refused is in the answer.
type client interface {
	do(ctx context.Context, o order) (answer, error)
	close() error
}

// cannotError says that a client does not offer what a case needs.
type cannotError struct{ what string }

func (e *cannotError) Error() string { return "the client cannot: " + e.what }

// cannot is the answer of an adapter whose client has no such operation or option.
func cannot(what string) (answer, error) { return answer{Cannot: what}, nil }

// refusedError is a refusal that the case did not expect.
type refusedError struct {
	op string
	a  answer
}

func (e *refusedError) Error() string {
	return fmt.Sprintf("%s: status %d, code %q: %s", e.op, e.a.Status, e.a.Code, clip(e.a.Error))
}

func clip(s string) string {
	const most = 600
	if len(s) > most {
		return s[:most/2] + " … " + s[len(s)-most/2:]
	}
	return s
}
