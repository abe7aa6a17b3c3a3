package gateway

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// TestEverySentinelIsMapped: the oracle is the source of the packages that the gateway calls. Every
// exported error value there is in the table, under its name.
func TestEverySentinelIsMapped(t *testing.T) {
	table := map[string]bool{}
	for _, m := range mappings {
		if table[m.name] {
			t.Errorf("%s is in the table twice", m.name)
		}
		table[m.name] = true
	}
	found := 0
	for _, pkg := range []string{"store", "fabric", "arena", "token", "iam", "sink"} {
		for _, name := range sentinels(t, pkg) {
			found++
			if !table[name] {
				t.Errorf("%s has no S3 error", name)
			}
			delete(table, name)
		}
	}
	if found < 30 {
		t.Errorf("only %d sentinels found: the test looks in the wrong place", found)
	}
	for name := range table {
		t.Errorf("%s is in the table and in no package", name)
	}
}

func sentinels(t *testing.T, pkg string) (names []string) {
	files, err := filepath.Glob(filepath.Join("..", pkg, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.VAR {
				continue
			}
			for _, spec := range g.Specs {
				for _, id := range spec.(*ast.ValueSpec).Names {
					if strings.HasPrefix(id.Name, "Err") {
						names = append(names, pkg+"."+id.Name)
					}
				}
			}
		}
	}
	return names
}

// TestWrappedSentinelsKeepTheirCode: each row answers its own code, also when wrapped, so that no row
// hides behind an earlier one.
func TestWrappedSentinelsKeepTheirCode(t *testing.T) {
	for _, m := range mappings {
		e := answerOf(fmt.Errorf("object x: open: %w", m.err))
		if e.Code != m.code {
			t.Errorf("%s: %s, want %s", m.name, e.Code, m.code)
		}
		if e.Status < 300 {
			t.Errorf("%s: status %d", m.name, e.Status)
		}
		if (e.Status == 503) != (e.Header["Retry-After"] != "") {
			t.Errorf("%s: status %d, Retry-After %q", m.name, e.Status, e.Header["Retry-After"])
		}
	}
	if e := answerOf(errors.New("unheard of")); e.Code != "InternalError" {
		t.Errorf("unknown error: %s", e.Code)
	}
}
