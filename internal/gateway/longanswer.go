package gateway

import (
	"context"
	"fmt"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/penstock-store/penstock/internal/s3"
)

// A copy rewrites up to 5 GiB and a completion reads 10,000 records: longer than clients and balancers
// wait for the first byte of an answer. What is known within the keep-alive interval is answered as always, with
// its own status. After that the answer begins: 200 and the XML declaration, which must be the first bytes of a
// document, then a space per interval, and in the end the document of success or of the error. Clients of these
// three operations look for an Error element in a 200, since S3 does the same.

// outcome is how an operation ended.
type outcome struct {
	message  s3.Message
	err      error
	panicked string
}

// answerLong runs an operation that may take long and answers it. op runs in a goroutine of its own; it must not
// touch the answer, and its context ends with the client's connection.
func (c *call) answerLong(op func(ctx context.Context) (s3.Message, error)) error {
	ctx, cancel := context.WithCancelCause(c.r.Context())
	defer cancel(nil)
	done := make(chan outcome, 1)
	go func() {
		var o outcome
		defer func() {
			if p := recover(); p != nil {
				o.panicked = fmt.Sprintf("%v, in %s", p, debug.Stack())
			}
			done <- o
		}()
		o.message, o.err = op(ctx)
	}()
	interval := time.NewTicker(c.g.o.Limits.KeepAlive)
	defer interval.Stop()
	for {
		select {
		case o := <-done:
			return c.endLong(o)
		case <-interval.C:
			if err := c.keepAlive(); err != nil {
				cancel(errPeerGone)
			}
		}
	}
}

// keepAlive sends what an answer may begin with before its content is known.
func (c *call) keepAlive() error {
	text := " "
	if !c.wrote {
		c.w.Header()["Content-Type"] = xmlType
		c.writeHeader(http.StatusOK)
		text = s3.Declaration
	}
	if _, err := c.w.Write([]byte(text)); err != nil {
		return err
	}
	return http.NewResponseController(c.w).Flush()
}

// endLong sends the rest of the answer.
func (c *call) endLong(o outcome) error {
	switch {
	case o.panicked != "":
		panic(o.panicked) // as if it had happened here
	case !c.wrote && o.err != nil:
		return o.err
	case !c.wrote:
		return c.answerXML(o.message)
	case o.err != nil:
		e := c.errorOf(o.err)
		c.status = e.Status                    // the counters tell what is meant
		_, _ = c.w.Write(e.AppendElement(nil)) // nobody is left to tell
		return nil
	}
	_, _ = c.w.Write(s3.MarshalElement(o.message)) // the operation is done; a client that went away does not undo it
	return nil
}
