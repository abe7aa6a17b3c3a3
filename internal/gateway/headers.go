package gateway

import (
	"bytes"
	"encoding/base64"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/penstock-store/penstock/internal/checksum"
	"github.com/penstock-store/penstock/internal/s3"
	"github.com/penstock-store/penstock/internal/store"
)

func newReader(text []byte) io.Reader { return bytes.NewReader(text) }

// tokenVersion begins every continuation token, so that a later form can be told apart.
const tokenVersion = "1"

// maxTokenBytes bounds what is decoded: a key has 1,024 bytes.
const maxTokenBytes = 2048

func encodeToken(last string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(tokenVersion + last))
}

func decodeToken(text string) (string, error) {
	raw, err := base64.RawURLEncoding.DecodeString(text)
	last, ok := strings.CutPrefix(string(raw), tokenVersion)
	if err != nil || !ok || len(text) > maxTokenBytes {
		return "", s3.New(s3.InvalidArgument, "The continuation token is not valid.")
	}
	return last, nil
}

// checkHeaders refuses what would have to be honoured and cannot be: an answer of success must not
// hide that an object is not encrypted, locked or public.
func (c *call) checkHeaders() error {
	for name, values := range c.r.Header {
		if !strings.HasPrefix(name, "X-Amz-") || len(values) == 0 {
			continue
		}
		switch {
		case strings.HasPrefix(name, "X-Amz-Grant-"):
			return accessControlLists()
		case strings.HasPrefix(name, "X-Amz-Object-Lock-"):
			return s3.New(s3.NotImplemented, "Object lock is not offered.")
		case strings.HasPrefix(name, "X-Amz-Server-Side-Encryption-Customer-"),
			strings.HasPrefix(name, "X-Amz-Copy-Source-Server-Side-Encryption-Customer-"):
			if k, err := carrierOf(c.r.Header); c.takesToken() && (k != nil || err != nil) {
				return &declined{reason: reasonClientKey}
			}
			return s3.New(s3.NotImplemented, "Encryption with a key of the client is not offered.")
		case strings.HasPrefix(name, "X-Amz-Server-Side-Encryption"):
			return s3.New(s3.NotImplemented, "Encryption by the server is not offered.")
		case name == "X-Amz-Acl":
			if err := checkACL(values[0]); err != nil {
				return err
			}
		case name == "X-Amz-Tagging" && values[0] != "":
			return s3.New(s3.NotImplemented, "Object tags are not offered.")
		case name == "X-Amz-Write-Offset-Bytes":
			return s3.New(s3.NotImplemented, "Appending is not offered.")
		}
	}
	if v := c.query.Get("versionId"); v != "" && v != "null" {
		return s3.New(s3.NoSuchVersion, "").With("VersionId", v)
	}
	return nil
}

// objectMeta reads what a client sets on a new object.
func (c *call) objectMeta() (store.ObjectMeta, error) {
	user, err := s3.ParseUserMetadata(c.r.Header)
	if err != nil {
		return store.ObjectMeta{}, err
	}
	h, err := s3.ParseContentHeaders(c.r.Header)
	if err != nil {
		return store.ObjectMeta{}, err
	}
	return store.ObjectMeta{
		ContentType: h.ContentType, ContentEncoding: h.ContentEncoding, ContentDisposition: h.ContentDisposition,
		ContentLanguage: h.ContentLanguage, CacheControl: h.CacheControl, Expires: h.Expires,
		WebsiteRedirect: h.WebsiteRedirect, StorageClass: h.StorageClass, User: user,
	}, nil
}

// noTags is a list without an ETag, which matches nothing: an If-Match that names none asks for an object that is
// still as somebody knows it, and must not overwrite one blindly because the name got lost.
const noTags = ","

// writeConditions are those that count for a write: S3 defines no dates there.
func (c *call) writeConditions() store.Conditions {
	all := s3.ParseConditions(c.r.Header)
	if c.r.Header["If-Match"] != nil && strings.TrimSpace(all.IfMatch) == "" {
		all.IfMatch = noTags
	}
	return store.Conditions{IfMatch: all.IfMatch, IfNoneMatch: all.IfNoneMatch}
}

func (c *call) readConditions() store.Conditions {
	return store.Conditions(s3.ParseConditions(c.r.Header))
}

// defaultContentType is S3's, for objects that were stored without one.
const defaultContentType = "binary/octet-stream"

// describe sets the headers that say what an object is.
func (c *call) describe(info *store.ObjectInfo, overrides map[string]string) {
	h := c.w.Header()
	h["Etag"] = []string{quote(info.ETag)}
	h["Last-Modified"] = []string{info.Modified.UTC().Format(http.TimeFormat)}
	h["Accept-Ranges"] = acceptRanges
	m := &info.Meta
	contentType := m.ContentType
	if contentType == "" {
		contentType = defaultContentType
	}
	h["Content-Type"] = []string{contentType}
	set := func(name, value string) {
		if value != "" {
			h[name] = []string{value}
		}
	}
	set("Content-Encoding", m.ContentEncoding)
	set("Content-Disposition", m.ContentDisposition)
	set("Content-Language", m.ContentLanguage)
	set("Cache-Control", m.CacheControl)
	set("Expires", m.Expires)
	set("X-Amz-Website-Redirect-Location", m.WebsiteRedirect)
	if m.StorageClass != "STANDARD" {
		set("X-Amz-Storage-Class", m.StorageClass)
	}
	for name, value := range m.User {
		h["X-Amz-Meta-"+name] = []string{value} // S3 answers the names in lower case, clients compare any case
	}
	if info.PartCount > 0 && c.query.Has("partNumber") {
		h["X-Amz-Mp-Parts-Count"] = []string{strconv.Itoa(info.PartCount)}
	}
	for name, value := range overrides {
		h[name] = []string{value}
	}
}

// acceptRanges is shared by all answers; net/http only reads it.
var acceptRanges = []string{"bytes"}

func quote(etag string) string { return `"` + etag + `"` }

// wantsChecksum says whether the client asked for the stored checksums.
func (c *call) wantsChecksum() bool { return s3.ParseChecksumMode(c.r.Header) }

// setChecksums answers the checksums of a whole object or part: what the client once declared, or
// CRC64NVME when it declared nothing.
func setChecksums(h http.Header, sums []store.Checksum, crc uint64) {
	for _, s := range sums {
		if a, err := s3.ParseAlgorithm(s.Algorithm); err == nil && a != s3.NoAlgorithm {
			h[a.Header()] = []string{s.Value}
		}
	}
	if len(sums) == 0 {
		h[s3.CRC64NVME.Header()] = []string{checksum.Base64(crc)}
	}
	h["X-Amz-Checksum-Type"] = []string{string(typeOf(sums))}
}

func toStore(sums []s3.Checksum) []store.Checksum {
	var out []store.Checksum
	for _, s := range sums {
		out = append(out, store.Checksum{
			Algorithm: s.Algorithm.String(), Value: s.Value, Composite: strings.Contains(s.Value, "-"),
		})
	}
	return out
}

func toS3(sums []store.Checksum) []s3.Checksum {
	var out []s3.Checksum
	for _, s := range sums {
		if a, err := s3.ParseAlgorithm(s.Algorithm); err == nil {
			out = append(out, s3.Checksum{Algorithm: a, Value: s.Value})
		}
	}
	return out
}

// checksumType is the type of stored checksums, "" when there are none.
func checksumType(sums []store.Checksum) s3.ChecksumType {
	if len(sums) == 0 {
		return ""
	}
	return typeOf(sums)
}

// typeOf is the type of what is answered as checksums: CRC64NVME of the whole when none are stored.
func typeOf(sums []store.Checksum) s3.ChecksumType {
	for _, s := range sums {
		if s.Composite {
			return s3.Composite
		}
	}
	return s3.FullObject
}
