package e2e

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"hash/crc64"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/penstock-store/penstock/client"
)

// algorithms are those that the SDK can compute.
func algorithms() []types.ChecksumAlgorithm {
	return []types.ChecksumAlgorithm{types.ChecksumAlgorithmCrc32, types.ChecksumAlgorithmCrc32c,
		types.ChecksumAlgorithmCrc64nvme, types.ChecksumAlgorithmSha1, types.ChecksumAlgorithmSha256}
}

// rawSum is a checksum by the standard library alone: the oracle.
func rawSum(a types.ChecksumAlgorithm, p []byte) []byte {
	switch a {
	case types.ChecksumAlgorithmCrc32:
		return binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE(p))
	case types.ChecksumAlgorithmCrc32c:
		return binary.BigEndian.AppendUint32(nil, crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)))
	case types.ChecksumAlgorithmCrc64nvme:
		return binary.BigEndian.AppendUint64(nil, crc64.Checksum(p, crc64.MakeTable(0x9a6c9329ac4bc9b5)))
	case types.ChecksumAlgorithmSha1:
		sum := sha1.Sum(p)
		return sum[:]
	case types.ChecksumAlgorithmSha256:
		sum := sha256.Sum256(p)
		return sum[:]
	}
	panic("no such algorithm: " + string(a))
}

// sums are checksums as answers have them.
type sums map[types.ChecksumAlgorithm]string

func sumsOf(p []byte, names ...types.ChecksumAlgorithm) sums {
	s := sums{}
	for _, a := range names {
		if a != "" {
			s[a] = base64.StdEncoding.EncodeToString(rawSum(a, p))
		}
	}
	return s
}

// answered collects the checksums of an answer, in the order of algorithms.
func answered(values ...*string) sums {
	s := sums{}
	for i, v := range values {
		if v != nil {
			s[algorithms()[i]] = *v
		}
	}
	return s
}

// thing is what a key, or a part, must be.
type thing struct {
	body     []byte
	etag     string
	sums     sums
	kind     types.ChecksumType
	parts    []numbered
	modified time.Time // as HEAD said
}

type numbered struct {
	number int
	thing
}

// pending is an open upload.
type pending struct {
	key, id   string
	algorithm types.ChecksumAlgorithm
	kind      types.ChecksumType
	parts     map[int]thing
}

// world is the model: a bucket as a map.
type world struct {
	objects map[string]thing
	uploads []*pending
	done    []completed
}

// completed can be repeated.
type completed struct {
	key, id, etag string
	list          []types.CompletedPart
}

// stored is what a PUT makes. The ETag is the store's choice for what came by a fabric, so it is checked by form.
func stored(path client.Fabric, p []byte, a types.ChecksumAlgorithm, etag string) (thing, error) {
	if a == "" {
		a = types.ChecksumAlgorithmCrc64nvme // what is answered when nothing was declared
	}
	name := string(path)
	if len(p) == 0 {
		name = client.PathHTTP
	}
	etag = strings.Trim(etag, `"`)
	o := thing{body: p, etag: etag, sums: sumsOf(p, a), kind: types.ChecksumTypeFullObject}
	return o, checkETag(name, etag, p)
}

// copyOf is what a copy makes: one piece, with the algorithm of its source or the one that is asked for.
func copyOf(src thing, asked types.ChecksumAlgorithm) thing {
	o := thing{body: src.body, etag: src.etag, sums: src.sums, kind: types.ChecksumTypeFullObject}
	if asked == "" && src.kind == types.ChecksumTypeComposite {
		for a := range src.sums {
			asked = a
		}
	}
	if asked != "" {
		o.sums = sumsOf(src.body, asked)
	}
	if asked != "" || len(src.parts) > 0 {
		o.etag = md5Of(src.body)
	}
	return o
}

// whole is what completing an upload with these parts makes.
func (u *pending) whole(numbers []int) thing {
	o := thing{kind: types.ChecksumTypeFullObject}
	var tags, raw []byte
	for _, n := range numbers {
		p := u.parts[n]
		digits, err := hex.DecodeString(p.etag[:2*md5.Size])
		if err != nil {
			panic(err)
		}
		tags, o.body = append(tags, digits...), append(o.body, p.body...)
		o.parts = append(o.parts, numbered{n, p})
		if u.algorithm != "" {
			raw = append(raw, rawSum(u.algorithm, p.body)...)
		}
	}
	o.etag = fmt.Sprintf("%x-%d", md5.Sum(tags), len(numbers))
	switch {
	case u.algorithm == "":
		o.sums = sumsOf(o.body, types.ChecksumAlgorithmCrc64nvme)
	case u.kind == types.ChecksumTypeComposite:
		o.kind = u.kind
		value := base64.StdEncoding.EncodeToString(rawSum(u.algorithm, raw))
		o.sums = sums{u.algorithm: fmt.Sprintf("%s-%d", value, len(numbers))}
	default:
		o.sums = sumsOf(o.body, u.algorithm)
	}
	return o
}

// conditions are those of one request, and whether they hold for a key.
type conditions struct {
	match, noneMatch *string
	faults           []string // codes, one of which must be answered; none: success
}

func (w *world) keys() []string { return slices.Sorted(maps.Keys(w.objects)) }

// writeCondition judges If-Match and If-None-Match of a write.
func (w *world) writeCondition(key string, match, noneMatch *string) conditions {
	o, exists := w.objects[key]
	c := conditions{match: match, noneMatch: noneMatch}
	switch {
	case match != nil && !exists:
		c.faults = []string{"NoSuchKey"}
	case match != nil && *match != "*" && *match != quoted(o.etag):
		c.faults = []string{"PreconditionFailed"}
	case noneMatch != nil && exists && (*noneMatch == "*" || *noneMatch == quoted(o.etag)):
		c.faults = []string{"PreconditionFailed"}
	}
	return c
}

func quoted(etag string) string { return `"` + etag + `"` }
