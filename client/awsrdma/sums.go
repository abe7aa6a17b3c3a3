package awsrdma

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"hash"
	"hash/crc32"
	"net/http"
	"strings"

	"github.com/penstock-store/penstock/client"
)

// Headers of S3 about checksums and of docs/wire.md, in the form of http.Header's keys.
const (
	checksumPrefix    = "X-Amz-Checksum-"
	headerMode        = "X-Amz-Checksum-Mode"
	headerType        = "X-Amz-Checksum-Type"
	headerAlgorithm   = "X-Amz-Sdk-Checksum-Algorithm"
	headerToken       = "X-Amz-Rdma-Token"
	headerMoved       = "X-Penstock-Rdma-Checksum"
	defaultAlgorithm  = "CRC32"     // of the SDK
	ownAlgorithm      = "CRC64NVME" // of uploads for which the SDK computes none
	compositeTypeText = "COMPOSITE"
)

// algorithms are those that this package computes, the fastest first.
var algorithms = []string{ownAlgorithm, "CRC32", "CRC32C", "SHA1", "SHA256"}

// newHash returns nil for an algorithm that is not among algorithms.
func newHash(algorithm string) hash.Hash {
	switch strings.ToUpper(algorithm) {
	case "CRC64NVME":
		return client.NewChecksum()
	case "CRC32":
		return crc32.NewIEEE()
	case "CRC32C":
		return crc32.New(crc32.MakeTable(crc32.Castagnoli))
	case "SHA1":
		return sha1.New()
	case "SHA256":
		return sha256.New()
	}
	return nil
}

func checksumHeader(algorithm string) string {
	return http.CanonicalHeaderKey(checksumPrefix + algorithm)
}

// declared tells whether a checksum value is among the headers of a request.
func declared(h http.Header) bool {
	for name := range h {
		rest, ok := strings.CutPrefix(http.CanonicalHeaderKey(name), checksumPrefix)
		if ok && rest != "Mode" && rest != "Type" && rest != "Algorithm" {
			return true
		}
	}
	return false
}

// pieceBytes is how much is copied and summed at once: it stays in the second-level cache.
const pieceBytes = 256 << 10

// sum is a running checksum and what it has to come to.
type sum struct {
	hash.Hash
	algorithm, want string
}

// sumOf picks what a moved GET is compared with: the server's CRC64NVME of exactly these bytes when the
// caller asked for a checksum, or when they came over a network; without one, the object's checksum that
// the SDK would take. CRC64NVME is the fastest to compute, and there is one for ranges too. nil: nothing
// to compare with, or no need.
func sumOf(asked http.Header, answer http.Header, fabric string) *sum {
	enabled := strings.EqualFold(asked.Get(headerMode), "ENABLED")
	want, ok := strings.CutPrefix(answer.Get(headerMoved), ownAlgorithm+" ")
	switch {
	case ok && (enabled || fabric != client.PathSHM): // on shm the server compared this very memory
		return &sum{newHash(ownAlgorithm), ownAlgorithm, want}
	case !enabled, answer.Get(headerType) == compositeTypeText:
		return nil
	}
	for _, a := range algorithms {
		want := answer.Get(checksumHeader(a))
		if want != "" && !strings.Contains(want, "-") { // "-N" marks a checksum of checksums
			return &sum{newHash(a), a, want}
		}
	}
	return nil
}

func (s *sum) value() string { return base64.StdEncoding.EncodeToString(s.Sum(nil)) }

// check is called after the last byte.
func (s *sum) check() error {
	if s == nil {
		return nil
	}
	if got := s.value(); got != s.want {
		return fmt.Errorf("awsrdma: %w: %s is %s, server sent %s", client.ErrChecksum, s.algorithm, got, s.want)
	}
	return nil
}

// add sums p in pieces.
func (s *sum) add(p []byte) {
	if s != nil {
		_, _ = s.Write(p) // hashes do not fail
	}
}
