package awsrdma

import (
	"context"
	"fmt"
	"regexp"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/logging"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/penstock-store/penstock/client"
)

// Enable is an option of s3.New, s3.NewFromConfig and of single operations: payloads of PutObject,
// UploadPart and GetObject move by the session's fabric where possible. The SDK's endpoint must be that of
// the session's client, its principal the same. Several clients may share a session. Options that set the
// HTTP client or the logger come before it.
func Enable(s *Session) func(*s3.Options) {
	return func(o *s3.Options) {
		sums := o.RequestChecksumCalculation == aws.RequestChecksumCalculationWhenSupported
		if o.Logger != nil {
			o.Logger = redacting{o.Logger}
		}
		if o.HTTPClient != nil {
			o.HTTPClient = direct{o.HTTPClient}
		}
		o.APIOptions = append(o.APIOptions, func(stack *middleware.Stack) error {
			return s.install(stack, sums)
		})
	}
}

// redacting is the SDK's logger without tokens, which its logs of signatures and of requests contain.
type redacting struct{ logging.Logger }

var tokenPattern = regexp.MustCompile(`(?i)\bps1:[a-z]+(:[0-9a-f]{16,32}){4}`)

// Logf implements logging.Logger.
func (r redacting) Logf(class logging.Classification, format string, v ...any) {
	text := tokenPattern.ReplaceAllString(fmt.Sprintf(format, v...), "ps1:redacted")
	r.Logger.Logf(class, "%s", text)
}

// WithContext implements logging.ContextLogger for a logger that does.
func (r redacting) WithContext(ctx context.Context) logging.Logger {
	return redacting{logging.WithContext(ctx, r.Logger)}
}

// operationDeserializer is the id of the step that makes an output of an answer, in every smithy client.
const operationDeserializer = "OperationDeserializer"

// install adds the steps to the stack of one operation. It runs after the SDK has added its own. sums: the
// SDK adds checksums to uploads unasked.
func (s *Session) install(stack *middleware.Stack, sums bool) error {
	switch stack.ID() {
	case "PutObject", "UploadPart", "GetObject":
	default:
		return nil
	}
	if has(stack.Finalize, (*v4.PresignHTTPRequestMiddleware)(nil).ID()) {
		return nil // the stack makes a URL and sends nothing
	}
	start := &startStep{session: s, name: stack.ID(), sums: sums}
	attempt, answer, send := &attemptStep{}, &answerStep{}, &sendStep{}
	if retries := (*retry.Attempt)(nil).ID(); has(stack.Finalize, retries) {
		if err := stack.Finalize.Insert(start, retries, middleware.Before); err != nil {
			return fmt.Errorf("awsrdma: install: %w", err)
		}
		if err := stack.Finalize.Insert(attempt, retries, middleware.After); err != nil {
			return fmt.Errorf("awsrdma: install: %w", err)
		}
	} else {
		if err := stack.Finalize.Add(attempt, middleware.Before); err != nil {
			return fmt.Errorf("awsrdma: install: %w", err)
		}
		if err := stack.Finalize.Add(start, middleware.Before); err != nil {
			return fmt.Errorf("awsrdma: install: %w", err)
		}
	}
	if _, ok := stack.Deserialize.Get(operationDeserializer); ok {
		if err := stack.Deserialize.Insert(answer, operationDeserializer, middleware.After); err != nil {
			return fmt.Errorf("awsrdma: install: %w", err)
		}
	}
	if err := stack.Deserialize.Add(send, middleware.After); err != nil {
		return fmt.Errorf("awsrdma: install: %w", err)
	}
	return nil
}

func has(step *middleware.FinalizeStep, id string) bool {
	_, ok := step.Get(id)
	return ok
}

// startStep runs once for each operation, outside the SDK's retries.
type startStep struct {
	session *Session
	name    string
	sums    bool
}

// ID implements middleware.FinalizeMiddleware.
func (*startStep) ID() string { return "Penstock:Start" }

type operationKey struct{}

// HandleFinalize prepares the payload and records what became of it.
func (m *startStep) HandleFinalize(
	ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler,
) (out middleware.FinalizeOutput, md middleware.Metadata, err error) {
	req, ok := in.Request.(*smithyhttp.Request)
	if !ok {
		return out, md, fmt.Errorf("awsrdma: request of type %T", in.Request)
	}
	op := &operation{session: m.session, put: m.name != "GetObject"}
	op.result = Result{Operation: m.name, Path: client.PathHTTP, Bytes: -1}
	out, md, err = m.run(ctx, op, req, next)
	if err == nil {
		md.Set(resultKey{}, op.result)
	}
	op.result.Err = err
	m.session.record(ctx, op.result, op.put)
	return out, md, err
}

func (m *startStep) run(
	ctx context.Context, op *operation, req *smithyhttp.Request, next middleware.FinalizeHandler,
) (out middleware.FinalizeOutput, md middleware.Metadata, err error) {
	if op.buffer, err = bufferOf(ctx); err != nil {
		return out, md, err
	}
	defer op.buffer.release()
	if op.buffer != nil {
		hold, err := op.buffer.window.Hold()
		if err != nil {
			return out, md, err
		}
		defer hold()
	}
	defer op.release()
	if op.put {
		if req, err = op.stage(ctx, req, m.sums); err != nil {
			return out, md, err
		}
	}
	ctx = middleware.WithStackValue(ctx, operationKey{}, op)
	out, md, err = next.HandleFinalize(ctx, middleware.FinalizeInput{Request: req})
	if err != nil {
		op.dropBody()
	}
	op.given = nil // the caller's; an idle connection may hold the context, and with it this operation
	return out, md, err
}

// attemptStep runs for each attempt, before the request's endpoint, checksum and signature are made.
type attemptStep struct{}

// ID implements middleware.FinalizeMiddleware.
func (*attemptStep) ID() string { return "Penstock:Attempt" }

// HandleFinalize sends the attempt's request with a token and, where that is declined, without.
func (*attemptStep) HandleFinalize(
	ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler,
) (middleware.FinalizeOutput, middleware.Metadata, error) {
	op, _ := middleware.GetStackValue(ctx, operationKey{}).(*operation)
	req, ok := in.Request.(*smithyhttp.Request)
	if op == nil || !ok {
		return next.HandleFinalize(ctx, in)
	}
	if op.put {
		return op.attemptPut(ctx, req, next)
	}
	return op.attemptGet(ctx, req, next)
}

// answerStep lies between the SDK's deserializer and its other steps.
type answerStep struct{}

// ID implements middleware.DeserializeMiddleware.
func (*answerStep) ID() string { return "Penstock:Answer" }

// HandleDeserialize gives a moved answer its body. That replaces whatever the steps below made of the
// empty one.
func (*answerStep) HandleDeserialize(
	ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler,
) (out middleware.DeserializeOutput, md middleware.Metadata, err error) {
	try := tryOf(ctx)
	if try == nil {
		return next.HandleDeserialize(ctx, in)
	}
	try.filled = true
	out, md, err = next.HandleDeserialize(ctx, in)
	if err == nil {
		err = try.fill(out.RawResponse)
	}
	return out, md, err
}

// sendStep lies next to the HTTP client.
type sendStep struct{}

// ID implements middleware.DeserializeMiddleware.
func (*sendStep) ID() string { return "Penstock:Send" }

// HandleDeserialize sends a request with a token and settles its window.
func (*sendStep) HandleDeserialize(
	ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler,
) (out middleware.DeserializeOutput, md middleware.Metadata, err error) {
	try := tryOf(ctx)
	if try == nil {
		return next.HandleDeserialize(ctx, in)
	}
	req, ok := in.Request.(*smithyhttp.Request)
	if !ok {
		return out, md, fmt.Errorf("awsrdma: request of type %T", in.Request)
	}
	if err := try.mayLeave(req); err != nil {
		return out, md, err
	}
	if err := ctx.Err(); err != nil { // what goes on may have been sent
		return out, md, &smithy.CanceledError{Err: err}
	}
	sending, cancel := try.loan.Context(ctx)
	defer cancel()
	out, md, err = next.HandleDeserialize(sending, in)
	err = try.settle(ctx, out.RawResponse, err)
	if err == nil && !try.filled {
		err = try.fill(out.RawResponse)
	}
	return out, md, err
}
