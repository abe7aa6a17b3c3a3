package s3

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	// Declaration begins every XML answer.
	Declaration = `<?xml version="1.0" encoding="UTF-8"?>` + "\n"

	// xmlTime prints milliseconds, which AppendTime makes zero.
	xmlTime = "2006-01-02T15:04:05.000Z"

	// answerBytes is the first capacity of an answer; an entry of a listing takes about 300 bytes.
	answerBytes = 1024
)

// xmlWriter appends elements. Names come from this package and need no escaping.
type xmlWriter struct{ b []byte }

func (x *xmlWriter) open(name string) {
	x.b = append(append(append(x.b, '<'), name...), '>')
}

func (x *xmlWriter) root(name string) {
	x.b = append(append(append(x.b, '<'), name...), ` xmlns="`+Namespace+`">`...)
}

func (x *xmlWriter) close(name string) {
	x.b = append(append(append(x.b, "</"...), name...), '>')
}

// text writes an element, also when the value is empty.
func (x *xmlWriter) text(name, value string) {
	x.open(name)
	x.b = appendXMLText(x.b, value)
	x.close(name)
}

// optional writes an element unless the value is empty.
func (x *xmlWriter) optional(name, value string) {
	if value != "" {
		x.text(name, value)
	}
}

// listed writes a key or prefix, encoded when the client asked for it.
func (x *xmlWriter) listed(name, value string, encode bool) {
	if !encode {
		x.text(name, value)
		return
	}
	x.open(name)
	x.b = appendListEscaped(x.b, value)
	x.close(name)
}

func (x *xmlWriter) number(name string, n int64) {
	x.open(name)
	x.b = strconv.AppendInt(x.b, n, 10)
	x.close(name)
}

func (x *xmlWriter) flag(name string, v bool) {
	x.open(name)
	x.b = strconv.AppendBool(x.b, v)
	x.close(name)
}

func (x *xmlWriter) time(name string, t time.Time) {
	x.open(name)
	x.b = AppendTime(x.b, t)
	x.close(name)
}

func (x *xmlWriter) etag(tag string) {
	x.b = append(x.b, "<ETag>&quot;"...)
	x.b = appendXMLText(x.b, tag)
	x.b = append(x.b, "&quot;</ETag>"...)
}

func (x *xmlWriter) owner(name string, o Owner) {
	x.open(name)
	x.text("ID", o.ID)
	x.text("DisplayName", o.DisplayName)
	x.close(name)
}

func (x *xmlWriter) checksums(list []Checksum) {
	for _, c := range list {
		x.text(c.Algorithm.Element(), c.Value)
	}
}

func (x *xmlWriter) prefixes(list []string, encode bool) {
	for _, p := range list {
		x.open("CommonPrefixes")
		x.listed("Prefix", p, encode)
		x.close("CommonPrefixes")
	}
}

// AppendTime appends a time as it stands in XML answers: ISO 8601, UTC, milliseconds always .000, so
// that it equals the Last-Modified header.
func AppendTime(dst []byte, t time.Time) []byte {
	return t.UTC().Truncate(time.Second).AppendFormat(dst, xmlTime)
}

// appendXMLText escapes a value. Characters that XML 1.0 cannot carry become U+FFFD: the document
// must stay readable, and clients that need such keys ask for encoding-type=url.
func appendXMLText(dst []byte, s string) []byte {
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			i++
			dst = appendXMLByte(dst, c)
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 || r == 0xFFFE || r == 0xFFFF {
			dst = append(dst, "\uFFFD"...)
		} else {
			dst = append(dst, s[i:i+n]...)
		}
		i += n
	}
	return dst
}

func appendXMLByte(dst []byte, c byte) []byte {
	switch c {
	case '&':
		return append(dst, "&amp;"...)
	case '<':
		return append(dst, "&lt;"...)
	case '>':
		return append(dst, "&gt;"...)
	case '"':
		return append(dst, "&quot;"...)
	case '\t':
		return append(dst, "&#x9;"...)
	case '\n':
		return append(dst, "&#xA;"...)
	case '\r':
		return append(dst, "&#xD;"...)
	}
	if c < ' ' {
		return append(dst, "\uFFFD"...)
	}
	return append(dst, c)
}

// Marshal returns a message as an XML document with declaration and namespace.
func Marshal(m Message) []byte {
	x := xmlWriter{b: make([]byte, 0, answerBytes)}
	x.b = append(x.b, Declaration...)
	m.encode(&x)
	return x.b
}

// MarshalElement is Marshal without the declaration, for an answer that has begun with it.
func MarshalElement(m Message) []byte {
	x := xmlWriter{b: make([]byte, 0, answerBytes)}
	m.encode(&x)
	return x.b
}

// AppendXML appends the error document. S3 gives it no namespace.
func (e *Error) AppendXML(dst []byte) []byte {
	return e.AppendElement(append(dst, Declaration...))
}

// AppendElement is AppendXML without the declaration.
func (e *Error) AppendElement(dst []byte) []byte {
	x := xmlWriter{b: dst}
	x.open("Error")
	x.text("Code", string(e.Code))
	x.text("Message", e.Message)
	for _, f := range e.Fields {
		x.text(f.Name, f.Value)
	}
	x.optional("Resource", e.Resource)
	x.optional("RequestId", e.RequestID)
	x.optional("HostId", e.HostID)
	x.close("Error")
	return x.b
}

func (m ListBucketsResult) encode(x *xmlWriter) {
	x.root("ListAllMyBucketsResult")
	x.owner("Owner", m.Owner)
	x.open("Buckets")
	for _, b := range m.Buckets {
		x.open("Bucket")
		x.text("Name", b.Name)
		x.time("CreationDate", b.Created)
		x.optional("BucketRegion", b.AWSRegion)
		x.close("Bucket")
	}
	x.close("Buckets")
	x.optional("ContinuationToken", m.ContinuationToken)
	x.optional("Prefix", m.Prefix)
	x.close("ListAllMyBucketsResult")
}

func (m ListResult) encode(x *xmlWriter) {
	x.root("ListBucketResult")
	x.text("Name", m.Bucket)
	x.listed("Prefix", m.Prefix, m.EncodeURL)
	x.listed("Marker", m.Marker, m.EncodeURL)
	if m.NextMarker != "" {
		x.listed("NextMarker", m.NextMarker, m.EncodeURL)
	}
	x.number("MaxKeys", int64(m.MaxKeys))
	x.delimiter(m.Delimiter, m.EncodeURL)
	x.flag("IsTruncated", m.Truncated)
	x.objects(m.Objects, m.EncodeURL)
	x.prefixes(m.Prefixes, m.EncodeURL)
	x.close("ListBucketResult")
}

func (m ListV2Result) encode(x *xmlWriter) {
	x.root("ListBucketResult")
	x.text("Name", m.Bucket)
	x.listed("Prefix", m.Prefix, m.EncodeURL)
	if m.StartAfter != "" {
		x.listed("StartAfter", m.StartAfter, m.EncodeURL)
	}
	if m.Continued {
		x.text("ContinuationToken", m.ContinuationToken)
	}
	x.optional("NextContinuationToken", m.NextContinuationToken)
	x.number("KeyCount", int64(len(m.Objects)+len(m.Prefixes)))
	x.number("MaxKeys", int64(m.MaxKeys))
	x.delimiter(m.Delimiter, m.EncodeURL)
	x.flag("IsTruncated", m.Truncated)
	x.objects(m.Objects, m.EncodeURL)
	x.prefixes(m.Prefixes, m.EncodeURL)
	x.close("ListBucketResult")
}

func (x *xmlWriter) delimiter(d string, encode bool) {
	if d != "" {
		x.listed("Delimiter", d, encode)
	}
	if encode {
		x.text("EncodingType", "url")
	}
}

func (x *xmlWriter) objects(list []ObjectEntry, encode bool) {
	for i := range list {
		o := &list[i]
		x.open("Contents")
		x.listed("Key", o.Key, encode)
		x.object(o)
		x.close("Contents")
	}
}

// object writes what every kind of listing says of an object behind its key.
func (x *xmlWriter) object(o *ObjectEntry) {
	x.time("LastModified", o.Modified)
	x.etag(o.ETag)
	for _, a := range o.Algorithms {
		x.text("ChecksumAlgorithm", a)
	}
	x.optional("ChecksumType", o.ChecksumType)
	x.number("Size", o.Size)
	if o.Owner != nil {
		x.owner("Owner", *o.Owner)
	}
	x.storageClass(o.StorageClass)
}

func (m ListVersionsResult) encode(x *xmlWriter) {
	x.root("ListVersionsResult")
	x.text("Name", m.Bucket)
	x.listed("Prefix", m.Prefix, m.EncodeURL)
	x.listed("KeyMarker", m.KeyMarker, m.EncodeURL)
	x.text("VersionIdMarker", m.VersionIDMarker)
	if m.Truncated {
		x.listed("NextKeyMarker", m.NextKeyMarker, m.EncodeURL)
		x.optional("NextVersionIdMarker", m.NextVersionIDMarker)
	}
	x.number("MaxKeys", int64(m.MaxKeys))
	x.delimiter(m.Delimiter, m.EncodeURL)
	x.flag("IsTruncated", m.Truncated)
	for i := range m.Objects {
		o := &m.Objects[i]
		x.open("Version")
		x.listed("Key", o.Key, m.EncodeURL)
		x.text("VersionId", NullVersion)
		x.flag("IsLatest", true)
		x.object(o)
		x.close("Version")
	}
	x.prefixes(m.Prefixes, m.EncodeURL)
	x.close("ListVersionsResult")
}

func (x *xmlWriter) storageClass(class string) {
	if class == "" {
		class = "STANDARD"
	}
	x.text("StorageClass", class)
}

func (m LocationResult) encode(x *xmlWriter) {
	x.root("LocationConstraint")
	if m.AWSRegion != DefaultRegion {
		x.b = appendXMLText(x.b, m.AWSRegion)
	}
	x.close("LocationConstraint")
}

func (m ACLResult) encode(x *xmlWriter) {
	x.root("AccessControlPolicy")
	x.owner("Owner", m.Owner)
	x.open("AccessControlList")
	x.open("Grant")
	x.b = append(x.b, `<Grantee xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="CanonicalUser">`...)
	x.text("ID", m.Owner.ID)
	x.text("DisplayName", m.Owner.DisplayName)
	x.close("Grantee")
	x.text("Permission", "FULL_CONTROL")
	x.close("Grant")
	x.close("AccessControlList")
	x.close("AccessControlPolicy")
}

func (m DeleteResult) encode(x *xmlWriter) {
	x.root("DeleteResult")
	if !m.Quiet {
		for _, d := range m.Deleted {
			x.open("Deleted")
			x.text("Key", d.Key)
			x.optional("VersionId", d.VersionID)
			x.close("Deleted")
		}
	}
	for _, f := range m.Failed {
		x.open("Error")
		x.text("Key", f.Key)
		x.optional("VersionId", f.VersionID)
		x.text("Code", string(f.Code))
		x.text("Message", f.Message)
		x.close("Error")
	}
	x.close("DeleteResult")
}

func (m CopyObjectResult) encode(x *xmlWriter) {
	x.root("CopyObjectResult")
	x.time("LastModified", m.Modified)
	x.etag(m.ETag)
	x.optional("ChecksumType", string(m.ChecksumType))
	x.checksums(m.Checksums)
	x.close("CopyObjectResult")
}

func (m CopyPartResult) encode(x *xmlWriter) {
	x.root("CopyPartResult")
	x.time("LastModified", m.Modified)
	x.etag(m.ETag)
	x.checksums(m.Checksums)
	x.close("CopyPartResult")
}

func (m InitiateResult) encode(x *xmlWriter) {
	x.root("InitiateMultipartUploadResult")
	x.text("Bucket", m.Bucket)
	x.text("Key", m.Key)
	x.text("UploadId", m.UploadID)
	x.close("InitiateMultipartUploadResult")
}

func (m CompleteResult) encode(x *xmlWriter) {
	x.root("CompleteMultipartUploadResult")
	x.text("Location", m.Location)
	x.text("Bucket", m.Bucket)
	x.text("Key", m.Key)
	x.etag(m.ETag)
	x.checksums(m.Checksums)
	x.optional("ChecksumType", string(m.ChecksumType))
	x.close("CompleteMultipartUploadResult")
}

func (m ListPartsResult) encode(x *xmlWriter) {
	x.root("ListPartsResult")
	x.text("Bucket", m.Bucket)
	x.listed("Key", m.Key, m.EncodeURL)
	x.text("UploadId", m.UploadID)
	if m.EncodeURL {
		x.text("EncodingType", "url")
	}
	x.owner("Initiator", m.Initiator)
	x.owner("Owner", m.Owner)
	x.storageClass(m.StorageClass)
	x.number("PartNumberMarker", int64(m.PartNumberMarker))
	if m.Truncated {
		x.number("NextPartNumberMarker", int64(m.NextPartNumber))
	}
	x.number("MaxParts", int64(m.MaxParts))
	x.flag("IsTruncated", m.Truncated)
	x.optional("ChecksumAlgorithm", m.ChecksumAlgorithm)
	x.optional("ChecksumType", m.ChecksumType)
	for _, p := range m.Parts {
		x.open("Part")
		x.number("PartNumber", int64(p.Number))
		x.time("LastModified", p.Modified)
		x.etag(p.ETag)
		x.number("Size", p.Size)
		x.checksums(p.Checksums)
		x.close("Part")
	}
	x.close("ListPartsResult")
}

func (m AttributesResult) encode(x *xmlWriter) {
	x.root("GetObjectAttributesResponse")
	x.optional("ETag", m.ETag) // the one place where S3 answers an ETag without quotes
	if len(m.Checksums) > 0 {
		x.open("Checksum")
		for _, c := range m.Checksums {
			value, _, _ := strings.Cut(c.Value, "-")
			x.text(c.Algorithm.Element(), value)
		}
		x.optional("ChecksumType", string(m.ChecksumType))
		x.close("Checksum")
	}
	if m.Parts != nil {
		m.Parts.encode(x)
	}
	x.optional("StorageClass", m.StorageClass)
	if m.Size != nil {
		x.number("ObjectSize", *m.Size)
	}
	x.close("GetObjectAttributesResponse")
}

func (p *ObjectParts) encode(x *xmlWriter) {
	x.open("ObjectParts")
	x.number("PartsCount", int64(p.Total))
	x.number("PartNumberMarker", int64(p.PartNumberMarker))
	x.number("NextPartNumberMarker", int64(p.NextPartNumber))
	x.number("MaxParts", int64(p.MaxParts))
	x.flag("IsTruncated", p.Truncated)
	for _, part := range p.Parts {
		x.open("Part")
		x.checksums(part.Checksums)
		x.number("PartNumber", int64(part.Number))
		x.number("Size", part.Size)
		x.close("Part")
	}
	x.close("ObjectParts")
}

func (m ListUploadsResult) encode(x *xmlWriter) {
	x.root("ListMultipartUploadsResult")
	x.text("Bucket", m.Bucket)
	x.listed("KeyMarker", m.KeyMarker, m.EncodeURL)
	x.text("UploadIdMarker", m.UploadIDMarker)
	if m.Truncated {
		x.listed("NextKeyMarker", m.NextKeyMarker, m.EncodeURL)
		x.text("NextUploadIdMarker", m.NextUploadIDMarker)
	}
	x.listed("Prefix", m.Prefix, m.EncodeURL)
	x.delimiter(m.Delimiter, m.EncodeURL)
	x.number("MaxUploads", int64(m.MaxUploads))
	x.flag("IsTruncated", m.Truncated)
	for _, u := range m.Uploads {
		x.open("Upload")
		x.listed("Key", u.Key, m.EncodeURL)
		x.text("UploadId", u.UploadID)
		x.owner("Initiator", u.Initiator)
		x.owner("Owner", u.Owner)
		x.storageClass(u.StorageClass)
		x.time("Initiated", u.Initiated)
		x.optional("ChecksumAlgorithm", u.ChecksumAlgorithm)
		x.optional("ChecksumType", u.ChecksumType)
		x.close("Upload")
	}
	x.prefixes(m.Prefixes, m.EncodeURL)
	x.close("ListMultipartUploadsResult")
}
