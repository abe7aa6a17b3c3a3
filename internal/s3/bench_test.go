package s3

import (
	"fmt"
	"io"
	"strings"
	"testing"
)

// BenchmarkBody reads a body of 64 MiB in chunks of 1 MiB into a buffer of 512 KiB.
func BenchmarkBody(b *testing.B) {
	const size = 64 << 20
	payload := string(make([]byte, size))
	for _, mode := range []PayloadMode{PayloadUnsigned, PayloadChunkedUnsignedTrailer, PayloadChunked} {
		for _, chunk := range []int{64 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("mode=%d/chunk=%d", mode, chunk), func(b *testing.B) {
				header := []string{}
				if mode.Streaming() {
					header = append(header, "X-Amz-Decoded-Content-Length", fmt.Sprint(size))
				}
				_, id := signedPut(b, modeHash(mode), -1, header...)
				wire := payload
				if mode.Streaming() {
					wire = encodeBody(mode, id, payload, []int{chunk}, "")
				}
				p := make([]byte, 512<<10)
				b.SetBytes(size)
				b.ReportAllocs()
				for b.Loop() {
					body := NewBody(BodySpec{Mode: mode, Size: size}, id, strings.NewReader(wire))
					for {
						if _, err := io.ReadFull(body, p); err == io.EOF {
							break
						} else if err != nil {
							b.Fatal(err)
						}
					}
				}
			})
		}
	}
}

// BenchmarkDigester hashes 64 MiB as a PUT does.
func BenchmarkDigester(b *testing.B) {
	p := make([]byte, 512<<10)
	for _, a := range []Algorithm{NoAlgorithm, CRC32, CRC64NVME, SHA256} {
		b.Run("md5+"+a.String(), func(b *testing.B) {
			b.SetBytes(int64(len(p)))
			g := NewDigester(Declared{}, DigestOptions{MD5: true, Also: a})
			for b.Loop() {
				g.Write(p)
			}
		})
	}
}

// BenchmarkMarshalList makes a full page.
func BenchmarkMarshalList(b *testing.B) {
	l := ListV2Result{Bucket: "b", EncodeURL: true}
	for i := range 1000 {
		l.Objects = append(l.Objects, ObjectEntry{Key: fmt.Sprintf("some/prefix/object-%d", i), ETag: emptySHA256[:32]})
	}
	b.ReportAllocs()
	for b.Loop() {
		Marshal(l)
	}
}
