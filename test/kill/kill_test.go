package kill

import (
	"bytes"
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/penstock-store/penstock/bench"
	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/test/realnode"
)

const (
	bucket  = "kill"
	writers = 6
	// keysPerWriter bounds what has to be read back after each round.
	keysPerWriter = 8
	// largest is above two parts of a multipart upload.
	largest = 12 << 20
	// partBytes is S3's least, so that the largest object has three parts.
	partBytes = 5 << 20
)

func rounds() int {
	if os.Getenv("PENSTOCK_TEST_LONG") != "" {
		return 50
	}
	return 5
}

func TestKillUnderLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("kills real processes for half a minute")
	}
	binary, dir, book := realnode.Build(t), t.TempDir(), newLedger()
	n := realnode.Start(t, binary, dir)
	c := realnode.Connect(t, n, client.HTTP, partBytes)
	if err := c.CreateBucket(t.Context(), bucket); err != nil {
		t.Fatal(err)
	}
	closeClient(c)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	for round := range rounds() {
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var acknowledged [writers]int
		for w := range writers {
			source := rand.New(rand.NewPCG(seed, uint64(round*writers+w)))
			wg.Go(func() { acknowledged[w] = load(ctx, t, n, w, source, book) })
		}
		life := time.NewTimer(time.Duration(300+random.IntN(1500)) * time.Millisecond)
		<-life.C
		realnode.Kill(t, n)
		cancel()
		wg.Wait()
		n = realnode.Start(t, binary, dir)
		total := 0
		for _, a := range acknowledged {
			total += a
		}
		present := check(t, n, book)
		t.Logf("round %d: %d writes acknowledged, %d keys present", round, total, present)
		if total == 0 {
			t.Errorf("round %d: no write was acknowledged: the round shows nothing", round)
		}
		if t.Failed() {
			break
		}
	}
	if err := n.Stop(); err != nil {
		t.Errorf("graceful end: %v", err)
	}
}

func closeClient(c *client.Client) { _ = c.Close() } // its node may be dead, so fences may fail

// load writes, overwrites and deletes its own keys until ctx ends, and returns how many writes were
// acknowledged.
func load(ctx context.Context, t *testing.T, n *bench.Node, w int, random *rand.Rand, book *ledger) int {
	fabric := []client.Fabric{client.HTTP, client.SHM, client.TCP}[w%3]
	c := realnode.Connect(t, n, fabric, partBytes)
	defer closeClient(c)
	region, err := c.Alloc(largest)
	if err != nil {
		t.Error(err)
		return 0
	}
	defer func() { _ = region.Close() }()
	acknowledged := 0
	for ctx.Err() == nil {
		key := fmt.Sprintf("writer %d/key %02d", w, random.IntN(keysPerWriter))
		if random.IntN(6) == 0 {
			s := book.begin(key, -1)
			if err := c.Delete(ctx, bucket, key); err != nil {
				continue
			}
			book.acknowledge(key, s)
			acknowledged++
			continue
		}
		s := book.begin(key, pick(random))
		fill(key, s, region.Bytes())
		res, err := c.PutFrom(ctx, region.Window(0, int64(s.size)), bucket, key, client.PutOptions{})
		if err != nil {
			if region.Abandoned() {
				return acknowledged
			}
			continue
		}
		if s.size > 0 && res.Path != string(fabric) {
			t.Errorf("%s went by %s (%s), not by %s", key, res.Path, res.Reason, fabric)
		}
		book.acknowledge(key, s)
		acknowledged++
	}
	return acknowledged
}

// pick draws a size: empty, inline, one record, around blocks, several parts.
func pick(random *rand.Rand) int {
	switch random.IntN(6) {
	case 0:
		return random.IntN(3)
	case 1, 2:
		return random.IntN(16 << 10)
	case 3:
		return (64 << 10) * (1 + random.IntN(4))
	case 4:
		return random.IntN(2 << 20)
	default:
		return partBytes + random.IntN(largest-partBytes)
	}
}

// check reads every key back by every path in turn, compares with the ledger and with the listing,
// settles what was open, and returns how many keys are present.
func check(t *testing.T, n *bench.Node, book *ledger) int {
	t.Helper()
	paths := []client.Fabric{client.HTTP, client.SHM, client.TCP}
	clients := map[client.Fabric]*client.Client{}
	regions := map[client.Fabric]*client.Region{}
	for _, f := range paths {
		clients[f] = realnode.Connect(t, n, f, partBytes)
		defer closeClient(clients[f])
		r, err := clients[f].Alloc(largest)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = r.Close() }()
		regions[f] = r
	}
	listed := map[string]int64{}
	for e, err := range clients[client.HTTP].List(t.Context(), bucket, client.ListOptions{PageKeys: 7}) {
		if err != nil {
			t.Fatalf("list: %v", err)
		}
		listed[e.Key] = e.Bytes
	}
	scratch := make([]byte, largest)
	present := 0
	for i, key := range book.snapshot() {
		f := paths[i%len(paths)]
		got, found := read(t, clients[f], regions[f], key)
		size, inListing := listed[key]
		if found != inListing || (found && int(size) != len(got)) {
			t.Errorf("%q: readable %v (%d bytes), listed %v (%d bytes)", key, found, len(got), inListing, size)
		}
		delete(listed, key)
		now, ok := match(key, got, found, book.candidates(key), scratch)
		if !ok {
			t.Errorf("%q: found %v with %d bytes, which is none of %v", key, found, len(got), book.candidates(key))
			continue
		}
		book.acknowledge(key, now)
		if found {
			present++
		}
	}
	for key := range listed {
		t.Errorf("%q is listed and was never written", key)
	}
	return present
}

func read(t *testing.T, c *client.Client, r *client.Region, key string) ([]byte, bool) {
	t.Helper()
	res, err := c.GetInto(t.Context(), r.All(), bucket, key, client.GetOptions{})
	if errors.Is(err, client.ErrNotFound) {
		return nil, false
	}
	if err != nil {
		t.Errorf("read %q: %v", key, err)
		return nil, true
	}
	// A plain HTTP reader must see the same.
	s, err := c.Get(t.Context(), bucket, key, client.GetOptions{})
	if err != nil {
		t.Errorf("read %q over HTTP: %v", key, err)
		return nil, true
	}
	defer s.Close()
	h := md5.New()
	if _, err := io.Copy(h, s); err != nil {
		t.Errorf("read %q over HTTP: %v", key, err)
	}
	got := r.Bytes()[:res.Bytes]
	if own := md5.Sum(got); !bytes.Equal(h.Sum(nil), own[:]) {
		t.Errorf("%q differs between %s and HTTP", key, res.Path)
	}
	return got, true
}

// match finds the candidate state that the bytes are.
func match(key string, got []byte, found bool, states []state, scratch []byte) (state, bool) {
	own := md5.Sum(got)
	i := slices.IndexFunc(states, func(s state) bool {
		if s.generation == 0 || !found {
			return s.generation == 0 && !found
		}
		return s.size == len(got) && sum(key, s, scratch) == own
	})
	if i < 0 {
		return state{}, false
	}
	return states[i], true
}
