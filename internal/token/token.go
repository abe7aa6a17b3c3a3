// Package token reads and writes RDMA tokens, the serialised grants that clients send in the header
// x-amz-rdma-token, in every grammar of docs/wire.md.
//
// Called by: gateway (parse), fabrics (use), client (format).
//
// Invariants:
//  1. Parse never panics and accepts nothing whose window wraps around or is larger than MaxWindow.
//  2. A Descriptor prints redacted through fmt and slog; only Encode yields the secret text.
//
// What it does not do: access to memory, sessions.
package token

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
)

// MaxWindow is the largest window of one request: 4 GiB − 1, since the size field of the DC grammar
// has 32 bits.
const MaxWindow = 1<<32 - 1

// MaxTokenBytes bounds the header value: the longest grammar with a suffix has 140 characters.
const MaxTokenBytes = 512

// ErrInvalid says that the text is in no grammar; it answers 400 InvalidRDMAToken.
var ErrInvalid = errors.New("token: not a valid RDMA token")

// Kind tells the grammars apart.
type Kind int

// Kinds of token.
const (
	DC      Kind = iota + 1 // seven hex fields of a DC target (cuObject wire)
	RC                      // rc:<session>:<addr>:<size>:<rkey>
	HipObj                  // 88 hex characters
	Session                 // ps1:<fabric>:<session>:<region>:<offset>:<size>
	OFI                     // <address>:<size>:ofi1:<provider>:<endpoint>:<key>
)

// Descriptor is a parsed token: one window of client memory. Which fields count depends on Kind.
type Descriptor struct {
	Kind   Kind
	Fabric string // Session: "shm", "tcp" or "rc"

	SessionID [16]byte // RC and Session
	Region    uint64   // Session: low 32 bits name a region of the session, high 32 bits number the token
	Addr      uint64   // first byte of the window: a virtual address, or an offset into Region
	Size      int64    // window length in bytes

	RKey   uint32   // DC, RC, HipObj
	LID    uint16   // DC, HipObj
	QPN    uint32   // DC: the target's DCT number; HipObj: its QPN
	HasGID bool     // DC
	GID    [16]byte // DC, HipObj: raw bytes in order
	Port   uint8    // HipObj
	HipRC  bool     // HipObj: transport field says RC

	Endpoint string // OFI: provider, endpoint and key, as sent
}

// String is redacted: kind and fabric only. Size, addresses and keys are part of the grant.
func (d Descriptor) String() string { return "token(" + d.kindName() + ",redacted)" }

// GoString is redacted like String.
func (d Descriptor) GoString() string { return d.String() }

// Format is redacted for every verb, since %d or %x would otherwise print the fields.
func (d Descriptor) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, d.String()) }

// LogValue is redacted like String.
func (d Descriptor) LogValue() slog.Value { return slog.StringValue(d.String()) }

// MarshalText is redacted too: slog's JSON output marshals values that sit inside others.
func (d Descriptor) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

func (d Descriptor) kindName() string {
	switch d.Kind {
	case DC:
		return "dc"
	case RC:
		return "rc"
	case HipObj:
		return "hipobj"
	case Session:
		return "ps1-" + d.Fabric
	case OFI:
		return "ofi"
	}
	return "none"
}
