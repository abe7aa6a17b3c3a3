package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestGeneratedFilesAreCurrent: the committed file is the one that its source makes.
func TestGeneratedFilesAreCurrent(t *testing.T) {
	const dir = "../../meta/metapb"
	out := t.TempDir()
	if err := generate(dir, out); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(filepath.Join(dir, "meta.pb.go"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(out, "meta.pb.go"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Fatal("meta.pb.go is not what meta.proto makes: run make generate")
	}
}

// TestErrors: what cannot be compiled is reported.
func TestErrors(t *testing.T) {
	dir := t.TempDir()
	if generate(dir, dir) == nil {
		t.Fatal("an empty directory was accepted")
	}
	if err := os.WriteFile(filepath.Join(dir, "bad.proto"), []byte("message"), 0o600); err != nil {
		t.Fatal(err)
	}
	if generate(dir, dir) == nil {
		t.Fatal("a bad file was accepted")
	}
}
