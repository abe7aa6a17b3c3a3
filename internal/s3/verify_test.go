package s3

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

func signed(t testing.TB, method, target string, o SignOptions, header ...string) *Request {
	t.Helper()
	r, err := http.NewRequest(method, target, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	if o.Expires > 0 {
		u, err := NewSigner().Presign(r, o)
		if err != nil {
			t.Fatal(err)
		}
		r.URL = u
	} else if err := NewSigner().Sign(r, o); err != nil {
		t.Fatal(err)
	}
	return serverSide(r)
}

func testOptions() SignOptions {
	return SignOptions{Credentials: Credentials{AccessKey: testKey, SecretKey: testSecret}, Region: "us-east-1",
		Time: testNow}
}

func verify(r *Request, regions ...string) (*Identity, error) {
	return testVerifier(testNow, regions...).Verify(context.Background(), r)
}

func field(err error, name string) string {
	for _, f := range AsError(err).Fields {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}

const objectURL = "http://s3.example.com:9000/bucket/key?x-id=GetObject&empty="

// Any byte of anything that is signed changed: refused.
func TestTamperedRequest(t *testing.T) {
	header := []string{"X-Amz-Meta-Aa", "value", "Range", "bytes=1-2", "X-Amz-Rdma-Token", "ps1:token"}
	for _, expires := range []time.Duration{0, time.Hour} {
		o := testOptions()
		o.Expires = expires
		if expires == 0 {
			o.PayloadHash = hexSHA("x")
		}
		base := signed(t, "PUT", objectURL, o, header...)
		if _, err := verify(base); err != nil {
			t.Fatal(err)
		}
		try := func(what string, change func(r *Request, flip func(string) string)) {
			t.Helper()
			for _, mask := range []byte{1, 2, 4, 8, 16, 32, 64, 128} {
				for i := 0; ; i++ {
					past := false
					r := *base
					r.Header = base.Header.Clone()
					change(&r, func(s string) string {
						if past = i >= len(s); past {
							return s
						}
						b := []byte(s)
						b[i] ^= mask
						return string(b)
					})
					if past {
						break
					}
					if id, err := verify(&r); err == nil || id != nil {
						t.Errorf("%s: byte %d flipped by %x is accepted: %q", what, i, mask, r.RawQuery)
					} else if codeTable[AsError(err).Code].status == 0 || AsError(err).Status >= 500 {
						t.Errorf("%s: byte %d flipped by %x: %v", what, i, mask, err)
					}
				}
			}
		}
		try("method", func(r *Request, flip func(string) string) { r.Method = flip(r.Method) })
		try("host", func(r *Request, flip func(string) string) { r.Host = flip(r.Host) })
		try("path", func(r *Request, flip func(string) string) { r.RawPath = flip(r.RawPath) })
		for _, name := range []string{"X-Amz-Meta-Aa", "Range", "X-Amz-Rdma-Token", "X-Amz-Date",
			"X-Amz-Content-Sha256", "Authorization"} {
			if base.Header[name] == nil {
				continue
			}
			try(name, func(r *Request, flip func(string) string) {
				r.Header[name][0] = flip(r.Header[name][0])
				if strings.TrimSpace(r.Header[name][0]) == strings.TrimSpace(base.Header[name][0]) {
					r.Header[name][0] = "outer space does not count"
				}
				if name == "Authorization" && sameAuthorization(r.Header[name][0], base.Header[name][0]) {
					r.Header[name][0] = ""
				}
			})
		}
		if expires > 0 {
			try("query", func(r *Request, flip func(string) string) {
				r.RawQuery = flip(r.RawQuery)
				// A query that decodes to the same items is the same query.
				a, err := ParseQuery(r.RawQuery)
				b, _ := ParseQuery(base.RawQuery)
				if err == nil && fmt.Sprint(a) == fmt.Sprint(b) {
					r.RawQuery += "x"
				}
			})
		} else {
			try("query", func(r *Request, flip func(string) string) { r.RawQuery = flip(r.RawQuery) })
		}
	}
}

// sameAuthorization says whether two headers differ only in the white space between elements.
func sameAuthorization(a, b string) bool {
	clean := func(s string) string { return strings.ReplaceAll(strings.ReplaceAll(s, " ", ""), "\t", "") }
	return clean(a) == clean(b)
}

// A header that must be signed and is not.
func TestUnsignedHeaders(t *testing.T) {
	for name, refused := range map[string]bool{
		"X-Amz-Rdma-Token": true, "X-Amz-Meta-New": true, "X-Amz-Copy-Source": true, "X-Amz-Acl": true,
		"X-Penstock-Rdma-Deadline-Ms": true, "X-Amz-Security-Token": true, "x-amz-rdma-token": true,
		"X-Amzn-Trace-Id": false, "X-Amz-Cf-Id": false, "X-Forwarded-For": false, "Content-Type": false,
	} {
		for _, expires := range []time.Duration{0, time.Hour} {
			o := testOptions()
			o.Expires = expires
			r := signed(t, "GET", objectURL, o)
			r.Header[name] = []string{"x"}
			_, err := verify(r)
			if refused != IsCode(err, AccessDenied) || !refused && err != nil {
				t.Errorf("%s expires %v: %v", name, expires, err)
			}
			if refused && field(err, "HeadersNotSigned") != strings.ToLower(name) {
				t.Errorf("%s: %v", name, AsError(err).Fields)
			}
		}
	}
}

// TestS3_33: the RDMA token is inside SignedHeaders.
func TestS3_33_TokenIsSigned(t *testing.T) {
	id, err := verify(signed(t, "GET", objectURL, testOptions(), "X-Amz-Rdma-Token", "ps1:x"))
	if err != nil || !id.Signed("x-amz-rdma-token") || !id.Signed("X-Amz-Rdma-Token") || id.Signed("x-amz-acl") {
		t.Fatal(id, err)
	}
}

// TestS3_40: skew, expiry.
func TestS3_40_Time(t *testing.T) {
	for _, c := range []struct {
		offset  time.Duration
		expires time.Duration
		want    Code
	}{
		{0, 0, ""}, {MaxSkew, 0, ""}, {-MaxSkew, 0, ""},
		{MaxSkew + time.Second, 0, RequestTimeTooSkewed}, {-MaxSkew - time.Second, 0, RequestTimeTooSkewed},
		{-time.Hour, time.Hour, ""}, {-time.Hour - time.Second, time.Hour, AccessDenied},
		{-6 * 24 * time.Hour, MaxPresignExpiry, ""},
		{MaxSkew, time.Second, ""}, {MaxSkew + time.Second, time.Hour, AccessDenied},
	} {
		o := testOptions()
		o.Time, o.Expires = testNow.Add(c.offset), c.expires
		_, err := verify(signed(t, "GET", objectURL, o))
		if c.want == "" && err != nil || c.want != "" && !IsCode(err, c.want) {
			t.Errorf("%+v: %v", c, err)
		}
		if c.want != "" && field(err, "ServerTime") != "2026-03-04T05:06:07Z" {
			t.Errorf("%+v: fields %v", c, AsError(err).Fields)
		}
		if e := AsError(err); c.want != "" && e.Status != 403 {
			t.Errorf("%+v: status %d", c, e.Status)
		}
	}
	for _, expires := range []string{"0", "-1", "604801", "1e3", "", "99999999999999999999"} {
		o := testOptions()
		o.Expires = time.Hour
		r := signed(t, "GET", objectURL, o)
		r.RawQuery = strings.Replace(r.RawQuery, "X-Amz-Expires=3600", "X-Amz-Expires="+expires, 1)
		if _, err := verify(r); !IsCode(err, AuthorizationQueryParametersError) {
			t.Errorf("expires %q: %v", expires, err)
		}
	}
	for _, d := range []time.Duration{0, time.Millisecond, MaxPresignExpiry + time.Second, -1} {
		o := testOptions()
		o.Expires = d
		r, _ := http.NewRequest("GET", objectURL, nil)
		if _, err := NewSigner().Presign(r, o); err == nil {
			t.Errorf("presigned for %v", d)
		}
	}
}

// TestS3_38: regions.
func TestS3_38_Region(t *testing.T) {
	for region, ok := range map[string]bool{"us-east-1": true, "eu-central-1": true, "lab": true, "us-west-2": false} {
		for _, expires := range []time.Duration{0, time.Hour} {
			o := testOptions()
			o.Region, o.Expires = region, expires
			_, err := verify(signed(t, "GET", objectURL, o), "eu-central-1", "lab")
			if ok != (err == nil) {
				t.Errorf("%s: %v", region, err)
			}
			if !ok && (AsError(err).Status != 400 || field(err, "Region") != "eu-central-1") {
				t.Errorf("%s: %v %v", region, err, AsError(err).Fields)
			}
			if !ok && expires == 0 && !IsCode(err, AuthorizationHeaderMalformed) {
				t.Errorf("%s: %v", region, err)
			}
		}
	}
}

// TestS3_41: scope date, service.
func TestS3_41_Scope(t *testing.T) {
	for service, ok := range map[string]bool{"s3": true, "s3express": true, "sts": false, "ec2": false} {
		o := testOptions()
		o.Service = service
		if _, err := verify(signed(t, "GET", objectURL, o)); ok != (err == nil) ||
			!ok && !IsCode(err, AuthorizationHeaderMalformed) {
			t.Errorf("%s: %v", service, err)
		}
	}
	r := signed(t, "GET", objectURL, testOptions())
	r.Header.Set("Authorization", strings.Replace(r.Header.Get("Authorization"), "/20260304/", "/20260303/", 1))
	if _, err := verify(r); !IsCode(err, AuthorizationHeaderMalformed) {
		t.Error(err)
	}
}

// TestS3_42/43: signature versions that are not supported; no signature at all; both kinds.
func TestS3_43_OtherSignatures(t *testing.T) {
	credential := "Credential=" + testKey + "/20260304/us-east-1/s3/aws4_request"
	for _, c := range []struct {
		authorization, query string
		want                 Code
		says                 string
	}{
		{"AWS4-ECDSA-P256-SHA256 " + credential + ", SignedHeaders=host, Signature=00", "", InvalidRequest,
			algorithmV4},
		{"", "X-Amz-Algorithm=AWS4-ECDSA-P256-SHA256&X-Amz-Region-Set=*&X-Amz-Signature=0", InvalidRequest,
			algorithmV4},
		{"AWS " + testKey + ":c2lnbmF0dXJl", "", InvalidRequest, "Version 4"},
		{"", "AWSAccessKeyId=" + testKey + "&Expires=1&Signature=abc", InvalidRequest, "Version 4"},
		{"Bearer xyz", "", InvalidRequest, algorithmV4},
		{"", "", AccessDenied, "not signed"},
		{"", "x-id=GetObject", AccessDenied, "not signed"},
		{"AWS4-HMAC-SHA256 x", "X-Amz-Signature=1", InvalidArgument, "once"},
		{"AWS4-HMAC-SHA256", "", AuthorizationHeaderMalformed, ""},
		{"AWS4-HMAC-SHA256 " + credential, "", AuthorizationHeaderMalformed, ""},
		{"AWS4-HMAC-SHA256 " + credential + ", SignedHeaders=, Signature=1", "", AuthorizationHeaderMalformed, ""},
		{"AWS4-HMAC-SHA256 " + credential + ", SignedHeaders=host, Signature=1, Signature=2", "",
			AuthorizationHeaderMalformed, ""},
		{"AWS4-HMAC-SHA256 " + credential + ", SignedHeaders=host, Signature=1, Other=2", "",
			AuthorizationHeaderMalformed, ""},
		{"AWS4-HMAC-SHA256 " + credential + ", SignedHeaders=x-amz-date, Signature=1", "",
			AuthorizationHeaderMalformed, "host"},
		{"AWS4-HMAC-SHA256 " + credential + ", SignedHeaders=x-amz-date;host, Signature=1", "",
			AuthorizationHeaderMalformed, "ascending"},
		{"AWS4-HMAC-SHA256 " + credential + ", SignedHeaders=host;host, Signature=1", "",
			AuthorizationHeaderMalformed, "ascending"},
		{"AWS4-HMAC-SHA256 " + credential + ", SignedHeaders=Host, Signature=1", "", AuthorizationHeaderMalformed, ""},
		{"AWS4-HMAC-SHA256 " + credential + ", SignedHeaders=host;" + strings.Repeat("x;", 40000) + ", Signature=1", "",
			AuthorizationHeaderMalformed, "too long"},
		{"AWS4-HMAC-SHA256 Credential=/20260304/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=1", "",
			AuthorizationHeaderMalformed, ""},
		{"AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host, Signature=1", "", AuthorizationHeaderMalformed, ""},
		{"", "X-Amz-Algorithm=AWS4-HMAC-SHA256", AuthorizationQueryParametersError, ""},
		{"", "X-Amz-Signature=1&X-Amz-Signature=2", AuthorizationQueryParametersError, "repeated"},
		{"", "a=%zz", InvalidURI, ""},
		{"", strings.Repeat("a=b&", 300), InvalidURI, "too many"},
	} {
		r := &Request{Method: "GET", Host: "h", RawPath: "/b/k", RawQuery: c.query, Header: http.Header{
			"X-Amz-Date": {"20260304T050607Z"}, "X-Amz-Content-Sha256": {unsignedPayload}}}
		if c.authorization != "" {
			r.Header.Set("Authorization", c.authorization)
		}
		_, err := verify(r)
		if !IsCode(err, c.want) || !strings.Contains(AsError(err).Message, c.says) {
			t.Errorf("%.90s %.90s: %v", c.authorization, c.query, err)
		}
	}
}

// TestS3_44: session tokens.
func TestS3_44_SessionToken(t *testing.T) {
	for _, c := range []struct {
		accessKey, secret, token string
		want                     Code
	}{
		{"TEMP", testSecret, "tok/en+1==", ""},
		{"TEMP", testSecret, "", InvalidToken},
		{"TEMP", testSecret, "other", InvalidToken},
		{testKey, testSecret, "tok/en+1==", InvalidToken},
		{"OLDTEMP", testSecret, "t", ExpiredToken},
		{"NOBODY", testSecret, "", InvalidAccessKeyID},
		{testKey, "wrong", "", SignatureDoesNotMatch},
	} {
		for _, expires := range []time.Duration{0, time.Hour} {
			o := testOptions()
			o.Credentials, o.Expires = Credentials{c.accessKey, c.secret, c.token}, expires
			_, err := verify(signed(t, "GET", objectURL, o))
			if c.want == "" && err != nil || c.want != "" && !IsCode(err, c.want) {
				t.Errorf("%+v: %v", c, err)
			}
		}
	}
}

func TestLookupFails(t *testing.T) {
	cause := errors.New("drive is gone")
	v := NewVerifier(VerifierConfig{Lookup: func(context.Context, string) (Secret, bool, error) {
		return Secret{}, false, cause
	}, Now: func() time.Time { return testNow }})
	_, err := v.Verify(context.Background(), signed(t, "GET", objectURL, testOptions()))
	if !IsCode(err, InternalError) || !errors.Is(err, cause) ||
		strings.Contains(string(AsError(err).AppendXML(nil)), "drive") {
		t.Error(err)
	}
}

// The key cache is bounded and never serves the key of an old secret.
func TestKeyCache(t *testing.T) {
	c := newKeyCache()
	for i := range 5 * maxCachedKeys {
		s := scopeKey{fmt.Sprint(i), "20260304", "us-east-1", "s3"}
		for _, secret := range []string{"one", "two", "one"} {
			if c.signingKey(secret, s) != deriveKey(secret, s) {
				t.Fatal("wrong key")
			}
		}
		if i > 0 {
			s.accessKey = fmt.Sprint(max(0, i-maxCachedKeys-1)) // often in the old generation
			if c.signingKey("one", s) != deriveKey("one", s) || c.signingKey("two", s) != deriveKey("two", s) {
				t.Fatal("wrong key from the old generation")
			}
		}
		if c.size() > 2*maxCachedKeys {
			t.Fatalf("%d keys", c.size())
		}
	}
}

// TestS3_32: unknown and empty query items are part of the signature, in any order and encoding.
func TestS3_32_Query(t *testing.T) {
	r := signed(t, "GET", "http://h/b?uploads&x-id=PutObject&prefix=a%20b%2Fc&marker=&a-b=1&a=2&a=1", testOptions())
	if _, err := verify(r); err != nil {
		t.Fatal(err)
	}
	items := strings.Split(r.RawQuery, "&")
	rnd := rand.New(rand.NewPCG(1, 1))
	for range 50 {
		rnd.Shuffle(len(items), func(i, j int) { items[i], items[j] = items[j], items[i] })
		r.RawQuery = strings.NewReplacer("a%20b%2Fc", "a+b/c", "uploads", "uploads=").Replace(strings.Join(items, "&"))
		if _, err := verify(r); err != nil {
			t.Fatal(r.RawQuery, err)
		}
	}
	r.RawQuery = strings.Replace(r.RawQuery, "x-id=PutObject", "", 1)
	if _, err := verify(r); !IsCode(err, SignatureDoesNotMatch) {
		t.Error(err)
	}
}

// TestS3_34/35/36: one signature, every way to write the same key on the wire.
func TestS3_36_PathForms(t *testing.T) {
	for _, c := range []struct{ signed, sent string }{
		{"/b/a+b", "/b/a%2Bb"}, {"/b/a%2Bb", "/b/a+b"},
		{"/b/@:,=;()!*'", "/b/%40%3A%2C%3D%3B%28%29%21%2A%27"}, {"/b/%40%3a%2c", "/b/@:,"},
		{"/b/a%20b", "/b/a%20b"}, {"/b//a/./../b/", "/b//a/./../b/"}, {"/b/%7Ex", "/b/~x"}, {"/b/$&", "/b/%24%26"},
		{"/b/%C3%A4", "/b/%c3%a4"},
	} {
		r := signed(t, "GET", "http://h"+c.signed, testOptions())
		r.RawPath = c.sent
		if _, err := verify(r); err != nil {
			t.Errorf("%q sent as %q: %v", c.signed, c.sent, err)
		}
		a, err1 := ParseTarget(c.signed, "")
		b, err2 := ParseTarget(c.sent, "")
		if a != b || err1 != nil || err2 != nil {
			t.Errorf("%q and %q name %v and %v", c.signed, c.sent, a, b)
		}
	}
	for _, c := range []struct{ signed, sent string }{
		{"/b/a%20b", "/b/a+b"}, {"/b/a//b", "/b/a/b"}, {"/b/./a", "/b/a"}, {"/b/a/", "/b/a"}, {"/b/%2541", "/b/A"},
	} {
		r := signed(t, "GET", "http://h"+c.signed, testOptions())
		r.RawPath = c.sent
		if _, err := verify(r); !IsCode(err, SignatureDoesNotMatch) {
			t.Errorf("%q sent as %q: %v", c.signed, c.sent, err)
		}
	}
}

// TestS3_25/46/19: the Host with its port, headers as received, an Expect that a proxy took out.
func TestS3_46_HostAndHeaders(t *testing.T) {
	r := signed(t, "GET", "http://bucket.with.dots.s3.example.com:9000/k", testOptions())
	if _, err := verify(r); err != nil {
		t.Error(err)
	}
	r.Host = "bucket.with.dots.s3.example.com"
	if _, err := verify(r); err == nil {
		t.Error("host without its port is accepted")
	}
	r = signed(t, "GET", "http://s3.example.com/k", testOptions())
	r.Host = "s3.example.com:80" // some clients sign the host without its default port and send it
	if _, err := verify(r); err != nil {
		t.Error(err)
	}
	r = signed(t, "GET", "http://s3.example.com/k", testOptions(), "X-Amz-Meta-A", "one", "X-Amz-Meta-A", "two")
	r.Header["X-Amz-Meta-A"] = []string{"one,two"}
	if _, err := verify(r); err != nil {
		t.Error(err)
	}
}

func TestHoisted(t *testing.T) {
	o := testOptions()
	o.Expires = time.Hour
	id, err := verify(signed(t, "PUT", "http://h/b/k?x-amz-meta-a=%C3%A4+b&X-Amz-Checksum-Mode=ENABLED&x-id=x"+
		"&x-amz-rdma-token=ps1", o, "X-Amz-Meta-C", "c"))
	if err != nil {
		t.Fatal(err)
	}
	h := http.Header{"X-Amz-Checksum-Mode": {"mine"}}
	id.ApplyHoisted(h)
	if h.Get("X-Amz-Meta-A") != "ä b" || h.Get("X-Amz-Checksum-Mode") != "mine" || len(h) != 2 {
		t.Errorf("%v", h)
	}
}

// Secrets, tokens and session tokens do not come back in a refusal or a print.
func TestRedaction(t *testing.T) {
	o := testOptions()
	o.Credentials.SecretKey = "wrong"
	_, err := verify(signed(t, "GET", objectURL, o, "X-Amz-Rdma-Token", "ps1:grant"))
	if text := string(AsError(err).AppendXML(nil)); strings.Contains(text, "grant") ||
		strings.Contains(text, testSecret) || !strings.Contains(text, "StringToSign") {
		t.Error(text)
	}
	_, err = verify(signed(t, "GET", objectURL, o))
	if field(err, "CanonicalRequest") == "" {
		t.Error("no canonical request in the refusal")
	}
	s := Secret{SecretKey: testSecret, SessionToken: "tok", Principal: "p"}
	c := Credentials{"ak", testSecret, "tok"}
	for _, text := range []string{fmt.Sprint(s), fmt.Sprintf("%+v %#v", s, s), fmt.Sprint(c),
		fmt.Sprintf("%+v %#v", c, c),
		s.LogValue().String(), c.LogValue().String()} {
		if strings.Contains(text, testSecret) || strings.Contains(text, "tok") {
			t.Error(text)
		}
	}
}

func TestFromHTTP(t *testing.T) {
	for target, want := range map[string][2]string{
		"/b//k%2F/../x?a=b?c": {"/b//k%2F/../x", "a=b?c"}, "http://host/b/k?q": {"/b/k", "q"},
		"http://host?q": {"/", "q"}, "*": {"*", ""}, "": {"/", ""}, "//b/k": {"//b/k", ""}, "host:80": {"/host:80", ""},
	} {
		r := FromHTTP(&http.Request{Method: "GET", RequestURI: target, URL: &url.URL{}})
		if r.RawPath != want[0] || r.RawQuery != want[1] {
			t.Errorf("%q: %q %q", target, r.RawPath, r.RawQuery)
		}
	}
}

// Every code has a status and a message, and the status is one a client understands.
func TestCodeTable(t *testing.T) {
	statuses := []int{304, 400, 403, 404, 405, 409, 411, 412, 416, 500, 501, 503}
	for code, d := range codeTable {
		if d.message == "" || !slices.Contains(statuses, d.status) {
			t.Errorf("%s: %+v", code, d)
		}
	}
	if e := New("NoSuchCode", ""); e.Status != 500 {
		t.Error(e)
	}
}

func BenchmarkVerify(b *testing.B) {
	o := testOptions()
	r := signed(b, "GET", "http://127.0.0.1:9000/bucket/some/longer/key-0123456789.bin?x-id=GetObject", o,
		"Range", "bytes=0-1048575", "X-Amz-Rdma-Token", strings.Repeat("x", 81))
	v := testVerifier(testNow)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := v.Verify(context.Background(), r); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSign(b *testing.B) {
	o := testOptions()
	s := NewSigner()
	r, _ := http.NewRequest("GET", "http://127.0.0.1:9000/bucket/some/longer/key-0123456789.bin?x-id=GetObject", nil)
	r.Header.Set("Range", "bytes=0-1048575")
	r.Header.Set("X-Amz-Rdma-Token", strings.Repeat("x", 81))
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Sign(r, o); err != nil {
			b.Fatal(err)
		}
	}
}

// A value is never split on its way: the signature of "a,b" is that of "a" and "b", too.
func TestSplitHeaders(t *testing.T) {
	for name, code := range map[string]Code{
		"X-Amz-Copy-Source": InvalidArgument, "X-Amz-Storage-Class": InvalidArgument,
		"X-Penstock-Rdma-Deadline-Ms": InvalidArgument, "X-Amz-Meta-A": "", "X-Amz-Object-Attributes": "",
	} {
		r := signed(t, "GET", "http://s3.example.com/k", testOptions(), name, "a,b")
		r.Header[name] = []string{"a", "b"}
		_, err := verify(r)
		if got := AsError(err); code == "" && err != nil || code != "" && (err == nil || got.Code != code) {
			t.Errorf("%s: %v, want %q", name, err, code)
		}
	}
}
