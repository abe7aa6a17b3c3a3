package s3

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/minio/crc64nvme"
	"github.com/zeebo/xxh3"
)

// oracleSum computes a checksum with other code than the package.
func oracleSum(a Algorithm, p string) []byte {
	switch a {
	case CRC32:
		return binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE([]byte(p)))
	case CRC32C:
		return binary.BigEndian.AppendUint32(nil, crc32.Checksum([]byte(p), crc32.MakeTable(crc32.Castagnoli)))
	case CRC64NVME:
		return binary.BigEndian.AppendUint64(nil, crc64nvme.Checksum([]byte(p)))
	case SHA1:
		h := sha1.Sum([]byte(p))
		return h[:]
	case SHA512:
		h := sha512.Sum512([]byte(p))
		return h[:]
	case MD5:
		h := md5.Sum([]byte(p))
		return h[:]
	case XXHASH64:
		return binary.BigEndian.AppendUint64(nil, xxhash.Sum64String(p))
	case XXHASH3:
		return binary.BigEndian.AppendUint64(nil, xxh3.HashString(p))
	case XXHASH128:
		h := xxh3.HashString128(p)
		return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, h.Hi), h.Lo)
	}
	h := sha256.Sum256([]byte(p))
	return h[:]
}

func b64(p []byte) string { return base64.StdEncoding.EncodeToString(p) }

var allAlgorithms = []Algorithm{CRC32, CRC32C, CRC64NVME, SHA1, SHA256, SHA512, MD5, XXHASH64, XXHASH3, XXHASH128}

// TestXXHashVectors: values and byte order are those of the AWS common runtime (awscrt.checksums.XXHash),
// which computes them for the SDKs.
func TestXXHashVectors(t *testing.T) {
	long := make([]byte, 0, 256*40)
	for range 40 {
		for b := range 256 {
			long = append(long, byte(b))
		}
	}
	for _, c := range []struct {
		a    Algorithm
		p    string
		want string
	}{
		{XXHASH64, "", "70bbN1HY6Zk="}, {XXHASH64, "abc", "RLws9a13CZk="}, {XXHASH64, string(long), "WLggqnlw2+I="},
		{XXHASH3, "", "LQaABTjTlMI="}, {XXHASH3, "abc", "eK9flIkvOVA="}, {XXHASH3, string(long), "wD0iMauTSPM="},
		{XXHASH128, "", "maoG0wFHmNhgAcMkRo1Jfw=="}, {XXHASH128, "abc", "BrBatnM6YYV4r1+UiS85UA=="},
		{XXHASH128, string(long), "HLIlNNDZaXXAPSIxq5NI8w=="},
	} {
		h := c.a.hash()
		h.Write([]byte(c.p))
		if got := b64(h.Sum(nil)); got != c.want {
			t.Errorf("%v of %d bytes: %s, want %s", c.a, len(c.p), got, c.want)
		}
	}
}

// Every algorithm in a header and in a trailer, right and wrong, together with MD5.
func TestDigester(t *testing.T) {
	rnd := rand.New(rand.NewPCG(9, 9))
	for i := range 300 {
		a := allAlgorithms[i%len(allAlgorithms)]
		also := append(allAlgorithms, NoAlgorithm)[rnd.IntN(len(allAlgorithms)+1)]
		payload := randomPayload(rnd, rnd.IntN(50000))
		sum := md5.Sum([]byte(payload))
		h, trailer := http.Header{}, http.Header{}
		value := b64(oracleSum(a, payload))
		if rnd.IntN(2) == 0 {
			h.Set("Content-Md5", b64(sum[:]))
		}
		inTrailer := rnd.IntN(2) == 0
		if inTrailer {
			h.Set("X-Amz-Trailer", strings.ToLower(a.Header()))
			trailer.Set(a.Header(), value)
		} else {
			h.Set(a.Header(), value)
		}
		h.Set("X-Amz-Sdk-Checksum-Algorithm", strings.ToLower(a.String()))
		d, err := ParseDeclared(h)
		if err != nil || !d.Any() || d.Hint != a {
			t.Fatal(d, err)
		}
		external := rnd.IntN(2) == 0
		run := func(payload string) (Sums, error) {
			g := NewDigester(d, DigestOptions{MD5: true, Also: also, ExternalCRC64NVME: external})
			for p := payload; p != ""; {
				n := 1 + rnd.IntN(len(p))
				g.Write([]byte(p[:n]))
				p = p[n:]
			}
			return g.Finish(Final{Trailer: trailer, CRC64NVME: crc64nvme.Checksum([]byte(payload))})
		}
		s, err := run(payload)
		if err != nil || s.ETag() != hex.EncodeToString(sum[:]) {
			t.Fatal(s, err)
		}
		want := []Checksum{{a, value}}
		if also != NoAlgorithm && also != a {
			want = append(want, Checksum{also, b64(oracleSum(also, payload))})
		}
		if !slices.Equal(s.Checksums, want) {
			t.Fatalf("got %v, want %v", s.Checksums, want)
		}
		if _, err := run(payload + "x"); !IsCode(err, BadDigest) {
			t.Fatalf("other payload: %v", err)
		}
		if inTrailer {
			trailer.Set(a.Header(), "AAAA")
			if _, err := run(payload); !IsCode(err, InvalidRequest) {
				t.Fatal(err)
			}
			trailer = nil
			if _, err := run(payload); !IsCode(err, MalformedTrailer) {
				t.Fatal(err)
			}
		}
	}
}

// TestS3_04/10/14/16: what may be declared and how.
func TestS3_04_Declarations(t *testing.T) {
	const crc, sha = "NSRBwg==", "qZk+NkcGgWq6PiVxeFDCbJzQ2J0="
	for _, c := range []struct {
		header []string
		want   Code
	}{
		{nil, ""},
		{[]string{"Content-Md5", "kAFQmDzST7DWlj99KOF/cg=="}, ""},
		{[]string{"Content-Md5", "kAFQmDzST7DWlj99KOF/cg"}, InvalidDigest},
		{[]string{"Content-Md5", "YWJj"}, InvalidDigest},
		{[]string{"Content-Md5", ""}, InvalidDigest},
		{[]string{"Content-Md5", "900150983cd24fb0d6963f7d28e17f72"}, InvalidDigest},
		{[]string{"X-Amz-Checksum-Crc32", crc}, ""},
		{[]string{"X-Amz-Checksum-Crc32", "NSRBwg"}, InvalidRequest},
		{[]string{"X-Amz-Checksum-Crc32", sha}, InvalidRequest},
		{[]string{"X-Amz-Checksum-Crc32", ""}, InvalidRequest},
		{[]string{"X-Amz-Checksum-Crc32", crc, "X-Amz-Checksum-Crc32", crc}, InvalidRequest},
		{[]string{"X-Amz-Checksum-Crc32", crc, "X-Amz-Checksum-Sha1", sha}, InvalidRequest},
		{[]string{"X-Amz-Checksum-Crc32", crc, "X-Amz-Trailer", "x-amz-checksum-crc32"}, InvalidRequest},
		{[]string{"X-Amz-Checksum-Crc32", crc, "X-Amz-Sdk-Checksum-Algorithm", "CRC32"}, ""},
		{[]string{"X-Amz-Checksum-Crc32", crc, "X-Amz-Sdk-Checksum-Algorithm", "SHA1"}, InvalidRequest},
		{[]string{"X-Amz-Checksum-Xxhash", crc}, InvalidRequest},
		{[]string{"X-Amz-Checksum-Algorithm", "CRC32"}, ""},
		{[]string{"X-Amz-Checksum-Mode", "ENABLED"}, ""},
		{[]string{"X-Amz-Checksum-Type", "FULL_OBJECT"}, ""},
		{[]string{"X-Amz-Sdk-Checksum-Algorithm", "CRC64NVME"}, ""},
		{[]string{"X-Amz-Sdk-Checksum-Algorithm", "MD2"}, InvalidRequest},
		{[]string{"X-Amz-Trailer", "x-amz-checksum-crc32c"}, ""},
		{[]string{"X-Amz-Trailer", "X-Amz-Checksum-CRC32C"}, ""},
		{[]string{"X-Amz-Trailer", "x-amz-checksum-md2"}, InvalidRequest},
		{[]string{"X-Amz-Trailer", "x-other"}, InvalidRequest},
		{[]string{"X-Amz-Trailer", "x-amz-checksum-crc32c,x-amz-checksum-sha1"}, InvalidRequest},
		{[]string{"X-Amz-Trailer", "x-amz-checksum-crc32c", "X-Amz-Trailer", "x-amz-checksum-crc32c"}, InvalidRequest},
	} {
		h := http.Header{}
		for i := 0; i < len(c.header); i += 2 {
			h.Add(c.header[i], c.header[i+1])
		}
		if _, err := ParseDeclared(h); c.want == "" && err != nil || c.want != "" && !IsCode(err, c.want) {
			t.Errorf("%v: %v", c.header, err)
		}
	}
	// A hint alone is not a checksum: nothing is computed or wanted.
	d, err := ParseDeclared(http.Header{"X-Amz-Sdk-Checksum-Algorithm": {"SHA256"}})
	if err != nil || d.Any() || !NewDigester(d, DigestOptions{}).Idle() {
		t.Error(d, err)
	}
}

func TestObjectChecksum(t *testing.T) {
	for value, want := range map[string]Code{
		"NSRBwg==": "", "NSRBwg==-3": "", "NSRBwg==-0": InvalidRequest, "NSRBwg==-": InvalidRequest,
		"NSRBwg==-10001": InvalidRequest, "x-3": InvalidRequest,
	} {
		c, err := ParseObjectChecksum(http.Header{"X-Amz-Checksum-Crc32": {value}})
		if want == "" && (err != nil || c.Value != value || c.Algorithm != CRC32) || want != "" && !IsCode(err, want) {
			t.Errorf("%q: %v %v", value, c, err)
		}
	}
	if c, err := ParseObjectChecksum(http.Header{}); err != nil || c.Algorithm != NoAlgorithm {
		t.Error(c, err)
	}
}

// TestS3_05: combined part checksums equal those of the whole. Oracle: the concatenation.
func TestS3_05_FullObject(t *testing.T) {
	rnd := rand.New(rand.NewPCG(10, 10))
	for range 60 {
		var parts []string
		for range 1 + rnd.IntN(6) {
			parts = append(parts, randomPayload(rnd, []int{0, 1, rnd.IntN(5000)}[rnd.IntN(3)]))
		}
		whole := strings.Join(parts, "")
		for _, a := range allAlgorithms {
			var list []Part
			var concatenated string
			for _, p := range parts {
				sum := oracleSum(a, p)
				list = append(list, Part{int64(len(p)), b64(sum)})
				concatenated += string(sum)
			}
			full, err := ComposeChecksum(a, FullObject, list)
			switch {
			case a != CRC32 && a != CRC32C && a != CRC64NVME: // only CRCs of pieces make that of the whole
				if !IsCode(err, InvalidRequest) {
					t.Fatal(a, err)
				}
			case err != nil || full != Checksum{a, b64(oracleSum(a, whole))}:
				t.Fatalf("%v of %d parts: %v %v", a, len(parts), full, err)
			}
			composite, err := ComposeChecksum(a, Composite, list)
			switch {
			case a == CRC64NVME:
				if !IsCode(err, InvalidRequest) {
					t.Fatal(a, err)
				}
			case err != nil || composite.Value != fmt.Sprintf("%s-%d", b64(oracleSum(a, concatenated)), len(parts)):
				t.Fatalf("%v of %d parts: %v %v", a, len(parts), composite, err)
			}
		}
	}
}

// Lengths that no buffer reaches: zeros by repeated doubling as the oracle.
func TestCombineLong(t *testing.T) {
	for _, a := range []Algorithm{CRC32, CRC32C} {
		crc := binary.BigEndian.Uint32(oracleSum(a, "abc"))
		zero := binary.BigEndian.Uint32(oracleSum(a, "\x00"))
		n := int64(1)
		for range 40 { // zero is the sum of n zero bytes
			doubled := uint32(combineCRC(a, uint64(zero), uint64(zero), n))
			// abc ++ n zeros ++ n zeros, in both orders of association
			left := combineCRC(a, combineCRC(a, uint64(crc), uint64(zero), n), uint64(zero), n)
			right := combineCRC(a, uint64(crc), uint64(doubled), 2*n)
			if left != right {
				t.Fatalf("%v: %d bytes", a, n)
			}
			if n <= 1<<20 {
				if doubled != binary.BigEndian.Uint32(oracleSum(a, string(make([]byte, 2*n)))) {
					t.Fatalf("%v: %d zeros", a, 2*n)
				}
			}
			zero, n = doubled, 2*n
		}
	}
}

func TestComposeRefusals(t *testing.T) {
	if _, err := ComposeChecksum(CRC32, FullObject, nil); !IsCode(err, InvalidRequest) {
		t.Error(err)
	}
	if _, err := ComposeChecksum(NoAlgorithm, "", []Part{{1, ""}}); !IsCode(err, InvalidRequest) {
		t.Error(err)
	}
	if _, err := ComposeChecksum(CRC32, FullObject, []Part{{1, "!!"}}); !IsCode(err, InvalidPart) {
		t.Error(err)
	}
	for _, c := range []struct {
		s    string
		a    Algorithm
		want ChecksumType
	}{
		{"", CRC32, Composite}, {"", CRC64NVME, FullObject}, {"", SHA1, Composite}, {"", NoAlgorithm, ""},
		{"full_object", CRC32C, FullObject}, {"FULL_OBJECT", CRC64NVME, FullObject}, {"COMPOSITE", SHA256, Composite},
		{"FULL_OBJECT", SHA256, "error"}, {"COMPOSITE", CRC64NVME, "error"}, {"X", CRC32, "error"},
		{"COMPOSITE", NoAlgorithm, "error"},
	} {
		got, err := ParseChecksumType(c.s, c.a)
		if c.want == "error" && !IsCode(err, InvalidRequest) || c.want != "error" && (got != c.want || err != nil) {
			t.Errorf("%+v: %v %v", c, got, err)
		}
	}
	if _, err := ParseAlgorithm("md4"); !IsCode(err, InvalidRequest) {
		t.Error(err)
	}
	for _, a := range allAlgorithms {
		if got, err := ParseAlgorithm(strings.ToLower(a.String())); got != a || err != nil {
			t.Error(got, err)
		}
		if http.CanonicalHeaderKey("x-amz-checksum-"+a.String()) != a.Header() {
			t.Error(a.Header())
		}
	}
}
