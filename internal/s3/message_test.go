package s3

import (
	"context"
	"strings"
	"testing"
	"time"
)

const messageURL = "http://s3.example.com:9000/.hipobj-rc/prepare"

// TestVerifyMessage: what is relaxed for messages is relaxed for them alone, and nothing else is.
func TestVerifyMessage(t *testing.T) {
	message := func(r *Request) (*Identity, error) {
		return testVerifier(testNow, "eu-1").VerifyMessage(context.Background(), r)
	}
	request := func(r *Request) (*Identity, error) { return verify(r, "eu-1") }
	header := []string{"X-Amz-Rdma-Cookie", "00000001", "X-Amz-Rdma-Token", "text"}
	with := func(change func(*SignOptions)) *Request {
		o := testOptions()
		o.PayloadHash = emptySHA256
		change(&o)
		return signed(t, "POST", messageURL, o, header...)
	}
	altered := func(change func(*Request)) *Request {
		r := with(func(*SignOptions) {})
		change(r)
		return r
	}
	for name, c := range map[string]struct {
		r                *Request
		message, request Code // "": accepted
	}{
		"s3":      {with(func(*SignOptions) {}), "", ""},
		"hipobj":  {with(func(o *SignOptions) { o.Service = "hipobj" }), "", AuthorizationHeaderMalformed},
		"express": {with(func(o *SignOptions) { o.Service = "s3express" }), AuthorizationHeaderMalformed, ""},
		"case": {with(func(o *SignOptions) { o.Service = "HipObj" }), AuthorizationHeaderMalformed,
			AuthorizationHeaderMalformed},
		"other": {with(func(o *SignOptions) { o.Service = "ec2" }), AuthorizationHeaderMalformed,
			AuthorizationHeaderMalformed},
		"region": {with(func(o *SignOptions) { o.Region = "eu-1" }), "", ""},
		"elsewhere": {with(func(o *SignOptions) { o.Region = "eu-2" }), AuthorizationHeaderMalformed,
			AuthorizationHeaderMalformed},
		"unsigned payload": {with(func(o *SignOptions) { o.PayloadHash = unsignedPayload }), "", ""},
		"other payload":    {with(func(o *SignOptions) { o.PayloadHash = hexSHA("x") }), InvalidRequest, ""},
		"chunks": {with(func(o *SignOptions) { o.PayloadHash = "STREAMING-UNSIGNED-PAYLOAD-TRAILER" }),
			InvalidRequest,
			""},
		"presigned": {with(func(o *SignOptions) { o.Expires = time.Hour }), AccessDenied, ""},
		"no hash": {altered(func(r *Request) { delete(r.Header, "X-Amz-Content-Sha256") }), SignatureDoesNotMatch,
			InvalidRequest}, // it was signed with one
		"two hashes": {altered(func(r *Request) {
			r.Header["X-Amz-Content-Sha256"] = []string{emptySHA256, emptySHA256}
		}), InvalidRequest, InvalidRequest},
		"early": {with(func(o *SignOptions) { o.Time = testNow.Add(MaxSkew + time.Second) }), RequestTimeTooSkewed,
			RequestTimeTooSkewed},
		"late": {with(func(o *SignOptions) { o.Time = testNow.Add(-MaxSkew - time.Second) }), RequestTimeTooSkewed,
			RequestTimeTooSkewed},
		"in time": {with(func(o *SignOptions) { o.Time = testNow.Add(-MaxSkew) }), "", ""},
		"other key": {with(func(o *SignOptions) { o.Credentials.AccessKey = "NOBODY" }), InvalidAccessKeyID,
			InvalidAccessKeyID},
		"other secret": {with(func(o *SignOptions) { o.Credentials.SecretKey = "wrong" }), SignatureDoesNotMatch,
			SignatureDoesNotMatch},
		"added header": {altered(func(r *Request) { r.Header["X-Amz-Rdma-Size"] = []string{"5"} }),
			AccessDenied, AccessDenied},
		"added header in lower case": {
			altered(func(r *Request) { r.Header["x-amz-rdma-size"] = []string{"5"} }), AccessDenied,
			AccessDenied},
		"doubled header": {altered(func(r *Request) {
			r.Header["X-Amz-Rdma-Cookie"] = []string{"00000001", "00000001"}
		}), InvalidArgument, InvalidArgument},
		"changed header": {altered(func(r *Request) { r.Header["X-Amz-Rdma-Cookie"] = []string{"00000002"} }),
			SignatureDoesNotMatch, SignatureDoesNotMatch},
		"changed path": {altered(func(r *Request) { r.RawPath = "/.hipobj-rc/ready" }), SignatureDoesNotMatch,
			SignatureDoesNotMatch},
		"changed host": {altered(func(r *Request) { r.Host = "s3.example.com" }), SignatureDoesNotMatch,
			SignatureDoesNotMatch},
		"unsigned": {altered(func(r *Request) { delete(r.Header, "Authorization") }), AccessDenied, AccessDenied},
		"service put in": {altered(func(r *Request) {
			r.Header["Authorization"][0] = strings.Replace(r.Header["Authorization"][0], "/s3/", "/hipobj/", 1)
		}), SignatureDoesNotMatch, AuthorizationHeaderMalformed},
	} {
		for which, f := range map[string]func(*Request) (*Identity, error){"message": message, "request": request} {
			want := map[string]Code{"message": c.message, "request": c.request}[which]
			id, err := f(c.r)
			switch {
			case want == "" && (err != nil || id.Principal == ""):
				t.Errorf("%s as a %s: %v", name, which, err)
			case want != "" && (err == nil || AsError(err).Code != want):
				t.Errorf("%s as a %s: %v, want %s", name, which, err, want)
			case which == "message" && err != nil && id != nil:
				t.Errorf("%s: an identity beside %v", name, err)
			}
		}
	}
	if id,
		err := message(with(func(o *SignOptions) { o.Service = "hipobj" })); err != nil || id.Service != ServiceHipObj {
		t.Errorf("service %+v, %v", id, err)
	}
}
