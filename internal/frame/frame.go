// Package frame holds the bytes of the data connections of the shm, tcp and rc fabrics, and the JSON of
// the control plane, shared by server and client. docs/wire.md has the byte tables.
//
// Called by: fabric/shm, fabric/tcp, fabric/verbs, fabric/dataconn, client/target (frames), gateway and client (control
// plane).
//
// Invariants:
//  1. Decode never panics and accepts only frames whose body length and numbers lie inside the
//     limits of their type, so that a reader may allocate or skip Length bytes without a further check.
//  2. Encoding and decoding allocate nothing per frame.
//  3. A secret leaves the package only through SessionReply.Encode.
//
// What it does not do: sockets, clocks, sessions.
package frame

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// HeaderBytes is the length of every frame's header.
const HeaderBytes = 40

// MaxPayload bounds the body of DATA and PAYLOAD frames in bytes: one fabric arena buffer is 1 MiB,
// and a larger frame would hold the connection's write lock for longer without being faster.
const MaxPayload = 4 << 20

// MaxRegionBytes bounds the size of a region: nothing has more memory, and sums cannot overflow.
const MaxRegionBytes = 1 << 46

// MaxNumber bounds offsets, so that offset + size never overflows an int64.
const MaxNumber = 1 << 62

// MaxOutstandingReads is how many READ frames the server may have unanswered on one connection. A
// client that sees more ends the connection.
const MaxOutstandingReads = 64

// MaxConns is how many data connections a tcp session may have: four transfers in flight fill two
// cores over loopback, and more streams gain nothing on one link.
const MaxConns = 8

// SendBufferBytes is the send buffer of both ends of a tcp data connection. Left to itself the kernel
// lets megabytes per stream queue up, which costs a quarter more CPU over loopback, since they have left
// the cache when they are read; four streams of this size still fill 100 Gb/s at 150 µs.
const SendBufferBytes = 512 << 10

// ErrInvalid says that the bytes are not a frame of this protocol. The connection must be closed.
var ErrInvalid = errors.New("frame: invalid frame")

// Type tells frames apart.
type Type uint8

// Types of frame; c is the client, s the server.
const (
	Hello         Type = iota + 1 // c→s body HelloBody
	Challenge                     // s→c body: nonce
	Proof                         // c→s body: HMAC
	Ready                         // s→c body ReadyBody
	Refused                       // s→c Status; the server closes the connection
	Region                        // c→s Region, Size (shm: memfd by SCM_RIGHTS, or Status = foreign, Offset = address)
	RegionOK                      // s→c Region
	RegionRefused                 // s→c Region, Status
	Forget                        // c→s Region
	Forgotten                     // s→c Region: the server has no mapping of it any more
	Close                         // c→s
	Closed                        // s→c the server has no mapping of any region of the session any more
	Ping                          // c→s keeps an idle session
	Pong                          // s→c
	Start                         // s→c ID, Region, Offset, Size, Status = direction: a transfer begins
	Data                          // s→c ID, Offset in the window, body
	Read                          // s→c ID, Offset in the window, Size
	Payload                       // c→s ID, Offset in the window, body: answers the oldest unanswered Read
	Done                          // s→c ID, Status: no frame of the transfer follows
	Ack                           // c→s ID, Size: answers Done; the memory holds the Size bytes that Data brought
	Deny                          // c→s ID: no running request granted the window; Reads of it stay unanswered
	Attach                        // c→s (shm) asks the server to open the client's address space
	Ask                           // s→c ID: a random number; the address space is open
	Present                       // c→s ID: that number, Offset: address of 8 bytes that hold it
	Attached                      // s→c Status: whether regions may be foreign memory
	Rails                         // s→c (rc) body: the server's rails, as they are now
	Path                          // c→s (rc) ID: the path, Region: rail, body PathBody: the client's queue pair
	PathOK                        // s→c (rc) ID, body PathBody: the server's queue pair
	PathRefused                   // s→c (rc) ID, Status
	PathUp                        // c→s (rc) ID: the client's queue pair takes what the server sends
	Lost                          // s→c (rc) ID: the server's queue pair is reset, and sends nothing more
	Fenced                        // c→s (rc) ID: so is the client's, and nothing that is still under way can arrive
	Keyed                         // c→s (rc) Region, Offset = address, Size, body: keys; what Region is elsewhere
	lastType      = Keyed
)

// Status qualifies a frame.
type Status uint8

// Statuses. Zero is success.
const (
	StatusOK        Status = iota
	StatusProof            // Refused: unknown session, used secret or wrong proof; they look alike
	StatusLimit            // a limit of sessions, connections, regions or bytes
	StatusSize             // region: size zero, too large, or not that of its memfd
	StatusKind             // region: not a memfd, or wrong access mode
	StatusSeals            // region: not sealed against shrinking
	StatusSparse           // region: not populated
	StatusDuplicate        // region: number in use; path: so is its queue pair, by another
	StatusUnknown          // no such region
	StatusAborted          // Done: the server gave up, the bytes are not complete
	StatusGet              // Start: the server will write client memory
	StatusPut              // Start: the server will read client memory
	StatusMap              // region: the server could not map it
	StatusForeign          // Region: memory of the client's address space instead of a memfd
	StatusOff              // the server takes no foreign memory
	StatusUser             // Attached: the client's user is not the server's
	StatusProcess          // Attached, foreign region: the process is gone, not visible, or not the one that connected
	StatusDenied           // Attached: the kernel does not let the server open the client's memory
	StatusAddress          // foreign region: not all of the range is writable memory without a file
	StatusRail             // path: no such rail, or it is down
	StatusGID              // path: the GID is not known to belong to the client
	StatusDevice           // path: the adapter refused the queue pair or the connection
	lastStatus      = StatusDevice
)

// String names the status, for errors.
func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return "unknown status"
}

var statusNames = [...]string{
	"ok", "proof refused", "limit reached", "size refused", "not a memfd", "not sealed", "sparse",
	"number in use", "no such region", "aborted", "get", "put", "map failed", "foreign memory",
	"foreign memory is off", "another user", "process not reachable", "denied by the kernel", "address refused",
	"no such rail", "address not the client's", "adapter refused",
}

// Header starts every frame.
type Header struct {
	Type   Type
	Status Status
	Length uint32 // bytes of body after the header
	ID     uint64 // transfer
	Region uint64 // low 32 bits: number of the region; high 32 bits: number of the token
	Offset uint64
	Size   uint64
}

// SplitRegion takes the region field of a token or a Start frame apart: the number of the region
// and the number of the token, by which the client knows the request and the server tells a copy of it.
func SplitRegion(field uint64) (region, token uint32) { return uint32(field), uint32(field >> 32) }

// JoinRegion is the inverse of SplitRegion.
func JoinRegion(region, token uint32) uint64 { return uint64(token)<<32 | uint64(region) }

// Encode writes the header into b, which has at least HeaderBytes.
func (h Header) Encode(b []byte) {
	_ = b[HeaderBytes-1]
	b[0], b[1], b[2], b[3] = byte(h.Type), byte(h.Status), 0, 0
	binary.LittleEndian.PutUint32(b[4:], h.Length)
	binary.LittleEndian.PutUint64(b[8:], h.ID)
	binary.LittleEndian.PutUint64(b[16:], h.Region)
	binary.LittleEndian.PutUint64(b[24:], h.Offset)
	binary.LittleEndian.PutUint64(b[32:], h.Size)
}

// Decode reads and checks a header of HeaderBytes bytes.
func Decode(b []byte) (Header, error) {
	if len(b) < HeaderBytes {
		return Header{}, fmt.Errorf("%w: short header", ErrInvalid)
	}
	h := Header{
		Type:   Type(b[0]),
		Status: Status(b[1]),
		Length: binary.LittleEndian.Uint32(b[4:]),
		ID:     binary.LittleEndian.Uint64(b[8:]),
		Region: binary.LittleEndian.Uint64(b[16:]),
		Offset: binary.LittleEndian.Uint64(b[24:]),
		Size:   binary.LittleEndian.Uint64(b[32:]),
	}
	if b[2] != 0 || b[3] != 0 {
		return Header{}, fmt.Errorf("%w: reserved bytes are not zero", ErrInvalid)
	}
	if h.Type == 0 || h.Type > lastType || h.Status > lastStatus {
		return Header{}, fmt.Errorf("%w: unknown type or status", ErrInvalid)
	}
	if h.Offset > MaxNumber || h.Size > MaxNumber {
		return Header{}, fmt.Errorf("%w: number too large", ErrInvalid)
	}
	lo, hi := h.Type.bodyRange()
	if h.Length < lo || h.Length > hi {
		return Header{}, fmt.Errorf("%w: body of %d bytes", ErrInvalid, h.Length)
	}
	return h, nil
}

func (t Type) bodyRange() (lo, hi uint32) {
	switch t {
	case Hello:
		return HelloBytes, HelloBytes
	case Challenge:
		return NonceBytes, NonceBytes
	case Proof:
		return ProofBytes, ProofBytes
	case Ready:
		return ReadyBytes, ReadyBytes
	case Data, Payload:
		return 1, MaxPayload
	case Keyed:
		return KeyBytes, MaxDevices * KeyBytes
	case Rails:
		return 0, MaxRails * RailBytes
	case Path, PathOK:
		return PathBytes, PathBytes
	}
	return 0, 0
}

// FromClient tells whether the client sends frames of this type.
func (t Type) FromClient() bool {
	switch t {
	case Hello, Proof, Region, Forget, Close, Ping, Payload, Ack, Deny, Attach, Present, Path, PathUp, Fenced,
		Keyed:
		return true
	}
	return false
}
