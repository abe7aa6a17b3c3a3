package cli

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/test/onenode"
)

// startNode runs a real node in this process and points the AWS_* variables at it.
func startNode(t *testing.T) {
	t.Helper()
	n := onenode.Start(t)
	noNode(t)
	t.Setenv("AWS_ENDPOINT_URL", n.Endpoint)
	t.Setenv("AWS_ACCESS_KEY_ID", n.Credentials.AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", n.Credentials.SecretKey)
}

// must runs a command that has to succeed.
func must(t *testing.T, args ...string) outcome {
	t.Helper()
	o := penstock(t, "", args...)
	if o.code != ExitOK {
		t.Fatalf("%q: code %d: %s", args, o.code, o.stderr)
	}
	return o
}

// summary reads the last line of a cp with --json.
func summary(t *testing.T, o outcome) copySummary {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(o.stdout), "\n")
	var s copySummary
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &s); err != nil || s.Type != "summary" {
		t.Fatalf("no summary in %q: %v", o.stdout, err)
	}
	return s
}

// oddNames are file names that go through unchanged.
func oddNames() map[string]string {
	return map[string]string{
		"plain":              "1",
		"empty":              "",
		"with space/a b+c%":  "2",
		"ünïcödé/名前":         "3",
		"u\u0308 decomposed": "4",
		"deep/er/and/er":     "5",
		"...":                "6",
		"-dash":              "7",
		"new\nline":          "8",
		`back\slash`:         "9",
		"?&=#;":              "10",
		"big":                strings.Repeat("0123456789abcdef", 400<<10), // 6.4 MiB: more than one part of 5 MiB
	}
}

func writeTree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	past := time.Now().Add(-time.Hour)
	for name, text := range files {
		full := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(full, past, past); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func readTree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(dir, name)
		text, err := os.ReadFile(name)
		files[rel] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func sameTree(t *testing.T, got, want map[string]string) {
	t.Helper()
	for name, text := range want {
		if g, ok := got[name]; !ok || g != text {
			t.Errorf("%q: there %v, same %v", name, ok, g == text)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%q is there and should not be", name)
		}
	}
}

func TestCopyTreesOverEveryPath(t *testing.T) {
	startNode(t)
	must(t, "mb", "s3://tree")
	files := oddNames()
	dir := writeTree(t, files)
	var bytes int64
	for _, text := range files {
		bytes += int64(len(text))
	}
	for _, path := range []string{"shm", "tcp", "http"} {
		target := "s3://tree/" + path
		up := summary(t, must(t, "cp", "-r", "--json", "--no-fallback", "--fabric", path, dir, target))
		if up.Copied != int64(len(files)) || up.Bytes != bytes {
			t.Errorf("%s up: %+v", path, up)
		}
		if wantFabric := map[bool]int64{true: 0, false: bytes}[path == "http"]; up.FabricBytes != wantFabric {
			t.Errorf("%s up: %d bytes by a fabric, want %d", path, up.FabricBytes, wantFabric)
		}
		out := filepath.Join(t.TempDir(), "out")
		down := summary(t, must(t, "cp", "-r", "--json", "--no-fallback", "--fabric", path, target, out))
		if down.Copied != int64(len(files)) || down.Bytes != bytes {
			t.Errorf("%s down: %+v", path, down)
		}
		sameTree(t, readTree(t, out), files)
		for _, again := range [][]string{{dir, target}, {target, out}} {
			s := summary(t, must(t, "cp", "-r", "--json", "--fabric", path, again[0], again[1]))
			if s.Copied != 0 || s.Skipped != int64(len(files)) {
				t.Errorf("%s again: %+v", path, s)
			}
		}
	}
}

func TestWhatCountsAsComplete(t *testing.T) {
	startNode(t)
	must(t, "mb", "s3://skip")
	dir := writeTree(t, map[string]string{"a": "one", "b": "two"})
	up := func(extra ...string) copySummary {
		return summary(t, must(t, append([]string{"cp", "-r", "--json", dir, "s3://skip/"}, extra...)...))
	}
	out := filepath.Join(t.TempDir(), "out")
	down := func(extra ...string) copySummary {
		return summary(t, must(t, append([]string{"cp", "-r", "--json", "s3://skip/", out}, extra...)...))
	}
	expect := func(what string, s copySummary, copied int64) {
		t.Helper()
		if s.Copied != copied || s.Copied+s.Skipped != 2 || s.Failed != 0 {
			t.Errorf("%s: %+v, want %d copied", what, s, copied)
		}
	}
	expect("first", up(), 2)
	expect("second", up(), 0)
	expect("force", up("--force"), 2)
	// Same length, other bytes, old time: only contents tell.
	past := time.Now().Add(-2 * time.Hour)
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("ONE"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(filepath.Join(dir, "a"), past, past); err != nil {
		t.Fatal(err)
	}
	expect("times", up(), 0)
	expect("checksum", up("--checksum"), 1)
	// A newer file.
	future := time.Now().Add(time.Hour)
	if err := os.Chtimes(filepath.Join(dir, "b"), future, future); err != nil {
		t.Fatal(err)
	}
	expect("newer", up(), 1)

	expect("download", down(), 2)
	expect("download again", down(), 0)
	if err := os.WriteFile(filepath.Join(out, "a"), []byte("xxx"), 0o644); err != nil {
		t.Fatal(err)
	}
	expect("changed since", down(), 1)
	if err := os.Truncate(filepath.Join(out, "a"), 1); err != nil {
		t.Fatal(err)
	}
	expect("shorter", down("--checksum"), 1)
	sameTree(t, readTree(t, out), map[string]string{"a": "ONE", "b": "two"})

	same := summary(t, must(t, "cp", "-r", "--json", "s3://skip/", "s3://skip/copy/"))
	if same.Copied < 2 {
		t.Errorf("copy between objects: %+v", same)
	}
	o := must(t, "cat", "s3://skip/copy/a")
	if o.stdout != "ONE" {
		t.Errorf("copied object holds %q", o.stdout)
	}
}

// putKeys stores small objects under any keys.
func putKeys(t *testing.T, bucket string, keys map[string]string) {
	t.Helper()
	c, err := client.New(client.Config{Fabric: client.HTTP})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for key, text := range keys {
		src := client.Source{Reader: strings.NewReader(text), Bytes: int64(len(text))}
		if _, err := c.PutReader(t.Context(), src, bucket, key, client.PutOptions{}); err != nil {
			t.Fatalf("put %q: %v", key, err)
		}
	}
}

// Keys that would leave the target directory are refused and named; the others arrive.
func TestDownloadStaysInItsDirectory(t *testing.T) {
	startNode(t)
	must(t, "mb", "s3://evil")
	putKeys(t, "evil", map[string]string{
		"p/good": "good", "p/../../escape": "x", "p//abs": "x", "p/./dot": "x", "p/a/../b": "x", "p/dir/": "",
		"p/marker/": "has data", "p/conflict": "file", "p/conflict/below": "x",
	})
	base := t.TempDir()
	out := filepath.Join(base, "in", "out")
	o := penstock(t, "", "cp", "-r", "--json", "s3://evil/p", out)
	if o.code != ExitPartial {
		t.Errorf("code %d: %s", o.code, o.stderr)
	}
	s := summary(t, o)
	if s.Failed != 6 { // escape, abs, dot, b, marker/ and one side of the conflict
		t.Errorf("%+v\n%s", s, o.stderr)
	}
	got := readTree(t, base)
	if got["in/out/good"] != "good" {
		t.Errorf("tree: %v", got)
	}
	for name := range got {
		if !strings.HasPrefix(name, "in/out/") || strings.Contains(name, ".part") {
			t.Errorf("stray file %q", name)
		}
	}
	if info, err := os.Stat(filepath.Join(out, "dir")); err != nil || !info.IsDir() {
		t.Errorf("directory marker: %v", err)
	}
}

// A symbolic link inside the target is no way out of it, and one in a source is not followed.
func TestSymbolicLinks(t *testing.T) {
	startNode(t)
	must(t, "mb", "s3://links")
	putKeys(t, "links", map[string]string{"link/file": "x", "ok": "y"})
	outside := t.TempDir()
	out := t.TempDir()
	if err := os.Symlink(outside, filepath.Join(out, "link")); err != nil {
		t.Fatal(err)
	}
	if o := penstock(t, "", "cp", "-r", "s3://links", out); o.code != ExitPartial {
		t.Errorf("code %d: %s", o.code, o.stderr)
	}
	if left := readTree(t, outside); len(left) != 0 {
		t.Errorf("written through the link: %v", left)
	}
	dir := writeTree(t, map[string]string{"real": "1"})
	if err := os.Symlink("/etc/hostname", filepath.Join(dir, "sym")); err != nil {
		t.Fatal(err)
	}
	o := must(t, "cp", "-r", "--json", dir, "s3://links/up")
	if s := summary(t, o); s.Copied != 1 || !strings.Contains(o.stderr, "sym") {
		t.Errorf("%+v %s", s, o.stderr)
	}
}

func TestSingleObjects(t *testing.T) {
	startNode(t)
	must(t, "mb", "s3://one")
	dir := writeTree(t, map[string]string{"f": "content"})
	file := filepath.Join(dir, "f")
	must(t, "cp", file, "s3://one")
	must(t, "cp", file, "s3://one/sub/")
	must(t, "cp", file, "s3://one/name")
	if o := penstock(t, "from stdin", "cp", "-", "s3://one/stdin"); o.code != ExitOK {
		t.Errorf("%+v", o)
	}
	keys := []string{}
	for line := range strings.SplitSeq(strings.TrimSpace(must(t, "ls", "-r", "--json", "s3://one").stdout), "\n") {
		var e entryLine
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		keys = append(keys, e.Key)
	}
	if !slices.Equal(keys, []string{"f", "name", "stdin", "sub/f"}) {
		t.Errorf("keys %q", keys)
	}
	if o := must(t, "cp", "s3://one/stdin", "-"); o.stdout != "from stdin" {
		t.Errorf("%q", o.stdout)
	}
	if o := must(t, "cat", "s3://one/f", "--range", "3-5"); o.stdout != "ten" {
		t.Errorf("range: %q", o.stdout)
	}
	must(t, "cp", "s3://one/f", dir+"/got")
	must(t, "cp", "s3://one/sub/f", dir+"/newdir/")
	got := readTree(t, dir)
	if got["got"] != "content" || got["newdir/f"] != "content" {
		t.Errorf("%v", got)
	}
	for want, args := range map[int][]string{
		ExitNotFound: {"cp", "s3://one/missing", dir + "/x"},
		ExitUsage:    {"cp", dir, "s3://one/x"},
		ExitFailure:  {"cp", dir + "/missing", "s3://one/x"},
	} {
		if o := penstock(t, "", args...); o.code != want {
			t.Errorf("%q: code %d, want %d: %s", args, o.code, want, o.stderr)
		}
	}
}

// The JSON lines of the commands are an interface: fields may be added, never changed.
func TestGoldenJSON(t *testing.T) {
	startNode(t)
	must(t, "mb", "s3://gold")
	putKeys(t, "gold", map[string]string{"d/k": "12345"})
	fields := func(o outcome) string {
		var m map[string]any
		if err := json.Unmarshal([]byte(strings.SplitN(o.stdout, "\n", 2)[0]), &m); err != nil {
			t.Fatalf("%q: %v", o.stdout, err)
		}
		names := []string{}
		for n, v := range m {
			names = append(names, fmt.Sprintf("%s:%T", n, v))
		}
		slices.Sort(names)
		return strings.Join(names, " ")
	}
	for want, args := range map[string][]string{
		"bucket:string created:string type:string":           {"ls", "--json"},
		"bucket:string bytes:float64 key:string type:string": {"ls", "--json", "s3://gold/"},
		"bucket:string bytes:float64 etag:string key:string last_modified:string type:string": {
			"ls", "--json", "-r", "s3://gold"},
		"bucket:string bytes:float64 content_type:string crc64nvme:string etag:string key:string " +
			"last_modified:string type:string": {"stat", "--json", "s3://gold/d/k"},
		"access_key:string created:string principal:string secret_key:string type:string": {
			"admin", "key", "create", "--json", "--principal", "someone"},
		"access_key:string created:string principal:string type:string": {"admin", "key", "list", "--json"},
		"bucket:string key:string type:string":                          {"rm", "--json", "s3://gold/d/k"},
		"detail:string name:string status:string type:string":           {"doctor", "--json"},
	} {
		if args[0] == "rm" {
			continue // last, below
		}
		if got := fields(must(t, args...)); got != want {
			t.Errorf("%q:\n got %s\nwant %s", args, got, want)
		}
	}
	if got := fields(must(t, "rm", "--json", "s3://gold/d/k")); got != "bucket:string key:string type:string" {
		t.Errorf("rm: %s", got)
	}
	if o := penstock(t, "", "stat", "s3://gold/d/k"); o.code != ExitNotFound {
		t.Errorf("removed object: %+v", o)
	}
	if o := penstock(t, "", "rb", "s3://missing-bucket"); o.code != ExitNotFound {
		t.Errorf("missing bucket: %+v", o)
	}
}

func TestKeysCanBeRevoked(t *testing.T) {
	startNode(t)
	must(t, "mb", "s3://keys")
	var k keyLine
	o := must(t, "admin", "key", "create", "--json", "--principal", "visitor")
	if err := json.Unmarshal([]byte(o.stdout), &k); err != nil {
		t.Fatal(err)
	}
	root, secret := os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY")
	t.Setenv("AWS_ACCESS_KEY_ID", k.AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", k.SecretKey)
	if o := penstock(t, "", "admin", "key", "list"); o.code != ExitDenied {
		t.Errorf("a visitor may administer: %+v", o)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", root)
	t.Setenv("AWS_SECRET_ACCESS_KEY", secret)
	must(t, "admin", "key", "delete", k.AccessKey, "--yes")
	t.Setenv("AWS_ACCESS_KEY_ID", k.AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", k.SecretKey)
	if o := penstock(t, "", "ls"); o.code != ExitDenied {
		t.Errorf("a revoked key works: %+v", o)
	}
}

func TestRemoveTree(t *testing.T) {
	startNode(t)
	must(t, "mb", "s3://rmtree")
	putKeys(t, "rmtree", map[string]string{"a/1": "x", "a/2": "x", "b": "x"})
	must(t, "rm", "-r", "--yes", "s3://rmtree/a/")
	if o := must(t, "ls", "-r", "s3://rmtree"); strings.Contains(o.stdout, "a/") || !strings.Contains(o.stdout, "b") {
		t.Errorf("%s", o.stdout)
	}
	if o := penstock(t, "", "rb", "s3://rmtree"); o.code != ExitFailure {
		t.Errorf("full bucket: %+v", o)
	}
	must(t, "rb", "--force", "--yes", "s3://rmtree")
}
