package s3

import (
	"context"
	"net/http"
	"time"
)

// Request is what a signature covers, taken from a request as it was received.
type Request struct {
	Method           string
	Host             string // with port, as received
	RawPath          string // still encoded, never cleaned; begins with "/"
	RawQuery         string // still encoded
	Header           http.Header
	ContentLength    int64 // < 0: unknown
	TransferEncoding []string
}

// Credentials are what a client signs with.
type Credentials struct{ AccessKey, SecretKey, SessionToken string }

// Secret is what a server knows of an access key. SessionToken and Expires are set for temporary
// keys only.
type Secret struct {
	SecretKey    string
	Principal    string
	SessionToken string
	Expires      time.Time
}

// Lookup finds the secret of an access key. known is false for a key that does not exist or is
// disabled; an error means that the answer could not be found out.
type Lookup func(ctx context.Context, accessKey string) (secret Secret, known bool, err error)

// VerifierConfig configures a Verifier.
type VerifierConfig struct {
	Lookup  Lookup
	Regions []string         // accepted beside us-east-1; the first one is named in refusals
	Now     func() time.Time // nil: time.Now
}

// Verifier checks SigV4 signatures. It is safe for concurrent use.
type Verifier struct {
	lookup  Lookup
	regions []string
	now     func() time.Time
	keys    *keyCache
}

// Identity is who signed a request and what the signature covers.
type Identity struct {
	AccessKey, Principal string
	Region               string
	Time                 time.Time // of the signature
	Presigned            bool
	SignedHeaders        []string // lower case, sorted
	PayloadHash          string   // x-amz-content-sha256 as signed

	chain chain
}

// Signer signs requests of a client. It is safe for concurrent use.
type Signer struct{ keys *keyCache }

// SignOptions are the arguments of Sign and Presign beside the request.
type SignOptions struct {
	Credentials Credentials
	Region      string
	Service     string // "": s3
	Time        time.Time
	PayloadHash string        // "": UNSIGNED-PAYLOAD
	Expires     time.Duration // Presign only, 1 s to 7 days
}
