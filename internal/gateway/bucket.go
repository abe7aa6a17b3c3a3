package gateway

import (
	"errors"
	"net/http"
	"strconv"

	"github.com/penstock-store/penstock/internal/iam"
	"github.com/penstock-store/penstock/internal/s3"
	"github.com/penstock-store/penstock/internal/store"
)

// maxBuckets is the largest page of ListBuckets, and how many are answered when no page size is named.
const maxBuckets = 10_000

// maxCreateBucketBytes bounds a CreateBucketConfiguration: a region name and some markup.
const maxCreateBucketBytes = 64 << 10

func owner(principal string) s3.Owner { return s3.Owner{ID: principal, DisplayName: principal} }

func (c *call) listBuckets() error {
	want := maxBuckets
	if text := c.query.Get("max-buckets"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxBuckets {
			return s3.New(s3.InvalidArgument, "max-buckets is a number from 1 to 10000.")
		}
		want = n
	}
	r := store.ListBucketsRequest{Prefix: c.query.Get("prefix"), Owner: c.identity.Principal}
	if c.identity.Principal == iam.Root {
		r.Owner = ""
	}
	if text := c.query.Get("continuation-token"); text != "" {
		after, err := decodeToken(text)
		if err != nil {
			return err
		}
		r.After = after
	}
	answer := s3.ListBucketsResult{Owner: owner(c.identity.Principal), Prefix: r.Prefix}
	for want > 0 {
		r.Limit = min(want, store.MaxListLimit)
		page, err := c.g.o.Store.ListBuckets(c.r.Context(), r)
		if err != nil {
			return err
		}
		for _, b := range page.Buckets {
			entry := s3.BucketEntry{Name: b.Name, Created: b.Created, AWSRegion: b.AWSRegion}
			answer.Buckets = append(answer.Buckets, entry)
		}
		want -= len(page.Buckets)
		r.After = page.Last
		if !page.Truncated {
			return c.answerXML(answer)
		}
	}
	answer.ContinuationToken = encodeToken(r.After)
	return c.answerXML(answer)
}

func (c *call) createBucket() error {
	if err := s3.CheckBucketName(c.target.Bucket); err != nil {
		return err
	}
	if c.r.Header.Get("X-Amz-Bucket-Object-Lock-Enabled") == "true" {
		return s3.New(s3.NotImplemented, "Object lock is not offered.")
	}
	awsRegion := ""
	if c.r.ContentLength != 0 {
		text, release, err := c.document(maxCreateBucketBytes)
		if err != nil {
			return err
		}
		defer release()
		if awsRegion, err = s3.ReadCreateBucket(newReader(text)); err != nil {
			return err
		}
	}
	if awsRegion != "" && awsRegion != c.g.o.AWSRegion {
		return s3.New(s3.IllegalLocationConstraint, "")
	}
	b := store.BucketInfo{Name: c.target.Bucket, Owner: c.identity.Principal}
	_, err := c.g.o.Store.CreateBucket(c.r.Context(), b)
	if errors.Is(err, store.ErrBucketOwned) && c.g.o.AWSRegion == s3.DefaultRegion {
		err = nil // there, and only there, S3 takes it for a success
	}
	if err != nil {
		return err
	}
	c.w.Header()["Location"] = []string{"/" + c.target.Bucket}
	return c.answerEmpty(http.StatusOK)
}

func (c *call) headBucket() error {
	if _, err := c.g.o.Store.HeadBucket(c.r.Context(), c.target.Bucket); err != nil {
		return err
	}
	return c.answerEmpty(http.StatusOK)
}

func (c *call) deleteBucket() error {
	if err := c.g.o.Store.DeleteBucket(c.r.Context(), c.target.Bucket); err != nil {
		return err
	}
	return c.answerEmpty(http.StatusNoContent)
}

func (c *call) bucketLocation() error {
	b, err := c.g.o.Store.HeadBucket(c.r.Context(), c.target.Bucket)
	if err != nil {
		return err
	}
	return c.answerXML(s3.LocationResult{AWSRegion: b.AWSRegion})
}

// absent is how S3 says that a bucket does not have a configuration: a document that says so, or
// an error of its own.
type absent struct {
	document string // root element and content, without declaration; "" means the error
	code     s3.Code
}

// absentConfigs are the answers to GET for what no bucket here has. The codes and documents are those
// of the Amazon S3 API reference. Sub-resources that are not here are answered NotImplemented.
var absentConfigs = map[string]absent{
	"versioning":        {document: xmlElement("VersioningConfiguration", "")},
	"logging":           {document: xmlElement("BucketLoggingStatus", "")},
	"notification":      {document: xmlElement("NotificationConfiguration", "")},
	"accelerate":        {document: xmlElement("AccelerateConfiguration", "")},
	"requestPayment":    {document: xmlElement("RequestPaymentConfiguration", "<Payer>BucketOwner</Payer>")},
	"policy":            {code: "NoSuchBucketPolicy"},
	"policyStatus":      {code: "NoSuchBucketPolicy"},
	"cors":              {code: "NoSuchCORSConfiguration"},
	"website":           {code: "NoSuchWebsiteConfiguration"},
	"lifecycle":         {code: "NoSuchLifecycleConfiguration"},
	"tagging":           {code: "NoSuchTagSet"},
	"encryption":        {code: "ServerSideEncryptionConfigurationNotFoundError"},
	"replication":       {code: "ReplicationConfigurationNotFoundError"},
	"object-lock":       {code: "ObjectLockConfigurationNotFoundError"},
	"publicAccessBlock": {code: "NoSuchPublicAccessBlockConfiguration"},
	"ownershipControls": {code: "OwnershipControlsNotFoundError"},
}

func xmlElement(name, content string) string {
	return s3.Declaration + "<" + name + ` xmlns="` + s3.Namespace + `">` + content + "</" + name + ">"
}

func (c *call) bucketConfig() error {
	if _, err := c.g.o.Store.HeadBucket(c.r.Context(), c.target.Bucket); err != nil {
		return err
	}
	sub, _ := subresource(c.query)
	a := absentConfigs[sub]
	if a.document != "" {
		return c.answerBytes(http.StatusOK, xmlType, []byte(a.document))
	}
	return &s3.Error{Code: a.code, Status: http.StatusNotFound, Message: "The bucket has no such configuration."}
}

// objectTags answers an empty set: objects here have no tags, and clients that copy ask for them.
func (c *call) objectTags() error {
	r := store.OpenRequest{Bucket: c.target.Bucket, Key: c.target.Key}
	if _, err := c.g.o.Store.Stat(c.r.Context(), r); err != nil {
		return err
	}
	return c.answerBytes(http.StatusOK, xmlType, []byte(xmlElement("Tagging", "<TagSet></TagSet>")))
}
