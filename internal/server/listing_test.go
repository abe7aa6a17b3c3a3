package server_test

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/chunk/chunkmem"
	"github.com/penstock-store/penstock/internal/config"
	"github.com/penstock-store/penstock/internal/meta"
	"github.com/penstock-store/penstock/internal/meta/kv"
	"github.com/penstock-store/penstock/internal/meta/kv/pebble"
	"github.com/penstock-store/penstock/internal/store"
	"github.com/penstock-store/penstock/internal/vfs/osfs"
)

// Bounds of listings, judged only on a full million, on a machine that does nothing else.
const (
	million       = 1_000_000
	firstPageMost = 50 * time.Millisecond
	keysPerSecond = 300_000
)

// listingKeys is how many keys TestListingRate makes: PENSTOCK_LISTING_KEYS, which make bench-listing
// sets, or few.
func listingKeys(t testing.TB) int {
	text := os.Getenv("PENSTOCK_LISTING_KEYS")
	if text == "" {
		return 5_000
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestListingRate lists a bucket of many keys: the first page after a restart, all pages by the store
// alone, and all pages over HTTP. The keys are records as PutObject writes them. Oracle: the number and
// the order of the keys; with PENSTOCK_LISTING_KEYS also the bounds. Of payloads of 1 KiB to 16 KiB, which
// lie behind their record, a page reads every byte: their rate is reported, and only the first page judged.
func TestListingRate(t *testing.T) {
	total := listingKeys(t)
	for _, body := range []int{0, 100, 100 << 10, 4096} {
		t.Run(fmt.Sprintf("%d bytes", body), func(t *testing.T) {
			if body == 4096 && total > million/4 {
				total = million / 4 // 1 GB of payload beside the records
			}
			listing(t, total, body)
		})
	}
}

func listing(t *testing.T, total, body int) {
	c := configFor(t, t.TempDir())
	c.Storage.KVCache = config.Default().Storage.KVCache
	r := start(t, c, nil)
	r.do("PUT", "/bucket", nil)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	withMeta(t, c, func(e kv.Engine, s *store.Store) { fillBucket(t, e, s, total, body) })
	withMeta(t, c, func(_ kv.Engine, s *store.Store) {
		w := pages(t, total, func(after string) (int, string) {
			page, err := s.List(t.Context(), store.ListRequest{Bucket: "bucket", StartAfter: after, Limit: 1000})
			if err != nil {
				t.Fatal(err)
			}
			for i, o := range page.Objects {
				if o.Key <= after || o.Size != int64(body) || len(o.ETag) != 32 {
					t.Fatalf("entry %d: %+v after %q", i, o, after)
				}
				after = o.Key
			}
			if !page.Truncated {
				return len(page.Objects), ""
			}
			return len(page.Objects), page.Last
		})
		bound := float64(keysPerSecond)
		if body == 4096 {
			bound = 0
		}
		judge(t, "store", total, w, bound)
	})
	r = start(t, c, nil)
	w := pages(t, total, func(token string) (int, string) {
		path := "/bucket?list-type=2"
		if token != "" {
			path += "&continuation-token=" + token
		}
		text := string(r.page(path))
		_, token, _ = strings.Cut(text, "<NextContinuationToken>")
		token, _, _ = strings.Cut(token, "</NextContinuationToken>")
		return strings.Count(text, "<Contents>"), token
	})
	judge(t, "HTTP", total, w, 0)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
}

// cpu is the time that this process has computed.
func cpu(t *testing.T) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// walked is how long a listing took.
type walked struct {
	first, whole, cpu time.Duration
}

// TestListingAfterDeletes lists a bucket whose keys were deleted, all but the last: what was deleted lies in
// the way until the engine has compacted it. Oracle: the key that is left; with PENSTOCK_LISTING_KEYS also
// the bound of a page.
func TestListingAfterDeletes(t *testing.T) {
	total := listingKeys(t)
	c := configFor(t, t.TempDir())
	r := start(t, c, nil)
	r.do("PUT", "/bucket", nil)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	withMeta(t, c, func(e kv.Engine, s *store.Store) {
		fillBucket(t, e, s, total, 100)
		emptyBucket(t, e, total-1)
		for i := range 5 {
			began := time.Now()
			page, err := s.List(t.Context(), store.ListRequest{Bucket: "bucket", Limit: 1000})
			took := time.Since(began)
			if err != nil || len(page.Objects) != 1 || page.Objects[0].Key != listingKey(total-1) || page.Truncated {
				t.Fatalf("%d objects, %v", len(page.Objects), err)
			}
			t.Logf("list %d after %d deletes: %.1f ms", i, total-1, float64(took.Microseconds())/1000)
		}
	})
}

// emptyBucket deletes the first n keys.
func emptyBucket(t *testing.T, e kv.Engine, n int) {
	t.Helper()
	ctx := t.Context()
	for next := 0; next < n; {
		end := min(next+5000, n)
		err := e.Txn(ctx, func(tx kv.Tx) error {
			b, err := meta.GetBucket(ctx, tx, "bucket")
			for i := next; err == nil && i < end; i++ {
				err = meta.DeleteHead(tx, b.Id, listingKey(i))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		next = end
	}
}

// pages walks a listing to its end.
func pages(t *testing.T, total int, page func(after string) (int, string)) (w walked) {
	began, busy := time.Now(), cpu(t)
	seen := 0
	for after := ""; ; {
		n, next := page(after)
		if after == "" {
			w.first = time.Since(began)
		}
		seen += n
		if next == "" {
			break
		}
		after = next
	}
	if seen != total {
		t.Fatalf("%d keys, want %d", seen, total)
	}
	w.whole, w.cpu = time.Since(began), cpu(t)-busy
	return w
}

// judge reports, and compares with the bounds when the machine was asked for them.
func judge(t *testing.T, how string, total int, w walked, bound float64) {
	rate := float64(total) / w.whole.Seconds()
	t.Logf("%s: %d keys: first page after a restart %.2f ms, %.0f keys/s, %.2f CPU µs per key (client included)", how,
		total, float64(w.first.Microseconds())/1000, rate, float64(w.cpu.Nanoseconds())/1000/float64(total))
	if os.Getenv("PENSTOCK_LISTING_KEYS") == "" {
		return
	}
	if w.first > firstPageMost {
		t.Errorf("%s: the first page took %v, more than %v", how, w.first, firstPageMost)
	}
	if rate < bound {
		t.Errorf("%s: %.0f keys/s, fewer than %.0f", how, rate, bound)
	}
}

// page is the body of a GET.
func (r *running) page(path string) []byte {
	r.t.Helper()
	status, body := r.do("GET", path, nil)
	if status != http.StatusOK {
		r.t.Fatalf("GET %s: %d %s", path, status, body)
	}
	return body
}

// withMeta opens the metadata of a node that does not run.
func withMeta(t *testing.T, c config.Config, fn func(kv.Engine, *store.Store)) {
	t.Helper()
	e, err := pebble.Open(pebble.Config{
		FS: osfs.FS{}, Dir: filepath.Join(c.Data, "meta"), MustExist: true, CacheBytes: int64(c.Storage.KVCache),
	})
	if err != nil {
		t.Fatal(err)
	}
	a, err := arena.New(arena.Options{Shares: []arena.ShareOption{{Name: "a", Buffers: 4, BufferBytes: 64 << 10}}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := store.New(t.Context(), store.Options{KV: e, Chunks: chunkmem.New(), CopyShare: a.Share("a")})
	if err != nil {
		t.Fatal(err)
	}
	fn(e, s)
	if err := errors.Join(e.Close(), a.Close()); err != nil {
		t.Fatal(err)
	}
}

// fillBucket puts one object and writes its record under all keys, many in one transaction.
func fillBucket(t *testing.T, e kv.Engine, s *store.Store, total, body int) {
	t.Helper()
	ctx := t.Context()
	a, err := arena.New(arena.Options{Shares: []arena.ShareOption{{Name: "a", Buffers: 4, BufferBytes: 64 << 10}}})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	payload := bytes.Repeat([]byte("penstock"), body/8+1)[:body]
	_, err = s.Put(ctx, store.PutRequest{
		Bucket: "bucket", Key: listingKey(0), Source: arena.NewBytesSource(a.Share("a"), payload),
		Meta: store.ObjectMeta{ContentType: "application/octet-stream", User: map[string]string{"origin": "test"}},
		Seal: func(context.Context, store.Payload) (store.Digest, error) {
			sum := md5.Sum(payload)
			return store.Digest{ETag: hex.EncodeToString(sum[:])}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	inline := body
	if body > store.DefaultInlineBytes {
		inline = 0
	}
	perTxn := min(2000, kv.MaxTxnBytes/2/(inline+200))
	for next := 1; next < total; {
		err := e.Txn(ctx, func(tx kv.Tx) error {
			b, err := meta.GetBucket(ctx, tx, "bucket")
			if err != nil {
				return err
			}
			h, err := meta.GetHead(ctx, tx, b.Id, listingKey(0))
			for i := next; err == nil && i < min(next+perTxn, total); i++ {
				err = meta.PutHead(tx, b.Id, listingKey(i), h)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		next += perTxn
	}
}

// listingKey is a key as data sets have them.
func listingKey(i int) string { return fmt.Sprintf("dataset/shard-%05d/sample-%08d.jpg", i/1000, i) }
