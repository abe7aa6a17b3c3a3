package s3

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// FuzzSignature: any key of any bytes, any query and any header value. The AWS SDK for Go v2 is the oracle: it
// signs what we accept, to the same signature as ours, in the header and in the query. Then the same request with
// one byte of the key changed is refused.
func FuzzSignature(f *testing.F) {
	var all [256]byte
	for i := range all {
		all[i] = byte(i)
	}
	f.Add(string(all[:]), "prefix", "a b+c/ä", "  two   spaces ", false)
	f.Add("a//b/./../c/", "x-id", "", "v", true)
	f.Add("%2F%25+ ~*'()!@:,=;&$", "uploads", "%zz", "", false)
	f.Add("\xff\xfe\x00\x7f", "\x00", "\xff", "tab\tinside", true)
	f.Add("/", "", "=&", "a,b", false)
	v := testVerifier(testNow)
	theirs := v4.NewSigner(func(o *v4.SignerOptions) {
		o.DisableURIPathEscaping, o.DisableHeaderHoisting = true, true
	})
	ctx := context.Background()
	creds := aws.Credentials{AccessKeyID: testKey, SecretAccessKey: testSecret}
	f.Fuzz(func(t *testing.T, key, name, value, header string, presigned bool) {
		if key == "" || strings.ContainsAny(header, "\r\n\x00") || !isFieldValue(header) || name == "" ||
			strings.HasPrefix(strings.ToLower(name), "x-amz-") || name == "AWSAccessKeyId" {
			return
		}
		request := func() *http.Request {
			path := "/bucket/" + string(appendEscaped(nil, key, true))
			u := &url.URL{Scheme: "http", Host: "s3.example.com:9000", Path: "/bucket/" + key, RawPath: path}
			u.RawQuery = strings.ReplaceAll(url.Values{name: {value}}.Encode(), "+", "%20")
			r := &http.Request{Method: "GET", URL: u, Host: u.Host, Header: http.Header{}}
			r.Header["X-Amz-Meta-A"] = []string{header}
			return r
		}
		o := SignOptions{Credentials: Credentials{AccessKey: testKey, SecretKey: testSecret}, Region: "us-east-1",
			Time: testNow, Expires: time.Hour}
		mine, other := request(), request()
		var got, want string
		if presigned {
			u, err := NewSigner().Presign(mine, o)
			if err != nil {
				t.Fatal(err)
			}
			got = u.Query().Get("X-Amz-Signature")
			other.URL.RawQuery += "&X-Amz-Expires=3600"
			text, _, err := theirs.PresignHTTP(ctx, creds, other, unsignedPayload, "s3", o.Region, testNow)
			if err != nil {
				t.Fatal(err)
			}
			_, query, _ := strings.Cut(text, "?")
			other.URL.RawQuery = query
			q, err := url.ParseQuery(query)
			if err != nil {
				t.Fatal(err)
			}
			want = q.Get("X-Amz-Signature")
		} else {
			if err := NewSigner().Sign(mine, o); err != nil {
				t.Fatal(err)
			}
			got = mine.Header.Get("Authorization")
			other.Header.Set("X-Amz-Content-Sha256", unsignedPayload)
			if err := theirs.SignHTTP(ctx, creds, other, unsignedPayload, "s3", o.Region, testNow); err != nil {
				t.Fatal(err)
			}
			want = other.Header.Get("Authorization")
		}
		if got != want {
			t.Fatalf("key %q, query %q=%q, header %q:\n ours   %s\n theirs %s", key, name, value, header, got, want)
		}
		received := serverSide(other)
		if _, err := v.Verify(ctx, received); err != nil {
			t.Fatalf("key %q, query %q=%q, header %q: %v", key, name, value, header, err)
		}
		changed := []byte(key)
		changed[len(changed)/2] ^= 1
		received.RawPath = "/bucket/" + string(appendEscaped(nil, string(changed), true))
		if _, err := v.Verify(ctx, received); !IsCode(err, SignatureDoesNotMatch) {
			t.Fatalf("key %q taken for %q: %v", changed, key, err)
		}
	})
}
