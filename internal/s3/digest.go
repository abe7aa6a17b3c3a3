package s3

import (
	"bytes"
	"crypto/md5"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"hash"
	"net/http"
	"strconv"
	"strings"

	"github.com/penstock-store/penstock/internal/checksum"
)

// digestPiece is how many bytes go through all hashes at once: they stay in the first-level cache.
const digestPiece = 16 << 10

// Checksum is a value of an algorithm: base64, with "-N" when it is a multipart composite.
type Checksum struct {
	Algorithm Algorithm
	Value     string
}

// Declared is what a request says of the digests of its payload.
type Declared struct {
	ContentMD5 []byte    // 16 bytes; nil: none
	Checksum   Checksum  // from a header; Algorithm is NoAlgorithm when none
	Trailer    Algorithm // the value comes in the trailer
	Hint       Algorithm // x-amz-sdk-checksum-algorithm, only a hint
}

// Any says whether any digest is declared.
func (d Declared) Any() bool {
	return d.ContentMD5 != nil || d.Checksum.Algorithm != NoAlgorithm || d.Trailer != NoAlgorithm
}

// ParseDeclared reads Content-MD5, x-amz-checksum-*, x-amz-trailer and x-amz-sdk-checksum-algorithm.
func ParseDeclared(h http.Header) (Declared, error) {
	var d Declared
	if v, ok := h["Content-Md5"]; ok {
		sum, err := base64.StdEncoding.Strict().DecodeString(strings.TrimSpace(v[0]))
		if err != nil || len(sum) != md5.Size || len(v) > 1 {
			return Declared{}, New(InvalidDigest, "")
		}
		d.ContentMD5 = sum
	}
	c, err := headerChecksum(h)
	if err != nil {
		return Declared{}, err
	}
	if c.Algorithm != NoAlgorithm {
		if _, ok := c.Algorithm.decode(c.Value); !ok {
			return Declared{}, badChecksumValue(c.Algorithm)
		}
		d.Checksum = c
	}
	if err := d.readTrailerNames(h); err != nil {
		return Declared{}, err
	}
	if d.Hint, err = ParseAlgorithm(strings.TrimSpace(h.Get("X-Amz-Sdk-Checksum-Algorithm"))); err != nil {
		return Declared{}, err
	}
	named := max(d.Checksum.Algorithm, d.Trailer)
	if d.Hint != NoAlgorithm && named != NoAlgorithm && d.Hint != named {
		return Declared{}, New(InvalidRequest,
			"x-amz-sdk-checksum-algorithm contradicts the checksum that is given.")
	}
	return d, nil
}

func (d *Declared) readTrailerNames(h http.Header) error {
	for name := range strings.SplitSeq(strings.Join(h["X-Amz-Trailer"], ","), ",") {
		name = strings.ToLower(strings.TrimSpace(name))
		if name == "" {
			continue
		}
		algorithm, ok := strings.CutPrefix(name, "x-amz-checksum-")
		a := algorithmNamed(algorithm)
		if !ok || a == NoAlgorithm {
			return New(InvalidRequest, "x-amz-trailer names a trailer that is not supported.")
		}
		if d.Trailer != NoAlgorithm || d.Checksum.Algorithm != NoAlgorithm {
			return New(InvalidRequest, "Only one checksum may be given, in a header or in a trailer.")
		}
		d.Trailer = a
	}
	return nil
}

// ParseObjectChecksum reads the x-amz-checksum-* header of CompleteMultipartUpload, which is of the
// whole object and may be a composite with "-N". NoAlgorithm when there is none.
func ParseObjectChecksum(h http.Header) (Checksum, error) {
	c, err := headerChecksum(h)
	if err != nil || c.Algorithm == NoAlgorithm {
		return Checksum{}, err
	}
	value, count, composite := strings.Cut(c.Value, "-")
	if _, ok := c.Algorithm.decode(value); !ok {
		return Checksum{}, badChecksumValue(c.Algorithm)
	}
	if n, ok := parseDecimal(count); composite && (!ok || n < 1 || n > MaxPartNumber) {
		return Checksum{}, badChecksumValue(c.Algorithm)
	}
	return c, nil
}

func badChecksumValue(a Algorithm) *Error {
	return New(InvalidRequest, "The value of "+strings.ToLower(a.Header())+" is not a valid checksum.")
}

// headerChecksum finds the one x-amz-checksum-* header with a value.
func headerChecksum(h http.Header) (Checksum, error) {
	var c Checksum
	for name, values := range h {
		rest, ok := strings.CutPrefix(name, "X-Amz-Checksum-")
		if !ok || rest == "Algorithm" || rest == "Type" || rest == "Mode" {
			continue
		}
		a := algorithmNamed(rest)
		if a == NoAlgorithm {
			return c, New(InvalidRequest, "The checksum header "+strings.ToLower(name)+" is not supported.")
		}
		if c.Algorithm != NoAlgorithm || len(values) != 1 {
			return c, New(InvalidRequest, "Only one checksum may be given.")
		}
		c = Checksum{a, strings.TrimSpace(values[0])}
	}
	return c, nil
}

// DigestOptions say what is computed beside what is needed to verify the declaration.
type DigestOptions struct {
	MD5               bool      // for the ETag
	Also              Algorithm // e.g. of the multipart upload
	ExternalCRC64NVME bool      // the caller gives CRC64NVME to Finish; it is not computed here
}

// Final is what is known once all bytes were read.
type Final struct {
	Trailer   http.Header
	CRC64NVME uint64 // with ExternalCRC64NVME
}

// Sums are the digests of a payload.
type Sums struct {
	MD5       []byte     // 16 bytes, nil unless computed
	Checksums []Checksum // declared and verified, or asked for by Also; each algorithm once
}

// ETag returns the MD5 in hexadecimal, without quotes; "" when it was not computed.
func (s Sums) ETag() string { return hex.EncodeToString(s.MD5) }

// Digester computes the digests of a payload in one pass and compares them with the declaration.
// It is used by one goroutine at a time.
type Digester struct {
	declared Declared
	external bool
	md5      hash.Hash
	running  [2]runningHash // of the declaration and of Also; unused ones have NoAlgorithm
	hashes   []hash.Hash    // those that Write feeds
}

type runningHash struct {
	algorithm Algorithm
	hash      hash.Hash // nil: CRC64NVME comes from the caller
}

// NewDigester returns a Digester.
func NewDigester(d Declared, o DigestOptions) *Digester {
	g := &Digester{declared: d, external: o.ExternalCRC64NVME}
	if o.MD5 || d.ContentMD5 != nil {
		g.md5 = md5.New()
		g.hashes = append(g.hashes, g.md5)
	}
	g.add(0, max(d.Checksum.Algorithm, d.Trailer))
	if o.Also != g.running[0].algorithm {
		g.add(1, o.Also)
	}
	return g
}

func (d *Digester) add(i int, a Algorithm) {
	d.running[i].algorithm = a
	switch {
	case a == NoAlgorithm || a == CRC64NVME && d.external:
		return
	case a == MD5 && d.md5 != nil:
		d.running[i].hash = d.md5 // one pass serves the ETag and the checksum
		return
	}
	d.running[i].hash = a.hash()
	d.hashes = append(d.hashes, d.running[i].hash)
}

// Idle says that Write would do nothing: the caller need not call it.
func (d *Digester) Idle() bool { return len(d.hashes) == 0 }

// Write adds bytes; it never fails and does not keep p.
func (d *Digester) Write(p []byte) (int, error) {
	n := len(p)
	if len(d.hashes) == 1 {
		return d.hashes[0].Write(p)
	}
	for len(p) > 0 && len(d.hashes) > 0 {
		piece := p[:min(len(p), digestPiece)]
		for _, h := range d.hashes {
			h.Write(piece)
		}
		p = p[len(piece):]
	}
	return n, nil
}

// Finish verifies all that was declared and returns the digests. A mismatch is BadDigest.
func (d *Digester) Finish(f Final) (Sums, error) {
	var s Sums
	if d.md5 != nil {
		s.MD5 = d.md5.Sum(nil)
		if d.declared.ContentMD5 != nil && subtle.ConstantTimeCompare(s.MD5, d.declared.ContentMD5) != 1 {
			return Sums{}, New(BadDigest, "The payload does not have the Content-MD5 that was declared.").
				With("ExpectedDigest", base64.StdEncoding.EncodeToString(d.declared.ContentMD5)).
				With("CalculatedDigest", base64.StdEncoding.EncodeToString(s.MD5))
		}
	}
	for i, r := range d.running {
		if r.algorithm == NoAlgorithm {
			continue
		}
		c := Checksum{Algorithm: r.algorithm}
		if r.hash != nil {
			c.Value = base64.StdEncoding.EncodeToString(r.hash.Sum(nil))
		} else {
			c.Value = checksum.Base64(f.CRC64NVME)
		}
		if i == 0 {
			if err := d.compare(c, f.Trailer); err != nil {
				return Sums{}, err
			}
		}
		s.Checksums = append(s.Checksums, c)
	}
	return s, nil
}

// compare compares a computed checksum with the declared one.
func (d *Digester) compare(c Checksum, trailer http.Header) error {
	want := d.declared.Checksum.Value
	if d.declared.Trailer != NoAlgorithm {
		values := trailer[c.Algorithm.Header()]
		if len(values) != 1 {
			return New(MalformedTrailer, "The announced trailer "+strings.ToLower(c.Algorithm.Header())+" is missing.")
		}
		want = values[0]
	}
	raw, ok := c.Algorithm.decode(want)
	if !ok {
		return badChecksumValue(c.Algorithm)
	}
	if got, _ := c.Algorithm.decode(c.Value); !bytes.Equal(got, raw) {
		return New(BadDigest, "The payload does not have the "+c.Algorithm.String()+" that was declared.").
			With("ExpectedDigest", want).With("CalculatedDigest", c.Value)
	}
	return nil
}

// ParseChecksumMode says whether x-amz-checksum-mode asks for checksums in the answer.
func ParseChecksumMode(h http.Header) bool {
	return strings.EqualFold(strings.TrimSpace(h.Get("X-Amz-Checksum-Mode")), "ENABLED")
}

// compositeValue formats a composite checksum of n parts.
func compositeValue(sum []byte, n int) string {
	return base64.StdEncoding.EncodeToString(sum) + "-" + strconv.Itoa(n)
}
