package gateway

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-store/penstock/internal/s3"
	"github.com/penstock-store/penstock/internal/token"
)

// Headers by which some clients carry what is x-amz-rdma-token elsewhere, in the form of http.Header's keys.
const (
	headerInfo       = "X-Rdma-Info"
	headerDescr      = "X-Cuobj-Rdma-Descr"
	headerDescrSize  = "X-Cuobj-Content-Length"
	headerDescrStart = "X-Cuobj-Remote-Buf-Start"
	headerScal       = "X-Scal-Rdma"
)

// carrier is one set of headers that carries a token.
type carrier struct {
	alias   string   // its name in RDMA.Aliases; "" for the header that is always taken
	headers []string // all needed, all signed; the first has the token, two more the size and address of a part
}

// carriers are all that this server knows, whether it takes them or not: what is known to ask for RDMA is
// never served as if it had not asked.
var carriers = []carrier{
	{"", []string{headerToken}},
	{"x-rdma-info", []string{headerInfo}},
	{"cuobj", []string{headerDescr, headerDescrSize, headerDescrStart}},
	{"x-scal-rdma", []string{headerScal}}, // no configuration can name it: always declined
}

func (k *carrier) in(h http.Header) bool {
	return slices.ContainsFunc(k.headers, func(name string) bool { return h[name] != nil })
}

// carrierOf finds the headers that carry the request's token. nil: it has none.
func carrierOf(h http.Header) (*carrier, error) {
	var found *carrier
	for i := range carriers {
		switch {
		case !carriers[i].in(h):
		case found != nil:
			return nil, s3.New(s3.InvalidRDMAToken, "The request has more than one token.")
		default:
			found = &carriers[i]
		}
	}
	return found, nil
}

// inQuery tells whether a presigner moved a header of a token into the URL.
func inQuery(name string) bool {
	return slices.ContainsFunc(carriers, func(k carrier) bool {
		return slices.ContainsFunc(k.headers, func(h string) bool { return strings.EqualFold(h, name) })
	})
}

// text returns the token as it came. Every header of the carrier must be there, once, and signed: a
// capability to client memory must not be added or changed on the way.
func (k *carrier) text(h http.Header, id *s3.Identity) (string, error) {
	for _, name := range k.headers {
		values := h[name]
		switch {
		case len(values) == 0:
			return "", s3.Errorf(s3.InvalidRDMAToken, "%s is missing.", strings.ToLower(name))
		case !id.Signed(name) && !id.Unsigned: // nothing of such a request is signed, and it may only touch the test bucket
			return "", s3.Errorf(s3.AccessDenied, "%s is not among the signed headers.", strings.ToLower(name))
		case len(values) > 1:
			return "", s3.New(s3.InvalidRDMAToken, "The request has more than one token.")
		}
	}
	return h[k.headers[0]][0], nil
}

// descriptor reads the window.
func (k *carrier) descriptor(h http.Header, id *s3.Identity) (token.Descriptor, error) {
	text, err := k.text(h, id)
	if err != nil {
		return token.Descriptor{}, err
	}
	d, err := token.Parse(text)
	if err != nil || len(k.headers) == 1 {
		return d, err
	}
	size, sizeErr := strconv.ParseUint(h[k.headers[1]][0], 10, 64)
	addr, addrErr := strconv.ParseUint(h[k.headers[2]][0], 10, 64)
	if sizeErr != nil || addrErr != nil {
		return token.Descriptor{}, s3.New(s3.InvalidRDMAToken, "Size or address of the window is not a number.")
	}
	return d.Narrow(addr, size)
}
