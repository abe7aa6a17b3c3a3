package frame

import (
	"crypto/rand"
	"fmt"
	"io"
)

// RefusedError says that the server refused a connection or a region.
type RefusedError struct{ Status Status }

// Error names the status.
func (e *RefusedError) Error() string { return "frame: refused: " + e.Status.String() }

// ReadHeader reads and checks one header, using b as its buffer. At the end of the stream it returns
// io.EOF when no byte of a header was read.
func ReadHeader(r io.Reader, b *[HeaderBytes]byte) (Header, error) {
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return Header{}, err
	}
	return Decode(b[:])
}

// WriteFrame writes a header and its body in one call of w.Write. It is for the control frames; the
// payload frames of a transfer are written without a copy by their fabric.
func WriteFrame(w io.Writer, h Header, body []byte) error {
	b := make([]byte, HeaderBytes+len(body))
	h.Length = uint32(len(body))
	h.Encode(b)
	copy(b[HeaderBytes:], body)
	_, err := w.Write(b)
	return err
}

// readBody reads a frame of type t, whose body has a fixed length.
func readBody(r io.Reader, t Type) ([]byte, error) {
	var b [HeaderBytes]byte
	h, err := ReadHeader(r, &b)
	if err != nil {
		return nil, err
	}
	if h.Type == Refused && !t.FromClient() {
		return nil, &RefusedError{Status: h.Status}
	}
	if h.Type != t {
		return nil, fmt.Errorf("%w: type %d instead of %d", ErrInvalid, h.Type, t)
	}
	body := make([]byte, h.Length)
	_, err = io.ReadFull(r, body)
	return body, err
}

// Gatekeeper is the server's knowledge during a handshake.
type Gatekeeper interface {
	// Secret is the secret of the session that h names; ok is false when there is none.
	Secret(h HelloBody) (secret [32]byte, ok bool)
	// Admit is called after the proof was right. Any status but StatusOK refuses the connection.
	Admit(h HelloBody) Status
}

// Accept runs the server's side of the handshake. A client that knows no secret cannot tell an
// unknown session from a wrong proof. The caller bounds the time by deadlines on rw, and closes the
// connection on an error. Errors: *RefusedError, ErrInvalid, errors of rw.
func Accept(rw io.ReadWriter, g Gatekeeper, limits ReadyBody) (HelloBody, error) {
	body, err := readBody(rw, Hello)
	if err != nil {
		return HelloBody{}, fmt.Errorf("frame: read hello: %w", err)
	}
	h, err := DecodeHello(body)
	if err != nil {
		return HelloBody{}, err
	}
	secret, known := g.Secret(h)
	if !known {
		_, _ = rand.Read(secret[:]) // documented to never fail
	}
	var nonce [NonceBytes]byte
	_, _ = rand.Read(nonce[:])
	if err := WriteFrame(rw, Header{Type: Challenge}, nonce[:]); err != nil {
		return HelloBody{}, fmt.Errorf("frame: write challenge: %w", err)
	}
	proof, err := readBody(rw, Proof)
	if err != nil {
		return HelloBody{}, fmt.Errorf("frame: read proof: %w", err)
	}
	status := StatusProof
	if ProofEqual([ProofBytes]byte(proof), ClientProof(secret, h, nonce)) && known {
		status = g.Admit(h)
	}
	if status != StatusOK {
		_ = WriteFrame(rw, Header{Type: Refused, Status: status}, nil) // the connection ends anyhow
		return HelloBody{}, &RefusedError{Status: status}
	}
	limits.Proof = ServerProof(secret, h, nonce)
	var ready [ReadyBytes]byte
	limits.Encode(ready[:])
	if err := WriteFrame(rw, Header{Type: Ready}, ready[:]); err != nil {
		return h, fmt.Errorf("frame: write ready: %w", err)
	}
	return h, nil
}

// Connect runs the client's side of the handshake for the connection of that index. Errors:
// *RefusedError, ErrInvalid (also when the server cannot prove the secret), errors of rw.
func Connect(rw io.ReadWriter, session [SessionBytes]byte, secret [32]byte, index uint32) (ReadyBody, error) {
	h := HelloBody{Session: session, Index: index}
	_, _ = rand.Read(h.Nonce[:]) // documented to never fail
	var hello [HelloBytes]byte
	h.Encode(hello[:])
	if err := WriteFrame(rw, Header{Type: Hello}, hello[:]); err != nil {
		return ReadyBody{}, fmt.Errorf("frame: write hello: %w", err)
	}
	nonce, err := readBody(rw, Challenge)
	if err != nil {
		return ReadyBody{}, fmt.Errorf("frame: read challenge: %w", err)
	}
	proof := ClientProof(secret, h, [NonceBytes]byte(nonce))
	if err := WriteFrame(rw, Header{Type: Proof}, proof[:]); err != nil {
		return ReadyBody{}, fmt.Errorf("frame: write proof: %w", err)
	}
	body, err := readBody(rw, Ready)
	if err != nil {
		return ReadyBody{}, fmt.Errorf("frame: read ready: %w", err)
	}
	ready, err := DecodeReady(body)
	if err != nil {
		return ReadyBody{}, err
	}
	if !ProofEqual(ready.Proof, ServerProof(secret, h, [NonceBytes]byte(nonce))) {
		return ReadyBody{}, fmt.Errorf("%w: server did not prove the secret", ErrInvalid)
	}
	return ready, nil
}
