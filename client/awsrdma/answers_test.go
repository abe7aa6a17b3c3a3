package awsrdma_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/client/awsrdma"
)

// lie is an answer to a request with a token.
type lie struct {
	moved  bool // the node did what the request asks for; otherwise nobody did anything
	status int
	reply  []string
	bytes  []string
	body   string // "", "some", "cut"
	chunks bool   // the answer has no Content-Length
	etag   bool
}

func (l lie) String() string {
	return fmt.Sprintf("moved %v: %d reply %q bytes %q body %q chunks %v etag %v",
		l.moved, l.status, l.reply, l.bytes, l.body, l.chunks, l.etag)
}

// send answers with a lie. sum is of the payload; the node's own checksum of what moved is never forged.
func (l lie) send(w http.ResponseWriter, r *http.Request, forward http.Handler, sum string) {
	h := http.Header{}
	if l.moved {
		rec := httptest.NewRecorder()
		forward.ServeHTTP(rec, r)
		h = rec.Header()
		for _, name := range []string{"X-Amz-Rdma-Reply", "X-Amz-Rdma-Bytes-Transferred", "Content-Length", "Etag"} {
			h.Del(name)
		}
	}
	for name, values := range h {
		w.Header()[name] = values
	}
	set := func(name string, values []string) {
		if len(values) > 0 {
			w.Header()[name] = values
		}
	}
	set("X-Amz-Rdma-Reply", l.reply)
	set("X-Amz-Rdma-Bytes-Transferred", l.bytes)
	if r.Method == http.MethodGet {
		set("X-Penstock-Rdma-Checksum", []string{"CRC64NVME " + sum})
	}
	if l.etag {
		set("Etag", []string{`"0123456789abcdef0123456789abcdef-1"`})
	}
	body := ""
	if l.body != "" && l.status != 204 && l.status != 304 {
		body = strings.Repeat("x", 4321)
	}
	if !l.chunks && l.status != 204 && l.status != 304 {
		length := len(body)
		if l.body == "cut" {
			length++
		}
		set("Content-Length", []string{strconv.Itoa(length)})
	}
	w.WriteHeader(l.status)
	if l.chunks {
		_ = http.NewResponseController(w).Flush()
	}
	_, _ = io.WriteString(w, body)
	if l.body == "cut" {
		panic(http.ErrAbortHandler)
	}
}

// believable is a lie that an honest node could have told: of an upload, nobody can know better.
func (l lie) believable(size int) bool {
	moved := []string{strconv.Itoa(size)}
	return (l.status == 200 || l.status == 204) && len(l.reply) == 1 && (l.reply[0] == "200" || l.reply[0] == "204") &&
		(len(l.bytes) == 0 || slices.Equal(l.bytes, moved))
}

func lies(size int) []lie {
	n := strconv.Itoa(size)
	var all []lie
	for _, status := range []int{200, 201, 204, 206, 304, 400, 403, 404, 412, 416, 500, 501, 503} {
		for _, reply := range [][]string{nil, {"200"}, {"204"}, {"206"}, {"501"}, {"200", "200"}, {"0200"}, {"ok"}, {""}} {
			for _, count := range [][]string{
				nil, {n}, {strconv.Itoa(size - 1)}, {strconv.Itoa(size + 1)}, {"0"}, {"-1"}, {n, n},
			} {
				for _, body := range []string{"", "some", "cut"} {
					for bits := range 8 {
						all = append(all, lie{bits&1 != 0, status, reply, count, body, bits&2 != 0, bits&4 != 0})
					}
				}
			}
		}
	}
	return all
}

// Whatever is answered to a request with a token, in whatever combination: what the operation calls read
// are the object's bytes, and what it calls stored is stored. Memory comes back in any case.
func TestNoAnswerIsTakenForWhatItIsNot(t *testing.T) {
	const size = 70_001
	n := startNode(t)
	p := n.proxy(t)
	var opened atomic.Int64
	p.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	want, other := randomBytes(1, size), randomBytes(2, size)
	sum := sumOf(types.ChecksumAlgorithmCrc64nvme, want)
	all := lies(size)
	rng := rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano())))
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	all = all[:map[bool]int{true: 200, false: 800}[testing.Short()]]
	for _, path := range allFabrics() {
		c := n.client(path, func(c *client.Config) { c.Endpoint = p.URL })
		s := awsrdma.New(c, awsrdma.Options{MinBytes: -1, PoolBytes: 4 << 20, MaxBytes: 1 << 20})
		o := n.options(p.URL)
		o.Retryer = aws.NopRetryer{}
		svc := s3.New(o, awsrdma.Enable(s))
		put := func(key string, payload []byte) error {
			_, err := svc.PutObject(t.Context(), &s3.PutObjectInput{
				Bucket: aws.String("bkt"), Key: &key, Body: bytes.NewReader(payload),
			})
			return err
		}
		p.set(nil)
		if err := put("k", want); err != nil {
			t.Fatal(err)
		}
		var done, read int
		for i, l := range all {
			p.set(func(w http.ResponseWriter, r *http.Request, forward http.Handler) {
				if !hasToken(r) {
					forward.ServeHTTP(w, r)
					return
				}
				l.send(w, r, forward, sum)
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			out, err := svc.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String("bkt"), Key: aws.String("k")})
			if err == nil {
				got, err := io.ReadAll(out.Body)
				if _ = out.Body.Close(); err == nil {
					read++
					same(t, fmt.Sprintf("%s GET %s", path, l), got, want)
				}
			}
			key := fmt.Sprint("put", i%8)
			payload := want
			if i%16 >= 8 {
				payload = other
			}
			if err := put(key, payload); err == nil {
				done++
				if l.moved || !l.believable(size) {
					same(t, fmt.Sprintf("%s PUT %s", path, l), n.object(key), payload)
				}
			}
			cancel()
			if used := s.Stats().PoolUsedBytes; used != 0 {
				t.Fatalf("%s: %s: %d bytes in use", path, l, used)
			}
		}
		t.Logf("%s: %d of %d GETs and %d PUTs, %d connections", path, read, len(all), done, opened.Swap(0))
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
