package store_test

import (
	"fmt"
	"testing"

	"github.com/penstock-store/penstock/internal/store"
	"github.com/penstock-store/penstock/test/model"
)

// BenchmarkInlineGet is the metadata path of a GET of 4 KiB.
func BenchmarkInlineGet(b *testing.B) {
	f := newFixture(b)
	for i := range 1000 {
		f.put(b, fmt.Sprint("key-", i), pattern(4096, byte(i)))
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		o, err := f.Open(b.Context(), store.OpenRequest{Bucket: bucket, Key: fmt.Sprint("key-", i%1000)})
		check(b, err)
		if _, ok, err := o.Inline(); err != nil || !ok {
			b.Fatal(err)
		}
		o.Close()
	}
}

// BenchmarkInlinePut is the metadata path of a PUT of 4 KiB, on a file system in memory.
func BenchmarkInlinePut(b *testing.B) {
	f := newFixture(b)
	body := pattern(4096, 1)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		_, err := f.direct.Put(b.Context(), model.Put{Key: fmt.Sprint("key-", i), Body: body})
		check(b, err)
	}
}

// BenchmarkListPage is a page of 1,000 keys.
func BenchmarkListPage(b *testing.B) {
	f := newFixture(b)
	for i := range 1000 {
		f.put(b, fmt.Sprint("key-", i), pattern(100, byte(i)))
	}
	b.ReportAllocs()
	for b.Loop() {
		page, err := f.List(b.Context(), store.ListRequest{Bucket: bucket, Limit: 1000})
		check(b, err)
		if len(page.Objects) != 1000 {
			b.Fatal("not all")
		}
	}
}
