package e2e

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"

	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"

	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/internal/checksum"
	"github.com/penstock-store/penstock/test/model"
)

// Sizes of the client memory of a trio: one for most objects, one for those of several parts.
const (
	smallRegion = 4 << 20
	largeRegion = 48 << 20
)

// tally is how many bytes went by each path, as clients see it.
type tally struct{ get, put, part [len(paths)]atomic.Int64 }

// trio does every operation once per path, each in a bucket of its own, and holds the answers
// against each other. Towards the model it is one store with MD5 ETags: those of its HTTP bucket.
// An object that one path wrote is read by the paths in turn.
type trio struct {
	buckets [len(paths)]string
	clients [len(paths)]*client.Client
	memory  [len(paths)]struct{ small, large *memory }
	sdk     *awss3.Client
	moved   *tally
	random  *rand.Rand
	turn    int

	objects map[string]*known
	uploads map[string]*knownUpload
}

// known is what the trio remembers of a key. own are the ETags in the buckets.
type known struct {
	etag  string
	own   [len(paths)]string
	size  int
	parts bool // came by a multipart upload
}

type knownUpload struct {
	ids   [len(paths)]string
	etags map[int]string
	own   map[int][len(paths)]string
	sizes map[int]int
	done  bool
}

var (
	_ model.Objects = (*trio)(nil)
	_ model.Uploads = (*trio)(nil)
)

// newTrio connects its own clients; the buckets exist.
func newTrio(t *testing.T, n *node, buckets [len(paths)]string, moved *tally, seed uint64) *trio {
	t.Helper()
	o := &trio{buckets: buckets, sdk: n.sdk(t), moved: moved, random: rand.New(rand.NewPCG(seed, 3))}
	small, large := patternOf(smallRegion), patternOf(largeRegion)
	for i, f := range paths {
		o.clients[i] = n.front(f).connect(t, f)
		o.memory[i].small = newMemory(t, o.clients[i], small, seed)
		o.memory[i].large = newMemory(t, o.clients[i], large, seed)
	}
	o.reset()
	return o
}

// reset forgets all keys: the next machine uses others.
func (o *trio) reset() {
	o.objects, o.uploads = map[string]*known{}, map[string]*knownUpload{}
}

// room is memory by path i that holds n bytes.
func (o *trio) room(i, n int) *memory {
	if n <= smallRegion/2 {
		return o.memory[i].small
	}
	return o.memory[i].large
}

// coded turns S3's errors into the model's.
func coded(err error) error {
	var own *client.Error
	var api smithy.APIError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &own):
		return fmt.Errorf("%w: %w", &model.Error{Code: own.Code}, err)
	case errors.As(err, &api):
		return fmt.Errorf("%w: %w", &model.Error{Code: api.ErrorCode()}, err)
	}
	return err
}

// agree is the common outcome of the paths, or an error that no model expects.
func agree(what string, errs [len(paths)]error) error {
	var codes [len(paths)]string
	for i, err := range errs {
		var e *model.Error
		if err == nil {
			continue
		}
		if !errors.As(err, &e) {
			return fmt.Errorf("%s by %s: %w", what, paths[i], err)
		}
		codes[i] = e.Code
	}
	if codes[1] != codes[0] || codes[2] != codes[0] {
		return fmt.Errorf("%s: the paths differ: %q", what, codes)
	}
	return errs[0]
}

func md5Of(p []byte) string {
	sum := md5.Sum(p)
	return hex.EncodeToString(sum[:])
}

// checkETag says whether the ETag is one that the payload may get by the path.
func checkETag(path string, etag string, p []byte) error {
	if path == client.PathHTTP {
		if etag != md5Of(p) {
			return fmt.Errorf("ETag %s is not the MD5 %s", etag, md5Of(p))
		}
		return nil
	}
	digits, ok := strings.CutSuffix(etag, "-1")
	raw, err := hex.DecodeString(digits)
	if !ok || err != nil || len(raw) != 16 || digits[:16] != fmt.Sprintf("%016x", checksum.Sum(p)) {
		return fmt.Errorf("ETag %s does not name CRC64NVME %016x", etag, checksum.Sum(p))
	}
	return nil
}

// own translates a condition of the model into the bucket's ETags.
func (o *trio) own(i int, key, header string) string {
	if k := o.objects[key]; k != nil && header == `"`+k.etag+`"` {
		return `"` + k.own[i] + `"`
	}
	return header
}

// checkPath says whether n > 0 bytes went the way they should.
func checkPath(i int, res client.Result, n int) error {
	want := string(paths[i])
	if n == 0 {
		want = client.PathHTTP
	}
	if res.Path != want || (n > 0 && res.FabricBytes != int64(n) && i > 0) {
		return fmt.Errorf("%d of %d bytes went by %q (%s), not by %s", res.FabricBytes, n, res.Path, res.Reason, want)
	}
	return nil
}

// Put implements model.Objects.
func (o *trio) Put(ctx context.Context, p model.Put) (string, error) {
	var errs [len(paths)]error
	var own [len(paths)]string
	for i := range paths {
		own[i], errs[i] = o.put(ctx, i, p)
	}
	if err := agree("put", errs); err != nil {
		return "", err
	}
	o.objects[p.Key] = &known{etag: own[0], own: own, size: len(p.Body)}
	return own[0], nil
}

func (o *trio) put(ctx context.Context, i int, p model.Put) (string, error) {
	m := o.room(i, len(p.Body))
	w := m.load(p.Body)
	res, err := o.clients[i].PutFrom(ctx, w, o.buckets[i], p.Key, client.PutOptions{
		ContentType: p.Type, Metadata: p.User,
		Conditions: client.Conditions{
			IfMatch: o.own(i, p.Key, p.IfMatch), IfNoneMatch: o.own(i, p.Key, p.IfNoneMatch),
		},
	})
	if touched := m.sent(w, p.Body); touched != nil {
		return "", touched
	}
	if err != nil {
		return "", coded(err)
	}
	o.moved.put[i].Add(int64(len(p.Body)))
	return res.Object.ETag, errors.Join(checkPath(i, res, len(p.Body)), checkETag(res.Path, res.Object.ETag, p.Body))
}

// Get implements model.Objects.
func (o *trio) Get(ctx context.Context, g model.Get) (model.Object, error) {
	var errs [len(paths)]error
	var all [len(paths)]model.Object
	o.turn++
	for i := range paths {
		all[i], errs[i] = o.get(ctx, i, (i+o.turn)%len(paths), g)
	}
	if err := agree("get", errs); err != nil {
		return model.Object{}, err
	}
	for i := range paths {
		if !bytes.Equal(all[i].Body, all[0].Body) || all[i].Type != all[0].Type ||
			!maps.Equal(all[i].User, all[0].User) || all[i].ETag != all[0].ETag {
			return model.Object{}, fmt.Errorf("get %q: what %s wrote differs from what http wrote", g.Key, paths[i])
		}
	}
	return all[0], nil
}

// get reads from bucket i by path j.
func (o *trio) get(ctx context.Context, i, j int, g model.Get) (model.Object, error) {
	k := o.objects[g.Key]
	if k == nil {
		k = &known{}
	}
	opts := client.GetOptions{Conditions: client.Conditions{
		IfMatch: o.own(i, g.Key, g.IfMatch), IfNoneMatch: o.own(i, g.Key, g.IfNoneMatch),
	}}
	n := k.size
	if g.Len >= 0 {
		n = int(g.Len)
		opts.Range = &client.Range{Offset: g.Off, Bytes: g.Len}
	}
	m := o.room(j, n)
	w := m.wider(n)
	res, err := o.clients[j].GetInto(ctx, w, o.buckets[i], g.Key, opts)
	if err != nil {
		return model.Object{}, errors.Join(coded(err), m.settle(w, w.Bytes))
	}
	got := bytes.Clone(m.region.Bytes()[w.Offset : w.Offset+res.Bytes])
	o.moved.get[j].Add(res.Bytes)
	etag, info := res.Object.ETag, res.Object
	if etag == k.own[i] {
		etag = k.etag
	}
	kind := info.ContentType
	if kind == "binary/octet-stream" { // S3's default
		kind = ""
	}
	err = errors.Join(m.settle(w, res.Bytes), checkPath(j, res, len(got)))
	if info.Bytes != int64(k.size) || info.LastModified.IsZero() {
		err = errors.Join(err, fmt.Errorf("get %q: %+v of an object of %d bytes", g.Key, info, k.size))
	}
	if len(got) == k.size && info.Checksum != "" && info.Checksum != client.SumChecksum(got) {
		err = errors.Join(err, fmt.Errorf("get %q: checksum %s of other bytes", g.Key, info.Checksum))
	}
	return model.Object{Body: got, ETag: etag, Type: kind, User: info.Metadata}, err
}

// Delete implements model.Objects.
func (o *trio) Delete(ctx context.Context, keys ...string) error {
	var errs [len(paths)]error
	for i := range paths {
		if len(keys) == 1 {
			errs[i] = coded(o.clients[i].Delete(ctx, o.buckets[i], keys[0]))
			continue
		}
		failures, err := o.clients[i].DeleteMany(ctx, o.buckets[i], keys)
		errs[i] = coded(err)
		if len(failures) > 0 {
			errs[i] = fmt.Errorf("delete %q: %+v", keys, failures)
		}
	}
	for _, key := range keys {
		delete(o.objects, key)
	}
	return agree("delete", errs)
}

// Copy implements model.Objects. The wire refuses a copy onto itself without new metadata, so there
// the refusal is checked and the copy is made with the metadata that is there.
func (o *trio) Copy(ctx context.Context, from, to string) (string, error) {
	var errs [len(paths)]error
	var own [len(paths)]string
	for i := range paths {
		name := client.ObjectName{Bucket: o.buckets[i], Key: from}
		info, err := o.clients[i].CopyObject(ctx, name, client.ObjectName{Bucket: o.buckets[i], Key: to})
		if from == to {
			var refused *client.Error
			if !errors.As(err, &refused) || refused.Code != "InvalidRequest" {
				return "", fmt.Errorf("copy onto itself: %w", err)
			}
			info.ETag, err = o.renew(ctx, name)
		}
		own[i], errs[i] = info.ETag, coded(err)
	}
	if err := agree("copy", errs); err != nil {
		return "", err
	}
	k := o.objects[from]
	if k == nil {
		return own[0], nil // the model knows better
	}
	for i := range paths {
		switch {
		case k.parts && own[i] != own[0]:
			return "", fmt.Errorf("copy of the same bytes: ETags %q", own)
		case !k.parts && own[i] != k.own[i] && own[i] != own[0]:
			return "", fmt.Errorf("copy of %q: ETags %q", k.own, own)
		}
	}
	o.objects[to] = &known{etag: own[0], own: own, size: k.size}
	return own[0], nil
}
