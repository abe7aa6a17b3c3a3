package server_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/s3"
)

// BenchmarkSmallObjects measures the node's own cost of 4 KiB requests: 16 connections send requests
// that were signed once, so that the client costs next to nothing.
func BenchmarkSmallObjects(b *testing.B) {
	r := start(b, configFor(b, b.TempDir()), nil)
	r.do("PUT", "/bucket", nil)
	r.do("PUT", "/bucket/k0", make([]byte, 4096))
	for _, method := range []string{"GET", "PUT"} {
		b.Run(method, func(b *testing.B) {
			var next atomic.Int64
			b.SetParallelism(8)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				conn, err := net.Dial("tcp", r.s.Addr().String())
				if err != nil {
					b.Error(err)
					return
				}
				defer conn.Close()
				in := bufio.NewReader(conn)
				key := "k0"
				if method == "PUT" {
					key = fmt.Sprintf("k%d", next.Add(1))
				}
				request := r.signed(method, "/bucket/"+key)
				for pb.Next() {
					if err := exchange(conn, in, request); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

// signed is a request as it goes over the wire, with 4 KiB of body for a PUT.
func (r *running) signed(method, path string) string {
	req, err := http.NewRequest(method, "http://"+r.s.Addr().String()+path, nil)
	if err != nil {
		r.t.Error(err)
		return ""
	}
	o := s3.SignOptions{
		Credentials: s3.Credentials{AccessKey: r.key.ID, SecretKey: string(r.key.Secret)},
		Region:      "us-east-1", Time: time.Now(),
	}
	if err := r.signer.Sign(req, o); err != nil {
		r.t.Error(err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\n", method, path, req.Host)
	for name, values := range req.Header {
		fmt.Fprintf(&b, "%s: %s\r\n", name, values[0])
	}
	if method == "PUT" {
		b.WriteString("Content-Length: 4096\r\n\r\n" + strings.Repeat("x", 4096))
	} else {
		b.WriteString("\r\n")
	}
	return b.String()
}

func exchange(conn net.Conn, in *bufio.Reader, request string) error {
	if _, err := io.WriteString(conn, request); err != nil {
		return err
	}
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// BenchmarkLargeObjects moves 64 MiB over HTTP in one connection.
func BenchmarkLargeObjects(b *testing.B) {
	const size = 64 << 20
	r := start(b, configFor(b, b.TempDir()), nil)
	r.do("PUT", "/bucket", nil)
	payload := make([]byte, size)
	r.do("PUT", "/bucket/large", payload)
	for _, method := range []string{"PUT", "GET"} {
		b.Run(method, func(b *testing.B) {
			conn, err := net.Dial("tcp", r.s.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			defer conn.Close()
			in := bufio.NewReader(conn)
			head := r.signed(method, "/bucket/large")
			if method == "PUT" {
				head, _, _ = strings.Cut(head, "Content-Length:")
				head += fmt.Sprintf("Content-Length: %d\r\n\r\n", size)
			}
			b.SetBytes(size)
			for b.Loop() {
				if _, err := io.WriteString(conn, head); err != nil {
					b.Fatal(err)
				}
				if method == "PUT" {
					if _, err := conn.Write(payload); err != nil {
						b.Fatal(err)
					}
				}
				if err := exchange(conn, in, ""); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
