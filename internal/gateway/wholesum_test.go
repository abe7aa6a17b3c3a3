package gateway_test

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

// TestDeclaredSumOfWhole: every algorithm and type of checksum that a client may declare for the
// whole when it completes an upload. Composite values come with and without the number of parts
// (minio-go sends them without). Wrong ones are refused and leave the upload as it is. The oracle is
// the standard library's hashes.
func TestDeclaredSumOfWhole(t *testing.T) {
	const nvme = 0x9a6c9329ac4bc9b5 // CRC-64/NVME, bits reversed
	makers := map[string]func() hash.Hash{
		"CRC32": func() hash.Hash { return crc32.NewIEEE() }, "SHA1": sha1.New, "SHA256": sha256.New,
		"CRC32C":    func() hash.Hash { return crc32.New(crc32.MakeTable(crc32.Castagnoli)) },
		"CRC64NVME": func() hash.Hash { return crc64.New(crc64.MakeTable(nvme)) },
	}
	n := newNode(t)
	makeBucket(t, n.root(), "whole")
	parts := [][]byte{randomBytes(5 << 20), randomBytes(100)}
	for _, c := range []struct{ algorithm, kind string }{
		{"CRC32", "COMPOSITE"}, {"CRC32C", "COMPOSITE"}, {"SHA1", "COMPOSITE"}, {"SHA256", "COMPOSITE"},
		{"CRC32", "FULL_OBJECT"}, {"CRC32C", "FULL_OBJECT"}, {"CRC64NVME", "FULL_OBJECT"},
	} {
		t.Run(c.algorithm+" "+c.kind, func(t *testing.T) {
			sum := func(data []byte) []byte {
				h := makers[c.algorithm]()
				h.Write(data)
				return h.Sum(nil)
			}
			text := base64.StdEncoding.EncodeToString
			header := "X-Amz-Checksum-" + strings.ToLower(c.algorithm)
			path := "/whole/" + c.algorithm + c.kind
			got := n.send(request{method: "POST", path: path + "?uploads", header: map[string]string{
				"X-Amz-Checksum-Algorithm": c.algorithm, "X-Amz-Checksum-Type": c.kind}})
			id := string(regexp.MustCompile(`<UploadId>(.*)</UploadId>`).FindSubmatch(got.body)[1])
			var doc, sums, all bytes.Buffer
			for i, p := range parts {
				put := sendPut(n, fmt.Sprintf("%s?partNumber=%d&uploadId=%s", path, i+1, id), p,
					map[string]string{header: text(sum(p))})
				fmt.Fprintf(&doc, "<Part><PartNumber>%d</PartNumber><ETag>%s</ETag></Part>", i+1, put.header.Get("Etag"))
				sums.Write(sum(p))
				all.Write(p)
			}
			body := []byte("<CompleteMultipartUpload>" + doc.String() + "</CompleteMultipartUpload>")
			full, composite := text(sum(all.Bytes())), text(sum(sums.Bytes()))
			right, wrong := []string{full}, []string{composite, composite + "-2", full + "-2"}
			if c.kind == "COMPOSITE" {
				right = []string{composite, composite + "-2"}
				wrong = []string{full, full + "-2", composite + "-3", composite + "-22"}
			}
			for i, value := range append(wrong, right...) {
				got := n.send(request{method: "POST", path: path + "?uploadId=" + id, body: bytes.NewReader(body),
					length: int64(len(body)), header: map[string]string{
						http.CanonicalHeaderKey(header): value, "X-Amz-Checksum-Type": c.kind}})
				want := 400
				if i >= len(wrong) {
					want = 200
				}
				if got.status != want {
					t.Errorf("%s: status %d, want %d: %s", value, got.status, want, got.body)
				}
			}
		})
	}
}
