package awsrdma

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/penstock-store/penstock/client"
)

// ErrBuffer says that a window of WithBuffer cannot serve the operation: two operations at once, a Body
// beside it, or an object that is longer.
var ErrBuffer = errors.New("awsrdma: buffer")

// buffer is a window of the caller.
type buffer struct {
	window client.Window
	busy   atomic.Bool // by an operation
}

type bufferKey struct{}

// WithBuffer makes one GetObject put the object's bytes at the start of the window, or one PutObject or
// UploadPart with a nil Body store the window, all of it: without a copy by this package. They get there
// over HTTP too, when no fabric carries them. The window's region must belong to the session's client.
//
// The window belongs to the operation until it returns; after an error of a GET its content is undefined.
// The body of a GET reads from it. The context serves one operation at a time, so none of a transfer
// manager's: a second one at the same time fails with ErrBuffer.
func WithBuffer(ctx context.Context, w client.Window) context.Context {
	return context.WithValue(ctx, bufferKey{}, &buffer{window: w})
}

// bufferOf takes the context's window for an operation; nil: there is none.
func bufferOf(ctx context.Context) (*buffer, error) {
	b, _ := ctx.Value(bufferKey{}).(*buffer)
	if b == nil {
		return nil, nil
	}
	if !b.busy.CompareAndSwap(false, true) {
		return nil, fmt.Errorf("%w: in use by another operation", ErrBuffer)
	}
	return b, nil
}

func (b *buffer) release() {
	if b != nil {
		b.busy.Store(false)
	}
}

func memoryOf(w client.Window) []byte {
	return w.Region.Bytes()[w.Offset : w.Offset+w.Bytes : w.Offset+w.Bytes]
}
