package gateway_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// begun says when the header of an answer has come.
type begun struct {
	http.RoundTripper
	header chan int
}

func (b begun) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		b.header <- resp.StatusCode
	}
	return resp, err
}

// TestSDKSeesLateFailures: what goes wrong after an answer has begun with 200, by an error or by a panic that cuts the
// answer off, is an error of the SDK for each of the three operations, and repeating the operation works. Oracle: the
// SDK, which users take at its word.
func TestSDKSeesLateFailures(t *testing.T) {
	n := newNode(t, keepAlive(10*time.Millisecond))
	makeBucket(t, n.root(), "late")
	bucket, source := aws.String("late"), aws.String("late/src")
	sendPut(n, "/late/src", randomBytes(300_000), nil)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	answers := begun{transport, make(chan int, 8)}
	c := n.sdk(rootID, rootSecret, func(o *awss3.Options) { o.HTTPClient = &http.Client{Transport: answers} })
	up := n.newUpload("/late/k", nil)
	part := sendPut(n, "/late/k?partNumber=1&uploadId="+up, []byte("part"), nil)
	parts := []types.CompletedPart{{PartNumber: aws.Int32(1), ETag: aws.String(part.header.Get("Etag"))}}
	operations := map[string]func(context.Context) error{
		"CopyObject": func(ctx context.Context) error {
			_, err := c.CopyObject(ctx, &awss3.CopyObjectInput{Bucket: bucket, Key: aws.String("copy"), CopySource: source})
			return err
		},
		"UploadPartCopy": func(ctx context.Context) error {
			_, err := c.UploadPartCopy(ctx, &awss3.UploadPartCopyInput{Bucket: bucket, Key: aws.String("k"),
				UploadId: &up, PartNumber: aws.Int32(2), CopySource: source})
			return err
		},
		"CompleteMultipartUpload": func(ctx context.Context) error {
			_, err := c.CompleteMultipartUpload(ctx, &awss3.CompleteMultipartUploadInput{Bucket: bucket,
				Key: aws.String("k"), UploadId: &up, MultipartUpload: &types.CompletedMultipartUpload{Parts: parts}})
			return err
		},
	}
	for _, name := range []string{"CopyObject", "UploadPartCopy", "CompleteMultipartUpload"} {
		for _, panics := range []bool{false, true} {
			open := n.gate.close()
			result := make(chan error, 1)
			go func() { result <- operations[name](context.Background()) }()
			if status := <-answers.header; status != 200 {
				t.Errorf("%s: status %d", name, status)
			}
			if panics {
				n.gate.panics.Store(true)
			} else {
				n.gate.fails.Store(true)
			}
			open()
			err := <-result
			if err == nil {
				t.Errorf("%s: success (panic: %v)", name, panics)
			} else if !panics {
				wantCode(t, err, "InternalError")
			}
			n.gate.panics.Store(false)
			n.gate.fails.Store(false)
		}
		if err := operations[name](t.Context()); err != nil {
			t.Errorf("%s again: %v", name, err)
		}
		for len(answers.header) > 0 {
			<-answers.header
		}
	}
}
