package gateway

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/s3"
	"github.com/penstock-store/penstock/internal/token"
)

// The connections that `rc:` tokens name (docs/wire.md).
const (
	rcPrefix       = "/.s3rdma-rc/"
	connectPath    = rcPrefix + "connect"
	disconnectPath = rcPrefix + "disconnect"

	headerPSN     = "X-Amz-Rdma-Psn"
	headerSession = "X-Amz-Rdma-Session"
)

const (
	// pairTokenChars is the length of the only form of a token that names a queue pair of the client.
	pairTokenChars = 88
	// maxNumber is the largest number of a queue pair and of a packet: 24 bits.
	maxNumber = 1<<24 - 1
	// firstPair is the first number of a queue pair of programs; those before it are the adapters' own.
	firstPair = 2
	// psnDigits is the length of a packet's number.
	psnDigits = 6
)

// serveRC answers requests below rcPrefix.
func (c *call) serveRC(path string) error {
	switch {
	case path != connectPath && path != disconnectPath:
		return s3.New(s3.MethodNotAllowed, "Nothing is at this path.")
	case c.r.Method != http.MethodPost:
		return s3.New(s3.MethodNotAllowed, "")
	case !c.g.o.RDMA.Enabled:
		return &declined{reason: reasonOff}
	case c.g.o.Connector == nil:
		return declineOf(fabric.ErrNoFabric)
	}
	if err := c.admitRC(); err != nil {
		return err
	}
	if path == connectPath {
		return c.connect()
	}
	return c.disconnect()
}

// admitRC authenticates what is signed, and lets the rest in where that is switched on: the clients of this dialect do
// not sign here. Without an identity nobody owns what the request makes.
func (c *call) admitRC() error {
	unsigned := c.r.Header["Authorization"] == nil && c.request.RawQuery == ""
	if unsigned && c.g.o.RDMA.UnsignedConnect {
		if c.r.ContentLength != 0 {
			return s3.New(s3.InvalidRequest, "Content-Length is 0: there is no body.")
		}
		return nil
	}
	if err := c.authenticate(); err != nil {
		return err
	}
	return c.checkEmptyBody()
}

// connect connects a queue pair of this node to the client's.
func (c *call) connect() error {
	request, err := c.connectRequest()
	if err != nil {
		return err
	}
	made, err := c.g.o.Connector.Connect(c.r.Context(), request)
	if errors.Is(err, fabric.ErrNotGranted) {
		c.g.log.Debug("connection refused", "request_id", c.id, "peer", c.r.RemoteAddr, "error", err)
		return s3.New(s3.AccessDenied, "The queue pair is not the client's.").Wrap(err)
	}
	if err != nil {
		return declineOf(err)
	}
	if c.identity != nil {
		if _, err := c.g.o.Keys.Lookup(c.identity.AccessKey); err != nil {
			// The key was revoked since it was verified, and its connections were ended before this one was there.
			_ = c.g.o.Connector.Disconnect(c.r.Context(), made.ID) // nothing was moved by it
			return err
		}
	}
	own := token.Descriptor{
		Kind: token.HipObj, HipRC: true, QPN: made.QPN, GID: made.GID, Port: made.Port, LID: made.LID,
	}
	h := c.w.Header()
	h[headerSession] = []string{hex.EncodeToString(made.ID[:])}
	h[headerReply] = []string{"200:" + own.Encode()}
	h[headerPSN] = []string{fmt.Sprintf("%0*x", psnDigits, made.PSN)}
	h.Set("Cache-Control", "no-store")
	return c.answerEmpty(http.StatusOK)
}

// connectRequest reads the headers of a connect.
func (c *call) connectRequest() (fabric.ConnectRequest, error) {
	r := fabric.ConnectRequest{Local: c.local()}
	if c.identity != nil {
		r.Principal = c.identity.Principal
	}
	r.Peer = c.peer()
	text, err := c.only(headerToken)
	if err != nil {
		return r, err
	}
	if r.Token, err = token.Parse(text); err != nil {
		return r, err
	}
	switch d := r.Token; {
	case d.Kind != token.HipObj || len(text) != pairTokenChars || !d.HipRC:
		return r, s3.New(s3.InvalidRDMAToken, "The token names no queue pair of a reliable connection.")
	case d.QPN < firstPair || d.QPN > maxNumber:
		return r, s3.New(s3.InvalidRDMAToken, "The number of the queue pair is none of a program's.")
	}
	if text, err = c.only(headerPSN); err != nil {
		return r, err
	}
	psn, err := strconv.ParseUint(text, 16, 32)
	if err != nil || len(text) > psnDigits || psn == 0 {
		return r, s3.New(s3.InvalidRDMAToken, "The packet number is not 1 to ffffff.")
	}
	r.PSN = uint32(psn)
	return r, nil
}

// disconnect ends a connection, also one that nobody knows: what the client wants is so.
func (c *call) disconnect() error {
	text, err := c.only(headerSession)
	if err != nil {
		return err
	}
	var id [16]byte
	if len(text) != hex.EncodedLen(len(id)) {
		return s3.New(s3.InvalidRDMAToken, "The session is not 32 hex digits.")
	}
	if _, err := hex.Decode(id[:], []byte(text)); err != nil {
		return s3.New(s3.InvalidRDMAToken, "The session is not 32 hex digits.")
	}
	if err := c.g.o.Connector.Disconnect(c.r.Context(), id); err != nil {
		c.unsafe = c.unsafe || errors.Is(err, fabric.ErrLingering)
		return err
	}
	return c.answerEmpty(http.StatusNoContent)
}

// only returns the value of a header that has to be there once.
func (c *call) only(name string) (string, error) {
	values := c.r.Header[name]
	if len(values) != 1 {
		return "", s3.Errorf(s3.InvalidRDMAToken, "%s is there %d times, not once.", name, len(values))
	}
	return values[0], nil
}
