package drive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"testing"

	"github.com/penstock-store/penstock/internal/vfs"
	"github.com/penstock-store/penstock/internal/vfs/crashfs"
)

// rawRecord reads the bytes of a stored record from its segment.
func rawRecord(t *testing.T, d *Drive, k Key) (raw []byte, segment string, offset int64) {
	t.Helper()
	e, err := d.index.get(k)
	must(t, err)
	segment = segmentName(d.cfg.Dir, e.segment)
	f, err := d.cfg.FS.Open(segment, 0)
	must(t, err)
	raw = vfs.AlignedBytes(int(e.space()))
	_, err = f.ReadAt(raw, e.offset)
	must(t, errors.Join(err, f.Close()))
	return raw, segment, e.offset
}

// crashAndRebuild returns the keys that a scan alone finds, in an unclean image without an index.
func crashAndRebuild(t *testing.T, fs *crashfs.FS, cfg Config) map[Key]Record {
	t.Helper()
	cfg.FS = fs.Image(crashfs.LoseAll, 0)
	cfg.RebuildIndex = true
	d := openDrive(t, cfg)
	found := map[Key]Record{}
	must(t, d.Walk(context.Background(), func(r Record) error { found[r.Key] = r; return nil }))
	must(t, d.Close())
	return found
}

// TestForgedRecords stores payloads that contain records, by somebody who knows every byte on the
// drive but its secret, in records that were aborted, deleted, and left unfinished, so that a scan
// looks at those bytes.
func TestForgedRecords(t *testing.T) {
	fs := crashfs.New(crashfs.Options{})
	cfg := config(fs, "/drive")
	cfg.SegmentBytes = 1 << 20
	d := newDrive(t, cfg)
	const victimLength = 3000
	must(t, store(d, record(1, victimLength), payload(1, victimLength)))
	copied, segment, _ := rawRecord(t, d, key(1))

	// The next record's payload begins here; its secret is unknown, all else is known.
	next, err := d.Append(context.Background(), record(2, 1))
	must(t, err)
	id, at := next.seg.id, next.offset+recordSpace(1)+unit
	const big = 100_000
	next.Abort()
	evil := record(66, victimLength)
	forge := func(sec secret, offset int64) []byte {
		raw := vfs.AlignedBytes(int(recordSpace(victimLength)))
		where := place{id, offset}
		copy(raw[unit:], payload(66, victimLength))
		padded := alignUp(victimLength)
		crc := encodeFooter(raw[unit+padded:], &evil, where, sums(payload(66, victimLength)).Blocks)
		encodeHeader(raw, &sec, &evil, where, crc)
		return raw
	}
	size := int64(len(copied))
	var bait []byte
	bait = append(bait, copied...)                         // a perfect copy of another record
	bait = append(bait, forge(secret{}, at+size)...)       // made for its place, by another key
	bait = append(bait, forge(secret{1, 2}, at+2*size)...) // and by a third
	baitLength := len(bait)

	// As the payload of a whole record, of one that is deleted later, and of an unfinished one.
	must(t, store(d, record(3, baitLength), bait))
	if e, err := d.index.get(key(3)); err != nil || e.offset+unit != at {
		t.Fatalf("the forged record is not where its header says: %+v, %v", e, err)
	}
	must(t, store(d, record(4, baitLength), bait))
	must(t, d.Delete(key(4)))
	w, err := d.Append(context.Background(), record(5, big))
	must(t, err)
	_, err = w.WriteAt(bait[:baitLength&^(unit-1)], 0) // the rest of it never comes
	must(t, err)
	if w.seg != next.seg {
		t.Fatal("the records are not in one segment")
	}
	must(t, store(d, record(6, 100), payload(6, 100))) // syncs the segment

	want := map[Key]bool{key(1): true, key(3): true, key(4): true, key(6): true}
	found := crashAndRebuild(t, fs, cfg)
	for k := range found {
		if !want[k] {
			t.Errorf("a scan found %s, which never was written", k)
		}
	}
	for k := range want { // 4 comes back without the index, by design
		if _, ok := found[k]; !ok {
			t.Errorf("a scan lost %s", k)
		}
	}

	// Even whoever can write to the medium cannot move a record or bring one from another segment.
	f, err := fs.Open(segment, vfs.Write)
	must(t, err)
	_, err = f.WriteAt(copied, w.offset)
	must(t, err)
	_, err = f.WriteAt(forge(secret{}, w.offset+size), w.offset+size)
	must(t, err)
	must(t, f.Sync())
	found = crashAndRebuild(t, fs, cfg)
	if len(found) != len(want) || found[key(1)].Length != victimLength {
		t.Errorf("after moving a record a scan found %v", found)
	}
	// The same bytes with the drive's own secret do count: the test above is not blind.
	_, err = f.WriteAt(forge(d.super.secret, w.offset), w.offset)
	must(t, err)
	must(t, errors.Join(f.Sync(), f.Close()))
	if _, ok := crashAndRebuild(t, fs, cfg)[key(66)]; !ok {
		t.Error("a genuine record was not found")
	}
	w.Abort()
	must(t, d.Close())
}

// TestBitFlips changes every field of a record in turn: readers notice, and a scan drops the record
// or shows it as it was.
func TestBitFlips(t *testing.T) {
	const length = 100_000
	base := crashfs.New(crashfs.Options{})
	cfg := config(base, "/drive")
	d := newDrive(t, cfg)
	must(t, store(d, record(1, length), payload(1, length)))
	must(t, store(d, record(2, length), payload(2, length)))
	must(t, d.index.write(&indexWrite{sync: true}))
	raw, segment, offset := rawRecord(t, d, key(1))
	var places []int64
	for i := int64(0); i < recordCRCAt+crcBytes; i++ {
		places = append(places, i)
	}
	for i := int64(0); i < length; i += 9973 {
		places = append(places, unit+i)
	}
	places = append(places, unit+length-1)
	footer := unit + alignUp(length)
	for i := int64(0); i < footerLength(length); i++ {
		places = append(places, footer+i)
	}
	for i, at := range places {
		img := base.Image(crashfs.KeepAll, 0)
		f, err := img.Open(segment, vfs.Write)
		must(t, err)
		_, err = f.WriteAt([]byte{raw[at] ^ 1<<(i%8)}, offset+at)
		must(t, errors.Join(err, f.Sync(), f.Close()))
		cfg := config(img, "/drive")

		// With its index entry the record is known; what is wrong shows when it is read.
		d, err := Open(context.Background(), cfg)
		must(t, err)
		p, err := load(d, key(1))
		switch {
		case at < unit: // the header is not needed for reading
			must(t, err)
		case !errors.Is(err, ErrCorrupt):
			t.Fatalf("byte %d: reading gives %v", at, err)
		}
		if err == nil && !bytes.Equal(p, payload(1, length)) {
			t.Fatalf("byte %d: wrong bytes", at)
		}
		checkStored(t, d, 2, length)
		must(t, d.Close())
		if i%16 != 0 {
			continue
		}
		// Without the index, in a segment that was not sealed, it is whole or not there.
		found := rebuildUnsealed(t, base, segment, offset+at, raw[at]^1<<(i%8))
		if found[key(1)] || !found[key(2)] || len(found) != 1 {
			t.Fatalf("byte %d: a scan found %v", at, found)
		}
	}
	must(t, d.Close())
}

func rebuildUnsealed(t *testing.T, base *crashfs.FS, segment string, off int64, b byte) map[Key]bool {
	t.Helper()
	img := base.Image(crashfs.KeepAll, 0)
	f, err := img.Open(segment, vfs.Write)
	must(t, err)
	_, err = f.WriteAt([]byte{b}, off)
	must(t, errors.Join(err, f.Close()))
	cfg := config(img, "/drive")
	cfg.RebuildIndex = true
	d := openDrive(t, cfg)
	found := map[Key]bool{}
	must(t, d.Walk(context.Background(), func(r Record) error { found[r.Key] = true; return nil }))
	must(t, d.Close())
	return found
}

// TestRebuild throws the index away, in every way, and compares.
func TestRebuild(t *testing.T) {
	eachFS(t, func(t *testing.T, cfg Config) {
		d := newDrive(t, cfg)
		for n := range 20 {
			must(t, store(d, record(n, 30_000+n), payload(n, 30_000+n)))
		}
		for n := range 6 {
			must(t, d.Delete(key(n)))
		}
		must(t, d.Reclaim(context.Background()))
		before, err := d.Stats()
		must(t, err)
		must(t, d.Close())
		lose := []func(){
			func() { cfg.RebuildIndex = true },
			func() {
				cfg.RebuildIndex = false
				names, err := cfg.FS.List(path.Join(cfg.Dir, indexDir))
				must(t, err)
				for _, n := range names {
					must(t, cfg.FS.Remove(path.Join(cfg.Dir, indexDir, n)))
				}
			},
			func() { must(t, cfg.FS.Remove(path.Join(cfg.Dir, indexDir))) },
		}
		for i, f := range lose {
			if i == 2 {
				lose[1]()
			}
			f()
			d := openDrive(t, cfg)
			for n := 6; n < 20; n++ {
				checkStored(t, d, n, 30_000+n)
			}
			after, err := d.Stats()
			must(t, err)
			if after.Records != before.Records || after.RecordBytes != before.RecordBytes {
				t.Fatalf("way %d: %+v before, %+v after", i, before, after)
			}
			must(t, d.Close())
		}
	})
}

// TestCorruptIndexIsRefused: an index that is there and cannot be opened is not thrown away unasked.
func TestCorruptIndexIsRefused(t *testing.T) {
	fs := crashfs.New(crashfs.Options{})
	cfg := config(fs, "/drive")
	d := newDrive(t, cfg)
	for n := range 3 {
		must(t, store(d, record(n, 5000), payload(n, 5000)))
	}
	must(t, d.Close())
	names, err := fs.List("/drive/index")
	must(t, err)
	for _, n := range names {
		if ok, _ := path.Match("MANIFEST-*", n); !ok {
			continue
		}
		f, err := fs.Open("/drive/index/"+n, vfs.Write)
		must(t, err)
		_, err = f.WriteAt(bytes.Repeat([]byte{0xee}, 64), 0)
		must(t, errors.Join(err, f.Close()))
	}
	_, err = Open(context.Background(), cfg)
	if err == nil {
		t.Fatal("opened with a broken manifest")
	}
	cfg.RebuildIndex = true
	d = openDrive(t, cfg)
	for n := range 3 {
		checkStored(t, d, n, 5000)
	}
	must(t, d.Close())
}

// TestLostSegments: records of a segment that is gone, cut or without a header are reported, not
// forgotten, and the others are served.
func TestLostSegments(t *testing.T) {
	for name, hurt := range map[string]func(fs *crashfs.FS, segment string) error{
		"gone": func(fs *crashfs.FS, s string) error { return fs.Remove(s) },
		"cut": func(fs *crashfs.FS, s string) error {
			f, err := fs.Open(s, vfs.Write)
			if err != nil {
				return err
			}
			return errors.Join(f.Truncate(2*unit), f.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			fs := crashfs.New(crashfs.Options{})
			cfg := config(fs, "/drive")
			d := newDrive(t, cfg)
			const length = 60_000
			for n := range 12 {
				must(t, store(d, record(n, length), payload(n, length)))
			}
			_, segment, _ := rawRecord(t, d, key(0))
			must(t, d.Close())
			must(t, hurt(fs, segment))
			d = openDrive(t, cfg)
			lost := 0
			for n := range 12 {
				p, err := load(d, key(n))
				if errors.Is(err, ErrCorrupt) {
					lost++
				} else if err != nil || !bytes.Equal(p, payload(n, length)) {
					t.Fatal(fmt.Errorf("record %d: %w", n, err))
				}
			}
			if lost == 0 || lost == 12 {
				t.Fatalf("%d of 12 records are corrupt", lost)
			}
			must(t, d.Delete(key(0))) // repair moves it elsewhere, then deletes it here
			must(t, store(d, record(50, length), payload(50, length)))
			must(t, d.Close())
			d = openDrive(t, cfg)
			checkStored(t, d, 50, length)
			must(t, d.Close())
		})
	}
}
