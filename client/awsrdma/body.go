package awsrdma

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"runtime"
	"sync"

	"github.com/penstock-store/penstock/client"
)

// body is the payload of a GET that the fabric moved. It reads from a region of the pool, which it gives
// back at its end, at Close, or when it has become unreachable; or from the caller's own window.
type body struct {
	mem     []byte // what is left to read
	sum     *sum   // of what was read; nil: not compared
	bad     error  // what comparing came to, when it was wrong
	loan    *client.Loan
	lent    *lent // of the pool, or
	window  client.Window
	cleanup runtime.Cleanup

	reading sync.Mutex // one reader at a time; taken before mu

	mu     sync.Mutex
	busy   bool // a reader is inside mem
	closed bool
	err    error // final
}

// smallBody is the payload length up to which a body has a copy of its own: a body that nobody closes then
// holds no region, which is many times as long.
const smallBody = 64 << 10

// newBody reads from a region of the pool, which the loan has filled.
func newBody(l *lent, n int64, s *sum, loan *client.Loan) *body {
	if n <= smallBody {
		defer l.giveBack() // after the comparison: if it fails, something may still write there
		b := &body{mem: bytes.Clone(l.region.Bytes()[:n]), sum: s, loan: loan}
		b.sum.add(b.mem)
		_ = b.compare() // whoever reads to the end learns it
		b.sum = nil
		return b
	}
	b := &body{mem: l.region.Bytes()[:n:n], sum: s, lent: l, loan: loan}
	b.cleanup = runtime.AddCleanup(b, func(l *lent) {
		go l.giveBack() // it may have to wait for the node, which a cleanup must not
	}, l)
	return b
}

// compare is called when all bytes were summed. Of bytes that are not those of the answer, it fences the rest.
func (b *body) compare() error {
	if b.bad == nil {
		if err := b.sum.check(); err != nil {
			b.bad = b.loan.Distrust(err)
		}
	}
	return b.bad
}

// newWindowBody reads from the first n bytes of the caller's window, which were compared already.
func newWindowBody(w client.Window, n int64) *body {
	w.Bytes = n
	return &body{mem: w.Region.Bytes()[w.Offset : w.Offset+n : w.Offset+n], window: w}
}

// begin makes the memory safe to read until end.
func (b *body) begin() (release func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.err != nil:
		return nil, b.err
	case b.closed:
		return nil, http.ErrBodyReadAfterClose
	}
	release = func() {}
	if b.window.Region != nil && b.window.Bytes > 0 {
		if release, err = b.window.Hold(); err != nil { // the caller has closed the region
			return nil, err
		}
	}
	b.busy = true
	return release, nil
}

// end notes what a read came to. The region goes back when nobody can read it any more.
func (b *body) end(err error) {
	b.mu.Lock()
	b.busy = false
	if err != nil {
		b.err = err
	}
	over := b.closed || b.err != nil
	b.mu.Unlock()
	if over {
		b.giveBack()
	}
}

func (b *body) giveBack() {
	if b.lent != nil {
		b.cleanup.Stop()
		b.lent.giveBack()
	}
}

// Read copies the next bytes and sums them while they are in the cache.
func (b *body) Read(p []byte) (n int, err error) {
	b.reading.Lock()
	defer b.reading.Unlock()
	release, err := b.begin()
	if err != nil {
		return 0, err
	}
	defer release()
	for n < len(p) && len(b.mem) > 0 {
		k := copy(p[n:], b.mem[:min(pieceBytes, len(b.mem))])
		b.sum.add(p[n : n+k])
		b.mem = b.mem[k:]
		n += k
	}
	if len(b.mem) > 0 {
		b.end(nil)
		return n, nil
	}
	if err = b.compare(); err != nil {
		b.end(err)
		return n, err
	}
	b.end(io.EOF)
	if n > 0 || len(p) == 0 {
		return n, nil
	}
	return 0, io.EOF
}

// WriteTo hands the region's bytes to w without a copy.
func (b *body) WriteTo(w io.Writer) (n int64, err error) {
	b.reading.Lock()
	defer b.reading.Unlock()
	release, err := b.begin()
	if errors.Is(err, io.EOF) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer release()
	for len(b.mem) > 0 {
		piece := b.mem[:min(pieceBytes, len(b.mem))]
		b.sum.add(piece)
		k, err := w.Write(piece)
		n += int64(k)
		if err == nil && k < len(piece) {
			err = io.ErrShortWrite
		}
		if err != nil {
			b.end(err)
			return n, err
		}
		b.mem = b.mem[k:]
		if b.isClosed() {
			b.end(http.ErrBodyReadAfterClose)
			return n, http.ErrBodyReadAfterClose
		}
	}
	if err := b.compare(); err != nil {
		b.end(err)
		return n, err
	}
	b.end(io.EOF)
	return n, nil
}

func (b *body) isClosed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed
}

// Close ends reading. It does not wait for a reader: the last one of the two gives the region back.
func (b *body) Close() error {
	b.mu.Lock()
	b.closed = true
	busy := b.busy
	if !busy && b.err == nil {
		b.err = http.ErrBodyReadAfterClose
	}
	b.mu.Unlock()
	if !busy {
		b.giveBack()
	}
	return nil
}

// upload is the body of a PUT that goes over HTTP after all. It is cut off from the memory before the
// operation returns, whatever the transport still has in mind.
type upload struct {
	size int64

	mu  sync.Mutex
	mem []byte // nil: cut off
	at  int64
}

var errCutOff = errors.New("awsrdma: body read after its operation")

func newUpload(mem []byte) *upload { return &upload{size: int64(len(mem)), mem: mem} }

// Read implements io.Reader.
func (u *upload) Read(p []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.mem == nil:
		return 0, errCutOff
	case u.at >= u.size:
		return 0, io.EOF
	}
	n := copy(p, u.mem[u.at:])
	u.at += int64(n)
	return n, nil
}

// Seek implements io.Seeker.
func (u *upload) Seek(offset int64, whence int) (int64, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch whence {
	case io.SeekCurrent:
		offset += u.at
	case io.SeekEnd:
		offset += u.size
	}
	if offset < 0 {
		return 0, errors.New("awsrdma: seek before the start of a body")
	}
	u.at = offset
	return offset, nil
}

// WriteTo spares the digests of the SDK a copy.
func (u *upload) WriteTo(w io.Writer) (int64, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.mem == nil {
		return 0, errCutOff
	}
	if u.at >= u.size {
		return 0, nil
	}
	n, err := w.Write(u.mem[u.at:])
	u.at += int64(n)
	return int64(n), err
}

// move goes on from other memory with the same bytes.
func (u *upload) move(mem []byte) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.mem = mem
}

func (u *upload) cutOff() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.mem = nil
}
