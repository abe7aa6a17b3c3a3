//lint:file-ignore SA1019 the older manager is deprecated and in wide use: it has to work

package awsrdma_test

import (
	"bytes"
	"fmt"
	"io"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/feature/s3/manager"
	"github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager"
	tmtypes "github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/penstock-store/penstock/client/awsrdma"
)

const partBytes = 5 << 20

// aroundParts are lengths at the limits of parts and thresholds.
func aroundParts() []int {
	if testing.Short() {
		return []int{0, partBytes + 1}
	}
	return []int{0, 1, partBytes - 1, partBytes, partBytes + 1, 2 * partBytes, 3*partBytes + 123}
}

func TestTransferManager(t *testing.T) {
	for _, path := range allFabrics() {
		t.Run(path, func(t *testing.T) {
			n := startNode(t)
			svc := s3.New(n.options(n.endpoint), awsrdma.Enable(n.session(path, awsrdma.Options{Strict: true})))
			tm := transfermanager.New(svc, func(o *transfermanager.Options) {
				o.PartSizeBytes, o.MultipartUploadThreshold, o.Concurrency = partBytes, partBytes, 3
			})
			for i, length := range aroundParts() {
				want := randomBytes(uint64(i), length)
				key := aws.String(fmt.Sprint(length))
				for _, body := range []io.Reader{bytes.NewReader(want), struct{ io.Reader }{bytes.NewReader(want)}} {
					if _, err := tm.UploadObject(t.Context(), &transfermanager.UploadObjectInput{
						Bucket: aws.String("bkt"), Key: key, Body: body,
					}); err != nil {
						t.Fatalf("up %d: %v", length, err)
					}
					same(t, "up", n.object(*key), want)
				}
				for _, kind := range []tmtypes.GetObjectType{tmtypes.GetObjectParts, tmtypes.GetObjectRanges} {
					into := manager.NewWriteAtBuffer(nil)
					if _, err := tm.DownloadObject(t.Context(), &transfermanager.DownloadObjectInput{
						Bucket: aws.String("bkt"), Key: key, WriterAt: into,
					}, func(o *transfermanager.Options) { o.GetObjectType = kind }); err != nil {
						t.Fatalf("down %d by %s: %v", length, kind, err)
					}
					same(t, fmt.Sprintf("down %d by %s", length, kind), into.Bytes(), want)
				}
			}
			n.wantNoHTTP("PutObject", "UploadPart")
		})
	}
}

func TestOlderManager(t *testing.T) {
	for _, path := range allFabrics() {
		t.Run(path, func(t *testing.T) {
			n := startNode(t)
			svc := s3.New(n.options(n.endpoint), awsrdma.Enable(n.session(path, awsrdma.Options{Strict: true})))
			up := manager.NewUploader(svc, func(u *manager.Uploader) { u.PartSize, u.Concurrency = partBytes, 3 })
			down := manager.NewDownloader(svc, func(d *manager.Downloader) { d.PartSize, d.Concurrency = partBytes, 3 })
			for i, length := range aroundParts() {
				want := randomBytes(uint64(i), length)
				key := aws.String(fmt.Sprint(length))
				for _, body := range []io.Reader{bytes.NewReader(want), struct{ io.Reader }{bytes.NewReader(want)}} {
					if _, err := up.Upload(t.Context(), &s3.PutObjectInput{
						Bucket: aws.String("bkt"), Key: key, Body: body,
					}); err != nil {
						t.Fatalf("up %d: %v", length, err)
					}
					same(t, "up", n.object(*key), want)
				}
				into := manager.NewWriteAtBuffer(nil)
				if _, err := down.Download(t.Context(), into, &s3.GetObjectInput{
					Bucket: aws.String("bkt"), Key: key,
				}); err != nil {
					t.Fatalf("down %d: %v", length, err)
				}
				same(t, fmt.Sprintf("down %d", length), into.Bytes(), want)
			}
			n.wantNoHTTP("PutObject", "UploadPart")
		})
	}
}

// object reads an object by a client without the option, and takes its bytes out of the server's count of
// HTTP payload by noting them.
func (n *node) object(key string) []byte {
	n.t.Helper()
	out, err := n.plain().GetObject(n.t.Context(), &s3.GetObjectInput{Bucket: aws.String("bkt"), Key: &key})
	if err != nil {
		n.t.Fatal(err)
	}
	got := readAll(n.t, out.Body)
	n.read += int64(len(got))
	return got
}

// wantNoHTTP checks the server's counters: HTTP bodies carried nothing but what object read.
func (n *node) wantNoHTTP(writes ...string) {
	n.t.Helper()
	for _, op := range writes {
		if got := n.payloadBytes(op, "http"); got != 0 {
			n.t.Errorf("%s: %d payload bytes in HTTP bodies", op, got)
		}
	}
	if got := n.payloadBytes("GetObject", "http"); got != n.read {
		n.t.Errorf("GetObject: %d payload bytes in HTTP bodies, %d of them wanted there", got, n.read)
	}
}
