package client

import (
	"context"
	"sync"
	"sync/atomic"
)

// GetRequest is one read of a batch: what GetInto takes.
type GetRequest struct {
	Window      Window
	Bucket, Key string
	Options     GetOptions
}

// GetOutcome is what became of one GetRequest.
type GetOutcome struct {
	Result Result
	Err    error // as of GetInto
}

// DefaultBatchConcurrency is the number of requests of a batch in flight: enough to cover the HTTP
// round trips of small ranges.
const DefaultBatchConcurrency = 16

// MaxBatchConcurrency bounds it: as many connections as a client keeps.
const MaxBatchConcurrency = 64

// GetMany reads many objects or ranges with at most concurrency requests in flight (0:
// DefaultBatchConcurrency) and returns one outcome per request, in their order. A failed request
// does not stop the others; when ctx ends, those not begun fail with its error. Windows must not
// overlap.
func (c *Client) GetMany(ctx context.Context, requests []GetRequest, concurrency int) []GetOutcome {
	outcomes := make([]GetOutcome, len(requests))
	workers := min(orDefault(concurrency, DefaultBatchConcurrency), MaxBatchConcurrency, len(requests))
	var next atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(requests) {
					return
				}
				if err := ctx.Err(); err != nil {
					outcomes[i].Err = err
					continue
				}
				r := requests[i]
				outcomes[i].Result, outcomes[i].Err = c.GetInto(ctx, r.Window, r.Bucket, r.Key, r.Options)
			}
		})
	}
	wg.Wait()
	return outcomes
}
