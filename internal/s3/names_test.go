package s3

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// TestS3_49: names that no bucket may have.
func TestS3_49_BucketNames(t *testing.T) {
	for name, ok := range map[string]bool{
		"abc": true, "a-b.c9": true, "9abc": true, strings.Repeat("a", 63): true, "1.2.3": true, "1.2.3.4a": true,
		"1-2-3-4": true, "a--b": true, "192.168.1.1.1": true,
		"": false, "ab": false, strings.Repeat("a", 64): false, "Abc": false, "a_b": false, "-abc": false,
		"abc-": false,
		".abc": false, "abc.": false, "a..b": false, "a.-b": false, "a-.b": false, "192.168.1.1": false,
		"999.999.999.999": false, "bucket--x-s3": false, "b--ol-s3": false, "b-s3alias": false, "b.mrap": false,
		"b--table-s3": false, "xn--abc": false, "sthree-abc": false, "amzn-s3-demo-x": false, "a/b": false,
		"a b":    false,
		"bücket": false, "a\x00b": false, ".penstock": false,
	} {
		if err := CheckBucketName(name); (err == nil) != ok || !ok && !IsCode(err, InvalidBucketName) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestS3_54: 1..1024 bytes of UTF-8.
func TestS3_54_Keys(t *testing.T) {
	for key, want := range map[string]Code{
		"a": "", strings.Repeat("a", 1024): "", strings.Repeat("ä", 512): "", "\x00\x01": "", "e\u0301": "",
		"": InvalidArgument, strings.Repeat("a", 1025): KeyTooLong, strings.Repeat("ä", 513): KeyTooLong,
		"\xff": InvalidArgument,
	} {
		if err := CheckKey(key); want == "" && err != nil || want != "" && !IsCode(err, want) {
			t.Errorf("%.20q: %v", key, err)
		}
	}
}

// TestS3_46/55: path and virtual-host style; nothing is cleaned.
func TestS3_55_Targets(t *testing.T) {
	bases := []string{"example.com", "s3.example.com", "localhost"}
	for _, c := range []struct{ host, path, bucket, key string }{
		{"s3.example.com", "/", "", ""}, {"s3.example.com", "/b", "b", ""}, {"s3.example.com", "/b/", "b", ""},
		{"s3.example.com:9000", "/b/k", "b", "k"}, {"s3.example.com", "/b//k", "b", "/k"}, {"x", "/b/k/", "b", "k/"},
		{"s3.example.com", "/b//", "b", "/"}, {"127.0.0.1:9000", "/b/a/../.././k", "b", "a/../.././k"},
		{"[::1]:9000", "/b/..", "b", ".."}, {"[::1]", "/b/k", "b", "k"},
		{"b.s3.example.com", "/", "b", ""}, {"b.s3.example.com:443", "/k", "b", "k"},
		{"B.S3.Example.Com", "/k", "b", "k"}, {"b.s3.example.com.", "/k", "b", "k"},
		{"my.dotted.bucket.s3.example.com", "//k", "my.dotted.bucket", "/k"}, {"b.localhost:9000", "/b/k", "b", "b/k"},
		{"b.example.com", "/k", "b", "k"}, {"notexample.com", "/b/k", "b", "k"}, {"example.com", "/b/k", "b", "k"},
		{"x", "/b/a%2Fb", "b", "a/b"}, {"x", "/b/a+b%2B%20", "b", "a+b+ "}, {"x", "/b/%2541", "b", "%41"},
		{"x", "/b/%E6%97%A5", "b", "日"}, {"x", "/b/%00", "b", "\x00"}, {"x", "/b%2Fk", "b/k", ""},
	} {
		got, err := ParseTarget(c.path, SplitHost(c.host, bases))
		if err != nil || got != (Target{c.bucket, c.key}) {
			t.Errorf("%s%s: %q %v", c.host, c.path, got, err)
		}
	}
	for path, want := range map[string]Code{
		"": InvalidURI, "b/k": InvalidURI, "/b/%": InvalidURI, "/b/%2": InvalidURI, "/b/%zz": InvalidURI,
		"/b/%ff": InvalidURI, "//k": InvalidBucketName, "//": InvalidBucketName, "/%": InvalidURI, "*": InvalidURI,
		"/b/" + strings.Repeat("k", 1025): KeyTooLong, "/%ff/k": InvalidBucketName,
	} {
		if _, err := ParseTarget(path, ""); !IsCode(err, want) {
			t.Errorf("%.20q: %v", path, err)
		}
	}
}

func TestParseQuery(t *testing.T) {
	q, err := ParseQuery("prefix=a+b%2B&x&y=&&z=1;2&z==3")
	if err != nil || fmt.Sprint(q) != fmt.Sprint(url.Values{"prefix": {"a b+"}, "x": {""}, "y": {""},
		"z": {"1;2", "=3"}}) {
		t.Error(q, err)
	}
	for _, bad := range []string{"a=%", "%zz", strings.Repeat("a&", 257)} {
		if _, err := ParseQuery(bad); !IsCode(err, InvalidURI) {
			t.Errorf("%.10q: %v", bad, err)
		}
	}
}

// TestS3_37: x-amz-copy-source.
func TestS3_37_CopySource(t *testing.T) {
	for header, want := range map[string]CopySource{
		"b/k": {"b", "k", ""}, "/b/k": {"b", "k", ""}, "b/a%2Bb%20c": {"b", "a+b c", ""}, "b/a+b%2Bc": {"b", "a b+c", ""},
		"b/k?versionId=v1": {"b", "k", "v1"}, "/b/k%3Fx?versionId=null": {"b", "k?x", "null"},
		"b%2Fa%2Fb": {"b", "a/b", ""}, "%2Fb%2Fk": {"b", "k", ""}, "b//k": {"b", "/k", ""}, "b/k/": {"b", "k/", ""},
		"b/what?": {"b", "what?", ""}, "b/a?x=y": {"b", "a?x=y", ""}, "b/%E6%97%A5": {"b", "日", ""},
	} {
		if got, err := ParseCopySource(header); err != nil || got != want {
			t.Errorf("%q: %q %v", header, got, err)
		}
	}
	for header, want := range map[string]Code{
		"": InvalidArgument, "b": InvalidArgument, "/": InvalidArgument, "b/": InvalidArgument, "//k": InvalidArgument,
		"b/%zz": InvalidArgument, "b/k?versionId=": InvalidArgument, "b/k?versionId=%0a": InvalidArgument,
		"arn:aws:s3:x/k": InvalidArgument, "b/" + strings.Repeat("k", 1025): KeyTooLong, "b/%ff": InvalidArgument,
	} {
		if _, err := ParseCopySource(header); !IsCode(err, want) {
			t.Errorf("%.20q: %v", header, err)
		}
	}
}

// TestS3_74/30: metadata passes unchanged, 2 KB at most.
func TestS3_74_UserMetadata(t *testing.T) {
	h := http.Header{"X-Amz-Meta-Name": {"=?UTF-8?B?w6Q=?="}, "X-Amz-Meta-Raw": {"\xc3\xa4", "b"},
		"X-Amz-Acl":        {"private"},
		"x-amz-meta-lower": {""}}
	got, err := ParseUserMetadata(h)
	if err != nil || !maps.Equal(got, map[string]string{"name": "=?UTF-8?B?w6Q=?=", "raw": "\xc3\xa4,b", "lower": ""}) {
		t.Error(got, err)
	}
	if _, err := ParseUserMetadata(http.Header{"X-Amz-Meta-A": {strings.Repeat("x", 2047)}}); err != nil {
		t.Error(err)
	}
	if _, err := ParseUserMetadata(http.Header{"X-Amz-Meta-A": {strings.Repeat("x", 2000)},
		"X-Amz-Meta-B": {strings.Repeat("x", 47)}}); !IsCode(err, MetadataTooLarge) {
		t.Error(err)
	}
	for _, bad := range []http.Header{{"X-Amz-Meta-": {"x"}}, {"X-Amz-Meta-A": {"x\r\nSet-Cookie: y"}},
		{"X-Amz-Meta-A B": {"x"}}} {
		if _, err := ParseUserMetadata(bad); !IsCode(err, InvalidArgument) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

func TestContentHeaders(t *testing.T) {
	c, err := ParseContentHeaders(http.Header{"Content-Type": {"text/plain"},
		"Content-Encoding": {"aws-chunked", "gzip"},
		"Cache-Control":    {"no-cache"}, "Expires": {"soon"}, "X-Amz-Storage-Class": {"STANDARD"}})
	if err != nil || c != (ContentHeaders{ContentType: "text/plain", ContentEncoding: "gzip", CacheControl: "no-cache",
		Expires: "soon", StorageClass: "STANDARD"}) {
		t.Errorf("%+v %v", c, err)
	}
	for h, want := range map[[2]string]Code{
		{"X-Amz-Storage-Class", "GLACIER"}: InvalidStorageClass, {"X-Amz-Storage-Class", "x"}: InvalidStorageClass,
		{"Content-Type", "a\nb"}: InvalidArgument, {"X-Amz-Website-Redirect-Location", "javascript:x"}: InvalidArgument,
	} {
		if _, err := ParseContentHeaders(http.Header{h[0]: {h[1]}}); !IsCode(err, want) {
			t.Errorf("%v: %v", h, err)
		}
	}
	o, err := ResponseOverrides(url.Values{"response-content-type": {"a/b"}, "response-expires": {"x"}, "other": {"y"}})
	if err != nil || !maps.Equal(o, map[string]string{"Content-Type": "a/b", "Expires": "x"}) {
		t.Error(o, err)
	}
	if _, err := ResponseOverrides(url.Values{"response-content-type": {"a\r\nSet-Cookie: x"}}); !IsCode(err,
		InvalidArgument) {
		t.Error(err)
	}
}
