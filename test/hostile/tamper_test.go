package hostile

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/checksum"
	"github.com/penstock-store/penstock/internal/frame"
)

// Answers that Amazon S3 documents for what is wrong with a signature; ok stands for no refusal.
const (
	ok           = "200"
	mismatch     = "403 SignatureDoesNotMatch"
	denied       = "403 AccessDenied"
	skewed       = "403 RequestTimeTooSkewed"
	unknownKey   = "403 InvalidAccessKeyId"
	malformed    = "400 AuthorizationHeaderMalformed"
	badQuery     = "400 AuthorizationQueryParametersError"
	invalid      = "400 InvalidRequest"
	badArgument  = "400 InvalidArgument"
	badToken     = "400 InvalidRDMAToken"
	wrongHash    = "400 XAmzContentSHA256Mismatch"
	shortBody    = "400 IncompleteBody"
	badTrailer   = "400 MalformedTrailerError"
	badRequest   = "400 BadRequest"
	tokenReplay  = "403 RDMATokenReplayed"
	tokenHeader  = "X-Amz-Rdma-Token"
	deadlineName = "X-Penstock-Rdma-Deadline-Ms"
)

// tampering is one change to a correct request and how it is answered.
type tampering struct {
	name   string
	want   string
	header string // want of a request signed in its header; "" is want
	change func(*forged)
}

// after is a change on the way, behind the signer's back.
func after(change func(*forged)) func(*forged) {
	return func(f *forged) {
		before := f.wire
		f.wire = func(f *forged) {
			if before != nil {
				before(f)
			}
			change(f)
		}
	}
}

// more adds a header line on the way.
func more(name, value string) func(*forged) {
	return after(func(f *forged) { f.headers = append(f.headers, item{name, value}) })
}

// rewritten changes the bytes on the way.
func rewritten(from, to string) func(*forged) {
	return func(f *forged) {
		f.raw = func(s string) string { return string(swap([]byte(s), from, to)) }
	}
}

func signedAt(offset time.Duration) func(*forged) {
	return func(f *forged) { f.date = f.date.Add(offset) }
}

// signatureAs replaces the signature on the way.
func signatureAs(change func(string) string) func(*forged) {
	return after(func(f *forged) {
		f.signature = change(f.signature)
		if f.presigned {
			f.setQuery("X-Amz-Signature", f.signature)
		}
	})
}

// scoped changes the credential scope on the way, with its date, region, service, terminator and key.
func scoped(change func(*forged)) func(*forged) {
	return after(func(f *forged) {
		change(f)
		if f.presigned {
			f.setQuery("X-Amz-Credential", percent(f.accessKey+"/"+f.scope()))
		}
	})
}

func flip(i int) func(string) string {
	return func(s string) string {
		b := []byte(s)
		if b[i]++; b[i] == '9'+1 || b[i] == 'f'+1 {
			b[i] = '0'
		}
		return string(b)
	}
}

// everywhere are changes that mean the same for both ways of signing.
func everywhere(n *node) []tampering {
	list := []tampering{
		{"nothing", ok, "", func(*forged) {}},
		{"method", mismatch, "", after(func(f *forged) {
			f.method = map[string]string{"GET": "PUT", "PUT": "GET"}[f.method]
		})},
		{"path", mismatch, "", after(func(f *forged) { f.path += "x" })},
		{"path, doubled slash", mismatch, "", after(func(f *forged) {
			f.path = "/" + bucket + "/" + f.path[len(bucket)+1:]
		})},
		{"path, case", mismatch, "", after(func(f *forged) { f.path = strings.ToUpper(f.path[:2]) + f.path[2:] })},
		{"query item added", mismatch, "", after(func(f *forged) { f.setQuery("acl", "") })},
		{"query item changed", mismatch, "", after(func(f *forged) { f.setQuery("x-id", "Other") })},
		{"query item doubled", mismatch, "", after(func(f *forged) { f.query = append(f.query, item{"x-id", "a%20b"}) })},
		{"query item removed", mismatch, "", after(func(f *forged) { f.dropQuery("x-id") })},
		{"query item, plus for space", ok, "", after(func(f *forged) { f.setQuery("x-id", "a+b") })},
		{"query item, escaped more", ok, "", after(func(f *forged) { f.setQuery("x-id", "%61%20%62") })},
		{"query item, escaped twice", mismatch, "", after(func(f *forged) { f.setQuery("x-id", "a%2520b") })},
		{"query reordered", ok, "", after(func(f *forged) { slices.Reverse(f.query) })},
		{"header changed", mismatch, "", after(func(f *forged) { f.set("X-Amz-Meta-A", "2") })},
		{"header removed", mismatch, "", after(func(f *forged) { f.drop("X-Amz-Meta-A") })},
		{"header doubled", mismatch, "", more("x-amz-meta-a", "1")},
		{"headers moved", ok, "", after(func(f *forged) { slices.Reverse(f.headers) })},
		{"header in capitals", ok, "", rewritten("X-Amz-Meta-A: 1", "X-AMZ-META-A:   1 ")},
		{"header added", denied, "", after(func(f *forged) { f.set("X-Amz-Meta-B", "1") })},
		{"header not signed", denied, "", func(f *forged) { f.unsigned = []string{"x-amz-meta-a"} }},
		{"host", mismatch, "", after(func(f *forged) { f.set("Host", "alice.s3.test") })},
		{"host, another port", mismatch, "", after(func(f *forged) { f.set("Host", "127.0.0.1:1") })},
		{"host removed", badRequest, "", after(func(f *forged) { f.drop("Host") })},
		{"host not signed", badQuery, malformed, func(f *forged) { f.omitHost = true }},
		{"scope date", badQuery, malformed, scoped(func(f *forged) { f.scopeDate = "20200101" })},
		{"scope date, signed", badQuery, malformed, func(f *forged) { f.scopeDate = "20200101" }},
		{"scope region", badQuery, malformed, scoped(func(f *forged) { f.region = "eu-west-9" })},
		{"scope region, signed", badQuery, malformed, func(f *forged) { f.region = "eu-west-9" }},
		{"scope service", badQuery, malformed, scoped(func(f *forged) { f.service = "sts" })},
		{"scope service, signed", badQuery, malformed, func(f *forged) { f.service = "sts" }},
		{"scope end", badQuery, malformed, scoped(func(f *forged) { f.terminator = "aws4" })},
		{"scope end, signed", badQuery, malformed, func(f *forged) { f.terminator = "aws4_reques" }},
		{"key nobody has", unknownKey, "", scoped(func(f *forged) { f.accessKey = "PSNOBODY" })},
		{"key of another", mismatch, "", scoped(func(f *forged) { f.accessKey = n.alice.ID })},
		{"key empty", badQuery, malformed, scoped(func(f *forged) { f.accessKey = "" })},
		{"secret", mismatch, "", func(f *forged) { f.secret += "x" }},
		{"secret of another", mismatch, "", func(f *forged) { f.secret = string(n.alice.Secret) }},
		{"signature truncated", mismatch, "", signatureAs(func(s string) string { return s[:63] })},
		{"signature longer", mismatch, "", signatureAs(func(s string) string { return s + "0" })},
		{"signature in capitals", mismatch, "", signatureAs(func(s string) string { return "F" + strings.ToUpper(s)[1:] })},
		{"signature empty", badQuery, malformed, signatureAs(func(string) string { return "" })},
		{"signature of nothing", mismatch, "", signatureAs(func(string) string { return emptyHash })},
		{"algorithm", badQuery, invalid, func(f *forged) { f.algorithm = "AWS4-HMAC-SHA512" }},
		{"algorithm empty", badQuery, invalid, func(f *forged) { f.algorithm = "" }},
		{"signed headers reordered", badQuery, malformed, after(func(f *forged) {
			names := strings.Split(f.signedHeaders, ";")
			slices.Reverse(names)
			f.signedHeaders = strings.Join(names, ";")
			if f.presigned {
				f.setQuery("X-Amz-SignedHeaders", percent(f.signedHeaders))
			}
		})},
		{"signed header doubled", badQuery, malformed, after(func(f *forged) {
			f.signedHeaders = "host;" + f.signedHeaders
			if f.presigned {
				f.setQuery("X-Amz-SignedHeaders", percent(f.signedHeaders))
			}
		})},
		{"signed header left out", denied, "", after(func(f *forged) {
			f.signedHeaders = strings.Replace(f.signedHeaders, ";x-amz-meta-a", "", 1)
			if f.presigned {
				f.setQuery("X-Amz-SignedHeaders", percent(f.signedHeaders))
			}
		})},
	}
	for _, i := range []int{0, 1, 31, 62, 63} {
		list = append(list, tampering{fmt.Sprintf("signature digit %d", i), mismatch, "", signatureAs(flip(i))})
	}
	return list
}

// signedInHeader are changes that only such requests can have.
func signedInHeader() []tampering {
	return []tampering{
		{"14:50 behind", ok, "", signedAt(-14*time.Minute - 50*time.Second)},
		{"14:50 ahead", ok, "", signedAt(14*time.Minute + 50*time.Second)},
		{"15:10 behind", skewed, "", signedAt(-15*time.Minute - 10*time.Second)},
		{"15:10 ahead", skewed, "", signedAt(15*time.Minute + 10*time.Second)},
		{"a year behind", skewed, "", signedAt(-365 * 24 * time.Hour)},
		{"date", mismatch, "", after(func(f *forged) { f.set("X-Amz-Date", f.date.Add(-time.Second).Format(isoBasic)) })},
		{"date in words", denied, "", after(func(f *forged) { f.set("X-Amz-Date", "yesterday") })},
		{"date removed", denied, "", after(func(f *forged) { f.drop("X-Amz-Date") })},
		{"date doubled", denied, "", after(func(f *forged) {
			f.headers = append(f.headers, item{"X-Amz-Date", f.date.Format(isoBasic)})
		})},
		{"hash removed", invalid, "", after(func(f *forged) { f.drop("X-Amz-Content-Sha256") })},
		{"hash changed", mismatch, "", after(func(f *forged) { f.set("X-Amz-Content-Sha256", hashOf("other")) })},
		{"hash for unsigned", mismatch, "", func(f *forged) {
			f.hash = hashOf(f.body)
			after(func(f *forged) { f.set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD") })(f)
		}},
		{"streaming for unsigned", mismatch, "", after(func(f *forged) {
			f.set("X-Amz-Content-Sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER")
		})},
		{"in the query, too", badArgument, "", after(func(f *forged) { f.setQuery("X-Amz-Signature", f.signature) })},
		{"authorization doubled", badArgument, "", rewritten("Authorization: ", "Authorization: x\r\nAuthorization: ")},
		{"authorization removed", denied, "", rewritten("Authorization: ", "Authorisation: ")},
	}
}

// presignedOnly are changes that only presigned URLs can have.
func presignedOnly() []tampering {
	expires := func(s string) func(*forged) { return func(f *forged) { f.expires = s } }
	both := func(offset time.Duration, s string) func(*forged) {
		return func(f *forged) { f.date, f.expires = f.date.Add(offset), s }
	}
	list := []tampering{
		{"expires in 1 s", ok, "", expires("1")}, {"expires in a week", ok, "", expires("604800")},
		{"expires in a week and 1 s", badQuery, "", expires("604801")}, {"expires in 0 s", badQuery, "", expires("0")},
		{"expires before", badQuery, "", expires("-1")}, {"expires never", badQuery, "", expires("9223372036854775808")},
		{"expires soon", badQuery, "", expires("soon")}, {"expires in 1e3 s", badQuery, "", expires("1e3")},
		{"expires, signed", badQuery, "", expires(" 60")}, {"expires empty", badQuery, "", expires("")},
		{"expires later", mismatch, "", after(func(f *forged) { f.setQuery("X-Amz-Expires", "604800") })},
		{"expires removed", badQuery, "", after(func(f *forged) { f.dropQuery("X-Amz-Expires") })},
		{"not expired", ok, "", both(-59*time.Minute-50*time.Second, "3600")},
		{"expired", denied, "", both(-time.Hour-10*time.Second, "3600")},
		{"not expired after a week", ok, "", both(-7*24*time.Hour+10*time.Second, "604800")},
		{"expired after a week", denied, "", both(-7*24*time.Hour-10*time.Second, "604800")},
		{"14:50 ahead", ok, "", both(14*time.Minute+50*time.Second, "60")},
		{"15:10 ahead", denied, "", both(15*time.Minute+10*time.Second, "3600")},
		{"date", mismatch, "", after(func(f *forged) {
			f.setQuery("X-Amz-Date", f.date.Add(-time.Second).Format(isoBasic))
		})},
		{"hash in a header", mismatch, "", after(func(f *forged) { f.set("X-Amz-Content-Sha256", emptyHash) })},
		{"signed once more", badArgument, "", after(func(f *forged) { f.set("Authorization", f.algorithm+" x") })},
	}
	for _, name := range []string{
		"X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-SignedHeaders", "X-Amz-Signature",
	} {
		list = append(list,
			tampering{name + " removed", badQuery, "", after(func(f *forged) { f.dropQuery(name) })},
			tampering{name + " doubled", badQuery, "", after(func(f *forged) {
				f.query = append(f.query, item{name, "x"})
			})})
	}
	return list
}

// attack sends each change of a correct request, judges the answer, and clears away what was stored.
func (n *node) attack(what string, make func() *forged, list []tampering) {
	n.t.Helper()
	for _, c := range list {
		f := make()
		want := c.want
		if !f.presigned && c.header != "" {
			want = c.header
		}
		c.change(f)
		raw := f.bytes()
		method, _, _ := strings.Cut(string(raw), " ")
		a, err := n.talk(raw, method)
		if err != nil {
			n.t.Errorf("%s, %s: %v", what, c.name, err)
			continue
		}
		got := strings.TrimSpace(fmt.Sprintf("%d %s", a.status, a.code()))
		if a.status == 206 {
			got = ok
		}
		if got != strings.TrimSpace(want) {
			n.t.Errorf("%s, %s: %s, want %s: %.400s", what, c.name, got, want, a.body)
		}
		if want != ok {
			for _, h := range []string{"X-Amz-Rdma-Reply", "X-Amz-Rdma-Bytes-Transferred", "Etag"} {
				if v := a.header.Get(h); v != "" {
					n.t.Errorf("%s, %s: a refusal has %s %q", what, c.name, h, v)
				}
			}
		}
		there := n.send(request{method: "HEAD", path: "/" + bucket + "/tampered"}).status == 200
		if there && want != ok {
			n.t.Errorf("%s, %s: stored", what, c.name)
		}
		if there {
			n.expectStatus(204, n.send(request{method: "DELETE", path: "/" + bucket + "/tampered"}))
		}
	}
}

func crc64Of(text string) string { return checksum.Base64(checksum.Sum([]byte(text))) }

// TestTampering takes correct requests of every kind and changes one thing, before or after signing. Each is
// refused as S3 refuses it, or harmless; and what is refused has no effect.
func TestTampering(t *testing.T) {
	n := startNode(t)
	before := n.baseline(1)
	plain := func(method, key, body string, presigned bool) func() *forged {
		return func() *forged {
			f := n.forge(method, "/"+bucket+"/"+key)
			f.query = []item{{"x-id", "a%20b"}}
			f.headers = []item{{"X-Amz-Meta-A", "1"}}
			f.body, f.presigned = body, presigned
			if !presigned && body != "" {
				f.hash = hashOf(body)
			}
			return f
		}
	}
	n.expectStatus(200, n.send(n.put("/"+bucket+"/small", []byte("small"))))
	both := everywhere(n)
	n.attack("get", plain("GET", "small", "", false), slices.Concat(both, signedInHeader()))
	n.attack("put", plain("PUT", "tampered", "payload", false), slices.Concat(both, signedInHeader(), []tampering{
		{"another body", wrongHash, "", after(func(f *forged) { f.body = "pAyload" })},
		{"longer body", wrongHash, "", after(func(f *forged) { f.body += "x" })},
		{"no body", wrongHash, "", after(func(f *forged) { f.body = "" })},
	}))
	n.attack("presigned get", plain("GET", "small", "", true), slices.Concat(both, presignedOnly()))
	n.attack("presigned put", plain("PUT", "tampered", "payload", true), slices.Concat(both, presignedOnly()))
	n.expectStatus(204, n.send(request{method: "DELETE", path: "/" + bucket + "/small"}))
	n.settled(before, "afterwards")
	n.listed("object")
}

// TestTamperedChunks does the same with bodies whose chunks and trailers are signed.
func TestTamperedChunks(t *testing.T) {
	n := startNode(t)
	before := n.baseline(1)
	parts := []string{strings.Repeat("a", 70_000), strings.Repeat("b", 70_000), "ccc"}
	const trailer = "x-amz-checksum-crc64nvme:"
	whole := strings.Join(parts, "")
	streaming := func(mode string, change func([]chunk) []chunk) func() *forged {
		return func() *forged {
			f := n.forge("PUT", "/"+bucket+"/tampered")
			f.hash, f.query = mode, []item{{"x-id", "a%20b"}}
			f.headers = []item{{"X-Amz-Meta-A", "1"}, {"X-Amz-Decoded-Content-Length", fmt.Sprint(len(whole))}}
			last := ""
			if strings.HasSuffix(mode, "-TRAILER") {
				f.headers = append(f.headers, item{"X-Amz-Trailer", "x-amz-checksum-crc64nvme"})
				last = trailer + crc64Of(whole)
			}
			f.wire = chunks(parts, last, change)
			return f
		}
	}
	const signedMode = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
	for _, mode := range []string{signedMode, signedMode + "-TRAILER"} {
		n.attack(mode, streaming(mode, nil), slices.Concat(everywhere(n), signedInHeader()))
		for _, c := range []struct {
			name, want string
			change     func([]chunk) []chunk
		}{
			{"first changed", mismatch, func(c []chunk) []chunk { c[0].text = "b" + c[0].text[1:]; return c }},
			{"middle changed", mismatch, func(c []chunk) []chunk { c[1].text = c[1].text[1:] + "x"; return c }},
			{"signature flipped", mismatch, func(c []chunk) []chunk { c[1].signature = flip(9)(c[1].signature); return c }},
			{"signature empty", mismatch, func(c []chunk) []chunk { c[0].signature = ""; return c }},
			{"signature short", mismatch, func(c []chunk) []chunk { c[0].signature = c[0].signature[:60]; return c }},
			{"last signature", mismatch, func(c []chunk) []chunk { c[3].signature = flip(0)(c[3].signature); return c }},
			{"swapped", mismatch, func(c []chunk) []chunk { c[0], c[1] = c[1], c[0]; return c }},
			{"doubled", mismatch, func(c []chunk) []chunk { return slices.Insert(c, 1, c[0]) }},
			{"left out", shortBody, func(c []chunk) []chunk { return slices.Delete(c, 1, 2) }},
			{"cut off", shortBody, func(c []chunk) []chunk { return c[:2] }},
			{"ended early", mismatch, func(c []chunk) []chunk { return slices.Delete(c, 2, 3) }},
		} {
			n.attack(mode, streaming(mode, c.change), []tampering{{"chunk " + c.name, c.want, "", func(*forged) {}}})
		}
	}
	for _, c := range []struct {
		name, want string
		change     func([]chunk) []chunk
	}{
		{"value", mismatch, func(c []chunk) []chunk { c[4].text = trailer + crc64Of("x"); return c }},
		{"signature", mismatch, func(c []chunk) []chunk { c[4].signature = flip(5)(c[4].signature); return c }},
		{"signature empty", mismatch, func(c []chunk) []chunk { c[4].signature = ""; return c }},
		{"removed", badTrailer, func(c []chunk) []chunk { return c[:4] }},
		{"another", badTrailer, func(c []chunk) []chunk { c[4].text = "x-amz-checksum-crc32:AAAAAA=="; return c }},
		{"a token", badTrailer, func(c []chunk) []chunk { c[4].text = "x-amz-rdma-token:x"; return c }},
	} {
		n.attack("trailer", streaming(signedMode+"-TRAILER", c.change), []tampering{{c.name, c.want, "", func(*forged) {}}})
	}
	n.settled(before, "afterwards")
	n.listed("object")
}

// TestTamperedTokens does the same with requests that carry a token: what is refused touches no memory.
func TestTamperedTokens(t *testing.T) {
	n := startNode(t)
	before := n.baseline(1)
	for _, fabric := range []string{"shm", "tcp"} {
		l := n.attacker(n.root, fabric, objectBytes)
		spare := n.attacker(n.root, fabric, 4096)
		if fabric == "tcp" {
			go l.obey(func(frame.Header) {})
			go spare.obey(func(frame.Header) {})
		}
		fill := bytes.Repeat([]byte{0xee}, objectBytes)
		for _, method := range []string{"GET", "PUT"} {
			make := func() *forged {
				f := n.forge(method, "/"+bucket+"/"+map[string]string{"GET": "object", "PUT": "tampered"}[method])
				f.query = []item{{"x-id", "a%20b"}}
				tok := l.token(1, 0, 8192)
				n.secret(tok)
				f.headers = []item{{"X-Amz-Meta-A", "1"}, {tokenHeader, tok}, {deadlineName, "5000"}}
				if method == "GET" {
					f.headers = append(f.headers, item{"Range", "bytes=5-4000"})
				}
				return f
			}
			bad := slices.DeleteFunc(slices.Concat(everywhere(n), signedInHeader(), tokenTamperings(spare)),
				func(c tampering) bool { return c.want == ok })
			copy(l.mem.bytes, fill)
			n.attack(fabric+" "+method, make, bad)
			if !bytes.Equal(l.mem.bytes, fill) || !bytes.Equal(spare.mem.bytes, fill[:4096]) {
				t.Errorf("%s %s: a refused request touched client memory", fabric, method)
			}
			n.attack(fabric+" "+method, make, []tampering{
				{"nothing", ok, "", func(*forged) {}},
				{"token header in capitals", ok, "", rewritten(tokenHeader, strings.ToUpper(tokenHeader))},
				{"deadline header in small letters", ok, "", rewritten(deadlineName, strings.ToLower(deadlineName))},
				{"empty hash", ok, "", func(f *forged) { f.hash = emptyHash }},
			})
			if moved := !bytes.Equal(l.mem.bytes, fill); moved != (method == "GET") {
				t.Errorf("%s %s: correct requests moved bytes: %v", fabric, method, moved)
			}
		}
		copy(l.mem.bytes, fill)
		n.trailedToken(fabric, l)
		if !bytes.Equal(l.mem.bytes, fill) {
			t.Errorf("%s: a token in a trailer touched client memory", fabric)
		}
		l.close()
		spare.close()
	}
	n.settled(before, "afterwards")
	n.listed("object")
}

// trailedToken sends a token in the trailer of an HTTP body, announced or not. It is no header: the request is
// one without a token.
func (n *node) trailedToken(fabric string, l *link) {
	n.t.Helper()
	for _, announced := range []string{"", "Trailer: " + tokenHeader + "\r\n"} {
		f := n.forge("GET", "/"+bucket+"/object")
		f.headers = []item{{"Range", "bytes=5-14"}}
		f.raw = func(s string) string {
			s = strings.Replace(s, "Content-Length: 0\r\n", "Transfer-Encoding: chunked\r\n"+announced, 1)
			return s + "0\r\n" + tokenHeader + ": " + l.token(1, 0, 8192) + "\r\n\r\n"
		}
		a, err := n.talk(f.bytes(), "GET")
		if err != nil || a.status != 206 || !bytes.Equal(a.body, n.object[5:15]) || a.header.Get("X-Amz-Rdma-Reply") != "" {
			n.t.Errorf("%s, token in a trailer: %d %v %v", fabric, a.status, a.header, err)
		}
	}
}

// tokenTamperings are changes to token and deadline. spare has another token of the same principal.
func tokenTamperings(spare *link) []tampering {
	other := func() string { return spare.token(1, 0, 4096) }
	return []tampering{
		{"token not signed", denied, "", func(f *forged) { f.unsigned = []string{"x-amz-rdma-token"} }},
		{"token not signed, in small letters", denied, "", func(f *forged) {
			f.unsigned = []string{"x-amz-rdma-token"}
			rewritten(tokenHeader, strings.ToLower(tokenHeader))(f)
		}},
		{"token added", denied, "", func(f *forged) {
			tok := f.get(tokenHeader)
			f.drop(tokenHeader)
			after(func(f *forged) { f.set(tokenHeader, tok) })(f)
		}},
		{"token added, another case", denied, "", func(f *forged) {
			tok := f.get(tokenHeader)
			f.drop(tokenHeader)
			after(func(f *forged) { f.set("x-AMZ-rdma-TOKEN", tok) })(f)
		}},
		{"token removed", mismatch, "", after(func(f *forged) { f.drop(tokenHeader) })},
		{"token changed", mismatch, "", after(func(f *forged) { f.set(tokenHeader, other()) })},
		{"token empty", mismatch, "", after(func(f *forged) { f.set(tokenHeader, "") })},
		{"token widened by a suffix", mismatch, "", after(func(f *forged) {
			f.set(tokenHeader, f.get(tokenHeader)+":0000000000000000:0000000000000010")
		})},
		{"token doubled", mismatch, "", after(func(f *forged) {
			f.headers = append(f.headers, item{tokenHeader, f.get(tokenHeader)})
		})},
		{"a second token", mismatch, "", after(func(f *forged) {
			f.headers = append(f.headers, item{strings.ToLower(tokenHeader), other()})
		})},
		{"two tokens, signed", badToken, "", func(f *forged) {
			tok := f.get(tokenHeader)
			f.set(tokenHeader, tok+","+tok)
			after(func(f *forged) {
				f.set(tokenHeader, tok)
				f.headers = append(f.headers, item{tokenHeader, tok})
			})(f)
		}},
		{"token in the query", mismatch, "", after(func(f *forged) { f.setQuery(tokenHeader, percent(other())) })},
		{"token in the query, signed", badToken, "", func(f *forged) {
			f.setQuery(tokenHeader, percent(f.get(tokenHeader)))
		}},
		{"token in the query, presigned", badToken, "", func(f *forged) {
			f.setQuery(tokenHeader, percent(f.get(tokenHeader)))
			f.drop(tokenHeader)
			f.presigned = true
		}},
		{"streaming", invalid, "", func(f *forged) { f.hash = "STREAMING-UNSIGNED-PAYLOAD-TRAILER" }},
		{"hash of a body", invalid, "", func(f *forged) { f.hash = hashOf("x") }},
		{"deadline not signed", denied, "", func(f *forged) { f.unsigned = []string{strings.ToLower(deadlineName)} }},
		{"deadline added", denied, "", func(f *forged) {
			f.drop(deadlineName)
			after(func(f *forged) { f.set(deadlineName, "300000") })(f)
		}},
		{"deadline changed", mismatch, "", after(func(f *forged) { f.set(deadlineName, "300000") })},
		{"deadline removed", mismatch, "", after(func(f *forged) { f.drop(deadlineName) })},
		{"deadline doubled", badArgument, "", more(deadlineName, "1")},
		{"token without a number", tokenReplay, "", func(f *forged) {
			f.set(tokenHeader, tokenOf(spare.offer, 1, 0, 4096)) // the number of none
		}},
	}
}
