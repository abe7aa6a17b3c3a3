package frame

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/penstock-store/penstock/internal/token"
)

// Paths of the control plane. Requests are signed like any S3 request, with service s3.
const (
	ControlPath  = "/.penstock/fabric/v1"
	SessionsPath = ControlPath + "/sessions"
)

// MaxControlBytes bounds a control plane body, either way: a listing of every fabric of a node
// stays below 4 KiB.
const MaxControlBytes = 64 << 10

// NodeInfo answers GET ControlPath.
type NodeInfo struct {
	Version int           `json:"version"` // 1
	Node    string        `json:"node"`    // id of the server
	Host    string        `json:"host"`    // HostID of the machine: equal to the client's own means that shm can work
	Fabrics []FabricInfo  `json:"fabrics"`
	Limits  ControlLimits `json:"limits"`
}

// FabricInfo describes one fabric of the node.
type FabricInfo struct {
	Name    string `json:"name"`    // "shm", "tcp", "rc"
	Network string `json:"network"` // "unix", "tcp"
	Address string `json:"address"` // of the data connection; "@name" is an abstract Unix socket
	Up      bool   `json:"up"`
	Reason  string `json:"reason,omitempty"` // why it is not up

	// Foreign says that the fabric takes memory that is no memfd of the client (shm: docs/wire.md §8.1).
	// A client must not ask for it where this is false: older nodes do not know the frames.
	Foreign       bool   `json:"foreign,omitempty"`
	ForeignReason string `json:"foreign_reason,omitempty"` // why it does not
}

// ControlLimits are the limits that a client needs to know.
type ControlLimits struct {
	WindowBytes       int64 `json:"window_bytes"`        // largest window of one request
	DeadlineMillis    int64 `json:"deadline_ms"`         // default
	MaxDeadlineMillis int64 `json:"max_deadline_ms"`     // most that a ps1 request may ask for
	RegionBytes       int64 `json:"region_bytes"`        // mapped bytes per principal
	Regions           int   `json:"regions_per_session"` //
	Sessions          int   `json:"sessions"`            // per principal
}

// SessionRequest is the body of POST SessionsPath.
type SessionRequest struct {
	Fabric string `json:"fabric"`
}

// SessionReply answers POST SessionsPath. It prints and marshals redacted. In an unexported field, where fmt
// calls no methods, its session shows, but not its secret. Encode gives the body.
type SessionReply struct {
	Session [SessionBytes]byte
	Secret  token.Secret // proves the data connections
	Fabric  string
	Network string // "unix" or "tcp"
	Address string
	Expires time.Time // when the offer lapses without a data connection
}

type sessionReplyJSON struct {
	Session string    `json:"session"`
	Secret  string    `json:"secret"`
	Fabric  string    `json:"fabric"`
	Network string    `json:"network"`
	Address string    `json:"address"`
	Expires time.Time `json:"expires"`
}

// Encode returns the JSON body with the secret in it.
func (r SessionReply) Encode() ([]byte, error) {
	if r.Secret.IsZero() {
		return nil, fmt.Errorf("%w: session reply without a secret", ErrInvalid)
	}
	secret := r.Secret.Reveal()
	return json.Marshal(sessionReplyJSON{
		Session: hex.EncodeToString(r.Session[:]), Secret: hex.EncodeToString(secret[:]),
		Fabric: r.Fabric, Network: r.Network, Address: r.Address, Expires: r.Expires.UTC(),
	})
}

// DecodeSessionReply reads the body of a session reply.
func DecodeSessionReply(body io.Reader) (SessionReply, error) {
	var j sessionReplyJSON
	if err := decodeJSON(body, &j); err != nil {
		return SessionReply{}, err
	}
	r := SessionReply{Fabric: j.Fabric, Network: j.Network, Address: j.Address, Expires: j.Expires}
	var secret [token.SecretBytes]byte
	if !decodeHex(r.Session[:], j.Session) || !decodeHex(secret[:], j.Secret) {
		return SessionReply{}, fmt.Errorf("%w: session reply", ErrInvalid)
	}
	r.Secret = token.SecretFrom(secret)
	return r, nil
}

// DecodeNodeInfo reads the answer of GET ControlPath.
func DecodeNodeInfo(body io.Reader) (NodeInfo, error) {
	var n NodeInfo
	err := decodeJSON(body, &n)
	return n, err
}

// DecodeSessionRequest reads the body of POST SessionsPath.
func DecodeSessionRequest(body io.Reader) (SessionRequest, error) {
	var r SessionRequest
	err := decodeJSON(body, &r)
	return r, err
}

func decodeJSON(body io.Reader, v any) error {
	raw, err := io.ReadAll(io.LimitReader(body, MaxControlBytes+1))
	if err != nil {
		return fmt.Errorf("frame: read control body: %w", err)
	}
	if len(raw) > MaxControlBytes {
		return fmt.Errorf("%w: control body too large", ErrInvalid)
	}
	if json.Unmarshal(raw, v) != nil { // its error may quote the body, which may hold a secret
		return fmt.Errorf("%w: control body", ErrInvalid)
	}
	return nil
}

func decodeHex(dst []byte, text string) bool {
	if len(text) != hex.EncodedLen(len(dst)) {
		return false
	}
	_, err := hex.Decode(dst, []byte(text))
	return err == nil
}

const redactedReply = "session reply(redacted)"

// String is redacted.
func (r SessionReply) String() string { return redactedReply }

// GoString is redacted.
func (r SessionReply) GoString() string { return redactedReply }

// Format is redacted for every verb.
func (r SessionReply) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redactedReply) }

// LogValue is redacted.
func (r SessionReply) LogValue() slog.Value { return slog.StringValue(redactedReply) }

// MarshalText is redacted, since slog's JSON output marshals nested values; use Encode.
func (r SessionReply) MarshalText() ([]byte, error) { return []byte(redactedReply), nil }

// HostID is what NodeInfo.Host holds: a hash of the machine id and the boot id, both as their files
// hold them (/etc/machine-id, /proc/sys/kernel/random/boot_id). Neither can be got back from it.
func HostID(machineID, bootID []byte) string {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "penstock host id v1\n%q\n%q\n", machineID, bootID)
	return hex.EncodeToString(h.Sum(nil)[:16])
}
