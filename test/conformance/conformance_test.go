package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestExpectations: the committed file parses (statuses, order, no duplicates, reasons), what has a
// whole file unbuilt says so, and README states its numbers. The oracle is a count by words.
func TestExpectations(t *testing.T) {
	text, err := os.ReadFile("expected.txt")
	if err != nil {
		t.Fatal(err)
	}
	lines, err := parseExpected(text)
	if err != nil {
		t.Fatal(err)
	}
	var words counts
	for l := range strings.Lines(string(text)) {
		switch strings.Fields(l + " .")[0] {
		case "pass":
			words.pass++
		case "later":
			words.later++
		case "excluded":
			words.excluded++
		}
	}
	if c := count(lines); c != words || len(lines) != c.pass+c.later+c.excluded || c.pass == 0 {
		t.Errorf("counted %v of %d lines, by words %v", c, len(lines), words)
	}
	for test, l := range lines {
		file, _, _ := strings.Cut(test, "::")
		if slices.Contains(unbuiltFiles, file) && l.status == pass {
			t.Errorf("%s passes, but its file does not run", test)
		}
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	stated := fmt.Sprintf("%d of %d tests pass, %d concern what is not built yet, %d are excluded", words.pass,
		len(lines), words.later, words.excluded)
	for _, want := range []string{stated, revision[:12]} {
		if !strings.Contains(strings.Join(strings.Fields(string(readme)), " "), want) {
			t.Errorf("README.md does not say %q", want)
		}
	}
}

func TestParseExpected(t *testing.T) {
	good := "# a comment\n\npass     a.py::t1\nlater    a.py::t2[x-1]  locks\nexcluded b.py::t  S3 says no\n" +
		"later    b.py::u  passes: nothing is asked\n"
	lines, err := parseExpected([]byte(good))
	want := map[string]line{
		"a.py::t1": {pass, "a.py::t1", ""}, "a.py::t2[x-1]": {later, "a.py::t2[x-1]", "locks"},
		"b.py::t": {excluded, "b.py::t", "S3 says no"}, "b.py::u": {later, "b.py::u", "passes: nothing is asked"},
	}
	if err != nil || !maps.Equal(lines, want) {
		t.Errorf("%v, %v", lines, err)
	}
	for test, l := range lines { // what is printed is read again
		if again, err := parseExpected([]byte(l.String())); err != nil || again[test] != l {
			t.Errorf("%q: %v, %v", l, again, err)
		}
		if l.passes() != (l.status == pass || test == "b.py::u") {
			t.Errorf("%q: passes %v", l, l.passes())
		}
	}
	for _, bad := range []string{
		"fail a.py::t", "pass", "pass t", "pass a.py::", "pass a::t", "pass a.py::t why", "later a.py::t",
		"excluded a.py::t", "later a.py::t passes:", "later a.py::t ? assert 1 == 2",
		"pass a.py::t\npass a.py::t", "pass b.py::t\npass a.py::t", " pass a.py::t",
	} {
		if lines, err := parseExpected([]byte(bad)); err == nil {
			t.Errorf("%q gives %v", bad, lines)
		}
	}
}

// TestCompare: every way in which results can differ from the file is found, and only those.
func TestCompare(t *testing.T) {
	good, bad := result{passed: true}, result{text: "assert 403 == 200"}
	for name, c := range map[string]struct {
		expected  string
		collected string
		results   map[string]result
		says      string // "" means: as expected
	}{
		"all as expected": {"pass a.py::1\nlater a.py::2 x\nexcluded a.py::3 y\nlater a.py::4 passes: z",
			"1 2 3 4", map[string]result{"a.py::1": good, "a.py::2": bad, "a.py::4": good}, ""},
		"a pass that fails":      {"pass a.py::1", "1", map[string]result{"a.py::1": bad}, "FAIL     a.py::1: assert 403"},
		"a pass that did not":    {"pass a.py::1", "1", nil, "FAIL     a.py::1: it did not run"},
		"a later one passes":     {"later a.py::1 x", "1", map[string]result{"a.py::1": good}, "PASSES   a.py::1"},
		"an excluded one passes": {"excluded a.py::1 x", "1", map[string]result{"a.py::1": good}, "PASSES   a.py::1"},
		"an unlisted one":        {"pass a.py::1", "1 2", map[string]result{"a.py::1": good}, "UNLISTED a.py::2"},
		"a stale one":            {"later a.py::1 x", "", nil, "STALE    a.py::1"},
		"a refusal that changed": {"later a.py::1 passes: x", "1", map[string]result{"a.py::1": bad}, ""},
	} {
		expected, err := parseExpected([]byte(c.expected))
		if err != nil {
			t.Fatal(err)
		}
		var collected []string
		for n := range strings.FieldsSeq(c.collected) {
			collected = append(collected, "a.py::"+n)
		}
		var out strings.Builder
		err = compare(&out, expected, collected, c.results)
		if errors.Is(err, errDeviates) != (c.says != "") || !strings.Contains(out.String(), c.says) {
			t.Errorf("%s: %v\n%s", name, err, out.String())
		}
		failed := 0
		if c.says != "" {
			failed = 1
		}
		if !strings.Contains(out.String(), fmt.Sprintf(" passed, %d failed, ", failed)) {
			t.Errorf("%s: closing line of\n%s", name, out.String())
		}
	}
}

// TestPropose: what passes is proposed as pass, what fails asks for a reason that does not parse, and
// lines that hold stay.
func TestPropose(t *testing.T) {
	expected, err := parseExpected([]byte("pass a.py::1\npass a.py::2\nlater a.py::3 x\nexcluded a.py::4 y\n" +
		"later a.py::5 passes: z\nlater a.py::6 w"))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	err = propose(&out, expected, []string{"a.py::7", "a.py::1", "a.py::2", "a.py::3", "a.py::4", "a.py::5", "a.py::6"},
		map[string]result{"a.py::1": {passed: true}, "a.py::2": {text: "no"}, "a.py::3": {passed: true},
			"a.py::4": {text: "no"}, "a.py::5": {passed: true}, "a.py::7": {text: "new"}})
	want := "pass     a.py::1\nlater    a.py::2  ? no\npass     a.py::3\nexcluded a.py::4  y\n" +
		"later    a.py::5  passes: z\nlater    a.py::6  w\nlater    a.py::7  ? new\n"
	if err != nil || out.String() != want {
		t.Errorf("%v\n%s\nwant\n%s", err, out.String(), want)
	}
	if _, err := parseExpected([]byte(out.String())); err == nil {
		t.Error("a proposal with open reasons was taken")
	}
}

func TestReadJUnit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.xml")
	doc := `<?xml version="1.0"?><testsuites><testsuite name="pytest">
<testcase classname="s3tests.functional.test_s3" name="test_a"/>
<testcase classname="s3tests.functional.test_s3" name="test_b[x-1]">
<failure message="assert 1 ==&#10;  2">long</failure></testcase>
<testcase classname="s3tests.functional.test_h" name="test_c"><error message="">set-up</error></testcase>
<testcase classname="s3tests.functional.test_h" name="test_d"><skipped message="no cloud"/></testcase>
<testcase classname="s3tests.functional.test_h" name="test_e"/>
<testcase classname="s3tests.functional.test_h" name="test_e"><error message="clean-up"/></testcase>
</testsuite></testsuites>`
	if err := os.WriteFile(path, []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	got := map[string]result{}
	if err := readJUnit(path, got); err != nil {
		t.Fatal(err)
	}
	want := map[string]result{
		"test_s3.py::test_a": {passed: true}, "test_s3.py::test_b[x-1]": {text: "assert 1 == 2"},
		"test_h.py::test_c": {text: "error: set-up"}, "test_h.py::test_d": {text: "skipped: no cloud"},
		"test_h.py::test_e": {text: "error: clean-up"},
	}
	if !maps.Equal(got, want) {
		t.Errorf("%v\nwant %v", got, want)
	}
	if err := os.WriteFile(path, []byte("<testsuites"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := readJUnit(path, got); err == nil {
		t.Error("a truncated file was taken")
	}
}

// TestSum: the sum changes with every name and content that it covers, and with nothing else.
func TestSum(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		sum, err := sumOf(dir)
		if err != nil {
			t.Fatal(err)
		}
		return sum
	}
	seen := []string{write("a.py", "1"), write("a.py", "2"), write("b/a.py", "2"), write("pytest.ini", "x")}
	last := seen[len(seen)-1]
	if slices.Sort(seen); len(slices.Compact(seen)) != 4 {
		t.Errorf("sums repeat: %v", seen)
	}
	if write("README.rst", "x") != last || write("b/__pycache__/a.pyc", "x") != last {
		t.Error("a file that does not run counts")
	}
	if obtain(t.Context(), dir, filepath.Join(t.TempDir(), "suite")) == nil {
		t.Error("another suite was taken for the pinned revision")
	}
}
