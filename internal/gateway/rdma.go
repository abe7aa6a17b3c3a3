package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/checksum"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/s3"
	"github.com/penstock-store/penstock/internal/sink"
	"github.com/penstock-store/penstock/internal/store"
	"github.com/penstock-store/penstock/internal/token"
)

// Headers of docs/wire.md, in the form of http.Header's keys.
const (
	headerToken          = "X-Amz-Rdma-Token"
	headerReply          = "X-Amz-Rdma-Reply"
	headerBytes          = "X-Amz-Rdma-Bytes-Transferred"
	headerAgent          = "X-Amz-Rdma-Agent"
	headerProtocolStatus = "X-Amz-Rdma-Protocol-Status"
	headerReason         = "X-Penstock-Rdma-Reason"
	headerNeed           = "X-Penstock-Rdma-Need"
	headerDeadline       = "X-Penstock-Rdma-Deadline-Ms"
	headerChecksum       = "X-Penstock-Rdma-Checksum"
)

// Reasons of a decline that are the gateway's own; the others come from fabric.Reason.
const (
	reasonOff         = "off"
	reasonArenaBusy   = "arena-busy"
	reasonTooLarge    = "too-large"
	reasonAgent       = "unsupported-agent"
	reasonClientKey   = "encrypted-client-key"
	reasonUnsupported = "unsupported-token"
	reasonAliasOff    = "alias-off"
	reasonBusy        = "busy" // of a 503: RDMA is not declined
)

// knownAgent is the value of x-amz-rdma-agent that this wire has.
const knownAgent = "cuobj"

// emptySHA256 is the payload hash of an empty body; a request with a token has no other body.
const emptySHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// errDeadline is the cause of a context that ended at the transfer's deadline.
var errDeadline = errors.New("gateway: deadline of the transfer passed")

// declined says that RDMA is not used for a request that asked for it.
type declined struct {
	reason string
	status string // of headerProtocolStatus, "" for none
	need   int64  // of headerNeed: bytes that a window must have, 0 for none
}

// Error implements error.
func (d *declined) Error() string { return "gateway: decline rdma: " + d.reason }

// grant is what a request's token came to, once everything was checked that needs no object.
type grant struct {
	window   token.Descriptor
	path     path
	deadline time.Time
	declined error         // why RDMA will not be used; S3's own errors come first
	remote   fabric.Remote // of an exchange, where no token opens the window: it is open
}

// takesToken says whether the operation looks at a token at all.
func (c *call) takesToken() bool {
	switch c.op {
	case opGetObject, opPutObject, opUploadPart, opHipPrepare:
		return true
	}
	return false
}

// tokenOf reads the token and all that belongs to it. nil: the request has none.
func (c *call) tokenOf() (*grant, error) {
	for name := range c.query {
		if inQuery(name) { // presigners move headers there; a PUT would store nothing
			return nil, s3.New(s3.InvalidRDMAToken, "A token is taken from a header only, never from a URL.")
		}
	}
	k, err := carrierOf(c.r.Header)
	if err != nil || k == nil {
		return nil, err
	}
	if _, err := k.text(c.r.Header, c.identity); err != nil {
		return nil, err
	}
	if err := c.checkEmptyBody(); err != nil {
		return nil, err
	}
	d, err := k.descriptor(c.r.Header, c.identity)
	if err != nil {
		return nil, err
	}
	c.bySpec = c.g.o.RDMA.SpecDecline && k.alias == "" // clients with other headers go by the status alone
	c.window = d
	g := &grant{window: d, path: pathOf(d)}
	if g.deadline, err = c.transferDeadline(d); err != nil {
		return nil, err
	}
	g.declined = c.declines(d, k)
	return g, nil
}

// claimToken uses the token's number up, before anything about the request is decided: whatever its
// answer will be, its client takes the memory back with it, and a copy of the request that comes later
// must not touch it. What is wrong with a token otherwise, tokenOf and the opening of its window find.
func (c *call) claimToken() error {
	if c.g.o.Fabrics == nil {
		return nil
	}
	for i := range carriers { // each: a header that was added on the way must not save the number for a copy
		if !carriers[i].in(c.r.Header) {
			continue
		}
		d, err := carriers[i].descriptor(c.r.Header, c.identity)
		if err != nil {
			continue
		}
		c.claim, err = c.g.o.Fabrics.Claim(d, c.identity.Principal)
		if errors.Is(err, fabric.ErrReplayed) || errors.Is(err, fabric.ErrNotGranted) {
			return err
		}
	}
	return nil
}

// claimRefused uses up the token of a request that is refused for a limit, before it is understood: it
// will be repeated with another token.
func (c *call) claimRefused() {
	if k, err := carrierOf(c.r.Header); (k != nil || err != nil) && c.authenticate() == nil {
		_ = c.claimToken() // the refusal is the answer
	}
}

// checkEmptyBody: a request with a token has no body, and nothing pretends that it has one.
func (c *call) checkEmptyBody() error {
	switch hash := c.identity.PayloadHash; {
	case hash == "UNSIGNED-PAYLOAD", hash == emptySHA256:
	default:
		return s3.New(s3.InvalidRequest, "With a token, the payload hash is UNSIGNED-PAYLOAD or that of nothing.")
	}
	switch {
	case c.r.ContentLength != 0 || len(c.r.TransferEncoding) > 0: // of a GET, too: its answer would wait for the body
		return s3.New(s3.InvalidRequest, "With a token, Content-Length is 0: the payload is in the client's memory.")
	case c.op != opGetObject && c.r.Header.Get("Content-Md5") != "":
		return s3.New(s3.InvalidRequest, "With a token, there is no body that Content-MD5 could speak of.")
	}
	return nil
}

// declines says why RDMA is not used for such a token, or nil.
func (c *call) declines(d token.Descriptor, k *carrier) error {
	if !c.g.o.RDMA.Enabled || c.g.o.Fabrics == nil {
		return &declined{reason: reasonOff}
	}
	if k.alias != "" && !slices.Contains(c.g.o.RDMA.Aliases, k.alias) {
		return &declined{reason: reasonAliasOff}
	}
	if agent := c.r.Header.Get(headerAgent); agent != "" && agent != knownAgent {
		return &declined{reason: reasonAgent}
	}
	if _, err := c.g.o.Fabrics.Route(d); err != nil {
		return declineOf(err)
	}
	return nil
}

// declineOf turns an error into a decline where the wire has one; others stay what they are.
func declineOf(err error) error {
	if errors.Is(err, arena.ErrBusy) {
		return &declined{reason: reasonArenaBusy}
	}
	reason, ok := fabric.Reason(err)
	if !ok {
		return err
	}
	d := &declined{reason: reason}
	if reason == reasonUnsupported {
		d.status = "unsupported"
	}
	return d
}

// announce sets the headers of a decline.
func (c *call) announce(d *declined) {
	h := c.w.Header()
	c.reason = d.reason
	h[headerReply] = []string{"501"}
	h[headerReason] = []string{d.reason}
	if d.status != "" {
		h[headerProtocolStatus] = []string{d.status}
	}
	if d.need > 0 {
		h[headerNeed] = []string{strconv.FormatInt(d.need, 10)}
	}
}

// transferDeadline counts from the arrival of the request. Only ps1 sessions, which can be fenced, may ask
// for more than the default.
func (c *call) transferDeadline(d token.Descriptor) (time.Time, error) {
	limit := c.g.o.RDMA.Deadline
	if values := c.r.Header[headerDeadline]; len(values) > 0 {
		ms, err := strconv.ParseInt(values[0], 10, 32)
		if err != nil || ms <= 0 || len(values) != 1 {
			return time.Time{}, s3.New(s3.InvalidArgument, "The deadline is not a number of milliseconds.")
		}
		if !c.identity.Signed(headerDeadline) {
			return time.Time{}, s3.New(s3.AccessDenied, "x-penstock-rdma-deadline-ms is not among the signed headers.")
		}
		cap := c.g.o.RDMA.Deadline
		if d.Kind == token.Session {
			cap = c.g.o.RDMA.SessionDeadline
		}
		limit = min(time.Duration(ms)*time.Millisecond, cap)
	}
	return c.arrived().Add(limit), nil
}

// arrived is when the request reached this machine.
func (c *call) arrived() time.Time {
	if own := connOf(c.r.Context()); own != nil {
		return own.arrival(c.start)
	}
	return c.start
}

// window is client memory opened for one request. close is called exactly once before the answer.
type window struct {
	call        *call
	remote      fabric.Remote
	reservation *arena.Reservation
	closed      bool
}

// openWindow reserves buffers and opens the window, in this order: nothing of the client's memory is
// touched yet.
func (c *call) openWindow(ctx context.Context, g *grant, dir fabric.Direction, n int64) (*window, error) {
	depth := int(min(fabricDepth, (n+FabricBufferBytes-1)/FabricBufferBytes))
	reservation, err := c.g.o.Arena.Share(ShareFabric).Reserve(ctx, depth)
	if err != nil {
		return nil, declineOf(err)
	}
	w := &window{call: c, remote: g.remote, reservation: reservation}
	if w.remote == nil {
		w.remote, err = c.g.o.Fabrics.OpenDescriptor(ctx, g.window, fabric.Grant{
			Principal: c.identity.Principal, Peer: c.peer(), Local: c.local(), Direction: dir, Bytes: n,
			Deadline: g.deadline, Claim: c.claim,
		})
		if err != nil {
			reservation.Close()
			return nil, declineOf(err)
		}
	}
	if key := c.identity.AccessKey; key != "" {
		if _, err := c.g.o.Keys.Lookup(key); err != nil {
			// The key was revoked since it was verified, and its principal's transfers were ended before this one was there.
			_ = w.close(true) // nothing was moved
			return nil, err
		}
	}
	return w, nil
}

// peer is the client's end of the connection. The zero value fits no fabric that looks at it.
func (c *call) peer() netip.AddrPort {
	peer, _ := netip.ParseAddrPort(c.r.RemoteAddr)
	return peer
}

// local is the address of this node that the client connected to, if it is known.
func (c *call) local() netip.Addr {
	at, ok := c.r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if !ok {
		return netip.Addr{} // prefers no rail
	}
	return at.AddrPort().Addr()
}

// close ends all access to client memory. failed says that the bytes are not complete.
func (w *window) close(failed bool) error {
	if w.closed {
		return nil
	}
	w.closed = true
	if a, ok := w.remote.(fabric.Aborter); ok && failed {
		a.Abort()
	}
	err := w.remote.Close()
	w.call.unsafe = w.call.unsafe || errors.Is(err, fabric.ErrLingering)
	w.reservation.Close()
	return err
}

// transferError is what a transfer that began and did not end well is answered as. A session that was cut comes first:
// packets may still be in the network (rc), and after this answer the client fences.
func transferError(err error) error {
	var own *s3.Error
	switch {
	case errors.Is(err, fabric.ErrFenced):
		return s3.New(s3.RDMATransferFailed, "").Wrap(err)
	case errors.As(err, &own), errors.Is(err, store.ErrCorrupt), errors.Is(err, store.ErrUnavailable),
		errors.Is(err, store.ErrNoSpace):
		return err
	case errors.Is(err, fabric.ErrTransfer), errors.Is(err, arena.ErrMapped), errors.Is(err, sink.ErrShort),
		errors.Is(err, errDeadline), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return s3.New(s3.RDMATransferFailed, "").Wrap(err)
	}
	return err
}

// getByFabric moves the selected bytes into the client's memory and answers without a body.
func (c *call) getByFabric(s *selection, g *grant) error {
	ctx, cancel := context.WithDeadlineCause(c.r.Context(), g.deadline, errDeadline)
	defer cancel()
	obj, err := c.g.o.Store.Open(ctx, s.open)
	if err != nil {
		return c.notModified(err, s)
	}
	defer obj.Close()
	switch {
	case g.declined != nil:
		return g.declined
	case s.len > g.window.Size:
		return &declined{reason: reasonTooLarge, need: s.len}
	}
	crc, err := c.deliver(ctx, obj, s, g)
	if err != nil {
		return err
	}
	c.head(s, &obj.Info)
	h := c.w.Header()
	h[headerReply] = []string{strconv.Itoa(s.status())}
	h[headerBytes] = []string{strconv.FormatInt(s.len, 10)}
	h[headerChecksum] = []string{"CRC64NVME " + checksum.Base64(crc)}
	if g.window.Kind == token.Session {
		c.answerChecksums(s, &obj.Info)
	}
	return c.answerEmpty(s.status())
}

// deliver moves the selected bytes into the client's memory; crc is of them. When it returns, the window is closed.
func (c *call) deliver(ctx context.Context, obj *store.Object, s *selection, g *grant) (crc uint64, err error) {
	c.path = g.path
	_, crc, whole := s.wholeSums(&obj.Info)
	if s.len > 0 {
		moved, err := c.writeWindow(ctx, obj, s, g)
		if err != nil {
			return 0, transferError(err)
		}
		if !whole {
			crc = moved
		}
	}
	c.moved = s.len
	return crc, nil
}

// writeWindow moves the bytes. When it returns, the window is closed: client memory is not touched
// any more. crc is of the bytes moved, computed only for a part of an object or part.
func (c *call) writeWindow(
	ctx context.Context, obj *store.Object, s *selection, g *grant,
) (crc uint64, err error) {
	w, err := c.openWindow(ctx, g, fabric.ForGet, s.len)
	if err != nil {
		return 0, err
	}
	defer func() { _ = w.close(true) }() // closed below, unless something panics
	var dst arena.Sink = sink.ForRemote(w.remote, w.reservation, s.len)
	var sum *summing
	if _, _, whole := s.wholeSums(&obj.Info); !whole {
		sum, dst = sumOf(dst)
	}
	err = obj.Read(ctx, 0, s.len, dst)
	if doneErr := dst.Done(ctx); err == nil {
		err = doneErr
	}
	closeErr := w.close(err != nil)
	if err == nil || errors.Is(closeErr, fabric.ErrFenced) {
		err = errors.Join(closeErr, err)
	}
	if err != nil || sum == nil {
		return 0, err
	}
	return sum.total(s.len)
}

// fabricPayload is the source of a PUT in the client's memory.
type fabricPayload struct {
	c       *call
	w       *window
	source  *sink.RemoteSource // nil: empty
	digest  *s3.Digester
	size    int64
	crc     uint64 // once sealed
	sums    []s3.Checksum
	hashing bool
}

// digests are the checksums of a payload: what the client declares, and what is computed besides.
type digests struct {
	declared s3.Declared
	also     s3.Algorithm
}

// memorySums reads what the headers say of a payload in the client's memory.
func (c *call) memorySums(also s3.Algorithm) (digests, error) {
	declared, err := s3.ParseDeclared(c.r.Header)
	if err == nil && declared.Trailer != s3.NoAlgorithm {
		err = s3.New(s3.InvalidRequest, "With a token, there is no body that a trailer could follow.")
	}
	return digests{declared, also}, err
}

// newFabricPayload opens the window of a PUT. Close it.
func (c *call) newFabricPayload(ctx context.Context, g *grant, s digests) (p *fabricPayload, err error) {
	p = &fabricPayload{c: c, size: g.window.Size}
	p.hashing = needsBytes(s.declared.Checksum.Algorithm) || needsBytes(s.also)
	p.digest = s3.NewDigester(s.declared, s3.DigestOptions{Also: s.also, ExternalCRC64NVME: true})
	if p.size == 0 {
		return p, nil
	}
	if p.w, err = c.openWindow(ctx, g, fabric.ForPut, p.size); err != nil {
		return nil, err
	}
	p.source = sink.NewRemoteSource(p.w.remote, p.w.reservation, p.size)
	return p, nil
}

// needsBytes says whether an algorithm has to see the payload here: CRC64NVME comes from the store.
func needsBytes(a s3.Algorithm) bool { return a != s3.NoAlgorithm && a != s3.CRC64NVME }

func (p *fabricPayload) arenaSource() arena.Source {
	switch {
	case p.source == nil:
		return emptySource{}
	case p.hashing:
		return hashedSource{p.source, p.digest}
	}
	return p.source
}

// seal is called once every byte was read and before the commit: the client's memory is given up
// here, and a window that did not close well stores nothing.
func (p *fabricPayload) seal(ctx context.Context, all store.Payload) (store.Digest, error) {
	if err := p.end(ctx, false); err != nil {
		return store.Digest{}, err
	}
	sums, err := p.digest.Finish(s3.Final{CRC64NVME: all.CRC64NVME})
	if err != nil {
		return store.Digest{}, err
	}
	if err := p.c.checkPeer(); err != nil {
		return store.Digest{}, err
	}
	p.crc, p.sums = all.CRC64NVME, sums.Checksums
	return store.Digest{ETag: fabricETag(all.CRC64NVME), Checksums: toStore(sums.Checksums)}, nil
}

// end gives the window up, once.
func (p *fabricPayload) end(ctx context.Context, failed bool) error {
	if p.w == nil || p.w.closed {
		return nil
	}
	sourceErr := p.source.Close(ctx)
	if err := p.w.close(failed || sourceErr != nil); err != nil {
		return err
	}
	if sourceErr != nil {
		return fmt.Errorf("window: end reads: %w", sourceErr)
	}
	return nil
}

// putFunc has the store take a payload, and returns the ETag.
type putFunc func(context.Context, *fabricPayload) (etag string, err error)

func (c *call) putInto(r store.PutRequest) putFunc {
	return func(ctx context.Context, p *fabricPayload) (string, error) {
		r.Source, r.Seal = p.arenaSource(), p.seal
		info, err := c.g.o.Store.Put(ctx, r)
		return info.ETag, err
	}
}

func (c *call) putPartInto(r store.PartRequest) putFunc {
	return func(ctx context.Context, p *fabricPayload) (string, error) {
		r.Source, r.Seal = p.arenaSource(), p.seal
		part, err := c.g.o.Store.PutPart(ctx, r)
		return part.ETag, err
	}
}

// takeByFabric reads the payload from the client's memory, has it stored and answers.
func (c *call) takeByFabric(g *grant, also s3.Algorithm, put putFunc) error {
	ctx, cancel := context.WithDeadlineCause(c.r.Context(), g.deadline, errDeadline)
	defer cancel()
	if g.declined != nil {
		if _, err := c.g.o.Store.HeadBucket(ctx, c.target.Bucket); err != nil {
			return err
		}
		return g.declined
	}
	s, err := c.memorySums(also)
	if err != nil {
		return err
	}
	etag, p, err := c.receive(ctx, g, s, put)
	if err != nil {
		return err
	}
	h := c.w.Header()
	h[headerReply] = []string{"200"}
	h[headerBytes] = []string{strconv.FormatInt(p.size, 10)}
	h[headerChecksum] = []string{"CRC64NVME " + checksum.Base64(p.crc)}
	return c.answerWritten(etag, toStore(p.sums), p.crc)
}

// receive reads the payload from the client's memory and has it stored. When it returns, the window is closed.
func (c *call) receive(ctx context.Context, g *grant, s digests, put putFunc) (string, *fabricPayload, error) {
	p, err := c.newFabricPayload(ctx, g, s)
	if err != nil {
		return "", nil, err
	}
	defer func() { _ = p.end(ctx, true) }() // ended below, unless something panics
	c.path = g.path
	etag, err := put(ctx, p)
	if endErr := p.end(ctx, err != nil); err == nil || errors.Is(endErr, fabric.ErrFenced) {
		err = errors.Join(endErr, err)
	}
	if err != nil {
		return "", nil, transferError(err)
	}
	c.moved = p.size
	return etag, p, nil
}
