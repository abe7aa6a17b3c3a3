package gateway_test

import (
	"encoding/xml"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// wireKeys are keys with every ASCII character, characters at the edges of UTF-8 and of XML, and keys of
// 1,024 bytes that grow threefold in a URL.
func wireKeys() []string {
	var keys []string
	for r := rune(0); r < 0x80; r++ {
		keys = append(keys, "k"+string(r)+"z", string(r))
	}
	for _, r := range []rune{0x80, 0x85, 0xa0, 0x7ff, 0x800, 0x2028, 0xd7ff, 0xe000, 0xfffd, 0xfffe, 0xffff, 0x10000,
		0x10ffff} {
		keys = append(keys, "k"+string(r), string(r)+"/x")
	}
	for _, piece := range []string{"a", "%", "+", "€€€", "\x01", " ", "/", "&", "\U0010ffff"} {
		long := strings.Repeat(piece, 1024/len(piece))
		keys = append(keys, long+strings.Repeat("~", 1024-len(long)))
	}
	return keys
}

// asXML is a key as a listing without encoding-type can carry it: by the Char production of XML 1.0, what
// is no character there is U+FFFD.
func asXML(key string) string {
	return strings.Map(func(r rune) rune {
		if r == '\t' || r == '\n' || r == '\r' || r >= 0x20 && r <= 0xd7ff || r >= 0xe000 && r <= 0xfffd || r >= 0x10000 {
			return r
		}
		return 0xfffd
	}, key)
}

// wirePage is what the test reads of an answer of both versions.
type wirePage struct {
	Contents              []struct{ Key string }
	Prefix                string
	StartAfter            string
	Marker                string
	NextMarker            string
	NextContinuationToken string
	IsTruncated           bool
}

func (n *node) wirePage(query url.Values) wirePage {
	n.t.Helper()
	got := n.send(request{method: "GET", path: "/wire?" + strings.ReplaceAll(query.Encode(), "+", "%20")})
	var page wirePage
	if err := xml.Unmarshal(got.body, &page); got.status != 200 || err != nil {
		n.t.Fatalf("%.200s: %d %v %.500s", query.Encode(), got.status, err, got.body)
	}
	return page
}

// TestListingKeysOverTheWire puts and lists keys with every character that UTF-8 in a URL can carry, by both
// versions, with and without encoding-type=url, in small pages. Oracle: sort of the keys, and the
// characters of XML 1.0.
func TestListingKeysOverTheWire(t *testing.T) {
	n := newNode(t)
	if got := n.send(request{method: "PUT", path: "/wire"}); got.status != 200 {
		t.Fatal(got.status)
	}
	want := wireKeys()
	slices.Sort(want)
	want = slices.Compact(want)
	for _, key := range want {
		if got := sendPut(n, "/wire/"+percent(key), nil, nil); got.status != 200 {
			t.Fatalf("%q: %d %s", key, got.status, got.body)
		}
	}
	for _, version := range []string{"1", "2"} {
		for _, encoding := range []string{"", "url"} {
			var got []string
			query := url.Values{"max-keys": {"50"}}
			if version == "2" {
				query.Set("list-type", "2")
			}
			decode, expected := func(s string) string { return s }, make([]string, len(want))
			for i, key := range want {
				expected[i] = asXML(key)
			}
			if encoding != "" {
				query.Set("encoding-type", encoding)
				expected, decode = want, func(s string) string {
					plain, err := url.QueryUnescape(s)
					if err != nil {
						t.Fatal(err)
					}
					return plain
				}
			}
			for {
				page := n.wirePage(query)
				for _, c := range page.Contents {
					got = append(got, decode(c.Key))
				}
				if !page.IsTruncated {
					break
				}
				if version == "2" {
					query.Set("continuation-token", page.NextContinuationToken)
				} else { // without a delimiter the last key is the marker
					query.Set("marker", want[len(got)-1])
				}
			}
			if !slices.Equal(got, expected) {
				t.Errorf("version %s, encoding %q: %d keys differ from the %d that were put", version, encoding, len(got),
					len(expected))
			}
		}
	}
	n.longKeysInQueries(want)
}

// longKeysInQueries uses each key of 1,024 bytes as prefix, start and marker, and inside a token.
func (n *node) longKeysInQueries(keys []string) {
	n.t.Helper()
	for i, key := range keys {
		if len(key) != 1024 {
			continue
		}
		var next []string
		if i+1 < len(keys) {
			next = keys[i+1 : i+2]
		}
		one := url.Values{"max-keys": {"1"}, "encoding-type": {"url"}}
		for name, c := range map[string]struct {
			query url.Values
			want  []string
		}{
			"prefix":      {url.Values{"list-type": {"2"}, "prefix": {key}, "delimiter": {key}}, []string{key}},
			"start-after": {url.Values{"list-type": {"2"}, "start-after": {key}}, next},
			"marker":      {url.Values{"marker": {key}}, next},
			"all": {url.Values{"list-type": {"2"}, "prefix": {key}, "start-after": {key[:1023]}, "delimiter": {key}},
				[]string{key}},
		} {
			for k, v := range one {
				c.query[k] = v
			}
			page := n.wirePage(c.query)
			var got []string
			for _, e := range page.Contents {
				plain, err := url.QueryUnescape(e.Key)
				if err != nil {
					n.t.Fatal(err)
				}
				got = append(got, plain)
			}
			if !slices.Equal(got, c.want) {
				n.t.Errorf("%s %.8q… × 1,024: %.40q, want %.40q", name, key, got, c.want)
			}
			if name == "start-after" && page.IsTruncated {
				again := n.wirePage(url.Values{"list-type": {"2"}, "max-keys": {"1"},
					"continuation-token": {page.NextContinuationToken}})
				if len(again.Contents) != 1 {
					n.t.Errorf("token behind %.8q…: %d keys", key, len(again.Contents))
				}
			}
		}
	}
}

// percent encodes every byte that is no letter or digit.
func percent(key string) string {
	var b strings.Builder
	for i := range len(key) {
		if c := key[i]; c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' {
			b.WriteByte(c)
		} else {
			b.WriteString("%" + strings.ToUpper(string("0123456789abcdef"[c>>4])+string("0123456789abcdef"[c&15])))
		}
	}
	return b.String()
}
