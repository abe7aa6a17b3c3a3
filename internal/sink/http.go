package sink

import (
	"context"
	"io"

	"github.com/penstock-store/penstock/internal/arena"
)

var _ Sink = (*HTTP)(nil)

// HTTP writes an answer to an HTTP client. One goroutine writes while the engine fills the next
// buffer.
type HTTP struct{ mover }

// NewHTTP returns a sink of size bytes over w, which is a ResponseWriter whose header is out, or
// whose first Write sends it. A client that does not read is the gateway's to bound: w's Write must end
// with an error at a write deadline.
func NewHTTP(w io.Writer, from *arena.Reservation, size int64) *HTTP {
	return &HTTP{mover{
		from:    from,
		size:    size,
		workers: 1, // the order of the bytes
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
