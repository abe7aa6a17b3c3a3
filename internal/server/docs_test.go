package server_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDocumentsNameRealTests: every test that a document names exists, under that name or, for numbered
// behaviours, with a name that begins so.
func TestDocumentsNameRealTests(t *testing.T) {
	defined := map[string]bool{}
	declaration := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range declaration.FindAllSubmatch(text, -1) {
			defined[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var documents []string
	for _, pattern := range []string{"../../*.md", "../../docs/*.md", "../../docs/rfcs/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %d documents, %v", pattern, len(found), err)
		}
		documents = append(documents, found...)
	}
	named := regexp.MustCompile("`(Test\\w+)(?:/\\w+)*`")
	for _, document := range documents {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range named.FindAllSubmatch(text, -1) {
			name := string(m[1])
			if name != "TestS3_nn" && name != "TestRF_nn" && !defined[name] {
				t.Errorf("%s names %s, which does not exist", document, name)
			}
		}
	}
}
