package gateway_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// TestListVersions: a bucket without versioning lists each object as the one version "null" of its
// key, page by page, and what was listed so can be deleted by its id. The oracle is the set of keys.
func TestListVersions(t *testing.T) {
	n := newNode(t)
	c, ctx := n.root(), context.Background()
	makeBucket(t, c, "versions")
	var keys []string
	for i := range 9 {
		keys = append(keys, fmt.Sprintf("a/%02d", i), fmt.Sprintf("b +%%/%02d", i))
	}
	keys = append(keys, "top", "zäh")
	for _, k := range keys {
		put(t, c, "versions", k, []byte(k))
	}
	slices.Sort(keys)

	var got []string
	var listed []types.ObjectIdentifier
	in := &awss3.ListObjectVersionsInput{Bucket: aws.String("versions"), MaxKeys: aws.Int32(7)}
	for {
		page := must(c.ListObjectVersions(ctx, in))(t)
		for _, v := range page.Versions {
			got = append(got, *v.Key)
			listed = append(listed, types.ObjectIdentifier{Key: v.Key, VersionId: v.VersionId})
			if *v.VersionId != "null" || !*v.IsLatest || *v.Size != int64(len(*v.Key)) || *v.Owner.ID != "root" {
				t.Errorf("entry %+v", v)
			}
		}
		if !*page.IsTruncated {
			break
		}
		if aws.ToString(page.NextVersionIdMarker) != "null" {
			t.Errorf("NextVersionIdMarker %v after a key", page.NextVersionIdMarker)
		}
		in.KeyMarker, in.VersionIdMarker = page.NextKeyMarker, page.NextVersionIdMarker
	}
	if !slices.Equal(got, keys) {
		t.Errorf("listed %q\nwant %q", got, keys)
	}

	rolled := must(c.ListObjectVersions(ctx, &awss3.ListObjectVersionsInput{
		Bucket: aws.String("versions"), Delimiter: aws.String("/"), MaxKeys: aws.Int32(1),
	}))(t)
	if len(rolled.CommonPrefixes) != 1 || *rolled.CommonPrefixes[0].Prefix != "a/" ||
		aws.ToString(rolled.NextKeyMarker) != "a/" || aws.ToString(rolled.NextVersionIdMarker) != "" {
		t.Errorf("rolled up %+v", rolled)
	}

	_, err := c.ListObjectVersions(ctx, &awss3.ListObjectVersionsInput{
		Bucket: aws.String("versions"), VersionIdMarker: aws.String("null"),
	})
	wantCode(t, err, "InvalidArgument")
	_, err = c.ListObjectVersions(ctx, &awss3.ListObjectVersionsInput{
		Bucket: aws.String("versions"), KeyMarker: aws.String("top"), VersionIdMarker: aws.String("3"),
	})
	wantCode(t, err, "InvalidArgument")
	_, err = c.ListObjectVersions(ctx, &awss3.ListObjectVersionsInput{Bucket: aws.String("nothere")})
	wantCode(t, err, "NoSuchBucket")

	out := must(c.DeleteObjects(ctx, &awss3.DeleteObjectsInput{
		Bucket: aws.String("versions"), Delete: &types.Delete{Objects: listed},
	}))(t)
	if len(out.Errors) != 0 || len(out.Deleted) != len(keys) {
		t.Errorf("deleted %d of %d, errors %+v", len(out.Deleted), len(keys), out.Errors)
	}
	must(c.DeleteBucket(ctx, &awss3.DeleteBucketInput{Bucket: aws.String("versions")}))(t)
}
