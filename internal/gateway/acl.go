package gateway

import (
	"net/http"
	"slices"

	"github.com/penstock-store/penstock/internal/s3"
	"github.com/penstock-store/penstock/internal/store"
)

// cannedACLs are the values of x-amz-acl that S3 knows. The first ones give nothing away that the
// owner of the bucket does not have.
var cannedACLs = []string{"private", "bucket-owner-full-control", "bucket-owner-read",
	"public-read", "public-read-write", "authenticated-read", "aws-exec-read", "log-delivery-write"}

// ownerACLs is how many of cannedACLs say what holds here anyway.
const ownerACLs = 3

// checkACL refuses a canned ACL that would grant more than ownership does.
func checkACL(canned string) error {
	switch i := slices.Index(cannedACLs, canned); {
	case canned == "", i >= 0 && i < ownerACLs:
		return nil
	case i < 0:
		return s3.New(s3.InvalidArgument, "The x-amz-acl is not a canned ACL.").With("ArgumentName", "x-amz-acl")
	}
	return accessControlLists()
}

func accessControlLists() error {
	return &s3.Error{Code: "AccessControlListNotSupported", Status: http.StatusBadRequest,
		Message: "Access control lists that grant more than ownership are not offered."}
}

// aclOwner is who owns the bucket or object of the request, which must exist.
func (c *call) aclOwner() (*s3.Owner, error) {
	if c.target.Key != "" {
		r := store.OpenRequest{Bucket: c.target.Bucket, Key: c.target.Key}
		if _, err := c.g.o.Store.Stat(c.r.Context(), r); err != nil {
			return nil, err
		}
	}
	return c.bucketOwner()
}

// getACL answers what holds for every bucket and object here: its owner has full control, nobody else
// has any.
func (c *call) getACL() error {
	by, err := c.aclOwner()
	if err != nil {
		return err
	}
	return c.answerXML(s3.ACLResult{Owner: *by})
}

// putACL takes a canned ACL or a document that asks for what holds anyway, as s3cmd does when it
// copies: the ACL of the source is put on the target. Other canned ones were refused with the headers.
func (c *call) putACL() error {
	owner, err := c.aclOwner()
	if err != nil {
		return err
	}
	if c.r.ContentLength != 0 {
		return c.putACLDocument(owner.ID)
	}
	if c.r.Header.Get("X-Amz-Acl") == "" {
		return s3.New(s3.InvalidRequest, "The request names no ACL.")
	}
	return c.answerEmpty(http.StatusOK)
}

// putACLDocument refuses all but full control of the owner and nobody else.
func (c *call) putACLDocument(owner string) error {
	text, release, err := c.document(s3.MaxACLBody)
	if err != nil {
		return err
	}
	defer release()
	grants, err := s3.ReadACL(newReader(text))
	if err != nil {
		return err
	}
	holds := s3.Grant{Grantee: owner, Permission: "FULL_CONTROL"}
	if len(grants) == 0 || slices.ContainsFunc(grants, func(g s3.Grant) bool { return g != holds }) {
		return accessControlLists()
	}
	return c.answerEmpty(http.StatusOK)
}
