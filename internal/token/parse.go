package token

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
)

// Widths of the hex fields of the DC grammar, in order: address, size, rkey, LID, DCT number,
// GID-present flag, GID.
const (
	addrDigits   = 16
	sizeDigits   = 8
	rkeyDigits   = 8
	lidDigits    = 4
	dctDigits    = 6
	flagDigits   = 1
	gidDigits    = 32
	sessDigits   = 32
	suffixFields = 2
)

// hipObjBytes is the length of the binary form whose 88 hex characters are a HipObj token.
const hipObjBytes = 44

// Offsets inside the HipObj form, little-endian.
const (
	hipTransport = 0  // u8: 0 DC, 1 RC
	hipQPN       = 1  // u32
	hipGID       = 5  // 16 bytes
	hipRKey      = 21 // u32
	hipAddr      = 25 // u64
	hipLength    = 33 // u64
	hipPort      = 41 // u8
	hipLID       = 42 // u16
)

// Parse reads the value of x-amz-rdma-token in any grammar. The descriptor carries the effective
// window: where a suffix narrows it, the narrowed one. Every error is an ErrInvalid and never
// quotes the text.
func Parse(text string) (Descriptor, error) {
	if len(text) > MaxTokenBytes {
		return Descriptor{}, invalid("longer than the limit")
	}
	switch {
	case strings.HasPrefix(text, "ps1:"):
		return parseSession(text)
	case strings.HasPrefix(text, "rc:"):
		return parseRC(text)
	case hipObjForm(text):
		return parseHipObj(text)
	case strings.Contains(text, ofiMark):
		return parseOFI(text)
	}
	return parseDC(text)
}

func invalid(why string) error { return fmt.Errorf("%w: %s", ErrInvalid, why) }

func parseDC(text string) (Descriptor, error) {
	const fields = 7
	text = strings.TrimSuffix(text, ";")
	f := strings.Split(text, ":")
	if len(f) != fields && len(f) != fields+suffixFields {
		return Descriptor{}, invalid("number of fields")
	}
	p := fieldReader{}
	d := Descriptor{
		Kind: DC,
		Addr: p.number(f[0], addrDigits),
		Size: int64(p.number(f[1], sizeDigits)),
		RKey: uint32(p.number(f[2], rkeyDigits)),
		LID:  uint16(p.number(f[3], lidDigits)),
		QPN:  uint32(p.number(f[4], dctDigits)),
	}
	flag := p.number(f[5], flagDigits)
	d.HasGID = flag == 1
	d.GID = p.wide(f[6])
	if p.bad || flag > 1 {
		return Descriptor{}, invalid("field is not hex of its width")
	}
	if err := checkWindow(d.Addr, uint64(d.Size)); err != nil {
		return Descriptor{}, err
	}
	if len(f) == fields {
		return d, nil
	}
	return d.narrowedBy(f[fields:])
}

// narrowedBy applies a suffix.
func (d Descriptor) narrowedBy(suffix []string) (Descriptor, error) {
	p := fieldReader{}
	addr, size := p.number(suffix[0], addrDigits), p.number(suffix[1], addrDigits)
	if p.bad {
		return Descriptor{}, invalid("suffix is not hex of its width")
	}
	return d.Narrow(addr, size)
}

// Narrow returns the part of the window that a client names beside its token, which must lie inside it.
// Of a session's window only the size counts: the client names a virtual address, which nobody here can
// check.
func (d Descriptor) Narrow(addr, size uint64) (Descriptor, error) {
	if d.Kind == Session {
		addr = d.Addr
	}
	if addr < d.Addr || size > uint64(d.Size) || addr-d.Addr > uint64(d.Size)-size {
		return Descriptor{}, invalid("narrowed window outside the window")
	}
	d.Addr, d.Size = addr, int64(size)
	return d, nil
}

func parseRC(text string) (Descriptor, error) {
	f := strings.Split(text, ":")
	if len(f) != 5 {
		return Descriptor{}, invalid("number of fields")
	}
	p := fieldReader{}
	d := Descriptor{
		Kind:      RC,
		SessionID: p.session(f[1]),
		Addr:      p.number(f[2], addrDigits),
		Size:      int64(p.number(f[3], sizeDigits)),
		RKey:      uint32(p.number(f[4], rkeyDigits)),
	}
	if p.bad {
		return Descriptor{}, invalid("field is not hex of its width")
	}
	return d, checkedWindow(&d)
}

// hipObjForm tells whether the first field has the length that no other grammar's has.
func hipObjForm(text string) bool {
	return len(text) == 2*hipObjBytes && !strings.Contains(text, ":") ||
		len(text) > 2*hipObjBytes && strings.IndexByte(text, ':') == 2*hipObjBytes
}

func parseHipObj(text string) (Descriptor, error) {
	f := strings.Split(text, ":")
	if len(f) != 1 && len(f) != 1+suffixFields {
		return Descriptor{}, invalid("number of fields")
	}
	var raw [hipObjBytes]byte
	if _, err := hex.Decode(raw[:], []byte(f[0])); err != nil {
		return Descriptor{}, invalid("not hex")
	}
	transport, length := raw[hipTransport], binary.LittleEndian.Uint64(raw[hipLength:])
	if transport > 1 {
		return Descriptor{}, invalid("unknown transport")
	}
	if length > MaxWindow {
		return Descriptor{}, invalid("window too large")
	}
	d := Descriptor{
		Kind:  HipObj,
		HipRC: transport == 1,
		QPN:   binary.LittleEndian.Uint32(raw[hipQPN:]),
		GID:   [16]byte(raw[hipGID:hipRKey]),
		RKey:  binary.LittleEndian.Uint32(raw[hipRKey:]),
		Addr:  binary.LittleEndian.Uint64(raw[hipAddr:]),
		Size:  int64(length),
		Port:  raw[hipPort],
		LID:   binary.LittleEndian.Uint16(raw[hipLID:]),
	}
	if err := checkedWindow(&d); err != nil || len(f) == 1 {
		return d, err
	}
	return d.narrowedBy(f[1:])
}

// ofiMark is in the tokens of libfabric clients: <address>:<size>:ofi1:<provider>:<endpoint>:<key>. No
// fabric here takes them; they are told from what is no token at all, so that their clients fall back.
const ofiMark = ":ofi1:"

func parseOFI(text string) (Descriptor, error) {
	const fields = 6
	f := strings.Split(text, ":")
	if len(f) != fields || f[2] != "ofi1" || f[3] == "" || f[4] == "" || f[5] == "" {
		return Descriptor{}, invalid("number of fields")
	}
	p := fieldReader{}
	addr, size := p.number(f[0], addrDigits), p.number(f[1], addrDigits)
	if p.bad {
		return Descriptor{}, invalid("field is not hex of its width")
	}
	if err := checkWindow(addr, size); err != nil {
		return Descriptor{}, err
	}
	return Descriptor{Kind: OFI, Addr: addr, Size: int64(size), Endpoint: strings.Join(f[3:], ":")}, nil
}

// parseSession reads our own grammar, whose widths are exact. The suffix that a client library may
// append holds a virtual address, which the server cannot check; only its size counts.
func parseSession(text string) (Descriptor, error) {
	const fields = 6
	f := strings.Split(text, ":")
	if len(f) != fields && len(f) != fields+suffixFields {
		return Descriptor{}, invalid("number of fields")
	}
	switch f[1] {
	case "shm", "tcp", "rc":
	default:
		return Descriptor{}, invalid("unknown fabric")
	}
	p := fieldReader{}
	size := p.exact(f[5])
	d := Descriptor{
		Kind:      Session,
		Fabric:    f[1],
		SessionID: p.session(f[2]),
		Region:    p.exact(f[3]),
		Addr:      p.exact(f[4]),
	}
	if p.bad {
		return Descriptor{}, invalid("field is not hex of its width")
	}
	if err := checkWindow(d.Addr, size); err != nil {
		return Descriptor{}, err
	}
	d.Size = int64(size)
	if len(f) == fields {
		return d, nil
	}
	return d.narrowedBy(f[fields:])
}

func checkedWindow(d *Descriptor) error {
	if err := checkWindow(d.Addr, uint64(d.Size)); err != nil {
		*d = Descriptor{}
		return err
	}
	return nil
}

func checkWindow(addr, size uint64) error {
	if size > MaxWindow {
		return invalid("window too large")
	}
	if addr+size < addr {
		return invalid("window wraps around")
	}
	return nil
}

// fieldReader reads hex fields and remembers whether one was bad.
type fieldReader struct{ bad bool }

// number reads 1 to digits hex characters.
func (p *fieldReader) number(s string, digits int) uint64 {
	if len(s) == 0 || len(s) > digits {
		p.bad = true
		return 0
	}
	var n uint64
	for i := range len(s) {
		c, ok := nibble(s[i])
		if !ok {
			p.bad = true
			return 0
		}
		n = n<<4 | uint64(c)
	}
	return n
}

// exact reads exactly 16 hex characters.
func (p *fieldReader) exact(s string) uint64 {
	if len(s) != addrDigits {
		p.bad = true
		return 0
	}
	return p.number(s, addrDigits)
}

// session reads exactly 32 hex characters.
func (p *fieldReader) session(s string) [16]byte {
	if len(s) != sessDigits {
		p.bad = true
		return [16]byte{}
	}
	return p.wide(s)
}

// wide reads 1 to 32 hex characters as a 128-bit big-endian number.
func (p *fieldReader) wide(s string) (out [16]byte) {
	if len(s) > gidDigits {
		p.bad = true
		return out
	}
	low := max(len(s)-16, 0)
	binary.BigEndian.PutUint64(out[8:], p.number(s[low:], 16))
	if low > 0 {
		binary.BigEndian.PutUint64(out[:8], p.number(s[:low], 16))
	}
	return out
}

func nibble(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}

// Encode returns the secret text in the canonical form of the grammar: lower case, full widths, no
// suffix. A Descriptor without a kind gives the empty string.
func (d Descriptor) Encode() string {
	switch d.Kind {
	case DC:
		flag := 0
		if d.HasGID {
			flag = 1
		}
		return fmt.Sprintf("%016x:%08x:%08x:%04x:%06x:%d:%x", d.Addr, d.Size, d.RKey, d.LID, d.QPN, flag, d.GID[:])
	case RC:
		return fmt.Sprintf("rc:%x:%016x:%08x:%08x", d.SessionID[:], d.Addr, d.Size, d.RKey)
	case HipObj:
		return d.encodeHipObj()
	case OFI:
		return fmt.Sprintf("%x:%x%s%s", d.Addr, d.Size, ofiMark, d.Endpoint) // no longer than it came
	case Session:
		return fmt.Sprintf("ps1:%s:%x:%016x:%016x:%016x", d.Fabric, d.SessionID[:], d.Region, d.Addr, d.Size)
	}
	return ""
}

func (d Descriptor) encodeHipObj() string {
	var raw [hipObjBytes]byte
	if d.HipRC {
		raw[hipTransport] = 1
	}
	binary.LittleEndian.PutUint32(raw[hipQPN:], d.QPN)
	copy(raw[hipGID:], d.GID[:])
	binary.LittleEndian.PutUint32(raw[hipRKey:], d.RKey)
	binary.LittleEndian.PutUint64(raw[hipAddr:], d.Addr)
	binary.LittleEndian.PutUint64(raw[hipLength:], uint64(d.Size))
	raw[hipPort] = d.Port
	binary.LittleEndian.PutUint16(raw[hipLID:], d.LID)
	return hex.EncodeToString(raw[:])
}
