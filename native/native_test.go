package native_test

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock-store/penstock/native"
)

// TestErrorsCarryTheirKind: callers match kinds and errnos, not text.
func TestErrorsCarryTheirKind(t *testing.T) {
	var err error = &native.CallError{Call: "ibv_reg_mr", Errno: int(syscall.ENOMEM)}
	if !errors.Is(err, native.ErrVerbs) || !errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.EPERM) {
		t.Errorf("kinds of %v", err)
	}
	if want := "native: ibv_reg_mr: cannot allocate memory"; err.Error() != want {
		t.Errorf("text %q, want %q", err, want)
	}
	err = &native.UnavailableError{Reason: native.ReasonNoLibrary, Detail: "because"}
	if !errors.Is(err, native.ErrNotSupported) || errors.Is(err, native.ErrVerbs) {
		t.Errorf("kinds of %v", err)
	}
	if want := "native: verbs are not available: no-library: because"; err.Error() != want {
		t.Errorf("text %q, want %q", err, want)
	}
}

// TestWorkHidesItsKeys: no verb of fmt prints a key.
func TestWorkHidesItsKeys(t *testing.T) {
	w := native.Work{ID: 1, Local: 2, Remote: 3, Length: 4, LKey: 123454321, RKey: 987656789, Op: native.OpRead}
	for _, verb := range []string{"%v", "%+v", "%#v", "%d", "%x", "%s", "%q", "%T %v"} {
		for _, arg := range []any{w, &w, []native.Work{w}, struct{ W native.Work }{w}} {
			text := fmt.Sprintf(verb, arg)
			for _, key := range []uint32{w.LKey, w.RKey} {
				if strings.Contains(text, fmt.Sprint(key)) || strings.Contains(text, fmt.Sprintf("%x", key)) {
					t.Errorf("%s of %T prints a key: %s", verb, arg, text)
				}
			}
		}
	}
}

// TestBothBuildsOfferTheSame: with cgo and without it the package has the same exported functions, methods and types,
// but for what only a program with cgo can call.
func TestBothBuildsOfferTheSame(t *testing.T) {
	with, without := exported(t, "*_cgo.go"), exported(t, "*_nocgo.go")
	delete(with, "OpenTable")
	delete(with, "(*MR) Format")
	if len(without) < 30 {
		t.Errorf("only %d names found", len(without))
	}
	for _, name := range slices.Sorted(maps.Keys(with)) {
		if without[name] != with[name] {
			t.Errorf("%s: with cgo %q, without %q", name, with[name], without[name])
		}
		delete(without, name)
	}
	for name := range without {
		t.Errorf("%s is only there without cgo", name)
	}
}

// exported maps the names of functions, methods and types to their parameters and results, or the exported fields.
func exported(t *testing.T, pattern string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %v", pattern, err)
	}
	found := map[string]string{}
	for _, file := range files {
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				name := d.Name.Name
				if d.Recv != nil {
					name = "(" + text(t, fset, d.Recv.List[0].Type) + ") " + name
				}
				if d.Name.IsExported() && (d.Recv == nil || ast.IsExported(strings.Trim(name, "(*"))) {
					found[name] = types(t, fset, d.Type.Params) + " " + types(t, fset, d.Type.Results)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if s, ok := spec.(*ast.TypeSpec); ok && s.Name.IsExported() {
						found[s.Name.Name] = "type"
					}
				}
			}
		}
	}
	return found
}

func types(t *testing.T, fset *token.FileSet, list *ast.FieldList) string {
	if list == nil {
		return ""
	}
	var all []string
	for _, f := range list.List {
		for range max(len(f.Names), 1) {
			all = append(all, text(t, fset, f.Type))
		}
	}
	return strings.Join(all, ",")
}

func text(t *testing.T, fset *token.FileSet, node any) string {
	t.Helper()
	var b bytes.Buffer
	if err := printer.Fprint(&b, fset, node); err != nil {
		t.Fatal(err)
	}
	return b.String()
}
