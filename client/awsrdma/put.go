package awsrdma

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"

	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/penstock-store/penstock/client"
)

// stage brings the payload of an upload into a window, or finds out why HTTP has to carry it. The request
// it returns has the payload as its body, wherever that now lies.
func (op *operation) stage(
	ctx context.Context, req *smithyhttp.Request, unasked bool,
) (*smithyhttp.Request, error) {
	n, reason := op.uploadBytes(req)
	op.result.Bytes = n
	op.asked = unasked || req.Header.Get(headerAlgorithm) != ""
	if op.buffer != nil {
		if req.GetStream() != nil {
			return req, fmt.Errorf("%w: a Body beside it", ErrBuffer)
		}
		return op.stageBuffer(req, unasked)
	}
	algorithm := algorithmOf(req.Header, unasked)
	if reason == "" && newHash(algorithm) == nil && !declared(req.Header) {
		reason = ReasonChecksum
	}
	if reason == client.ReasonEmpty {
		op.result.Reason = reason
		return req, nil
	}
	if reason != "" {
		return req, op.refuse(&client.DeclinedError{Reason: reason})
	}
	if err := op.session.client.Ready(ctx); err != nil {
		if d := declineOf(err); d != nil && ctx.Err() == nil {
			return req, op.refuse(d)
		}
		return req, err
	}
	l, err := op.session.pool.get(ctx, n)
	if err != nil {
		if d := declineOf(err); d != nil {
			return req, op.refuse(d)
		}
		return req, fmt.Errorf("awsrdma: region of %d bytes: %w", n, err)
	}
	op.lent, op.window = l, l.region.Window(0, n)
	mem := memoryOf(op.window)
	h := op.hashOf(req.Header, algorithm)
	if err := readPayload(mem, req, h); err != nil {
		return req, err
	}
	op.setSum(h, algorithm)
	return op.withBody(req, mem)
}

// uploadBytes is the length of the payload, and why no fabric can take it.
func (op *operation) uploadBytes(req *smithyhttp.Request) (n int64, reason string) {
	n = req.ContentLength
	length, known, err := req.StreamLength()
	if n < 0 && known && err == nil {
		n = length
	}
	o := op.session.options
	switch {
	case n < 0, err != nil, known && length != n && req.GetStream() != nil:
		return n, ReasonUnknownLength // or two lengths, which the SDK will report
	case req.GetStream() == nil && op.buffer == nil, n == 0 && op.buffer == nil:
		return 0, client.ReasonEmpty
	case req.Header.Get("Content-Md5") != "":
		return n, ReasonContentMD5
	case n < o.MinBytes:
		return n, ReasonSmall
	case n > o.MaxBytes:
		return n, ReasonTooLarge
	}
	return n, ""
}

// stageBuffer takes the caller's window for the payload, where it is.
func (op *operation) stageBuffer(req *smithyhttp.Request, unasked bool) (*smithyhttp.Request, error) {
	w := op.buffer.window
	op.result.Bytes = w.Bytes
	mem := memoryOf(w)
	algorithm := algorithmOf(req.Header, unasked)
	h := op.hashOf(req.Header, algorithm)
	var err error
	switch {
	case w.Bytes > client.MaxWindowBytes:
		err = op.refuse(&client.DeclinedError{Reason: ReasonTooLarge})
	case req.Header.Get("Content-Md5") != "":
		err = op.refuse(&client.DeclinedError{Reason: ReasonContentMD5})
	case newHash(algorithm) == nil && !declared(req.Header):
		err = op.refuse(&client.DeclinedError{Reason: ReasonChecksum})
	default:
		op.window = w
		if h != nil {
			_, _ = h.Write(mem) // hashes do not fail
		}
		op.setSum(h, algorithm)
	}
	if err != nil {
		return req, err
	}
	return op.withBody(req, mem)
}

// withBody makes mem the request's body, for its attempts over HTTP.
func (op *operation) withBody(req *smithyhttp.Request, mem []byte) (*smithyhttp.Request, error) {
	op.body = newUpload(mem)
	req.ContentLength = -1
	req, err := req.SetStream(op.body)
	if err != nil {
		return req, fmt.Errorf("awsrdma: request: %w", err)
	}
	return req, nil
}

// algorithmOf is the algorithm by which the SDK would sum the payload, or ours when it would not.
func algorithmOf(h http.Header, unasked bool) string {
	if a := h.Get(headerAlgorithm); a != "" {
		return a
	}
	if unasked {
		return defaultAlgorithm
	}
	return ownAlgorithm
}

// hashOf is nil when the caller declared a checksum.
func (op *operation) hashOf(h http.Header, algorithm string) hash.Hash {
	if declared(h) {
		return nil
	}
	return newHash(algorithm)
}

func (op *operation) setSum(h hash.Hash, algorithm string) {
	if h != nil {
		op.sums = http.Header{checksumHeader(algorithm): {(&sum{Hash: h}).value()}}
	}
}

// readPayload fills mem from the request's body and sums it while it is in the cache.
func readPayload(mem []byte, req *smithyhttp.Request, h hash.Hash) error {
	src := req.GetStream()
	for len(mem) > 0 {
		piece := mem[:min(pieceBytes, len(mem))]
		if err := readFull(src, piece); err != nil {
			return fmt.Errorf("awsrdma: read body: %w", err)
		}
		if h != nil {
			_, _ = h.Write(piece) // hashes do not fail
		}
		mem = mem[len(piece):]
	}
	// A source may know only at its end that what it gave was wrong, and one that can be rewound may have
	// grown since its length was asked for.
	switch n, err := io.ReadFull(src, make([]byte, 1)); {
	case n != 0:
		return errors.New("awsrdma: read body: longer than its declared length")
	case !errors.Is(err, io.EOF):
		return fmt.Errorf("awsrdma: read end of body: %w", err)
	}
	return nil
}

// readFull is io.ReadFull that keeps an error which comes with the last bytes.
func readFull(src io.Reader, p []byte) error {
	for len(p) > 0 {
		n, err := src.Read(p)
		p = p[n:]
		switch {
		case errors.Is(err, io.EOF) && len(p) > 0:
			return io.ErrUnexpectedEOF
		case err != nil && !errors.Is(err, io.EOF):
			return err
		}
	}
	return nil
}

// restage takes the payload to another region when its own was abandoned. The node has had leave to read
// that one, no more, so its bytes are what they were; they stay mapped until it is given back.
func (op *operation) restage(ctx context.Context) error {
	if op.lent == nil || !op.lent.region.Abandoned() {
		return nil
	}
	l, err := op.session.pool.get(ctx, op.window.Bytes)
	if err != nil {
		return err
	}
	w := l.region.Window(0, op.window.Bytes)
	copy(memoryOf(w), memoryOf(op.window))
	op.body.move(memoryOf(w))
	op.lent.giveBack()
	op.lent, op.window = l, w
	return nil
}

// attemptPut sends the payload by the fabric or, where that is declined, as the body of an ordinary
// request.
func (op *operation) attemptPut(
	ctx context.Context, req *smithyhttp.Request, next middleware.FinalizeHandler,
) (middleware.FinalizeOutput, middleware.Metadata, error) {
	for reopened := 0; op.window.Region != nil; {
		if err := op.restage(ctx); err != nil {
			d := declineOf(err)
			if d == nil {
				return middleware.FinalizeOutput{}, middleware.Metadata{}, err
			}
			if err := op.refuse(d); err != nil {
				return middleware.FinalizeOutput{}, middleware.Metadata{}, err
			}
			break
		}
		t := &try{op: op, window: op.window}
		out, md, err := t.exchange(ctx, op.summed(req.Clone()), next)
		if err == nil && t.result.Moved {
			op.result.Path, op.result.Reason = t.loan.Fabric(), ""
			return out, md, nil
		}
		if t.abandonedBefore(err) && reopened < maxReopened {
			reopened++
			continue
		}
		d := t.declined(err)
		if d == nil {
			return out, md, err
		}
		if d.Reason == client.ReasonNoSession && reopened < maxReopened {
			reopened++
			continue
		}
		if err := op.refuse(d); err != nil {
			return out, md, err
		}
		break
	}
	if op.asked { // which spares the SDK a pass over the payload
		req = op.summed(req)
	}
	return next.HandleFinalize(ctx, middleware.FinalizeInput{Request: req})
}
