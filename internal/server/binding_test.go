package server_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/penstock-store/penstock/internal/drive"
	"github.com/penstock-store/penstock/internal/meta"
	"github.com/penstock-store/penstock/internal/server"
	"github.com/penstock-store/penstock/internal/vfs/osfs"
)

// refuse starts a node that must not come up, several times, since each start may count something.
func refuse(t *testing.T, dir string, want error) {
	t.Helper()
	for range 4 {
		s, err := server.New(context.Background(), configFor(t, dir), nil)
		if err == nil {
			t.Fatalf("the node came up (close: %v)", s.Close())
		}
		if !errors.Is(err, want) {
			t.Fatalf("got %v, want %v", err, want)
		}
	}
}

// filled makes a node with one object in chunks, named key, and stops it.
func filled(t *testing.T, dir, key string) []byte {
	t.Helper()
	body := bytes.Repeat([]byte(key), 100_000)
	r := start(t, configFor(t, dir), nil)
	r.do("PUT", "/bucket", nil)
	if status, text := r.do("PUT", "/bucket/"+key, body); status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	return body
}

func wantObject(t *testing.T, dir, key string, body []byte) {
	t.Helper()
	r := start(t, configFor(t, dir), nil)
	if status, got := r.do("GET", "/bucket/"+key, nil); status != 200 || !bytes.Equal(got, body) {
		t.Fatalf("%s: %d, %d bytes", key, status, len(got))
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
}

func move(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

// edit changes one member of the file that says who the node is; nil removes it.
func edit(t *testing.T, dir, member string, value any) {
	t.Helper()
	name := filepath.Join(dir, "node")
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var members map[string]any
	if err := json.Unmarshal(text, &members); err != nil {
		t.Fatal(err)
	}
	if members[member] = value; value == nil {
		delete(members, member)
	}
	if text, err = json.Marshal(members); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestMissingMetadata: metadata that are gone, or not mounted, must not become an empty store whose
// orphan check empties the drive.
func TestMissingMetadata(t *testing.T) {
	dir := t.TempDir()
	body := filled(t, dir, "key")
	path := filepath.Join(dir, "meta")
	move(t, path, path+".away")
	refuse(t, dir, server.ErrNoMetadata)
	if err := os.RemoveAll(path); err != nil { // an empty directory may be there
		t.Fatal(err)
	}
	move(t, path+".away", path)
	wantObject(t, dir, "key", body)
}

// TestFreshMetadataOnAFilledDrive: neither does a node that forgot its drive take it over.
func TestFreshMetadataOnAFilledDrive(t *testing.T) {
	dir := t.TempDir()
	body := filled(t, dir, "key")
	path := filepath.Join(dir, "meta")
	move(t, path, path+".away")
	edit(t, dir, "drive", nil)
	refuse(t, dir, meta.ErrStale)
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	move(t, path+".away", path)
	wantObject(t, dir, "key", body)
}

// TestOlderMetadata: a backup does not know the epochs in which the drive went on.
func TestOlderMetadata(t *testing.T) {
	dir := t.TempDir()
	first := filled(t, dir, "first")
	path := filepath.Join(dir, "meta")
	if err := os.CopyFS(path+".backup", os.DirFS(path)); err != nil {
		t.Fatal(err)
	}
	second := filled(t, dir, "second")
	move(t, path, path+".away")
	move(t, path+".backup", path)
	refuse(t, dir, meta.ErrStale)
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	move(t, path+".away", path)
	wantObject(t, dir, "first", first)
	wantObject(t, dir, "second", second)
}

// TestMetadataOfAnotherNode are of another set.
func TestMetadataOfAnotherNode(t *testing.T) {
	mine, other := t.TempDir(), t.TempDir()
	body := filled(t, mine, "key")
	filled(t, other, "key")
	path := filepath.Join(mine, "meta")
	move(t, path, path+".away")
	move(t, filepath.Join(other, "meta"), path)
	refuse(t, mine, meta.ErrForeign)
	move(t, path, filepath.Join(other, "meta"))
	move(t, path+".away", path)
	wantObject(t, mine, "key", body)
}

// TestDriveOfAnotherNode: its superblock has another set.
func TestDriveOfAnotherNode(t *testing.T) {
	mine, other := t.TempDir(), t.TempDir()
	filled(t, mine, "key")
	body := filled(t, other, "key")
	path := filepath.Join(mine, "drive")
	move(t, path, path+".away")
	move(t, filepath.Join(other, "drive"), path)
	refuse(t, mine, drive.ErrForeign)
	move(t, path, filepath.Join(other, "drive"))
	wantObject(t, other, "key", body)
}

// TestUnknownDriveOfTheSet: even a drive that is empty and of the right set is not the one that the
// metadata know.
func TestUnknownDriveOfTheSet(t *testing.T) {
	dir := t.TempDir()
	body := filled(t, dir, "key")
	text, err := os.ReadFile(filepath.Join(dir, "node"))
	if err != nil {
		t.Fatal(err)
	}
	var node struct{ Set, Drive string }
	if err := json.Unmarshal(text, &node); err != nil {
		t.Fatal(err)
	}
	c := drive.Config{FS: osfs.FS{}, Dir: filepath.Join(dir, "drive")}
	if _, err := hex.Decode(c.Set[:], []byte(node.Set)); err != nil {
		t.Fatal(err)
	}
	move(t, c.Dir, c.Dir+".away")
	id, err := drive.Format(c)
	if err != nil {
		t.Fatal(err)
	}
	refuse(t, dir, drive.ErrForeign) // says the node file
	edit(t, dir, "drive", id.String())
	refuse(t, dir, meta.ErrForeign) // say the metadata
	edit(t, dir, "drive", nil)
	refuse(t, dir, meta.ErrForeign)
	edit(t, dir, "drive", node.Drive)
	if err := os.RemoveAll(c.Dir); err != nil {
		t.Fatal(err)
	}
	move(t, c.Dir+".away", c.Dir)
	wantObject(t, dir, "key", body)
}

// TestStartThatWasCutOff: a first start may end after each of its steps; the next one goes on.
func TestStartThatWasCutOff(t *testing.T) {
	dir := t.TempDir()
	r := start(t, configFor(t, dir), nil)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	edit(t, dir, "drive", nil) // formatted and bound, and not in the node file
	r = start(t, configFor(t, dir), nil)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	edit(t, dir, "drive", nil)
	if err := os.RemoveAll(filepath.Join(dir, "meta")); err != nil { // formatted only
		t.Fatal(err)
	}
	body := filled(t, dir, "key")
	wantObject(t, dir, "key", body)
}
