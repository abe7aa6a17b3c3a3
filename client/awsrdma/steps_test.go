package awsrdma_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/middleware"

	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/client/awsrdma"
)

var errStep = errors.New("step failed")

// faults are what a step of the program's own may do to an operation.
var faults = map[string]func(cancel func(), next func() error) error{
	"cancels before": func(cancel func(), next func() error) error {
		cancel()
		return next()
	},
	"cancels after": func(cancel func(), next func() error) error {
		err := next()
		cancel()
		return err
	},
	"fails before": func(func(), func() error) error { return errStep },
	"fails after": func(_ func(), next func() error) error {
		_ = next() // its outcome is lost
		return errStep
	},
}

// meddler puts a fault next to a step of the stack.
func meddler(step string, at int, cancel func(), fault func(func(), func() error) error) func(*middleware.Stack) error {
	return func(stack *middleware.Stack) error {
		if step == "finalize" {
			ids := stack.Finalize.List()
			return stack.Finalize.Insert(middleware.FinalizeMiddlewareFunc("Meddler", func(
				ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler,
			) (out middleware.FinalizeOutput, md middleware.Metadata, err error) {
				err = fault(cancel, func() error {
					out, md, err = next.HandleFinalize(ctx, in)
					return err
				})
				return out, md, err
			}), ids[at], middleware.After)
		}
		ids := stack.Deserialize.List()
		return stack.Deserialize.Insert(middleware.DeserializeMiddlewareFunc("Meddler", func(
			ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler,
		) (out middleware.DeserializeOutput, md middleware.Metadata, err error) {
			err = fault(cancel, func() error {
				out, md, err = next.HandleDeserialize(ctx, in)
				return err
			})
			return out, md, err
		}), ids[at], middleware.After)
	}
}

// stepsOf lists the steps of an operation's stack, those of the option among them.
func stepsOf(t *testing.T, svc *s3.Client, put bool) map[string][]string {
	t.Helper()
	steps := map[string][]string{}
	look := s3.WithAPIOptions(func(stack *middleware.Stack) error {
		steps["finalize"], steps["deserialize"] = stack.Finalize.List(), stack.Deserialize.List()
		return errStep
	})
	var err error
	if put {
		_, err = svc.PutObject(t.Context(), &s3.PutObjectInput{Bucket: aws.String("bkt"), Key: aws.String("k")}, look)
	} else {
		_, err = svc.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String("bkt"), Key: aws.String("k")}, look)
	}
	if !errors.Is(err, errStep) || !slices.Contains(steps["finalize"], "Penstock:Start") {
		t.Fatalf("%v %v", err, steps)
	}
	return steps
}

// A program's own steps may cancel or fail an operation anywhere, before and after what they enclose: memory
// comes back at once, and what succeeds all the same has the right bytes.
func TestFaultsAtEachStep(t *testing.T) {
	n := startNode(t)
	want := randomBytes(1, 300_000)
	for _, path := range allFabrics() {
		s := n.session(path, awsrdma.Options{})
		svc := s3.New(n.options(n.endpoint), awsrdma.Enable(s), quick)
		if _, _, err := roundTrip(t, svc, want); err != nil {
			t.Fatal(err)
		}
		for _, put := range []bool{true, false} {
			for step, ids := range stepsOf(t, svc, put) {
				for at, id := range ids {
					for name, fault := range faults {
						if name == "fails after" && step == "finalize" && at < slices.Index(ids, "Penstock:Start") {
							continue // outside of the option's steps: see TestBodyNeverRead
						}
						what := fmt.Sprintf("%s put %v: %s after %s", path, put, name, id)
						ctx, cancel := context.WithCancel(t.Context())
						meddle := s3.WithAPIOptions(meddler(step, at, cancel, fault))
						var err error
						if put {
							_, err = svc.PutObject(ctx, &s3.PutObjectInput{
								Bucket: aws.String("bkt"), Key: aws.String("put"), Body: bytes.NewReader(want),
							}, meddle)
							if err == nil {
								same(t, what, n.object("put"), want)
							}
						} else {
							var out *s3.GetObjectOutput
							out, err = svc.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String("bkt"), Key: aws.String("k")}, meddle)
							if r := resultOf(out, err); r.Path == path {
								same(t, what, readAll(t, out.Body), want)
							} else if err == nil {
								_ = out.Body.Close() // over HTTP, from a request that is cancelled
							}
						}
						cancel()
						if errors.Is(err, client.ErrRegionAbandoned) {
							t.Errorf("%s: %v", what, err)
						}
						if used := s.Stats().PoolUsedBytes; used != 0 {
							t.Fatalf("%s: %d bytes in use: %v", what, used, err)
						}
					}
				}
			}
		}
	}
}

func resultOf(out *s3.GetObjectOutput, err error) awsrdma.Result {
	if err != nil {
		return awsrdma.Result{}
	}
	r, _ := awsrdma.ResultOf(out.ResultMetadata)
	return r
}
