package e2e

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/penstock-store/penstock/bench"
	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/client/awsrdma"
	"github.com/penstock-store/penstock/test/realnode"
)

// opsBucket is the bucket of TestOperations.
const opsBucket = "operations"

// operator does random operations by the SDK, each by one of the paths, and compares every answer with a world.
type operator struct {
	t       *testing.T
	random  *rand.Rand
	pattern []byte
	sdks    [len(paths)]*awss3.Client
	path    int // of the operation under way
	world   world
	log     []string
}

// TestOperations mixes the operations that TestModel leaves out: checksums of all algorithms and types, attributes,
// part numbers, copies that change the algorithm, copies of ranges into parts, conditions on every write, completions
// that are wrong or repeated. Between rounds the node is killed; what it had answered must be there.
func TestOperations(t *testing.T) {
	if testing.Short() {
		t.Skip("kills real processes")
	}
	rounds, steps := 4, 60
	if long() {
		rounds, steps = 60, 150
	}
	binary, dir := realnode.Build(t), t.TempDir()
	n := realnode.Start(t, binary, dir)
	defer func() {
		if err := n.Stop(); err != nil {
			t.Errorf("graceful end: %v", err)
		}
	}()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	o := &operator{random: rand.New(rand.NewPCG(seed, 9)), pattern: patternOf(2 * partBytes)}
	o.world.objects = map[string]thing{}
	if _, err := endpointOf(n).sdk(t).CreateBucket(t.Context(), &awss3.CreateBucketInput{
		Bucket: aws.String(opsBucket),
	}); err != nil {
		t.Fatal(err)
	}
	for round := range rounds {
		ok := t.Run(fmt.Sprint(round), func(t *testing.T) {
			o.t, o.log = t, nil
			o.connect(n)
			o.verify()
			for range steps {
				o.step()
			}
			realnode.Kill(t, n)
		})
		n = realnode.Start(t, binary, dir)
		if !ok {
			return
		}
	}
}

func (o *operator) connect(n *bench.Node) {
	for i, f := range paths {
		transport := &http.Transport{DisableCompression: true}
		o.t.Cleanup(transport.CloseIdleConnections)
		options := awss3.Options{
			Region: "us-east-1", BaseEndpoint: aws.String(n.Endpoint), UsePathStyle: true, RetryMaxAttempts: 1,
			Credentials:                credentials.NewStaticCredentialsProvider(n.AccessKey, n.SecretKey, ""),
			HTTPClient:                 &http.Client{Transport: transport},
			ResponseChecksumValidation: aws.ResponseChecksumValidationWhenSupported,
		}
		if f == client.HTTP {
			o.sdks[i] = awss3.New(options)
			continue
		}
		c := realnode.Connect(o.t, n, f, partBytes)
		session := awsrdma.New(c, awsrdma.Options{Strict: true, PoolBytes: 64 << 20})
		o.t.Cleanup(func() { // the node is dead by then, so fences fail
			_ = session.Close()
			_ = c.Close()
		})
		o.sdks[i] = awss3.New(options, awsrdma.Enable(session))
	}
}

// sdk chooses the path of an operation.
func (o *operator) sdk() *awss3.Client {
	o.path = o.random.IntN(len(paths))
	return o.sdks[o.path]
}

func (o *operator) step() {
	all := []func(){o.put, o.put, o.get, o.get, o.getPart, o.attributes, o.copy, o.copy, o.remove, o.removeMany,
		o.create, o.part, o.part, o.partCopy, o.partCopy, o.complete, o.complete, o.repeat, o.abort, o.parts}
	all[o.random.IntN(len(all))]()
}

func (o *operator) chance(n int) bool { return o.random.IntN(n) == 0 }

func (o *operator) failf(format string, v ...any) {
	o.t.Helper()
	o.t.Fatalf("by %s: %s\nbefore: %s", paths[o.path], fmt.Sprintf(format, v...), strings.Join(o.log, "\n"))
}

func (o *operator) note(format string, v ...any) {
	o.log = append(o.log, string(paths[o.path])+" "+fmt.Sprintf(format, v...))
}

// outcome compares an error with what may be answered. It returns true for a success.
func (o *operator) outcome(what string, err error, faults []string) bool {
	o.t.Helper()
	got := code(coded(err))
	o.note("%s: %s", what, got)
	if err == nil && len(faults) == 0 {
		return true
	}
	if err == nil || !slices.Contains(faults, got) {
		o.failf("%s: %v, want one of %q", what, err, faults)
	}
	return false
}

func (o *operator) key() string { return fmt.Sprintf("key %d+é/%%2F", o.random.IntN(8)) }

func (o *operator) body() []byte {
	sizes := []int{0, 1, 1000, 16 << 10, 16<<10 + 1, 100_000, 700_000}
	size := sizes[o.random.IntN(len(sizes))]
	at := o.random.IntN(len(o.pattern) - size)
	return bytes.Clone(o.pattern[at : at+size])
}

func (o *operator) algorithm() types.ChecksumAlgorithm {
	all := append(algorithms(), "")
	return all[o.random.IntN(len(all))]
}

func (o *operator) conditions(key string) conditions {
	tag := func() *string {
		tags := []string{"*", quoted("00000000000000000000000000000000")}
		if now, ok := o.world.objects[key]; ok {
			tags = append(tags, quoted(now.etag))
		}
		return &tags[o.random.IntN(len(tags))]
	}
	switch o.random.IntN(6) {
	case 0:
		return o.world.writeCondition(key, tag(), nil)
	case 1:
		return o.world.writeCondition(key, nil, tag())
	}
	return conditions{}
}

// plain makes the SDK send no checksum of its own choice.
func plain(a types.ChecksumAlgorithm) func(*awss3.Options) {
	return func(o *awss3.Options) {
		if a == "" {
			o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		}
	}
}

func (o *operator) put() {
	key, p, a := o.key(), o.body(), o.algorithm()
	c := o.conditions(key)
	out, err := o.sdk().PutObject(o.t.Context(), &awss3.PutObjectInput{
		Bucket: aws.String(opsBucket), Key: &key, Body: bytes.NewReader(p), ChecksumAlgorithm: a,
		IfMatch: c.match, IfNoneMatch: c.noneMatch,
	}, plain(a))
	if !o.outcome(fmt.Sprintf("put %s, %d bytes, %s", key, len(p), a), err, c.faults) {
		return
	}
	now, err := stored(paths[o.path], p, a, *out.ETag)
	got := answered(out.ChecksumCRC32, out.ChecksumCRC32C, out.ChecksumCRC64NVME, out.ChecksumSHA1, out.ChecksumSHA256)
	if err != nil || !maps.Equal(got, now.sums) {
		o.failf("put %s: %v, checksums %v, want %v", key, err, got, now.sums)
	}
	o.world.objects[key] = now
	o.compare(key)
}

// compare reads a key whole and its head.
func (o *operator) compare(key string) {
	want, ok := o.world.objects[key]
	out, err := o.sdk().GetObject(o.t.Context(), &awss3.GetObjectInput{
		Bucket: aws.String(opsBucket), Key: &key, ChecksumMode: types.ChecksumModeEnabled,
	})
	if !ok {
		o.outcome("get "+key, err, []string{"NoSuchKey"})
		return
	}
	if err != nil {
		o.failf("get %s: %v", key, err)
	}
	got, err := io.ReadAll(out.Body)
	_ = out.Body.Close()
	if err != nil || !bytes.Equal(got, want.body) || *out.ETag != quoted(want.etag) {
		o.failf("get %s: %v, %d bytes, want %d; ETag %s, want %s", key, err, len(got), len(want.body), *out.ETag,
			want.etag)
	}
	head, err := o.sdk().HeadObject(o.t.Context(), &awss3.HeadObjectInput{
		Bucket: aws.String(opsBucket), Key: &key, ChecksumMode: types.ChecksumModeEnabled,
	})
	if err != nil {
		o.failf("head %s: %v", key, err)
	}
	sums := answered(head.ChecksumCRC32, head.ChecksumCRC32C, head.ChecksumCRC64NVME, head.ChecksumSHA1,
		head.ChecksumSHA256)
	if *head.ETag != quoted(want.etag) || *head.ContentLength != int64(len(want.body)) ||
		!maps.Equal(sums, want.sums) || head.ChecksumType != want.kind {
		o.failf("head %s: %s %d %v %s, want %+v %s", key, *head.ETag, *head.ContentLength, sums, head.ChecksumType,
			want.sums, want.kind)
	}
	want.modified = *head.LastModified
	o.world.objects[key] = want
}

// verify compares everything: the listing, each object, each open upload.
func (o *operator) verify() {
	out, err := o.sdks[0].ListObjectsV2(o.t.Context(), &awss3.ListObjectsV2Input{
		Bucket: aws.String(opsBucket), EncodingType: types.EncodingTypeUrl,
	})
	if err != nil {
		o.failf("list: %v", err)
	}
	var keys []string
	for _, e := range out.Contents {
		key, _ := url.QueryUnescape(*e.Key)
		keys = append(keys, key)
		want := o.world.objects[key]
		if *e.ETag != quoted(want.etag) || *e.Size != int64(len(want.body)) {
			o.failf("listed %s: %s, %d bytes, want %s, %d", key, *e.ETag, *e.Size, want.etag, len(want.body))
		}
	}
	if !slices.Equal(keys, o.world.keys()) {
		o.failf("listed %q, want %q", keys, o.world.keys())
	}
	for _, key := range keys {
		o.compare(key)
		o.compareAttributes(key)
	}
	for _, u := range o.world.uploads {
		o.compareParts(u)
	}
}

func (o *operator) get() {
	key := o.key()
	want, ok := o.world.objects[key]
	if !ok || len(want.body) == 0 || o.chance(3) {
		o.compare(key)
		return
	}
	first := o.random.IntN(len(want.body))
	last := first + o.random.IntN(len(want.body)-first)
	in := &awss3.GetObjectInput{
		Bucket: aws.String(opsBucket), Key: &key, Range: aws.String(fmt.Sprintf("bytes=%d-%d", first, last)),
		ChecksumMode: types.ChecksumModeEnabled,
	}
	var faults []string
	switch o.random.IntN(4) {
	case 0:
		in.IfMatch = aws.String(quoted(want.etag))
	case 1:
		in.IfMatch, faults = aws.String(quoted("other")), []string{"PreconditionFailed"}
	}
	out, err := o.sdk().GetObject(o.t.Context(), in)
	if !o.outcome(fmt.Sprintf("get %s [%d, %d]", key, first, last), err, faults) {
		return
	}
	o.compareBody(out, want.body[first:last+1])
}

func (o *operator) compareBody(out *awss3.GetObjectOutput, want []byte) {
	got, err := io.ReadAll(out.Body)
	_ = out.Body.Close()
	if err != nil || !bytes.Equal(got, want) {
		o.failf("%d bytes, want %d, error %v", len(got), len(want), err)
	}
}

func (o *operator) getPart() {
	key, number := o.key(), 1+o.random.IntN(4)
	want, ok := o.world.objects[key]
	if !ok {
		return
	}
	part, faults := want, []string(nil)
	i := slices.IndexFunc(want.parts, func(p numbered) bool { return p.number == number })
	switch {
	case i >= 0:
		part = want.parts[i].thing
	case len(want.parts) > 0 || number > 1:
		faults = []string{"InvalidPartNumber"}
	}
	out, err := o.sdk().GetObject(o.t.Context(), &awss3.GetObjectInput{
		Bucket: aws.String(opsBucket), Key: &key, PartNumber: aws.Int32(int32(number)),
		ChecksumMode: types.ChecksumModeEnabled,
	})
	if !o.outcome(fmt.Sprintf("get part %d of %s", number, key), err, faults) {
		return
	}
	o.compareBody(out, part.body)
	if *out.ETag != quoted(want.etag) || int(aws.ToInt32(out.PartsCount)) != len(want.parts) {
		o.failf("part %d of %s: ETag %s, %d parts", number, key, *out.ETag, aws.ToInt32(out.PartsCount))
	}
}
