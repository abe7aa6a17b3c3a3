package awsrdma

import (
	"errors"
	"io"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// direct is the SDK's HTTP client, which hands redirects of requests with a token back: net/http would send
// the token to wherever an answer points.
type direct struct{ s3.HTTPClient }

var errRedirect = errors.New("awsrdma: redirected")

// Do implements s3.HTTPClient.
func (d direct) Do(req *http.Request) (*http.Response, error) {
	if req.Header.Get(headerToken) == "" {
		return d.HTTPClient.Do(req)
	}
	if c, ok := d.HTTPClient.(*http.Client); ok {
		here := *c
		here.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		return here.Do(req)
	}
	if req.Body != nil {
		return d.HTTPClient.Do(req) // a body that cannot be had again keeps 307 and 308 from being followed
	}
	// The SDK's own client follows 307 and 308, for which net/http first asks for the body again.
	redirected := false
	req.Body = http.NoBody
	req.GetBody = func() (io.ReadCloser, error) {
		redirected = true
		return nil, errRedirect
	}
	resp, err := d.HTTPClient.Do(req)
	if err != nil && redirected {
		return &http.Response{
			StatusCode: http.StatusTemporaryRedirect, Header: http.Header{}, Body: http.NoBody, Request: req,
		}, nil
	}
	return resp, err
}

// redirects tells whether a status sends the request elsewhere.
func redirects(status int) bool {
	switch status {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect,
		http.StatusPermanentRedirect:
		return true
	}
	return false
}
