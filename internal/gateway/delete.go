package gateway

import (
	"net/http"
	"strconv"

	"github.com/penstock-store/penstock/internal/s3"
	"github.com/penstock-store/penstock/internal/store"
)

// maxDeleteBytes bounds a Delete document: 1,000 keys of 1,024 bytes, each byte escaped as an entity.
const maxDeleteBytes = 8 << 20

func (c *call) deleteObject() error {
	r := store.DeleteRequest{Bucket: c.target.Bucket, Key: c.target.Key, If: c.writeConditions()}
	var err error
	if r.Only, err = c.deleteOnly(); err != nil {
		return err
	}
	if err := c.g.o.Store.Delete(c.r.Context(), r); err != nil {
		return err
	}
	return c.answerEmpty(http.StatusNoContent)
}

// deleteOnly reads the limits by size and date. One that cannot be read is an error: a delete without
// it would be another one than was asked for.
func (c *call) deleteOnly() (only store.DeleteOnly, err error) {
	if text := c.r.Header.Get("X-Amz-If-Match-Size"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return only, s3.New(s3.InvalidArgument, "The x-amz-if-match-size is not a number.")
		}
		only.Size = &n
	}
	if text := c.r.Header.Get("X-Amz-If-Match-Last-Modified-Time"); text != "" {
		if only.Modified, err = http.ParseTime(text); err != nil {
			return only, s3.New(s3.InvalidArgument, "The x-amz-if-match-last-modified-time is not a date.")
		}
	}
	return only, nil
}

func (c *call) deleteObjects() error {
	text, release, err := c.document(maxDeleteBytes)
	if err != nil {
		return err
	}
	defer release()
	doc, err := s3.ReadDelete(newReader(text))
	if err != nil {
		return err
	}
	if _, err := c.g.o.Store.HeadBucket(c.r.Context(), c.target.Bucket); err != nil {
		return err
	}
	outcome := make([]error, len(doc.Objects))
	var requests []store.DeleteRequest
	var index []int
	for i, e := range doc.Objects {
		r, err := deleteRequest(e)
		if err != nil {
			outcome[i] = err
			continue
		}
		requests = append(requests, r)
		index = append(index, i)
	}
	if len(requests) > 0 {
		for j, err := range c.g.o.Store.DeleteMany(c.r.Context(), c.target.Bucket, requests) {
			outcome[index[j]] = err
		}
	}
	answer := s3.DeleteResult{Quiet: doc.Quiet}
	for i, e := range doc.Objects {
		if outcome[i] == nil {
			answer.Deleted = append(answer.Deleted, s3.Deleted{Key: e.Key, VersionID: e.VersionID})
			continue
		}
		failure := answerOf(outcome[i])
		answer.Failed = append(answer.Failed, s3.DeleteFailure{
			Key: e.Key, VersionID: e.VersionID, Code: failure.Code, Message: failure.Message,
		})
	}
	return c.answerXML(answer)
}

func deleteRequest(e s3.DeleteEntry) (store.DeleteRequest, error) {
	if err := s3.CheckKey(e.Key); err != nil {
		return store.DeleteRequest{}, err
	}
	if e.VersionID != "" && e.VersionID != "null" {
		return store.DeleteRequest{}, s3.New(s3.NoSuchVersion, "")
	}
	r := store.DeleteRequest{Key: e.Key, Only: store.DeleteOnly{Modified: e.Modified}}
	if e.Size >= 0 {
		r.Only.Size = &e.Size
	}
	if e.ETag != "" {
		r.If.IfMatch = e.ETag
	}
	return r, nil
}
