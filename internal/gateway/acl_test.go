package gateway_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/penstock-store/penstock/internal/gateway"
)

// TestACLs: the ACL of a bucket or object is what holds, its owner's full control; one that asks for
// this is taken, any other refused, and nothing is visible to others afterwards.
func TestACLs(t *testing.T) {
	n := newNode(t)
	root, alice, ctx := n.root(), n.alice(), context.Background()
	makeBucket(t, alice, "acls")
	put(t, alice, "acls", "k", []byte("x"))
	for _, c := range []*awss3.Client{alice, root} {
		b := must(c.GetBucketAcl(ctx, &awss3.GetBucketAclInput{Bucket: aws.String("acls")}))(t)
		o := must(c.GetObjectAcl(ctx, &awss3.GetObjectAclInput{Bucket: aws.String("acls"), Key: aws.String("k")}))(t)
		for _, a := range []*awss3.GetBucketAclOutput{b, {Owner: o.Owner, Grants: o.Grants}} {
			if *a.Owner.ID != "alice" || len(a.Grants) != 1 || *a.Grants[0].Grantee.ID != "alice" ||
				a.Grants[0].Grantee.Type != types.TypeCanonicalUser ||
				a.Grants[0].Permission != types.PermissionFullControl {
				t.Errorf("ACL %+v of %+v", a.Grants, a.Owner)
			}
		}
	}
	for _, path := range []string{"/acls?acl", "/acls/k?acl"} {
		for acl, status := range map[string]int{
			"private": 200, "bucket-owner-full-control": 200, "bucket-owner-read": 200, "": 400,
			"public-read": 400, "public-read-write": 400, "authenticated-read": 400, "log-delivery-write": 400,
			"aws-exec-read": 400, "public-ready": 400,
		} {
			got := n.send(request{method: "PUT", path: path, header: map[string]string{"X-Amz-Acl": acl}})
			if got.status != status {
				t.Errorf("PUT %s %q: %d %s", path, acl, got.status, got.body)
			}
		}
		putDocument := func(doc []byte) answer {
			return n.send(request{method: "PUT", path: path, body: bytes.NewReader(doc), length: int64(len(doc))})
		}
		own := n.send(request{method: "GET", path: path}).body
		if got := putDocument(own); got.status != 200 {
			t.Errorf("PUT %s of what GET answers: %d %s", path, got.status, got.body)
		}
		for _, change := range [][2]string{
			{"FULL_CONTROL", "READ"}, {"<ID>alice</ID><DisplayName>alice</DisplayName></Grantee>", "<ID>bob</ID></Grantee>"},
			{"</Grant>", "</Grant><Grant><Grantee><URI>http://acs.amazonaws.com/groups/global/AllUsers</URI></Grantee>" +
				"<Permission>READ</Permission></Grant>"},
		} {
			other := bytes.Replace(own, []byte(change[0]), []byte(change[1]), 1)
			if bytes.Equal(other, own) {
				t.Fatalf("%s is not in %s", change[0], own)
			}
			wantError(t, putDocument(other), 400, "AccessControlListNotSupported")
		}
		wantError(t, putDocument([]byte("<AccessControlPolicy/>")), 400, "AccessControlListNotSupported")
		wantError(t, putDocument([]byte("<Access")), 400, "MalformedXML")
		wantError(t, n.send(request{method: "PUT", path: path,
			header: map[string]string{"X-Amz-Grant-Read": "id=bob"}}), 400, "AccessControlListNotSupported")
		if got := n.send(request{method: "DELETE", path: path}); got.status != 501 {
			t.Errorf("DELETE %s: %d", path, got.status)
		}
	}
	_, err := alice.GetObjectAcl(ctx, &awss3.GetObjectAclInput{Bucket: aws.String("acls"), Key: aws.String("none")})
	wantCode(t, err, "NoSuchKey")
	_, err = root.GetBucketAcl(ctx, &awss3.GetBucketAclInput{Bucket: aws.String("nothere")})
	wantCode(t, err, "NoSuchBucket")
	makeBucket(t, root, "roots")
	_, err = alice.GetBucketAcl(ctx, &awss3.GetBucketAclInput{Bucket: aws.String("roots")})
	wantCode(t, err, "AccessDenied")
	_, err = alice.PutBucketAcl(ctx, &awss3.PutBucketAclInput{
		Bucket: aws.String("roots"), ACL: types.BucketCannedACLPrivate,
	})
	wantCode(t, err, "AccessDenied")
}

// TestCreateBucketAgain: creating an own bucket again is a success in us-east-1 and nowhere else, as in
// S3, and changes nothing; that of another is refused everywhere.
func TestCreateBucketAgain(t *testing.T) {
	for region, code := range map[string]string{"us-east-1": "", testRegion: "BucketAlreadyOwnedByYou"} {
		n := newNode(t, func(o *gateway.Options) { o.AWSRegion = region })
		in := func(o *awss3.Options) { o.Region = region }
		alice, root, ctx := awss3.New(n.alice().Options(), in), awss3.New(n.root().Options(), in), context.Background()
		create := func(c *awss3.Client) error {
			_, err := c.CreateBucket(ctx, &awss3.CreateBucketInput{Bucket: aws.String("again")})
			return err
		}
		if err := create(alice); err != nil {
			t.Fatal(err)
		}
		put(t, alice, "again", "k", []byte("x"))
		err := create(alice)
		if code == "" && err != nil {
			t.Errorf("%s: %v", region, err)
		} else if code != "" {
			wantCode(t, err, code)
		}
		wantCode(t, create(root), "BucketAlreadyExists")
		must(root.HeadObject(ctx, &awss3.HeadObjectInput{Bucket: aws.String("again"), Key: aws.String("k")}))(t)
		out := must(alice.ListBuckets(ctx, &awss3.ListBucketsInput{}))(t)
		if len(out.Buckets) != 1 || *out.Owner.ID != "alice" {
			t.Errorf("%s: %d buckets of %v", region, len(out.Buckets), out.Owner)
		}
	}
}

// TestEmptyContinuationToken: an empty token continues nothing and is answered as it came; it does not
// take the place of start-after.
func TestEmptyContinuationToken(t *testing.T) {
	n := newNode(t)
	makeBucket(t, n.root(), "tokens")
	for _, k := range []string{"a", "b"} {
		sendPut(n, "/tokens/"+k, []byte(k), nil)
	}
	got := n.send(request{method: "GET", path: "/tokens?list-type=2&continuation-token=&start-after=a"})
	if got.status != 200 || !bytes.Contains(got.body, []byte("<ContinuationToken></ContinuationToken>")) ||
		!bytes.Contains(got.body, []byte("<Key>b</Key>")) || bytes.Contains(got.body, []byte("<Key>a</Key>")) {
		t.Errorf("%d %s", got.status, got.body)
	}
	if got := n.send(request{method: "GET", path: "/tokens?list-type=2"}); bytes.Contains(got.body, []byte("Token")) {
		t.Errorf("%d %s", got.status, got.body)
	}
}
