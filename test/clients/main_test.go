package main

import (
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestReasonsNameCases: every line of cannot.txt is about a client and a case that exist, once.
func TestReasonsNameCases(t *testing.T) {
	table, err := newTable("cannot.txt")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, k := range kinds() {
		for _, c := range cases() {
			if c.only == nil || slices.Contains(c.only, k.name) {
				known[k.name+" "+c.name] = true
			}
		}
	}
	for name, reason := range table.reasons {
		if !known[name] {
			t.Errorf("no such case: %s", name)
		}
		if len(reason) < 10 {
			t.Errorf("%s: %q is no reason", name, reason)
		}
	}
}

// TestPinsNameClients: pinned runs install what newest runs ask for.
func TestPinsNameClients(t *testing.T) {
	tools := &toolbox{source: "."}
	named := map[string][]string{"py": pyNames["py"], "pycrt": {"boto3", "awscrt"}, "js": jsNames}
	for language, names := range named {
		pins, err := tools.pins(language)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			if !slices.ContainsFunc(pins, func(p string) bool {
				return strings.HasPrefix(p, n+"==") || strings.HasPrefix(p, n+"@")
			}) {
				t.Errorf("versions.txt has no %s %s", language, n)
			}
		}
	}
	mod, err := exec.Command("go", "mod", "edit", "-json", "gocli/go.mod").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range goNames {
		if !strings.Contains(string(mod), `"`+n+`"`) {
			t.Errorf("gocli/go.mod has no %s", n)
		}
	}
}

// TestSign compares with the example of a signed GET in the documentation of Signature Version 4.
func TestSign(t *testing.T) {
	req, err := http.NewRequest(http.MethodGet, "https://examplebucket.s3.amazonaws.com/test.txt", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Range", "bytes=0-9")
	r := raw{&node{accessKey: "AKIAIOSFODNN7EXAMPLE", secretKey: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"}}
	r.sign(req, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
		time.Date(2013, 5, 24, 0, 0, 0, 0, time.UTC))
	const want = "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
	if got := req.Header.Get("Authorization"); !strings.HasSuffix(got, want) {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestSums compares with published check values and digests of the empty string and "123456789".
func TestSums(t *testing.T) {
	for algo, want := range map[string]string{
		"CRC32": "y/Q5Jg==", "CRC32C": "4waSgw==", "CRC64NVME": "rosUhgp5mIg=",
	} {
		if got := sumOf(algo, []byte("123456789")); got != want {
			t.Errorf("%s: %s, want %s", algo, got, want)
		}
	}
	if got := sumOf("SHA256", nil); got != "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=" {
		t.Errorf("SHA256: %s", got)
	}
	if got := sumOf("SHA1", nil); got != "2jmj7l5rSw0yVb/vlWAYkK/YBwk=" {
		t.Errorf("SHA1: %s", got)
	}
	data := []byte("aaaaabbbbbcc")
	if got, want := multipartETag(data, 5), "-3"; !strings.HasSuffix(got, want) || len(got) != 34 {
		t.Errorf("ETag %s", got)
	}
}
