package awsrdma_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/client/awsrdma"
)

var errSource = errors.New("source broke")

// breaking gives its bytes and then, or together with the last of them, an error.
type breaking struct {
	left     []byte
	together bool
	once     bool // the error comes once, then the end
	told     bool
}

func (b *breaking) Read(p []byte) (int, error) {
	n := copy(p, b.left)
	b.left = b.left[n:]
	if len(b.left) > 0 || (n > 0 && !b.together) {
		return n, nil
	}
	if b.once && b.told {
		return n, io.EOF
	}
	b.told = true
	return n, errSource
}

// lying is a source that can be rewound and says to be shorter than it is.
type lying struct{ *bytes.Reader }

func (l lying) Len() int { return l.Reader.Len() - 1 }

// cutShort says to be longer than it is.
type cutShort struct{ *bytes.Reader }

func (c cutShort) Len() int { return c.Reader.Len() + 1 }

// unwilling cannot be rewound though it has the method.
type unwilling struct{ io.Reader }

func (unwilling) Seek(int64, int) (int64, error) { return 0, errSource }

func piped(want []byte, err error) io.Reader {
	r, w := io.Pipe()
	go func() {
		_, _ = w.Write(want)
		_ = w.CloseWithError(err)
	}()
	return r
}

// A source that fails, also when it does so after its last byte, or that has other bytes than it says to
// have, stores nothing: what a plain client of the SDK refuses is refused.
func TestBrokenSourcesStoreNothing(t *testing.T) {
	n := startNode(t)
	s := n.session(client.PathSHM, awsrdma.Options{Strict: true})
	svc := s3.New(n.options(n.endpoint), awsrdma.Enable(s), quick)
	const size = 300_000
	want := randomBytes(1, size)
	key := aws.String("broken")
	for name, source := range map[string]func() io.Reader{
		"half way":            func() io.Reader { return &breaking{left: want[:size/2]} },
		"half way, together":  func() io.Reader { return &breaking{left: want[:size/2], together: true} },
		"at the end":          func() io.Reader { return &breaking{left: want} },
		"with the last bytes": func() io.Reader { return &breaking{left: want, together: true} },
		"once, with the last": func() io.Reader { return &breaking{left: want, together: true, once: true} },
		"once, after them":    func() io.Reader { return &breaking{left: want, once: true} },
		"pipe":                func() io.Reader { return piped(want, errSource) },
		"pipe, short":         func() io.Reader { return piped(want[1:], nil) },
		"longer, rewindable":  func() io.Reader { return lying{bytes.NewReader(append(bytes.Clone(want), 7))} },
		"shorter, rewindable": func() io.Reader { return cutShort{bytes.NewReader(want[1:])} },
		"seek fails":          func() io.Reader { return unwilling{bytes.NewReader(want)} },
	} {
		_, err := svc.PutObject(t.Context(), &s3.PutObjectInput{
			Bucket: aws.String("bkt"), Key: key, Body: source(), ContentLength: aws.Int64(size),
		})
		if err == nil {
			t.Errorf("%s: stored", name)
		}
		_, err = n.plain().HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: aws.String("bkt"), Key: key})
		if !errors.As(err, new(*types.NotFound)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Of a source that was read already, the rest is stored.
func TestSourcesAtAnOffset(t *testing.T) {
	n := startNode(t)
	svc := s3.New(n.options(n.endpoint), awsrdma.Enable(n.session(client.PathSHM, awsrdma.Options{Strict: true})))
	want := randomBytes(2, 2<<20+3)
	const skip = 700_001
	name := filepath.Join(t.TempDir(), "source")
	if err := os.WriteFile(name, want, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for name, source := range map[string]io.ReadSeeker{
		"reader": bytes.NewReader(want), "file": file, "section": io.NewSectionReader(file, 0, int64(len(want))),
	} {
		if _, err := source.Seek(skip, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		if _, err := svc.PutObject(t.Context(), &s3.PutObjectInput{
			Bucket: aws.String("bkt"), Key: aws.String(name), Body: source,
		}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		same(t, name, n.object(name), want[skip:])
	}
	n.wantNoHTTP("PutObject")
}
