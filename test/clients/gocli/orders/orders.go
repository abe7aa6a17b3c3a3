// Package orders is the conversation between the driver and a client in Go: one order per line on
// standard input, one answer per line on standard output. test/clients/proto.go has the other side.
//
// Called by: awsgo, miniogo.
//
// What it does not do: anything about S3.
package orders

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"
)

// Order is what to do.
type Order struct {
	Op           string            `json:"op"`
	Bucket       string            `json:"bucket"`
	Key          string            `json:"key"`
	File         string            `json:"file"`
	FromBucket   string            `json:"frombucket"`
	FromKey      string            `json:"fromkey"`
	Range        string            `json:"range"`
	IfMatch      string            `json:"ifmatch"`
	IfNoneMatch  string            `json:"ifnonematch"`
	IfModified   int64             `json:"ifmodified"`
	IfUnmodified int64             `json:"ifunmodified"`
	Meta         map[string]string `json:"meta"`
	Type         string            `json:"type"`
	Encoding     string            `json:"encoding"`
	Cache        string            `json:"cache"`
	Algo         string            `json:"algo"`
	Sum          string            `json:"sum"`
	Part         int64             `json:"part"`
	Prefix       string            `json:"prefix"`
	Delimiter    string            `json:"delimiter"`
	Keys         []string          `json:"keys"`
	ID           string            `json:"id"`
	Way          string            `json:"way"`
}

// Item is one object of a listing.
type Item struct {
	Key  string `json:"key"`
	Size int64  `json:"size"`
	ETag string `json:"etag"`
}

// Upload is one unfinished upload.
type Upload struct {
	Key string `json:"key"`
	ID  string `json:"id"`
}

// Answer is what came of it.
type Answer struct {
	Error    string            `json:"error,omitempty"`
	Status   int               `json:"status,omitempty"`
	Code     string            `json:"code,omitempty"`
	Cannot   string            `json:"cannot,omitempty"`
	Size     int64             `json:"size,omitempty"`
	ETag     string            `json:"etag,omitempty"`
	Meta     map[string]string `json:"meta,omitempty"`
	Type     string            `json:"type,omitempty"`
	Encoding string            `json:"encoding,omitempty"`
	Cache    string            `json:"cache,omitempty"`
	Sums     map[string]string `json:"sums,omitempty"`
	Items    []Item            `json:"items,omitempty"`
	Prefixes []string          `json:"prefixes,omitempty"`
	URL      string            `json:"url,omitempty"`
	ID       string            `json:"id,omitempty"`
	Uploads  []Upload          `json:"uploads,omitempty"`
}

// CannotError is returned by a handler whose library has no such thing.
type CannotError string

func (e CannotError) Error() string { return string(e) }

// Handler carries out one kind of order.
type Handler func(ctx context.Context, o Order, a *Answer) error

const (
	orderTimeout  = 2 * time.Minute // longer than any case, so that the driver's limit is what is seen
	maxOrderBytes = 1 << 20         // a thousand keys of 1 KiB
)

// Serve answers until standard input ends. refusal fills in status and code of an error.
func Serve(handlers map[string]Handler, refusal func(error, *Answer)) {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, maxOrderBytes)
	out := json.NewEncoder(os.Stdout)
	for in.Scan() {
		if err := out.Encode(answer(in.Bytes(), handlers, refusal)); err != nil {
			fmt.Fprintln(os.Stderr, "orders: write answer:", err)
			return
		}
	}
}

func answer(line []byte, handlers map[string]Handler, refusal func(error, *Answer)) (a Answer) {
	var o Order
	if err := json.Unmarshal(line, &o); err != nil {
		return Answer{Error: "orders: read order: " + err.Error()}
	}
	h, ok := handlers[o.Op]
	if !ok {
		return Answer{Cannot: "no operation " + o.Op}
	}
	ctx, cancel := context.WithTimeout(context.Background(), orderTimeout)
	defer cancel()
	err := h(ctx, o, &a)
	var no CannotError
	if errors.As(err, &no) {
		return Answer{Cannot: no.Error()}
	}
	if err != nil {
		a.Error = err.Error()
		refusal(err, &a)
	}
	return a
}
