package frame

import (
	"encoding/binary"
	"fmt"
)

// Lengths of bodies of the rc fabric in bytes.
const (
	RailBytes = 24
	PathBytes = 40
	KeyBytes  = 4
)

// MaxRails is how many rails a server shows to a client, and MaxDevices how many of its adapters a client uses: a
// chassis has up to eight of either.
const (
	MaxRails   = 8
	MaxDevices = 8
)

// Rail is one of the server's, as a client sees it.
type Rail struct {
	Index uint8 // stays the same while the node runs
	Up    bool  // takes paths now
	MTU   uint8 // active, by the verbs' number: 1 is 256 bytes, 5 is 4096
	LID   uint16
	GID   [16]byte
}

// EncodeRails returns the body of a Rails frame.
func EncodeRails(rails []Rail) []byte {
	b := make([]byte, 0, len(rails)*RailBytes)
	for _, r := range rails {
		var up byte
		if r.Up {
			up = 1
		}
		b = append(b, r.Index, up, r.MTU, 0)
		b = binary.LittleEndian.AppendUint16(b, r.LID)
		b = append(append(b, 0, 0), r.GID[:]...)
	}
	return b
}

// DecodeRails reads the body of a Rails frame.
func DecodeRails(b []byte) ([]Rail, error) {
	if len(b)%RailBytes != 0 || len(b) > MaxRails*RailBytes {
		return nil, fmt.Errorf("%w: rails", ErrInvalid)
	}
	rails := make([]Rail, 0, len(b)/RailBytes)
	for ; len(b) > 0; b = b[RailBytes:] {
		r := Rail{
			Index: b[0], Up: b[1] == 1, MTU: b[2], LID: binary.LittleEndian.Uint16(b[4:]), GID: [16]byte(b[8:]),
		}
		if b[1] > 1 || b[3] != 0 || b[6] != 0 || b[7] != 0 || !validMTU(r.MTU) {
			return nil, fmt.Errorf("%w: rail %d", ErrInvalid, r.Index)
		}
		rails = append(rails, r)
	}
	return rails, nil
}

// PathBody describes one end's queue pair of a path.
type PathBody struct {
	QPN    uint32 // 24 bits; not 0 and 1, which are an adapter's own, nor all ones, which means multicast
	PSN    uint32 // 24 bits: the first that this end sends
	GID    [16]byte
	LID    uint16
	MTU    uint8 // by the verbs' number; the lesser of both ends' is used
	Device uint8 // of the client: which of a region's keys is for this path
	Reads  uint8 // RDMA READs at once: that the client answers, that the server will have under way
}

// Encode writes the body into b, which has at least PathBytes.
func (p PathBody) Encode(b []byte) {
	_ = b[PathBytes-1]
	binary.LittleEndian.PutUint32(b, p.QPN)
	binary.LittleEndian.PutUint32(b[4:], p.PSN)
	copy(b[8:], p.GID[:])
	binary.LittleEndian.PutUint16(b[24:], p.LID)
	b[26], b[27], b[28] = p.MTU, p.Device, p.Reads
	clear(b[29:PathBytes])
}

// DecodePath reads the body of a Path or PathOK frame.
func DecodePath(b []byte) (PathBody, error) {
	if len(b) != PathBytes {
		return PathBody{}, fmt.Errorf("%w: path", ErrInvalid)
	}
	p := PathBody{
		QPN: binary.LittleEndian.Uint32(b), PSN: binary.LittleEndian.Uint32(b[4:]),
		GID: [16]byte(b[8:]), LID: binary.LittleEndian.Uint16(b[24:]),
		MTU: b[26], Device: b[27], Reads: b[28],
	}
	for _, zero := range b[29:] {
		if zero != 0 {
			return PathBody{}, fmt.Errorf("%w: reserved bytes of a path are not zero", ErrInvalid)
		}
	}
	const limit = 1 << 24
	if p.QPN < 2 || p.QPN >= limit-1 || p.PSN >= limit || !validMTU(p.MTU) || p.Device >= MaxDevices || p.Reads == 0 {
		return PathBody{}, fmt.Errorf("%w: path", ErrInvalid)
	}
	return p, nil
}

// Numbers of MTUs, as the verbs have them.
const (
	smallestMTU = 1 // 256 bytes
	largestMTU  = 5 // 4096 bytes
)

func validMTU(n uint8) bool { return n >= smallestMTU && n <= largestMTU }

// MTUBytes is the MTU that a valid number stands for.
func MTUBytes(n uint8) int { return 128 << n }

// MTUNumber is the number of an MTU in bytes; what is none counts as the next smaller one, or as the smallest.
func MTUNumber(bytes int) uint8 {
	n := uint8(smallestMTU)
	for n < largestMTU && MTUBytes(n+1) <= bytes {
		n++
	}
	return n
}

// EncodeKeys returns the body of a Keyed frame: the region's key on each of the client's devices.
func EncodeKeys(keys []uint32) []byte {
	b := make([]byte, 0, len(keys)*KeyBytes)
	for _, k := range keys {
		b = binary.LittleEndian.AppendUint32(b, k)
	}
	return b
}

// DecodeKeys reads the body of a Keyed frame.
func DecodeKeys(b []byte) ([]uint32, error) {
	if len(b) == 0 || len(b)%KeyBytes != 0 || len(b) > MaxDevices*KeyBytes {
		return nil, fmt.Errorf("%w: keys of a region", ErrInvalid)
	}
	keys := make([]uint32, 0, len(b)/KeyBytes)
	for ; len(b) > 0; b = b[KeyBytes:] {
		keys = append(keys, binary.LittleEndian.Uint32(b))
	}
	return keys, nil
}
