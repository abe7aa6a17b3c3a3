package gateway

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-store/penstock/internal/checksum"
	"github.com/penstock-store/penstock/internal/s3"
	"github.com/penstock-store/penstock/internal/store"
)

// maxCompleteBytes bounds a CompleteMultipartUpload document: 10,000 parts with two checksums each.
const maxCompleteBytes = 8 << 20

func (c *call) createUpload() error {
	meta, err := c.objectMeta()
	if err != nil {
		return err
	}
	algorithm, err := s3.ParseAlgorithm(c.r.Header.Get("X-Amz-Checksum-Algorithm"))
	if err != nil {
		return err
	}
	kind := s3.ChecksumType("")
	if text := c.r.Header.Get("X-Amz-Checksum-Type"); text != "" {
		if algorithm == s3.NoAlgorithm {
			return s3.New(s3.InvalidRequest, "x-amz-checksum-type needs an x-amz-checksum-algorithm.")
		}
		if kind, err = s3.ParseChecksumType(text, algorithm); err != nil {
			return err
		}
	} else if algorithm != s3.NoAlgorithm {
		kind = s3.DefaultChecksumType(algorithm)
	}
	u, err := c.g.o.Store.CreateUpload(c.r.Context(), store.UploadRequest{
		Bucket: c.target.Bucket, Key: c.target.Key, Meta: meta, Owner: c.identity.Principal,
		ChecksumAlgorithm: algorithm.String(), ChecksumType: string(kind),
	})
	if err != nil {
		return err
	}
	if algorithm != s3.NoAlgorithm {
		h := c.w.Header()
		h["X-Amz-Checksum-Algorithm"] = []string{algorithm.String()}
		h["X-Amz-Checksum-Type"] = []string{string(kind)}
	}
	return c.answerXML(s3.InitiateResult{Bucket: c.target.Bucket, Key: c.target.Key, UploadID: u.ID})
}

func (c *call) abortUpload() error {
	id := c.query.Get("uploadId")
	err := c.g.o.Store.Abort(c.r.Context(), c.target.Bucket, c.target.Key, id)
	// An abort whose answer was lost is repeated: an id that this server could have made is gone, as asked.
	if errors.Is(err, store.ErrNoSuchUpload) && uploadIDForm.MatchString(id) {
		err = nil
	}
	if err != nil {
		return err
	}
	return c.answerEmpty(http.StatusNoContent)
}

// uploadIDForm is what the store's upload ids look like.
var uploadIDForm = regexp.MustCompile("^[0-9a-f]{32}$")

func (c *call) completeUpload() error {
	r := store.CompleteRequest{
		Bucket: c.target.Bucket, Key: c.target.Key, UploadID: c.query.Get("uploadId"), If: c.writeConditions(),
		ObjectSize: -1,
	}
	if text := c.r.Header.Get("X-Amz-Mp-Object-Size"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			return s3.New(s3.InvalidArgument, "x-amz-mp-object-size is not a size.")
		}
		r.ObjectSize = n
	}
	declared, kind, err := c.declaredOfWhole(&r)
	if err != nil {
		return err
	}
	text, release, err := c.completeDocument()
	if err != nil {
		return err
	}
	defer release()
	doc, err := s3.ReadComplete(newReader(text))
	if err != nil {
		return err
	}
	for _, p := range doc.Parts {
		r.Parts = append(r.Parts, store.CompletePart{Number: p.Number, ETag: p.ETag, Checksums: toStore(p.Checksums)})
	}
	r.Seal = c.composer(declared, kind)
	return c.answerLong(func(ctx context.Context) (s3.Message, error) {
		info, err := c.g.o.Store.Complete(ctx, r)
		if err != nil {
			return nil, err
		}
		return s3.CompleteResult{
			Location: c.location(), Bucket: c.target.Bucket, Key: c.target.Key, ETag: info.ETag,
			Checksums: wholeChecksums(&info), ChecksumType: typeOf(info.Checksums),
		}, nil
	})
}

// declaredOfWhole takes the checksum header, which speaks of the object and not of the document, and
// its type, which a client may name without a value.
func (c *call) declaredOfWhole(r *store.CompleteRequest) (s3.Algorithm, s3.ChecksumType, error) {
	sum, err := s3.ParseObjectChecksum(c.r.Header)
	if err != nil {
		return s3.NoAlgorithm, "", err
	}
	kind := s3.ChecksumType(strings.ToUpper(c.r.Header.Get("X-Amz-Checksum-Type")))
	switch {
	case sum.Algorithm != s3.NoAlgorithm:
		r.Checksums = toStore([]s3.Checksum{sum})
		if kind != "" {
			_, err = s3.ParseChecksumType(string(kind), sum.Algorithm)
		}
	case kind != "" && kind != s3.Composite && kind != s3.FullObject:
		err = s3.New(s3.InvalidRequest, "x-amz-checksum-type must be COMPOSITE or FULL_OBJECT.")
	}
	return sum.Algorithm, kind, err
}

// completeDocument reads the body without taking the object's checksum headers for the document's.
func (c *call) completeDocument() ([]byte, func(), error) {
	for _, a := range s3.Algorithms() {
		c.r.Header.Del(a.Header()) // the signature was verified already
	}
	return c.document(maxCompleteBytes)
}

// composer names the checksums of the whole from those of the parts: of the upload's algorithm, and
// of the one that the client declares now.
func (c *call) composer(declared s3.Algorithm, declaredType s3.ChecksumType) store.CompleteSeal {
	return func(u store.UploadInfo, parts []store.PartInfo, p store.Payload) ([]store.Checksum, error) {
		if err := c.checkPeer(); err != nil { // the last moment before the commit
			return nil, err
		}
		uploads, err := s3.ParseAlgorithm(u.ChecksumAlgorithm)
		if err != nil {
			return nil, err
		}
		kind := s3.ChecksumType(u.ChecksumType)
		if kind != "" && declaredType != "" && declaredType != kind {
			return nil, s3.Errorf(s3.InvalidRequest, "The upload was begun with the checksum type %s.", kind)
		}
		var sums []s3.Checksum
		if uploads != s3.NoAlgorithm {
			sum, ok, err := compose(uploads, cmp.Or(kind, s3.DefaultChecksumType(uploads)), parts, p)
			if err != nil {
				return nil, err
			}
			if ok {
				sums = append(sums, sum)
			}
		}
		if declared != s3.NoAlgorithm && declared != uploads {
			sum, ok, err := compose(declared, cmp.Or(declaredType, s3.DefaultChecksumType(declared)), parts, p)
			if err != nil {
				return nil, err
			}
			if !ok {
				return nil, s3.Errorf(s3.InvalidRequest, "The %s of the object cannot be verified: the upload was not "+
					"begun with that algorithm, and not every part has one.", declared)
			}
			sums = append(sums, sum)
		}
		return toStore(sums), nil
	}
}

func compose(
	a s3.Algorithm, kind s3.ChecksumType, parts []store.PartInfo, p store.Payload,
) (sum s3.Checksum, ok bool, err error) {
	if a == s3.CRC64NVME {
		return s3.Checksum{Algorithm: a, Value: checksum.Base64(p.CRC64NVME)}, true, nil
	}
	values := make([]s3.Part, 0, len(parts))
	for _, part := range parts {
		i := slices.IndexFunc(part.Checksums, func(s store.Checksum) bool { return s.Algorithm == a.String() })
		if i < 0 {
			return s3.Checksum{}, false, nil
		}
		values = append(values, s3.Part{Size: part.Size, Value: part.Checksums[i].Value})
	}
	sum, err = s3.ComposeChecksum(a, kind, values)
	return sum, err == nil, err
}

func wholeChecksums(info *store.ObjectInfo) []s3.Checksum {
	if len(info.Checksums) > 0 {
		return toS3(info.Checksums)
	}
	return []s3.Checksum{{Algorithm: s3.CRC64NVME, Value: checksum.Base64(info.CRC64NVME)}}
}

// location is the address of the completed object as this client reaches it.
func (c *call) location() string {
	scheme := "http://"
	if c.g.o.TLS {
		scheme = "https://"
	}
	return scheme + c.r.Host + c.request.RawPath
}
