// Package penstock_test holds the rules of the repository as tests: the package tree is the
// architecture (ARCHITECTURE.md), and what CONTRIBUTING.md demands is checked here where it can be.
package penstock_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

const module = "github.com/penstock-store/penstock"

// leaves may be imported by every package of the module: they import nothing of it (but each other
// as listed in allowed).
var leaves = []string{"internal/checksum", "internal/requestid"}

// allowed lists, for each package (longest prefix wins), the packages of this module that its
// non-test files may import; what no package of the row imports is not listed. The row of a prefix
// also covers its own subtree.
var allowed = map[string][]string{
	"cmd/penstock":             {"internal/cli", "internal/server", "internal/config"},
	"client":                   {"client/target", "internal/s3", "internal/token", "internal/frame", "native"},
	"client/target":            {"internal/token", "internal/frame", "internal/rail", "native"},
	"client/awsrdma":           {"client"},
	"bench":                    {"client"},
	"internal/cli":             {"client", "bench", "internal/certs", "internal/config", "internal/rail", "native"},
	"internal/certs":           {},
	"internal/accesslog":       {},
	"internal/arena":           {},
	"internal/token":           {},
	"internal/frame":           {"internal/token"},
	"internal/checksum":        {},
	"internal/requestid":       {},
	"internal/fabric":          {"internal/arena", "internal/token"},
	"internal/fabric/shm":      {"internal/fabric", "internal/arena", "internal/token", "internal/frame"},
	"internal/fabric/dataconn": {"internal/fabric", "internal/frame"},
	"internal/fabric/tcp": {"internal/fabric", "internal/fabric/dataconn", "internal/arena", "internal/token",
		"internal/frame"},
	"internal/fabric/dc": {"internal/fabric", "internal/fabric/verbs/initiator", "internal/arena", "internal/token",
		"native"},
	"internal/fabric/dc/lane": {},
	"internal/fabric/hip": {"internal/fabric", "internal/fabric/verbs/initiator", "internal/fabric/verbs/rails",
		"internal/arena", "internal/token", "native"},
	"internal/fabric/rcdial": {"internal/fabric", "internal/fabric/verbs/initiator", "internal/fabric/verbs/rails",
		"internal/arena", "internal/token", "native"},
	"internal/fabric/verbs/initiator": {"internal/fabric/dc/lane",
		"internal/fabric/verbs/reach", "internal/rail", "native"},
	"internal/fabric/verbs/rails": {"internal/fabric/verbs/initiator", "internal/fabric/verbs/reach", "internal/frame",
		"internal/rail", "native"},
	"internal/fabric/verbs/reach": {"internal/rail", "native"},
	"internal/fabric/verbs": {"internal/fabric", "internal/fabric/dataconn", "internal/fabric/verbs/initiator",
		"internal/fabric/verbs/rails", "internal/fabric/verbs/reach",
		"internal/arena", "internal/token", "internal/frame", "native"},
	"internal/rail":    {"native"},
	"native":           {},
	"native/fakeverbs": {"native"},
	"native/shimlib":   {},
	"internal/fabric/fabrictest": {"internal/fabric", "internal/arena", "internal/token", "internal/frame",
		"client/target"},
	"internal/s3":    {},
	"internal/sink":  {"internal/fabric", "internal/arena"},
	"internal/front": {},
	"internal/gateway": {"internal/accesslog", "internal/front", "internal/s3", "internal/token", "internal/store",
		"internal/fabric", "internal/sink", "internal/arena", "internal/iam", "internal/frame"},
	"internal/store": {"internal/meta", "internal/meta/kv", "internal/meta/metapb", "internal/chunk",
		"internal/arena"},
	"internal/meta":            {"internal/meta/kv", "internal/meta/metapb"},
	"internal/meta/metapb":     {},
	"internal/meta/kv":         {},
	"internal/meta/kv/pebble":  {"internal/meta/kv", "internal/vfs", "internal/vfs/pebblefs"},
	"internal/meta/kv/kvtest":  {"internal/meta/kv"},
	"internal/chunk":           {"internal/arena"},
	"internal/chunk/chunkmem":  {"internal/chunk", "internal/arena"},
	"internal/chunk/chunktest": {"internal/chunk", "internal/arena"},
	"internal/chunk/local":     {"internal/chunk", "internal/arena", "internal/drive"},
	"internal/drive":           {"internal/vfs", "internal/vfs/pebblefs"},
	"internal/vfs":             {"internal/vfs"},
	"internal/iam":             {"internal/meta"},
	"internal/work": {"internal/store", "internal/meta", "internal/meta/kv", "internal/meta/metapb",
		"internal/chunk"},
	"internal/admin": {"internal/iam", "internal/s3"},
	"internal/server": {"internal/accesslog", "internal/admin", "internal/arena", "internal/certs",
		"internal/chunk/local", "internal/config",
		"internal/drive", "internal/fabric", "internal/fabric/shm", "internal/fabric/tcp", "internal/fabric/verbs",
		"internal/fabric/verbs/rails", "internal/fabric/verbs/reach", "internal/fabric/verbs/initiator",
		"internal/fabric/dc", "internal/fabric/rcdial", "internal/fabric/hip", "internal/frame", "internal/rail", "native",
		"internal/front", "internal/gateway", "internal/iam", "internal/meta", "internal/meta/kv/pebble", "internal/store",
		"internal/vfs", "internal/vfs/osfs", "internal/work"},
	"internal/config": {},
	"internal/tools":  {},
	"test":            {"internal/arena", "internal/store", "bench", "client"},
	"test/onenode":    {"internal/config", "internal/server", "client", "native/fakeverbs"},
}

type listed struct {
	ImportPath, Dir, Name string
	Doc                   string
	GoFiles               []string
	CgoFiles              []string
	TestGoFiles           []string
	XTestGoFiles          []string
	Imports               []string
}

func packages(t *testing.T) []listed {
	t.Helper()
	out, err := exec.Command("go", "list", "-json", "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []listed
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

func TestImportsFollowTheArchitecture(t *testing.T) {
	used := map[[2]string]bool{} // row and import
	for _, p := range packages(t) {
		path := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		if path == "" {
			continue
		}
		row := path
		for row != "." {
			if _, ok := allowed[row]; ok {
				break
			}
			row = filepath.Dir(row)
		}
		rules, ok := allowed[row]
		if !ok {
			t.Errorf("package %s is not part of the architecture: add it to the table and to ARCHITECTURE.md", path)
			continue
		}
		for _, imp := range p.Imports {
			in, ok := strings.CutPrefix(imp, module+"/")
			if ok && !slices.Contains(leaves, in) && !slices.Contains(rules, in) {
				t.Errorf("%s imports %s, which the architecture does not allow", path, in)
			}
			used[[2]string{row, in}] = true
		}
	}
	for row, rules := range allowed {
		for _, rule := range rules {
			if !used[[2]string{row, rule}] {
				t.Errorf("the row of %s allows %s, which no package of it imports", row, rule)
			}
		}
	}
}

// source is one parsed Go file.
type source struct {
	name      string // relative to the root, slash separated
	test      bool
	generated bool
	text      []byte
	fset      *token.FileSet
	file      *ast.File
}

func sources(t *testing.T) []source {
	t.Helper()
	out, err := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard", "*.go").Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	var all []source
	for name := range strings.FieldsSeq(string(out)) {
		text, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, name, text, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, source{name, strings.HasSuffix(name, "_test.go"), ast.IsGenerated(f), text, fset, f})
	}
	return all
}

func TestEveryPackageHasOneDoc(t *testing.T) {
	docs := map[string][]string{}
	for _, s := range sources(t) {
		dir := filepath.Dir(s.name)
		if s.test {
			continue
		}
		if _, ok := docs[dir]; !ok {
			docs[dir] = nil
		}
		if s.file.Doc != nil {
			docs[dir] = append(docs[dir], s.name)
		}
	}
	for dir, files := range docs {
		if len(files) != 1 {
			t.Errorf("%s: %d package docs %v, want one", dir, len(files), files)
		}
	}
}

func TestUnsafeAndCgoStayInNamedFiles(t *testing.T) {
	for _, s := range sources(t) {
		base := filepath.Base(s.name)
		named := strings.HasSuffix(base, "_unsafe.go") || strings.HasSuffix(base, "_cgo.go") ||
			strings.HasSuffix(base, "_unsafe_test.go")
		for _, imp := range s.file.Imports {
			switch imp.Path.Value {
			case `"unsafe"`:
				if !named && !s.generated {
					t.Errorf("%s imports unsafe", s.name)
				}
			case `"C"`:
				if !strings.HasPrefix(s.name, "native/") {
					t.Errorf("%s uses cgo", s.name)
				}
			}
		}
	}
}

func TestNoInitAndNoMutableGlobals(t *testing.T) {
	for _, s := range sources(t) {
		if s.test || s.generated {
			continue
		}
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.Name == "init" && d.Recv == nil {
					t.Errorf("%s: init function", s.name)
				}
			case *ast.GenDecl:
				if d.Tok == token.VAR {
					for _, spec := range d.Specs {
						checkGlobal(t, s, d, spec.(*ast.ValueSpec))
					}
				}
			}
		}
	}
}

// tableMakers are the calls that may set a package variable: they make errors and fixed tables.
var tableMakers = []string{"errors.New", "fmt.Errorf", "regexp.MustCompile", "strings.NewReplacer",
	"crc32.MakeTable", "template.Must", "func"}

// checkGlobal allows error values, blank assertions, embedded files and tables that are built once
// and documented as such: composite literals, or calls that make a table, a regexp or a replacer.
func checkGlobal(t *testing.T, s source, d *ast.GenDecl, v *ast.ValueSpec) {
	for i, name := range v.Names {
		linked := s.name == "cmd/penstock/main.go" && name.Name == "version" // set by -ldflags -X
		if linked || name.Name == "_" || strings.Contains(textOf(d.Doc)+textOf(v.Doc), "go:embed") {
			continue
		}
		if len(v.Values) <= i {
			t.Errorf("%s: mutable package variable %s", s.name, name.Name)
			continue
		}
		switch value := v.Values[i].(type) {
		case *ast.CompositeLit:
		case *ast.CallExpr:
			from, to := s.fset.Position(value.Fun.Pos()), s.fset.Position(value.Fun.End())
			call := string(s.text[from.Offset:to.Offset])
			if !slices.Contains(tableMakers, call) {
				t.Errorf("%s: package variable %s is set by a call to %s", s.name, name.Name, call)
			}
		default:
			t.Errorf("%s: mutable package variable %s", s.name, name.Name)
		}
	}
}

func textOf(g *ast.CommentGroup) string {
	if g == nil {
		return ""
	}
	var b strings.Builder
	for _, c := range g.List {
		b.WriteString(c.Text)
	}
	return b.String()
}

func TestErrorsAreNotMatchedByText(t *testing.T) {
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			fun, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			if x, ok := fun.X.(*ast.Ident); !ok || x.Name != "strings" {
				return true
			}
			if inner, ok := call.Args[0].(*ast.CallExpr); ok {
				if sel, ok := inner.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "Error" && len(inner.Args) == 0 {
					t.Errorf("%s: matches on error text", s.fset.Position(call.Pos()))
				}
			}
			return true
		})
	}
}

func TestTestsDoNotSleep(t *testing.T) {
	for _, s := range sources(t) {
		if !s.test || bytes.Contains(s.text, []byte(`"testing/synctest"`)) {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == "Sleep" {
				if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" {
					t.Errorf("%s: sleeps", s.fset.Position(n.Pos()))
				}
			}
			return true
		})
	}
}

// requestCode is where log lines are about a request, or about a session that a request opened.
var requestCode = []string{"internal/gateway/", "internal/store/", "internal/sink/", "internal/fabric/"}

// noRequest are messages about no request in these packages.
var noRequest = []string{"data connection refused", "data connection not accepted", "rdma port is no rail",
	"rdma rail is left out", "rdma rail is up", "rdma rail is down", "rdma rail does not work",
	"rdma queue pair is not given back", "rdma dci does not serve"}

// TestLogLinesNameTheirRequest: each line has the id as an attribute, or the context that carries it.
func TestLogLinesNameTheirRequest(t *testing.T) {
	levels := []string{"Debug", "Info", "Warn", "Error"}
	for _, s := range sources(t) {
		if s.test || strings.HasPrefix(s.name, "internal/fabric/fabrictest/") ||
			!slices.ContainsFunc(requestCode, func(dir string) bool { return strings.HasPrefix(s.name, dir) }) {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			fun, ok := call.Fun.(*ast.SelectorExpr)
			message, isText := call.Args[0].(*ast.BasicLit)
			if !ok || !isText || !slices.Contains(levels, fun.Sel.Name) {
				return true
			}
			from, to := s.fset.Position(call.Pos()).Offset, s.fset.Position(call.End()).Offset
			text := s.text[from:to]
			if !bytes.Contains(text, []byte(`"request_id"`)) && !bytes.Contains(text, []byte("requestid.Attr")) &&
				!slices.Contains(noRequest, strings.Trim(message.Value, `"`)) {
				t.Errorf("%s: the line does not name its request", s.fset.Position(call.Pos()))
			}
			return true
		})
	}
}

// Size budgets. Known offenders may only shrink: lower their numbers, never add one.
const (
	maxFileLines       = 800
	maxFuncLines       = 100
	maxInterfaceMethod = 8
	maxParams          = 5
	maxLineLength      = 120
)

func TestSizeBudgets(t *testing.T) {
	for _, s := range sources(t) {
		if s.generated {
			continue
		}
		lines := bytes.Split(s.text, []byte("\n"))
		if len(lines)-1 > maxFileLines {
			t.Errorf("%s has %d lines, more than %d", s.name, len(lines)-1, maxFileLines)
		}
		for i, l := range lines {
			if n := utf8.RuneCount(l); n > maxLineLength &&
				!bytes.Contains(l, []byte("go:embed")) && !bytes.Contains(l, []byte("://")) {
				t.Errorf("%s:%d has %d columns, more than %d", s.name, i+1, n, maxLineLength)
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Body != nil {
					size := s.fset.Position(n.Body.End()).Line - s.fset.Position(n.Pos()).Line + 1
					if size > maxFuncLines {
						t.Errorf("%s: %s has %d lines, more than %d", s.name, n.Name.Name, size, maxFuncLines)
					}
				}
				if k := n.Type.Params.NumFields(); k > maxParams && !s.test {
					t.Errorf("%s: %s has %d parameters, more than %d", s.name, n.Name.Name, k, maxParams)
				}
			case *ast.InterfaceType:
				if k := n.Methods.NumFields(); k > maxInterfaceMethod {
					at := s.fset.Position(n.Pos())
					t.Errorf("%s: an interface has %d methods, more than %d", at, k, maxInterfaceMethod)
				}
			}
			return true
		})
	}
}

func TestPackageNamesSayWhat(t *testing.T) {
	for _, p := range packages(t) {
		switch p.Name {
		case "common", "helpers", "types", "util", "utils", "misc", "blob":
			t.Errorf("package %s is named by what it is not", p.ImportPath)
		}
	}
}

func TestModuleIsPureGo(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.CgoFiles) != 0 && !strings.HasPrefix(p.ImportPath, module+"/native") {
			t.Errorf("%s needs cgo", p.ImportPath)
		}
	}
}
