package sink

import (
	"context"
	"io"

	"github.com/penstock-store/penstock/internal/arena"
)

var _ Sink = (*HTTP)(nil)

// HTTP writes an answer to an HTTP client.
type HTTP struct{ mover }

// NewHTTP returns a sink of size bytes over w, which is a ResponseWriter whose header is out, or
// whose first Write sends it. A client that does not read is the gateway's to bound: w's Write must end
// with an error at a write deadline.
//
// With overlap, a goroutine writes while the engine fills the next buffer, which speeds one answer up
// when cores are idle. Without, Deliver writes: the bytes go out while they are in the cache of the
// core that verified them, which costs less when every core has an answer of its own.
func NewHTTP(w io.Writer, from *arena.Reservation, size int64, overlap bool) *HTTP {
	workers := 0
	if overlap {
		workers = 1 // the order of the bytes
	}
	return &HTTP{mover{
		from:    from,
		size:    size,
		workers: workers,
		move: func(ctx context.Context, _ int64, b arena.Buffer) error {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			_, err := w.Write(b.Bytes())
			return err
		},
	}}
}

// Done implements arena.Sink. It waits for the write under way, whatever becomes of ctx: the
// ResponseWriter must not be used after the request.
func (h *HTTP) Done(context.Context) error {
	h.stop()
	h.wg.Wait()
	return h.result()
}
