package gateway

import (
	"strconv"

	"github.com/penstock-store/penstock/internal/s3"
	"github.com/penstock-store/penstock/internal/store"
)

// pageSize reads max-keys and its like.
func (c *call) pageSize(name string) (int, error) { return s3.ParseLimit(name, c.query.Get(name)) }

func (c *call) encodingType() (url bool, err error) {
	switch c.query.Get("encoding-type") {
	case "":
		return false, nil
	case "url":
		return true, nil
	}
	return false, s3.New(s3.InvalidArgument, "The encoding-type is not valid.").With("ArgumentName", "encoding-type")
}

// listing reads what both versions share and gets the page.
func (c *call) listing(startAfter string) (r store.ListRequest, page store.ListPage, encode bool, err error) {
	r = store.ListRequest{
		Bucket: c.target.Bucket, Prefix: c.query.Get("prefix"), Delimiter: c.query.Get("delimiter"),
		StartAfter: startAfter,
	}
	if encode, err = c.encodingType(); err != nil {
		return r, page, false, err
	}
	if r.Limit, err = c.pageSize("max-keys"); err != nil {
		return r, page, false, err
	}
	if r.Limit == 0 { // nothing can be listed, but the bucket must exist
		_, err = c.g.o.Store.HeadBucket(c.r.Context(), r.Bucket)
		return r, page, encode, err
	}
	page, err = c.g.o.Store.List(c.r.Context(), r)
	return r, page, encode, err
}

func objectEntries(page store.ListPage, by *s3.Owner) []s3.ObjectEntry {
	entries := make([]s3.ObjectEntry, len(page.Objects))
	for i, o := range page.Objects {
		entries[i] = s3.ObjectEntry{
			Key: o.Key, Modified: o.Modified, ETag: o.ETag, Size: o.Size, StorageClass: o.Meta.StorageClass, Owner: by,
		}
		for _, sum := range o.Checksums {
			entries[i].Algorithms = append(entries[i].Algorithms, sum.Algorithm)
		}
		entries[i].ChecksumType = string(checksumType(o.Checksums))
	}
	return entries
}

func (c *call) listObjects() error {
	by, err := c.bucketOwner()
	if err != nil {
		return err
	}
	r, page, encode, err := c.listing(c.query.Get("marker"))
	if err != nil {
		return err
	}
	answer := s3.ListResult{
		Bucket: r.Bucket, Prefix: r.Prefix, Marker: r.StartAfter, Delimiter: r.Delimiter, MaxKeys: r.Limit,
		Truncated: page.Truncated, EncodeURL: encode, Objects: objectEntries(page, by), Prefixes: page.Prefixes,
	}
	if page.Truncated && r.Delimiter != "" { // without one, the last key is the marker
		answer.NextMarker = page.Last
	}
	return c.answerXML(answer)
}

func (c *call) listObjectsV2() error {
	startAfter, token := c.query.Get("start-after"), c.query.Get("continuation-token")
	from := startAfter
	if token != "" { // an empty one continues nothing
		var err error
		if from, err = decodeToken(token); err != nil {
			return err
		}
	}
	var by *s3.Owner
	if c.query.Get("fetch-owner") == "true" {
		var err error
		if by, err = c.bucketOwner(); err != nil {
			return err
		}
	}
	r, page, encode, err := c.listing(from)
	if err != nil {
		return err
	}
	answer := s3.ListV2Result{
		Bucket: r.Bucket, Prefix: r.Prefix, StartAfter: startAfter, Delimiter: r.Delimiter, MaxKeys: r.Limit,
		ContinuationToken: token, Continued: c.query.Has("continuation-token"), Truncated: page.Truncated, EncodeURL: encode,
		Objects: objectEntries(page, by), Prefixes: page.Prefixes,
	}
	if page.Truncated {
		answer.NextContinuationToken = encodeToken(page.Last)
	}
	return c.answerXML(answer)
}

// listVersions lists the objects as what they are in a bucket without versioning: the one version
// "null" of their key. Tools that empty a bucket list it so.
func (c *call) listVersions() error {
	keyMarker, idMarker := c.query.Get("key-marker"), c.query.Get("version-id-marker")
	switch {
	case idMarker == "":
	case keyMarker == "":
		return s3.New(s3.InvalidArgument, "A version-id marker cannot be specified without a key marker.")
	case idMarker != s3.NullVersion:
		return s3.New(s3.InvalidArgument, "The version-id-marker is not valid.")
	}
	by, err := c.bucketOwner()
	if err != nil {
		return err
	}
	r, page, encode, err := c.listing(keyMarker)
	if err != nil {
		return err
	}
	answer := s3.ListVersionsResult{
		Bucket: r.Bucket, Prefix: r.Prefix, KeyMarker: keyMarker, VersionIDMarker: idMarker, Delimiter: r.Delimiter,
		MaxKeys: r.Limit, Truncated: page.Truncated, EncodeURL: encode, Objects: objectEntries(page, by),
		Prefixes: page.Prefixes,
	}
	if page.Truncated {
		answer.NextKeyMarker = page.Last
		if n := len(page.Objects); n > 0 && page.Objects[n-1].Key == page.Last {
			answer.NextVersionIDMarker = s3.NullVersion
		}
	}
	return c.answerXML(answer)
}

func (c *call) bucketOwner() (*s3.Owner, error) {
	b, err := c.g.o.Store.HeadBucket(c.r.Context(), c.target.Bucket)
	if err != nil {
		return nil, err
	}
	by := owner(b.Owner)
	return &by, nil
}

func (c *call) listUploads() error {
	encode, err := c.encodingType()
	if err != nil {
		return err
	}
	limit, err := c.pageSize("max-uploads")
	if err != nil {
		return err
	}
	r := store.UploadListRequest{
		Bucket: c.target.Bucket, Prefix: c.query.Get("prefix"), Delimiter: c.query.Get("delimiter"),
		KeyMarker: c.query.Get("key-marker"), UploadIDMarker: c.query.Get("upload-id-marker"), Limit: limit,
	}
	var page store.UploadListPage
	if limit == 0 {
		_, err = c.g.o.Store.HeadBucket(c.r.Context(), r.Bucket)
	} else {
		page, err = c.g.o.Store.ListUploads(c.r.Context(), r)
	}
	if err != nil {
		return err
	}
	answer := s3.ListUploadsResult{
		Bucket: r.Bucket, KeyMarker: r.KeyMarker, UploadIDMarker: r.UploadIDMarker,
		NextKeyMarker: page.NextKeyMarker, NextUploadIDMarker: page.NextUploadIDMarker,
		Prefix: r.Prefix, Delimiter: r.Delimiter, MaxUploads: limit, Truncated: page.Truncated, EncodeURL: encode,
		Prefixes: page.Prefixes,
	}
	for _, u := range page.Uploads {
		answer.Uploads = append(answer.Uploads, s3.UploadEntry{
			Key: u.Key, UploadID: u.ID, Initiator: owner(u.Owner), Owner: owner(u.Owner), StorageClass: u.StorageClass,
			Initiated: u.Initiated, ChecksumAlgorithm: u.ChecksumAlgorithm, ChecksumType: u.ChecksumType,
		})
	}
	return c.answerXML(answer)
}

func (c *call) listParts() error {
	limit, err := c.pageSize("max-parts")
	if err != nil {
		return err
	}
	encode, err := c.encodingType()
	if err != nil {
		return err
	}
	after := 0
	if text := c.query.Get("part-number-marker"); text != "" {
		if after, err = strconv.Atoi(text); err != nil || after < 0 {
			return s3.New(s3.InvalidArgument, "The part-number-marker is not a number.")
		}
	}
	id := c.query.Get("uploadId")
	var page store.PartListPage
	if limit == 0 {
		page.Upload, err = c.g.o.Store.Upload(c.r.Context(), c.target.Bucket, c.target.Key, id)
	} else {
		page, err = c.g.o.Store.ListParts(c.r.Context(), store.PartListRequest{
			Bucket: c.target.Bucket, Key: c.target.Key, UploadID: id, After: after, Limit: limit,
		})
	}
	if err != nil {
		return err
	}
	u := page.Upload
	answer := s3.ListPartsResult{
		Bucket: c.target.Bucket, Key: c.target.Key, UploadID: id, Initiator: owner(u.Owner), Owner: owner(u.Owner),
		StorageClass: u.StorageClass, PartNumberMarker: after, NextPartNumber: page.Next, MaxParts: limit,
		Truncated: page.Truncated, EncodeURL: encode,
		ChecksumAlgorithm: u.ChecksumAlgorithm, ChecksumType: u.ChecksumType,
	}
	for _, p := range page.Parts {
		answer.Parts = append(answer.Parts, s3.PartEntry{
			Number: p.Number, Modified: p.Modified, ETag: p.ETag, Size: p.Size, Checksums: toS3(p.Checksums),
		})
	}
	return c.answerXML(answer)
}
