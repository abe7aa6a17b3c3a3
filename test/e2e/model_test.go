package e2e

import (
	"bytes"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/test/model"
)

// tokens make keys that path cleaning, query decoding, XML and sorting may get wrong.
func tokens() []string {
	return []string{"a", "b", "/", "a/", "//", "é", " ", "+", "%2F", "&<", "..", "./", "\x01", "\U0001F600"}
}

func sizes() []int {
	return []int{0, 100, 16 << 10, 64 << 10, 512 << 10, 1<<20 + 1000}
}

// TestModel lets several clients do random operations below prefixes of their own, each of them by
// all three paths at once, and then compares the byte counts of clients, node and relay.
func TestModel(t *testing.T) {
	n := startNode(t)
	var buckets [len(paths)]string
	own := n.connect(t, client.HTTP)
	for i, f := range paths {
		buckets[i] = "by-" + string(f)
		if err := own.CreateBucket(t.Context(), buckets[i]); err != nil {
			t.Fatal(err)
		}
	}
	var moved tally
	t.Run("clients", func(t *testing.T) {
		for c := range 3 {
			t.Run(fmt.Sprint(c), func(t *testing.T) {
				t.Parallel()
				o := newTrio(t, n, buckets, &moved, uint64(c))
				run := 0
				rapid.Check(t, func(rt *rapid.T) {
					run++
					o.reset()
					options := model.Options{
						Objects: o, Prefix: fmt.Sprintf("client %d/%06d/", c, run), Tokens: tokens(), Sizes: sizes(),
					}
					if c == 0 || long() { // parts of 5 MiB take most of the time
						options.Uploads, options.MinPart = o, partBytes
					}
					model.New(options).Run(rt)
				})
			})
		}
	})
	compareCounts(t, n, &moved)
}

// compareCounts holds the payload bytes that clients saw against the node's counters, path by path.
func compareCounts(t *testing.T, n *node, moved *tally) {
	t.Helper()
	for i, f := range paths {
		for op, seen := range map[string]int64{
			"GetObject": moved.get[i].Load(), "PutObject": moved.put[i].Load(), "UploadPart": moved.part[i].Load(),
		} {
			if got := n.payload(t, op, f); got != seen {
				t.Errorf("%s by %s: the node counts %d bytes, clients %d", op, f, got, seen)
			}
			t.Logf("%s by %s: %d bytes", op, f, seen)
		}
	}
}

// TestPayloadStaysOffHTTP counts what travels over the HTTP connections of requests whose payload a
// fabric carries: headers and nothing else.
func TestPayloadStaysOffHTTP(t *testing.T) {
	const size, rounds, mostPerRequest = 3 << 20, 20, 8 << 10
	n := startNode(t)
	for i, f := range paths[1:] {
		c := n.front(f).connect(t, f)
		bucket := "off-http-" + string(f)
		if err := c.CreateBucket(t.Context(), bucket); err != nil {
			t.Fatal(err)
		}
		m := newMemory(t, c, patternOf(smallRegion), uint64(i))
		payload := patternOf(smallRegion)[1 : size+1]
		before := n.relay.bytes.Load()
		for range rounds {
			w := m.load(payload)
			if _, err := c.PutFrom(t.Context(), w, bucket, "k", client.PutOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := m.sent(w, payload); err != nil {
				t.Fatal(err)
			}
			w = m.window(size)
			if _, err := c.GetInto(t.Context(), w, bucket, "k", client.GetOptions{}); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(m.region.Bytes()[w.Offset:w.Offset+size], payload) {
				t.Fatalf("%s: read back other bytes", f)
			}
			if err := m.settle(w, size); err != nil {
				t.Fatal(err)
			}
		}
		if relayed := n.relay.bytes.Load() - before; relayed > 2*rounds*mostPerRequest {
			t.Errorf("%s: %d bytes over HTTP for %d requests of %d bytes", f, relayed, 2*rounds, size)
		}
		for _, op := range []string{"GetObject", "PutObject"} {
			if got := n.payload(t, op, f); got != rounds*size {
				t.Errorf("%s by %s: the node counts %d bytes, want %d", op, f, got, rounds*size)
			}
			if got := n.payload(t, op, client.HTTP); got != 0 {
				t.Errorf("%s by http: the node counts %d bytes, want none", op, got)
			}
		}
	}
}
