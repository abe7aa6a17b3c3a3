package e2e

import (
	"bytes"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

func (o *operator) attributes() { o.compareAttributes(o.key()) }

// compareAttributes reads the attributes, the parts by small pages. The composite of a checksum is answered without
// its number of parts, as by S3.
func (o *operator) compareAttributes(key string) {
	want, ok := o.world.objects[key]
	var parts []types.ObjectPart
	marker := ""
	for {
		out, err := o.sdk().GetObjectAttributes(o.t.Context(), &awss3.GetObjectAttributesInput{
			Bucket: aws.String(opsBucket), Key: &key, ObjectAttributes: types.ObjectAttributes("").Values(),
			MaxParts: aws.Int32(2), PartNumberMarker: optional(marker),
		})
		if !ok {
			o.outcome("attributes of "+key, err, []string{"NoSuchKey"})
			return
		}
		if err != nil {
			o.failf("attributes of %s: %v", key, err)
		}
		sums := sums{}
		for a, v := range want.sums {
			sums[a], _, _ = strings.Cut(v, "-")
		}
		c := out.Checksum
		got := answered(c.ChecksumCRC32, c.ChecksumCRC32C, c.ChecksumCRC64NVME, c.ChecksumSHA1, c.ChecksumSHA256)
		if *out.ETag != want.etag || *out.ObjectSize != int64(len(want.body)) || c.ChecksumType != want.kind ||
			!maps.Equal(got, sums) {
			o.failf("attributes of %s: %s, %d bytes, %v %s, want %v %s", key, *out.ETag, *out.ObjectSize, got,
				c.ChecksumType, sums, want.kind)
		}
		if out.ObjectParts == nil || len(want.parts) == 0 {
			break
		}
		if int(*out.ObjectParts.TotalPartsCount) != len(want.parts) {
			o.failf("attributes of %s: %d parts, want %d", key, *out.ObjectParts.TotalPartsCount, len(want.parts))
		}
		parts = append(parts, out.ObjectParts.Parts...)
		if !aws.ToBool(out.ObjectParts.IsTruncated) {
			break
		}
		marker = *out.ObjectParts.NextPartNumberMarker
	}
	if len(parts) != len(want.parts) {
		o.failf("attributes of %s: %d parts, want %d", key, len(parts), len(want.parts))
	}
	for i, p := range parts {
		w := want.parts[i]
		got := answered(p.ChecksumCRC32, p.ChecksumCRC32C, p.ChecksumCRC64NVME, p.ChecksumSHA1, p.ChecksumSHA256)
		if int(*p.PartNumber) != w.number || *p.Size != int64(len(w.body)) || !maps.Equal(got, w.sums) {
			o.failf("attributes of %s: part %d of %d bytes, %v; want %d of %d, %v", key, *p.PartNumber, *p.Size, got,
				w.number, len(w.body), w.sums)
		}
	}
}

func escaped(key string) *string {
	return aws.String(opsBucket + "/" + strings.ReplaceAll(url.QueryEscape(key), "+", "%20"))
}

// source judges the condition on the source of a copy.
func (o *operator) source(key string) (match *string, faults []string) {
	src, ok := o.world.objects[key]
	switch {
	case !ok:
		return nil, []string{"NoSuchKey"}
	case o.chance(6):
		return aws.String(quoted("other")), []string{"PreconditionFailed"}
	case o.chance(3):
		return aws.String(quoted(src.etag)), nil
	}
	return nil, nil
}

func (o *operator) copy() {
	from, to, a := o.key(), o.key(), o.algorithm()
	match, faults := o.source(from)
	c := o.conditions(to)
	faults = append(faults, c.faults...)
	if from == to && a == "" {
		faults = append(faults, "InvalidRequest")
	}
	out, err := o.sdk().CopyObject(o.t.Context(), &awss3.CopyObjectInput{
		Bucket: aws.String(opsBucket), Key: &to, CopySource: escaped(from), ChecksumAlgorithm: a,
		CopySourceIfMatch: match, IfMatch: c.match, IfNoneMatch: c.noneMatch,
	})
	if !o.outcome(fmt.Sprintf("copy %s to %s, %s", from, to, a), err, faults) {
		return
	}
	now := copyOf(o.world.objects[from], a)
	r := out.CopyObjectResult
	got := answered(r.ChecksumCRC32, r.ChecksumCRC32C, r.ChecksumCRC64NVME, r.ChecksumSHA1, r.ChecksumSHA256)
	if *r.ETag != quoted(now.etag) || !maps.Equal(got, now.sums) || r.ChecksumType != now.kind {
		o.failf("copy %s to %s: %s %v %s, want %s %v", from, to, *r.ETag, got, r.ChecksumType, now.etag, now.sums)
	}
	o.world.objects[to] = now
	o.compare(to)
}

// limits are the conditions of a delete.
func (o *operator) limits(key string) (tag *string, size *int64, at *time.Time, faults []string) {
	now, ok := o.world.objects[key]
	right := o.chance(2)
	bad := func(missing []string) []string {
		switch {
		case !ok:
			return missing
		case !right:
			return []string{"PreconditionFailed"}
		}
		return nil
	}
	switch o.random.IntN(5) {
	case 0:
		tag = aws.String(quoted("other"))
		if right && ok {
			tag = aws.String(quoted(now.etag))
		}
		return tag, nil, nil, bad([]string{"NoSuchKey"})
	case 1:
		size = aws.Int64(int64(len(now.body)))
		if !right {
			*size++
		}
		return nil, size, nil, bad(nil)
	case 2:
		if now.modified.IsZero() {
			break
		}
		at = aws.Time(now.modified)
		if !right {
			at = aws.Time(now.modified.Add(-time.Second))
		}
		return nil, nil, at, bad(nil)
	}
	return nil, nil, nil, nil
}

func (o *operator) remove() {
	key := o.key()
	tag, size, at, faults := o.limits(key)
	_, err := o.sdk().DeleteObject(o.t.Context(), &awss3.DeleteObjectInput{
		Bucket: aws.String(opsBucket), Key: &key, IfMatch: tag, IfMatchSize: size, IfMatchLastModifiedTime: at,
	})
	if o.outcome("delete "+key, err, faults) {
		delete(o.world.objects, key)
	}
	o.compare(key)
}

func (o *operator) removeMany() {
	var doc types.Delete
	want := map[string]string{} // key → code
	for range 1 + o.random.IntN(3) {
		key := o.key()
		if _, twice := want[key]; twice {
			continue
		}
		tag, size, at, faults := o.limits(key)
		doc.Objects = append(doc.Objects, types.ObjectIdentifier{Key: &key, ETag: tag, Size: size, LastModifiedTime: at})
		want[key] = strings.Join(faults, "")
	}
	out, err := o.sdk().DeleteObjects(o.t.Context(), &awss3.DeleteObjectsInput{
		Bucket: aws.String(opsBucket), Delete: &doc,
	})
	if !o.outcome(fmt.Sprintf("delete many %v", want), err, nil) {
		return
	}
	got := map[string]string{}
	for _, d := range out.Deleted {
		got[*d.Key] = ""
		delete(o.world.objects, *d.Key)
	}
	for _, e := range out.Errors {
		got[*e.Key] = *e.Code
	}
	if !maps.Equal(got, want) {
		o.failf("delete many: %v, want %v", got, want)
	}
	for key := range want {
		o.compare(key)
	}
}

func (o *operator) create() {
	if len(o.world.uploads) > 4 {
		return
	}
	u := &pending{key: o.key(), algorithm: o.algorithm(), parts: map[int]thing{}}
	in := &awss3.CreateMultipartUploadInput{Bucket: aws.String(opsBucket), Key: &u.key, ChecksumAlgorithm: u.algorithm}
	switch u.algorithm {
	case "":
	case types.ChecksumAlgorithmCrc64nvme:
		u.kind = types.ChecksumTypeFullObject
	default:
		u.kind = types.ChecksumTypeComposite
		if strings.HasPrefix(string(u.algorithm), "CRC") && o.chance(2) {
			u.kind = types.ChecksumTypeFullObject
			in.ChecksumType = u.kind
		}
	}
	out, err := o.sdk().CreateMultipartUpload(o.t.Context(), in, plain(u.algorithm))
	if o.outcome(fmt.Sprintf("create %s %s %s", u.key, u.algorithm, u.kind), err, nil) {
		u.id = *out.UploadId
		o.world.uploads = append(o.world.uploads, u)
	}
}

func (o *operator) upload() *pending {
	if len(o.world.uploads) == 0 {
		o.create()
	}
	return o.world.uploads[o.random.IntN(len(o.world.uploads))]
}

func (o *operator) part() {
	u, number, p := o.upload(), 1+o.random.IntN(4), o.body()
	if o.chance(2) {
		at := o.random.IntN(len(o.pattern) - partBytes)
		p = bytes.Clone(o.pattern[at : at+partBytes])
	}
	a := o.algorithm()
	out, err := o.sdk().UploadPart(o.t.Context(), &awss3.UploadPartInput{
		Bucket: aws.String(opsBucket), Key: &u.key, UploadId: &u.id, PartNumber: aws.Int32(int32(number)),
		Body: bytes.NewReader(p), ChecksumAlgorithm: a,
	}, plain(a))
	if !o.outcome(fmt.Sprintf("part %d of %s, %d bytes, %s", number, u.key, len(p), a), err, nil) {
		return
	}
	now, err := stored(paths[o.path], p, a, *out.ETag)
	if err != nil {
		o.failf("part %d: %v", number, err)
	}
	if a == "" && (o.path == 0 || len(p) == 0) { // nothing was declared: only the upload's is kept
		now.sums = sums{}
	}
	maps.Copy(now.sums, sumsOf(p, u.algorithm))
	u.parts[number] = now
	o.compareParts(u)
}

func (o *operator) partCopy() {
	u, number, from := o.upload(), 1+o.random.IntN(4), o.key()
	match, faults := o.source(from)
	in := &awss3.UploadPartCopyInput{
		Bucket: aws.String(opsBucket), Key: &u.key, UploadId: &u.id, PartNumber: aws.Int32(int32(number)),
		CopySource: escaped(from), CopySourceIfMatch: match,
	}
	body := o.world.objects[from].body
	switch {
	case o.chance(8):
		in.CopySourceRange = aws.String(fmt.Sprintf("bytes=0-%d", len(body)))
		faults = append(faults, "InvalidArgument")
	case len(body) > 0 && o.chance(2):
		first := o.random.IntN(len(body))
		last := first + o.random.IntN(len(body)-first)
		in.CopySourceRange = aws.String(fmt.Sprintf("bytes=%d-%d", first, last))
		body = body[first : last+1]
	}
	out, err := o.sdk().UploadPartCopy(o.t.Context(), in)
	if !o.outcome(fmt.Sprintf("copy %s %s to part %d of %s", from, aws.ToString(in.CopySourceRange), number, u.key),
		err, faults) {
		return
	}
	now := thing{body: body, etag: md5Of(body), sums: sumsOf(body, u.algorithm)}
	r := out.CopyPartResult
	got := answered(r.ChecksumCRC32, r.ChecksumCRC32C, r.ChecksumCRC64NVME, r.ChecksumSHA1, r.ChecksumSHA256)
	if *r.ETag != quoted(now.etag) || !maps.Equal(got, now.sums) {
		o.failf("copy to part %d: %s %v, want %s %v", number, *r.ETag, got, now.etag, now.sums)
	}
	u.parts[number] = now
	o.compareParts(u)
}

func (o *operator) parts() { o.compareParts(o.upload()) }

func (o *operator) compareParts(u *pending) {
	out, err := o.sdk().ListParts(o.t.Context(), &awss3.ListPartsInput{
		Bucket: aws.String(opsBucket), Key: &u.key, UploadId: &u.id,
	})
	if err != nil {
		o.failf("parts of %s: %v", u.key, err)
	}
	var got, want []string
	for _, p := range out.Parts {
		got = append(got, fmt.Sprint(*p.PartNumber, *p.Size, *p.ETag))
	}
	for _, n := range slices.Sorted(maps.Keys(u.parts)) {
		want = append(want, fmt.Sprint(n, len(u.parts[n].body), quoted(u.parts[n].etag)))
	}
	if !slices.Equal(got, want) || out.ChecksumAlgorithm != u.algorithm || out.ChecksumType != u.kind {
		o.failf("parts of %s: %q %s %s, want %q %s %s", u.key, got, out.ChecksumAlgorithm, out.ChecksumType, want,
			u.algorithm, u.kind)
	}
}

// complete lists some of the parts, at times wrongly.
func (o *operator) complete() {
	u := o.upload()
	var list []types.CompletedPart
	var numbers []int
	for _, n := range slices.Sorted(maps.Keys(u.parts)) {
		if o.chance(4) {
			continue
		}
		p := types.CompletedPart{PartNumber: aws.Int32(int32(n)), ETag: aws.String(u.parts[n].etag)}
		if v, ok := u.parts[n].sums[types.ChecksumAlgorithmSha256]; ok && o.chance(2) {
			p.ChecksumSHA256 = &v
		}
		list, numbers = append(list, p), append(numbers, n)
	}
	if len(list) == 0 {
		return
	}
	now := u.whole(numbers)
	c := o.conditions(u.key)
	faults := c.faults
	for _, n := range numbers[:len(numbers)-1] {
		if len(u.parts[n].body) < partBytes {
			faults = append(faults, "EntityTooSmall")
		}
	}
	in := &awss3.CompleteMultipartUploadInput{
		Bucket: aws.String(opsBucket), Key: &u.key, UploadId: &u.id, IfMatch: c.match, IfNoneMatch: c.noneMatch,
		MultipartUpload: &types.CompletedMultipartUpload{Parts: list}, ChecksumType: u.kind,
	}
	switch o.random.IntN(8) {
	case 0:
		list[0].ETag = aws.String("00000000000000000000000000000000")
		faults = append(faults, "InvalidPart")
	case 1:
		in.MpuObjectSize = aws.Int64(int64(len(now.body)) + 1)
		faults = append(faults, "InvalidRequest")
	case 2:
		in.MpuObjectSize = aws.Int64(int64(len(now.body)))
	case 3:
		if u.algorithm == types.ChecksumAlgorithmSha256 {
			in.ChecksumSHA256 = aws.String(now.sums[u.algorithm])
		}
	case 4:
		if u.algorithm == types.ChecksumAlgorithmCrc32 {
			in.ChecksumCRC32 = aws.String(sumsOf([]byte(now.etag), u.algorithm)[u.algorithm])
			faults = append(faults, "BadDigest")
		}
	}
	out, err := o.sdk().CompleteMultipartUpload(o.t.Context(), in)
	what := "complete " + u.key + " of parts"
	for _, n := range numbers {
		what += " " + strconv.Itoa(n)
	}
	if !o.outcome(what, err, faults) {
		o.compareParts(u)
		return
	}
	got := answered(out.ChecksumCRC32, out.ChecksumCRC32C, out.ChecksumCRC64NVME, out.ChecksumSHA1, out.ChecksumSHA256)
	if *out.ETag != quoted(now.etag) || !maps.Equal(got, now.sums) || out.ChecksumType != now.kind {
		o.failf("%s: %s %v %s, want %s %v %s", what, *out.ETag, got, out.ChecksumType, now.etag, now.sums, now.kind)
	}
	o.world.objects[u.key] = now
	o.forget(u)
	o.world.done = append(o.world.done, completed{u.key, u.id, now.etag, list})
	o.compare(u.key)
	o.compareAttributes(u.key)
}

func (o *operator) forget(u *pending) {
	o.world.uploads = slices.DeleteFunc(o.world.uploads, func(other *pending) bool { return other == u })
}

// repeat completes once more: the answer is the first one's, whatever became of the object, and nothing changes.
func (o *operator) repeat() {
	if len(o.world.done) == 0 {
		return
	}
	d := o.world.done[o.random.IntN(len(o.world.done))]
	in := &awss3.CompleteMultipartUploadInput{
		Bucket: aws.String(opsBucket), Key: &d.key, UploadId: &d.id,
		MultipartUpload: &types.CompletedMultipartUpload{Parts: d.list},
	}
	if o.chance(2) {
		in.IfNoneMatch = aws.String("*")
	}
	out, err := o.sdk().CompleteMultipartUpload(o.t.Context(), in)
	if o.outcome("complete again "+d.key, err, nil) && *out.ETag != quoted(d.etag) {
		o.failf("complete again %s: %s, want %s", d.key, *out.ETag, d.etag)
	}
	o.compare(d.key)
}

func (o *operator) abort() {
	if !o.chance(4) || len(o.world.uploads) == 0 {
		return
	}
	u := o.upload()
	_, err := o.sdk().AbortMultipartUpload(o.t.Context(), &awss3.AbortMultipartUploadInput{
		Bucket: aws.String(opsBucket), Key: &u.key, UploadId: &u.id,
	})
	if o.outcome("abort "+u.key, err, nil) {
		o.forget(u)
	}
}
