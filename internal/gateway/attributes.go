package gateway

import (
	"cmp"
	"net/http"
	"strconv"
	"strings"

	"github.com/penstock-store/penstock/internal/s3"
	"github.com/penstock-store/penstock/internal/store"
)

// headerAttributes names what GetObjectAttributes is to answer.
const headerAttributes = "x-amz-object-attributes"

// wantedAttributes reads the list of attributes, which may come in several lines.
func wantedAttributes(h http.Header) (map[string]bool, error) {
	wanted := map[string]bool{}
	for name := range strings.SplitSeq(strings.Join(h.Values(headerAttributes), ","), ",") {
		switch name = strings.TrimSpace(name); name {
		case "ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize":
			wanted[name] = true
		case "":
		default:
			return nil, s3.New(s3.InvalidArgument, "An attribute of that name does not exist.").
				With("ArgumentName", headerAttributes).With("ArgumentValue", name)
		}
	}
	if len(wanted) == 0 {
		return nil, s3.New(s3.InvalidRequest, "The "+headerAttributes+" header must name an attribute.")
	}
	return wanted, nil
}

// partPage reads the headers that page through the parts.
func (c *call) partPage() (after, limit int, err error) {
	if limit, err = s3.ParseLimit("x-amz-max-parts", c.r.Header.Get("X-Amz-Max-Parts")); err != nil {
		return 0, 0, err
	}
	if text := c.r.Header.Get("X-Amz-Part-Number-Marker"); text != "" {
		if after, err = strconv.Atoi(text); err != nil || after < 0 {
			return 0, 0, s3.New(s3.InvalidArgument, "The x-amz-part-number-marker is not a number.").
				With("ArgumentName", "x-amz-part-number-marker").With("ArgumentValue", text)
		}
	}
	return after, limit, nil
}

func (c *call) objectAttributes() error {
	wanted, err := wantedAttributes(c.r.Header)
	if err != nil {
		return err
	}
	after, limit, err := c.partPage()
	if err != nil {
		return err
	}
	r := store.AttributesRequest{Bucket: c.target.Bucket, Key: c.target.Key, If: c.readConditions(), After: after}
	if wanted["ObjectParts"] {
		r.Limit = limit
	}
	a, err := c.g.o.Store.Attributes(c.r.Context(), r)
	if err != nil {
		return c.readError(err, &a.Info)
	}
	info := &a.Info
	var answer s3.AttributesResult
	if wanted["ETag"] {
		answer.ETag = info.ETag
	}
	if wanted["Checksum"] {
		answer.Checksums = wholeChecksums(info)
		answer.ChecksumType = typeOf(info.Checksums)
	}
	if wanted["ObjectParts"] && info.PartCount > 0 {
		answer.Parts = objectParts(&a, after, limit)
	}
	if wanted["StorageClass"] {
		answer.StorageClass = cmp.Or(info.Meta.StorageClass, "STANDARD")
	}
	if wanted["ObjectSize"] {
		answer.Size = &info.Size
	}
	c.w.Header()["Last-Modified"] = []string{info.Modified.UTC().Format(http.TimeFormat)}
	return c.answerXML(answer)
}

// objectParts tells of the parts of a multipart object. S3 lists the parts themselves only when the checksum
// of the object is a composite of theirs; others list them always, and their sizes are worth knowing.
func objectParts(a *store.Attributes, after, limit int) *s3.ObjectParts {
	p := &s3.ObjectParts{
		Total: a.Info.PartCount, PartNumberMarker: after, NextPartNumber: after, MaxParts: limit, Truncated: a.Truncated,
	}
	for _, part := range a.Parts {
		p.Parts = append(p.Parts, s3.PartEntry{Number: part.Number, Size: part.Size, Checksums: toS3(part.Checksums)})
		p.NextPartNumber = part.Number
	}
	return p
}
