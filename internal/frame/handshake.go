package frame

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// Lengths of handshake bodies in bytes.
const (
	SessionBytes = 16
	NonceBytes   = 32
	ProofBytes   = sha256.Size
	HelloBytes   = 8 + SessionBytes + NonceBytes + 8
	ReadyBytes   = ProofBytes + 24
)

// magic starts a Hello: protocol name and version.
const magic = "PNSTK\x00\x00\x01"

// Labels keep the uses of one secret apart.
const (
	clientLabel = "penstock data connection, client proof v1"
	serverLabel = "penstock data connection, server proof v1"
	ticketLabel = "penstock data connection, ticket v1"
)

// HelloBody is the body of a Hello frame.
type HelloBody struct {
	Session [SessionBytes]byte
	Nonce   [NonceBytes]byte // the client's, for the server's proof
	Index   uint32           // 0 for the session's first connection, then 1, 2, … (tcp)
}

// Encode writes the body into b, which has at least HelloBytes.
func (h HelloBody) Encode(b []byte) {
	_ = b[HelloBytes-1]
	copy(b, magic)
	copy(b[8:], h.Session[:])
	copy(b[24:], h.Nonce[:])
	binary.LittleEndian.PutUint32(b[56:], h.Index)
	binary.LittleEndian.PutUint32(b[60:], 0)
}

// DecodeHello reads the body of a Hello frame.
func DecodeHello(b []byte) (HelloBody, error) {
	if len(b) != HelloBytes || string(b[:8]) != magic || binary.LittleEndian.Uint32(b[60:]) != 0 {
		return HelloBody{}, fmt.Errorf("%w: hello", ErrInvalid)
	}
	h := HelloBody{
		Session: [SessionBytes]byte(b[8:]),
		Nonce:   [NonceBytes]byte(b[24:]),
		Index:   binary.LittleEndian.Uint32(b[56:]),
	}
	if h.Index >= MaxConns {
		return HelloBody{}, fmt.Errorf("%w: connection index %d", ErrInvalid, h.Index)
	}
	return h, nil
}

// ReadyBody is the body of a Ready frame: the server's proof and the limits of the session.
type ReadyBody struct {
	Proof       [ProofBytes]byte
	RegionBytes uint64 // mapped bytes that the session's principal may have in all
	Regions     uint32 // regions per session
	Conns       uint32 // data connections per session
	Payload     uint32 // largest body that the server sends or asks for
	IdleMillis  uint32 // a session without frames or transfers for so long is ended
}

// Encode writes the body into b, which has at least ReadyBytes.
func (r ReadyBody) Encode(b []byte) {
	_ = b[ReadyBytes-1]
	copy(b, r.Proof[:])
	binary.LittleEndian.PutUint64(b[32:], r.RegionBytes)
	binary.LittleEndian.PutUint32(b[40:], r.Regions)
	binary.LittleEndian.PutUint32(b[44:], r.Conns)
	binary.LittleEndian.PutUint32(b[48:], r.Payload)
	binary.LittleEndian.PutUint32(b[52:], r.IdleMillis)
}

// DecodeReady reads the body of a Ready frame.
func DecodeReady(b []byte) (ReadyBody, error) {
	if len(b) != ReadyBytes {
		return ReadyBody{}, fmt.Errorf("%w: ready", ErrInvalid)
	}
	return ReadyBody{
		Proof:       [ProofBytes]byte(b),
		RegionBytes: binary.LittleEndian.Uint64(b[32:]),
		Regions:     binary.LittleEndian.Uint32(b[40:]),
		Conns:       binary.LittleEndian.Uint32(b[44:]),
		Payload:     binary.LittleEndian.Uint32(b[48:]),
		IdleMillis:  binary.LittleEndian.Uint32(b[52:]),
	}, nil
}

// ClientProof answers a Challenge. The connection of index i > 0 proves a ticket that is derived
// from the secret for that index, and each index counts once in the life of a session.
func ClientProof(secret [32]byte, h HelloBody, challenge [NonceBytes]byte) [ProofBytes]byte {
	return sum(connKey(secret, h), clientLabel, h.Session[:], challenge[:])
}

// ServerProof is the server's part, over both nonces: a client gives its memory to nobody else.
func ServerProof(secret [32]byte, h HelloBody, challenge [NonceBytes]byte) [ProofBytes]byte {
	return sum(connKey(secret, h), serverLabel, h.Session[:], h.Nonce[:], challenge[:])
}

// ProofEqual compares in constant time.
func ProofEqual(a, b [ProofBytes]byte) bool { return hmac.Equal(a[:], b[:]) }

func connKey(secret [32]byte, h HelloBody) [32]byte {
	if h.Index == 0 {
		return secret
	}
	return sum(secret, ticketLabel, h.Session[:], binary.LittleEndian.AppendUint32(nil, h.Index))
}

func sum(key [32]byte, label string, parts ...[]byte) (out [ProofBytes]byte) {
	mac := hmac.New(sha256.New, key[:])
	mac.Write([]byte(label))
	for _, p := range parts {
		mac.Write(p)
	}
	copy(out[:], mac.Sum(nil))
	return out
}
