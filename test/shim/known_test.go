package shim_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// known answers all questions by one run of testdata/known.c.
func known(t *testing.T, questions []string) []string {
	t.Helper()
	cmd := exec.Command(program(t, "known", "address,undefined"))
	cmd.Stdin = strings.NewReader(strings.Join(questions, "\n") + "\n")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.Bytes())
	}
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}

func digits(b []byte) string {
	if len(b) == 0 {
		return "-"
	}
	return hex.EncodeToString(b)
}

// TestSums: the oracle is Go's library, for every length around the blocks.
func TestSums(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var questions, want []string
	for n := range 300 {
		key, message := make([]byte, n), make([]byte, (n*7)%260)
		for _, b := range [][]byte{key, message} {
			for i := range b {
				b[i] = byte(random.Uint32())
			}
		}
		mac := hmac.New(sha256.New, key)
		mac.Write(message)
		questions = append(questions, "sums "+digits(key)+" "+digits(message))
		want = append(want, fmt.Sprintf("%x %x", sha256.Sum256(message), mac.Sum(nil)))
	}
	for i, got := range known(t, questions) {
		if got != want[i] {
			t.Errorf("%s:\n%s, want\n%s", questions[i], got, want[i])
		}
	}
}

// TestSignatures: the examples of AWS's description of the signature in the Authorization header.
func TestSignatures(t *testing.T) {
	const (
		empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
		body  = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"
	)
	date := "20130524T000000Z"
	host := "host " + digits([]byte("examplebucket.s3.amazonaws.com"))
	rest := func(hash string) string {
		return " x-amz-content-sha256 " + digits([]byte(hash)) + " x-amz-date " + digits([]byte(date))
	}
	cases := []struct{ question, names, want string }{
		{
			"sign " + date + " us-east-1 " + empty + " GET /test.txt - " + host + " range " +
				digits([]byte("bytes=0-9")) + rest(empty),
			"host;range;x-amz-content-sha256;x-amz-date",
			"f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
		},
		{
			"sign " + date + " us-east-1 " + body + " PUT /test%24file.text - date " +
				digits([]byte("Fri, 24 May 2013 00:00:00 GMT")) + " " + host + rest(body) +
				" x-amz-storage-class " + digits([]byte("REDUCED_REDUNDANCY")),
			"date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
			"98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
		},
		{
			"sign " + date + " us-east-1 " + empty + " GET / lifecycle= " + host + rest(empty),
			"host;x-amz-content-sha256;x-amz-date",
			"fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
		},
		{
			"sign " + date + " us-east-1 " + empty + " GET / max-keys=2&prefix=J " + host + rest(empty),
			"host;x-amz-content-sha256;x-amz-date",
			"34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
		},
	}
	var questions []string
	for _, c := range cases {
		questions = append(questions, c.question)
	}
	got := known(t, questions)
	for i, c := range cases {
		want := "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,SignedHeaders=" +
			c.names + ",Signature=" + c.want
		if got[2*i] != want || got[2*i+1] != "too small" {
			t.Errorf("%s:\n%s\n%s, want\n%s", c.question, got[2*i], got[2*i+1], want)
		}
	}
}

// TestDates: the oracle is Go's library.
func TestDates(t *testing.T) {
	var questions, want []string
	for _, at := range []int64{0, 951782400, 1369353600, 4102444799} {
		questions = append(questions, fmt.Sprintf("date %d", at))
		want = append(want, time.Unix(at, 0).UTC().Format("20060102T150405Z"))
	}
	if got := known(t, questions); strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestJSON: texts and their mutations are taken or refused as Go's library does, but for what the reader documents:
// at most 8 values in each other, no half of a surrogate pair. The sanitizers see what is read beyond the text.
func TestJSON(t *testing.T) {
	seeds := []string{
		`{"a":"x","b":[1,2,{"a":true}],"c":null}`, `{"a":"\u00e9\ud83d\ude00\n","a":"last"}`, `[]`, `{}`, `[[[[[[[]]]]]]]`,
		`{"a":9223372036854775807}`, `{"a":9223372036854775808}`, `{"a":-1.5e+10}`, ` { "a" : [ 1 , 2 ] } `, `"\"\\\/"`,
		`{"version":1,"fabrics":[{"name":"shm","up":true,"address":"@x"},{"name":"tcp","up":false}],"limits":{"a":1}}`,
	}
	random := rand.New(rand.NewPCG(3, 4))
	texts := append([]string(nil), seeds...)
	alphabet := `{}[]":,\ud8019eE+-.truefalsn ` + "\x00\x1f\n"
	for len(texts) < 20_000 {
		text := []byte(seeds[random.IntN(len(seeds))])
		for range 1 + random.IntN(3) {
			at := random.IntN(len(text))
			switch random.IntN(3) {
			case 0:
				text[at] = alphabet[random.IntN(len(alphabet))]
			case 1:
				text = append(text[:at], text[at+1:]...)
			case 2:
				text = append(text[:at], append([]byte{alphabet[random.IntN(len(alphabet))]}, text[at:]...)...)
			}
			if len(text) == 0 {
				text = []byte("0")
			}
		}
		texts = append(texts, string(text))
	}
	var questions []string
	for _, text := range texts {
		questions = append(questions, "json "+digits([]byte(text)))
	}
	for i, got := range known(t, questions) {
		text := texts[i]
		taken := got != "refused"
		if taken != json.Valid([]byte(text)) && !strings.Contains(text, `\ud`) && !strings.Contains(text, `\uD`) &&
			strings.Count(text, "[")+strings.Count(text, "{") < 8 {
			t.Errorf("%q: %s", text, got)
		}
		var object struct{ A any }
		if !taken || strings.Contains(text, `"A"`) || json.Unmarshal([]byte(text), &object) != nil {
			continue
		}
		if value, ok := object.A.(string); ok && !strings.Contains(value, "\x00") {
			if want := "kind 1 a " + digits([]byte(value)) + " -1"; got != want {
				t.Errorf("%q: %s, want %s", text, got, want)
			}
		}
	}
}

// TestHTTP: what is no whole answer of this server is refused.
func TestHTTP(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	cases := []struct {
		text, open, end string
	}{
		{ok + "Content-Length: 2\r\n\r\n{}", "200 2", "200 2"},
		{ok + "content-length:  2 \r\nX: y\r\n\r\n{}", "200 2", "200 2"},
		{ok + "Content-Length: 3\r\n\r\n{}", "more", "refused"},
		{ok + "Content-Length: 1\r\n\r\n{}", "200 1", "200 1"},
		{ok + "\r\n{}", "more", "200 2"},
		{ok + "Content-Length: 65536\r\n\r\n" + strings.Repeat("x", 65536), "200 65536", "200 65536"},
		{ok + "Content-Length: 65537\r\n\r\n" + strings.Repeat("x", 65537), "refused", "refused"},
		{ok + "\r\n" + strings.Repeat("x", 65537), "refused", "refused"},
		{ok + "Content-Length: 2\r\nContent-Length: 1\r\n\r\n{}", "refused", "refused"},
		{ok + "Content-Length: -2\r\n\r\n{}", "refused", "refused"},
		{ok + "Content-Length:\r\n\r\n{}", "refused", "refused"},
		{ok + "Content-Length: 99999999999999999999\r\n\r\n{}", "refused", "refused"},
		{ok + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", "refused", "refused"},
		{"HTTP/1.1 100 Continue\r\n\r\n", "refused", "refused"},
		{"HTTP/2 200\r\n\r\n", "refused", "refused"},
		{"HTTP/1.1 2x0 OK\r\n\r\n", "refused", "refused"},
		{"SSH-2.0-x\r\n\r\n", "refused", "refused"},
		{ok + "X: " + strings.Repeat("y", 20<<10), "refused", "refused"},
		{ok[:9], "more", "refused"},
		{"", "more", "refused"},
		{"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", "403 0", "403 0"},
	}
	var questions []string
	for _, c := range cases {
		questions = append(questions, "http "+digits([]byte(c.text))+" 0", "http "+digits([]byte(c.text))+" 1")
	}
	got := known(t, questions)
	for i, c := range cases {
		if got[2*i] != c.open || got[2*i+1] != c.end {
			t.Errorf("%.60q: %s, at the end %s, want %s and %s", c.text, got[2*i], got[2*i+1], c.open, c.end)
		}
	}
	random := rand.New(rand.NewPCG(5, 6))
	questions = questions[:0]
	for range 10_000 { // only the sanitizers judge these
		text := []byte(cases[random.IntN(len(cases))].text)
		text = text[:min(len(text), 120)]
		for range 1 + random.IntN(4) {
			if len(text) > 0 {
				text[random.IntN(len(text))] = "\r\n :0189cC\x00\xff"[random.IntN(12)]
			}
		}
		questions = append(questions, "http "+digits(text)+" 1")
	}
	known(t, questions)
}

// TestEndpoints: the URL of a node in plain HTTP, nothing else.
func TestEndpoints(t *testing.T) {
	cases := []struct{ url, want string }{
		{"http://127.0.0.1:9000", "127.0.0.1 9000 127.0.0.1:9000"},
		{"HTTP://node/", "node 80 node"},
		{"http://[::1]:9000/", "::1 9000 [::1]:9000"},
		{"http://[::1]", "::1 80 [::1]"},
		{"https://node", "refused https is not supported: the endpoint must be http://host:port"},
		{"ftp://node", "refused"}, {"http://", "refused"}, {"http://node/path", "refused"}, {"http://node?x", "refused"},
		{"http://user@node", "refused"}, {"http://node:", "refused"}, {"http://node:90x", "refused"},
		{"http://[::1", "refused"}, {"http://[::1]9", "refused"}, {"http://:90", "refused"},
		{"http://no de", "refused"}, {"http://node\r\nX: y", "refused"}, {"http://" + strings.Repeat("a", 300), "refused"},
	}
	var questions []string
	for _, c := range cases {
		questions = append(questions, "endpoint "+digits([]byte(c.url)))
	}
	for i, got := range known(t, questions) {
		if got != cases[i].want && !(cases[i].want == "refused" && strings.HasPrefix(got, "refused ")) {
			t.Errorf("%.60q: %q, want %q", cases[i].url, got, cases[i].want)
		}
	}
}

// TestRanks: a port reaches rails of its own kind of link and family of addresses; those of its subnet best.
func TestRanks(t *testing.T) {
	four := func(address string) string { return digits(netip.MustParseAddr("::ffff:" + address).AsSlice()) }
	six := func(address string) string { return digits(netip.MustParseAddr(address).AsSlice()) }
	const no, link, subnet = "0", "1", "2"
	cases := []struct {
		own, kind string
		bits      int
		rail      string
		lid       int
		want      string
	}{
		{four("10.0.0.1"), "0", 24, four("10.0.0.9"), 0, subnet},
		{four("10.0.0.1"), "0", 24, four("10.0.1.9"), 0, link},
		{four("10.0.0.1"), "0", 16, four("10.0.1.9"), 0, subnet},
		{four("10.0.0.1"), "0", 25, four("10.0.0.127"), 0, subnet},
		{four("10.0.0.1"), "0", 25, four("10.0.0.128"), 0, link},
		{four("10.0.0.1"), "0", 32, four("10.0.0.1"), 0, subnet},
		{four("10.0.0.1"), "0", 0, four("192.168.0.1"), 0, subnet},
		{four("10.0.0.1"), "0", 24, six("2001:db8::1"), 0, no},
		{four("10.0.0.1"), "0", 24, four("10.0.0.9"), 7, subnet}, // a LID that means nothing
		{six("2001:db8::1"), "0", 64, six("2001:db8::ffff:1"), 0, subnet},
		{six("2001:db8::1"), "0", 64, six("2001:db8:0:1::1"), 0, link},
		{six("2001:db8::1"), "0", 64, four("10.0.0.1"), 0, no},
		{six("fe80::1"), "1", 64, six("fe80::2"), 5, subnet},
		{six("fe80::1"), "1", 64, six("fe80:0:0:1::2"), 5, link},
		{six("fe80::1"), "1", 64, six("fe80::2"), 0, no}, // Ethernet
		{six("fe80::1"), "0", 64, six("fe80::2"), 5, no}, // InfiniBand
	}
	var questions []string
	for _, c := range cases {
		questions = append(questions, fmt.Sprint("rank ", c.own, " ", c.kind, " ", c.bits, " ", c.rail, " ", c.lid))
	}
	for i, got := range known(t, questions) {
		if got != cases[i].want {
			t.Errorf("%+v: %s", cases[i], got)
		}
	}
}
