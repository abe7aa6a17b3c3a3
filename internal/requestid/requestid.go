// Package requestid names requests, so that an answer, its log lines and its line in the access log can be
// told to belong together.
//
// Called by: gateway, front and server make ids; every package may read the id of a context.
//
// Invariants:
//  1. An id is 16 upper-case hex digits, unique in its Source and unlikely to meet another's.
//  2. The id travels in a context under a key that only this package can name.
//  3. A logger whose handler is a Handler adds request_id to every line that was given such a context.
//
// What it does not do: reading ids from clients. A client's own id would let it forge log lines of others.
package requestid

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"log/slog"
	"sync/atomic"
)

// Attr is the name of the attribute in log lines.
const Attr = "request_id"

// Source makes ids.
type Source struct {
	base uint64
	next atomic.Uint64
}

// NewSource begins at a random number.
func NewSource() *Source {
	var seed [8]byte
	_, _ = rand.Read(seed[:]) // never returns an error
	return &Source{base: binary.BigEndian.Uint64(seed[:])}
}

// Next is an id that this Source has not given before. The odd factor maps counts to numbers one to one
// and far apart, so that neighbours are told apart by eye.
func (s *Source) Next() string {
	n := s.base + s.next.Add(1)*0x9e3779b97f4a7c15
	const digits = "0123456789ABCDEF"
	var text [16]byte
	for i := range text {
		text[len(text)-1-i] = digits[n&15]
		n >>= 4
	}
	return string(text[:])
}

type contextKey struct{}

// NewContext carries the id to whatever works for the request.
func NewContext(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, contextKey{}, id)
}

// FromContext is the id of the request that the work is for, "" when it is for none.
func FromContext(ctx context.Context) string {
	id, _ := ctx.Value(contextKey{}).(string)
	return id
}

// Handler adds the id of the context to log lines.
type Handler struct{ inner slog.Handler }

var _ slog.Handler = Handler{}

// NewHandler wraps a handler.
func NewHandler(inner slog.Handler) Handler { return Handler{inner} }

// Enabled implements slog.Handler.
func (h Handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.inner.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (h Handler) Handle(ctx context.Context, r slog.Record) error {
	if id := FromContext(ctx); id != "" {
		r = r.Clone() // other handlers may hold the same record
		r.AddAttrs(slog.String(Attr, id))
	}
	return h.inner.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h Handler) WithAttrs(attrs []slog.Attr) slog.Handler { return Handler{h.inner.WithAttrs(attrs)} }

// WithGroup implements slog.Handler.
func (h Handler) WithGroup(name string) slog.Handler { return Handler{h.inner.WithGroup(name)} }
