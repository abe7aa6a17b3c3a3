package awsrdma_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"runtime"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/client/awsrdma"
)

// bodies is a client whose pool holds exactly one region, so that one that leaks or is given out twice
// shows.
func bodies(t *testing.T) (svc *s3.Client, s *awsrdma.Session, want []byte) {
	n := startNode(t)
	s = n.session(client.PathSHM, awsrdma.Options{Strict: true, PoolBytes: 2 << 20, MaxBytes: 2 << 20, PoolWait: -1})
	svc = s3.New(n.options(n.endpoint), awsrdma.Enable(s), quick)
	want = randomBytes(8, 2<<20)
	for key, p := range map[string][]byte{"k": want, "zeros": make([]byte, 2<<20)} {
		if _, err := svc.PutObject(t.Context(), &s3.PutObjectInput{
			Bucket: aws.String("bkt"), Key: aws.String(key), Body: bytes.NewReader(p),
		}); err != nil {
			t.Fatal(err)
		}
	}
	return svc, s, want
}

func open(t *testing.T, svc *s3.Client, key string) io.ReadCloser {
	t.Helper()
	out, err := svc.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String("bkt"), Key: aws.String(key)})
	if err != nil {
		t.Fatal(err)
	}
	return out.Body
}

func wantBusy(t *testing.T, svc *s3.Client) {
	t.Helper()
	_, err := svc.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String("bkt"), Key: aws.String("zeros")})
	var d *client.DeclinedError
	if !errors.As(err, &d) || d.Reason != awsrdma.ReasonPoolBusy {
		t.Errorf("the only region is in use, but: %v", err)
	}
}

func TestBodyClosedEarly(t *testing.T) {
	svc, s, want := bodies(t)
	body := open(t, svc, "k")
	got := make([]byte, 1000)
	if _, err := io.ReadFull(body, got); err != nil {
		t.Fatal(err)
	}
	same(t, "start", got, want[:1000])
	wantBusy(t, svc)
	for range 3 {
		if err := body.Close(); err != nil {
			t.Error(err)
		}
	}
	if used := s.Stats().PoolUsedBytes; used != 0 {
		t.Errorf("%d bytes in use after Close", used)
	}
	// The region belongs to another body now: the closed one reads nothing of it.
	other := open(t, svc, "zeros")
	if n, err := body.Read(got); n != 0 || !errors.Is(err, http.ErrBodyReadAfterClose) {
		t.Errorf("read after Close: %d %v", n, err)
	}
	if err := body.Close(); err != nil {
		t.Error(err)
	}
	wantBusy(t, svc) // the late Close gave nothing back that was not its own
	same(t, "other", readAll(t, other), make([]byte, 2<<20))
}

func TestBodyReadTwice(t *testing.T) {
	svc, s, want := bodies(t)
	body := open(t, svc, "k")
	got, err := io.ReadAll(body)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "first", got, want)
	if used := s.Stats().PoolUsedBytes; used != 0 {
		t.Errorf("%d bytes in use after the end", used)
	}
	other := open(t, svc, "zeros") // before Close: the end was enough
	if again, err := io.ReadAll(body); len(again) != 0 || err != nil {
		t.Errorf("second: %d bytes, %v", len(again), err)
	}
	if n, err := body.(io.WriterTo).WriteTo(io.Discard); n != 0 || err != nil {
		t.Errorf("second, WriteTo: %d bytes, %v", n, err)
	}
	_ = body.Close()
	same(t, "other", readAll(t, other), make([]byte, 2<<20))
}

func TestBodyNeverRead(t *testing.T) {
	svc, s, _ := bodies(t)
	_ = open(t, svc, "k")
	deadline := time.Now().Add(20 * time.Second)
	for s.Stats().PoolUsedBytes != 0 {
		if time.Now().After(deadline) {
			t.Fatal("the region of an unreachable body was not given back")
		}
		runtime.GC()
	}
	same(t, "after", readAll(t, open(t, svc, "zeros")), make([]byte, 2<<20))
}

// slowWriter lets a test close a body while it is being written out.
type slowWriter struct {
	entered, leave chan struct{}
	bytes.Buffer
}

func (w *slowWriter) Write(p []byte) (int, error) {
	if w.entered != nil {
		close(w.entered)
		w.entered = nil
		<-w.leave
	}
	return w.Buffer.Write(p)
}

func TestBodyClosedInTheMiddleOfWriteTo(t *testing.T) {
	svc, s, want := bodies(t)
	body := open(t, svc, "k")
	entered := make(chan struct{})
	w := &slowWriter{entered: entered, leave: make(chan struct{})}
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(w, body)
		ended <- err
	}()
	<-entered
	if err := body.Close(); err != nil { // does not wait for the writer
		t.Error(err)
	}
	if s.Stats().PoolUsedBytes == 0 {
		t.Error("the region was given back while it is read")
	}
	wantBusy(t, svc)
	close(w.leave)
	if err := <-ended; !errors.Is(err, http.ErrBodyReadAfterClose) {
		t.Errorf("%v", err)
	}
	same(t, "start", w.Bytes(), want[:w.Len()])
	if used := s.Stats().PoolUsedBytes; used != 0 {
		t.Errorf("%d bytes in use afterwards", used)
	}
}

func TestBodyOutlivesTheSession(t *testing.T) {
	svc, s, want := bodies(t)
	body := open(t, svc, "k")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	same(t, "after Close of the session", readAll(t, body), want)
	_, err := svc.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String("bkt"), Key: aws.String("k")})
	if !errors.Is(err, client.ErrDeclined) {
		t.Errorf("a closed session in strict mode: %v", err)
	}
}

// Objects of no bytes: nothing to move, and the memory is free at once.
func TestEmptyObjects(t *testing.T) {
	svc, s, _ := bodies(t)
	for _, body := range []io.Reader{nil, bytes.NewReader(nil)} {
		put, err := svc.PutObject(t.Context(), &s3.PutObjectInput{
			Bucket: aws.String("bkt"), Key: aws.String("empty"), Body: body,
		})
		if err != nil {
			t.Fatal(err)
		}
		wantResult(t, put.ResultMetadata, awsrdma.Result{Operation: "PutObject", Path: "http", Reason: client.ReasonEmpty})
		got, err := svc.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String("bkt"), Key: aws.String("empty")})
		if err != nil {
			t.Fatal(err)
		}
		wantResult(t, got.ResultMetadata, awsrdma.Result{
			Operation: "GetObject", Path: "http", Reason: client.ReasonEmpty, Tokens: 1,
		})
		if p := readAll(t, got.Body); len(p) != 0 || aws.ToInt64(got.ContentLength) != 0 {
			t.Errorf("%d bytes, length %d", len(p), aws.ToInt64(got.ContentLength))
		}
	}
	if used := s.Stats().PoolUsedBytes; used != 0 {
		t.Errorf("%d bytes in use", used)
	}
}
