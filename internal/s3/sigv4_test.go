package s3

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

const (
	testKey    = "AKIAIOSFODNN7EXAMPLE"
	testSecret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
)

var testNow = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

func testVerifier(now time.Time, regions ...string) *Verifier {
	return NewVerifier(VerifierConfig{
		Lookup: func(_ context.Context, k string) (Secret, bool, error) {
			switch k {
			case testKey:
				return Secret{SecretKey: testSecret, Principal: "alice"}, true, nil
			case "TEMP":
				return Secret{SecretKey: testSecret, Principal: "bob", SessionToken: "tok/en+1==",
					Expires: now.Add(time.Hour)}, true, nil
			case "OLDTEMP":
				return Secret{SecretKey: testSecret, SessionToken: "t", Expires: now.Add(-time.Second)}, true, nil
			}
			return Secret{}, false, nil
		},
		Regions: regions,
		Now:     func() time.Time { return now },
	})
}

// serverSide turns a client request into what net/http's server would hand over.
func serverSide(r *http.Request) *Request {
	out := FromHTTP(r)
	out.Header = r.Header.Clone()
	return &out
}

const oddRunes = "abcXYZ019-_.~ /+@:,=;()!*'&?#%$\"<>[]{}|\\^`äß日本\u00a0"

func randomKey(r *rand.Rand) string {
	runes := []rune(oddRunes)
	n := 1 + r.IntN(24)
	var b strings.Builder
	for range n {
		b.WriteRune(runes[r.IntN(len(runes))])
	}
	return b.String()
}

// encodeVariant encodes a key as some client might: strictly, or leaving sub-delimiters raw.
func encodeVariant(r *rand.Rand, key string) string {
	loose := ""
	if r.IntN(2) == 0 {
		loose = "+@:,=;()!*'&$"
	}
	var b []byte
	for i := range len(key) {
		c := key[i]
		if strings.IndexByte(loose, c) >= 0 && r.IntN(3) > 0 {
			b = append(b, c)
			continue
		}
		b = appendEscaped(b, string([]byte{c}), true)
	}
	return string(b)
}

func randomRequest(r *rand.Rand) *http.Request {
	path := "/bucket/" + encodeVariant(r, randomKey(r))
	q := url.Values{}
	for range r.IntN(4) {
		q.Add([]string{"prefix", "delimiter", "x-id", "uploads", "marker", "list-type"}[r.IntN(6)],
			[]string{"", "PutObject", "a b+c", "/", "ä&=;", "~*'"}[r.IntN(6)])
	}
	host := []string{"127.0.0.1:9000", "bucket.s3.example.com", "s3.example.com:8443", "[::1]:9000"}[r.IntN(4)]
	u, err := url.Parse("http://" + host + path)
	if err != nil {
		panic(err)
	}
	u.RawQuery = q.Encode()
	req := &http.Request{
		Method: []string{"GET", "PUT", "HEAD", "DELETE", "POST"}[r.IntN(5)],
		URL:    u, Host: host, Header: http.Header{},
	}
	if r.IntN(2) == 0 {
		req.Header.Set("X-Amz-Meta-"+string(rune('a'+r.IntN(26))), "  two   spaces  ")
	}
	if r.IntN(2) == 0 {
		req.Header["X-Amz-Meta-Multi"] = []string{"one", " two "}
	}
	if r.IntN(2) == 0 {
		req.Header.Set("Content-Type", "text/plain; charset=utf-8")
	}
	if r.IntN(3) == 0 {
		req.Header.Set("Range", "bytes=0-9")
	}
	if r.IntN(3) == 0 {
		req.Header.Set("Accept-Encoding", "identity")
	}
	if req.Method == "PUT" {
		req.ContentLength = int64(r.IntN(100000))
		if req.ContentLength > 0 {
			req.Header.Set("Content-Length", fmt.Sprint(req.ContentLength))
		}
	}
	return req
}

// Oracle: the AWS SDK for Go v2. TestS3_34/35/36: odd keys, raw and encoded.
func TestVerifyAgainstSDK(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	v := testVerifier(testNow, "eu-central-1")
	theirs := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	ctx := context.Background()
	for i := range 4000 {
		req := randomRequest(rnd)
		creds := aws.Credentials{AccessKeyID: testKey, SecretAccessKey: testSecret}
		principal := "alice"
		if rnd.IntN(3) == 0 {
			creds.AccessKeyID, creds.SessionToken, principal = "TEMP", "tok/en+1==", "bob"
		}
		region := []string{"us-east-1", "eu-central-1"}[rnd.IntN(2)]
		at := testNow.Add(time.Duration(rnd.IntN(1700)-850) * time.Second)
		hash := unsignedPayload
		if rnd.IntN(2) == 0 {
			s := sha256.Sum256([]byte{byte(i)})
			hash = hex.EncodeToString(s[:])
		}
		presigned := i%2 == 1
		if presigned {
			q := req.URL.Query()
			q.Set("X-Amz-Expires", "3600")
			req.URL.RawQuery = q.Encode()
			if hash != unsignedPayload {
				req.Header.Set("X-Amz-Content-Sha256", hash)
			}
			u, h, err := theirs.PresignHTTP(ctx, creds, req, hash, "s3", region, at)
			if err != nil {
				t.Fatal(err)
			}
			if req, err = http.NewRequest(req.Method, u, nil); err != nil {
				t.Fatal(err)
			}
			req.Header = h
			if req.Header == nil {
				req.Header = http.Header{}
			}
			if n := h.Get("Content-Length"); n != "" {
				fmt.Sscan(n, &req.ContentLength)
			}
		} else {
			req.Header.Set("X-Amz-Content-Sha256", hash)
			if err := theirs.SignHTTP(ctx, creds, req, hash, "s3", region, at); err != nil {
				t.Fatal(err)
			}
		}
		id, err := v.Verify(ctx, serverSide(req))
		if err != nil {
			t.Fatalf("request %d %s %s %v: %v", i, req.Method, req.URL, req.Header, err)
		}
		if id.Principal != principal || id.Presigned != presigned || id.Region != region || !id.Time.Equal(at) {
			t.Fatalf("request %d: identity %+v", i, id)
		}
		if !id.Signed("Host") || presigned == false && !id.Signed("X-Amz-Date") {
			t.Fatalf("request %d: signed headers %v", i, id.SignedHeaders)
		}
	}
}

// Oracle: the SDK signs the same request and must come to our signature.
func TestSignAgainstSDK(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	v := testVerifier(testNow, "eu-central-1")
	ours := NewSigner()
	theirs := v4.NewSigner(func(o *v4.SignerOptions) {
		o.DisableURIPathEscaping, o.DisableHeaderHoisting = true, true
	})
	ctx := context.Background()
	for i := range 2000 {
		req := randomRequest(rnd)
		// The SDK signs Content-Length and whatever else is there: leave only what both sign.
		req.ContentLength = 0
		req.Header.Del("Content-Length")
		req.Header.Del("Accept-Encoding")
		key := randomKey(rnd)
		req.URL.Path, req.URL.RawPath = "/bucket/"+key, "/bucket/"+string(appendEscaped(nil, key, true))
		req.URL.RawQuery = strings.ReplaceAll(req.URL.RawQuery, "+", "%20")
		c := Credentials{AccessKey: testKey, SecretKey: testSecret}
		if rnd.IntN(2) == 0 {
			c.AccessKey, c.SessionToken = "TEMP", "tok/en+1=="
		}
		o := SignOptions{Credentials: c, Region: "eu-central-1", Time: testNow, Expires: time.Hour}
		creds := aws.Credentials{AccessKeyID: c.AccessKey, SecretAccessKey: c.SecretKey, SessionToken: c.SessionToken}
		other := req.Clone(ctx)
		if i%2 == 0 {
			if err := ours.Sign(req, o); err != nil {
				t.Fatal(err)
			}
			other.Header.Set("X-Amz-Content-Sha256", unsignedPayload)
			if err := theirs.SignHTTP(ctx, creds, other, unsignedPayload, "s3", o.Region, testNow); err != nil {
				t.Fatal(err)
			}
			if g, w := req.Header.Get("Authorization"), other.Header.Get("Authorization"); g != w {
				t.Fatalf("request %d %s:\n ours   %s\n theirs %s", i, req.URL, g, w)
			}
		} else {
			u, err := ours.Presign(req, o)
			if err != nil {
				t.Fatal(err)
			}
			q := other.URL.Query()
			q.Set("X-Amz-Expires", "3600")
			other.URL.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20")
			w, _, err := theirs.PresignHTTP(ctx, creds, other, unsignedPayload, "s3", o.Region, testNow)
			if err != nil {
				t.Fatal(err)
			}
			wu, err := url.Parse(w)
			if err != nil {
				t.Fatal(err)
			}
			if g, w := u.Query().Get("X-Amz-Signature"), wu.Query().Get("X-Amz-Signature"); g != w {
				t.Fatalf("request %d:\n ours   %s\n theirs %s", i, u, wu)
			}
			req.URL = u
		}
		if _, err := v.Verify(ctx, serverSide(req)); err != nil {
			t.Fatalf("request %d: own signature: %v", i, err)
		}
	}
}
