package frame_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/token"
)

// TestHeaderLayout checks the byte table of docs/wire.md by hand-written offsets.
func TestHeaderLayout(t *testing.T) {
	h := frame.Header{
		Type: frame.Data, Length: 0x00100000, ID: 0x1112131415161718,
		Region: 0x2122232425262728, Offset: 0x3132333435363738, Size: 0x0142434445464748,
	}
	var b [frame.HeaderBytes]byte
	h.Encode(b[:])
	want := "10000000" + "00001000" + "1817161514131211" + "2827262524232221" + "3837363534333231" + "4847464544434201"
	if got := hex.EncodeToString(b[:]); got != want {
		t.Errorf("encoded\n%s, want\n%s", got, want)
	}
	back, err := frame.Decode(b[:])
	if err != nil || back != h {
		t.Errorf("decoded %+v, %v", back, err)
	}
}

// TestTypeNumbers pins the numbers that are on the wire.
func TestTypeNumbers(t *testing.T) {
	numbers := map[frame.Type]uint8{
		frame.Hello: 1, frame.Challenge: 2, frame.Proof: 3, frame.Ready: 4, frame.Refused: 5, frame.Region: 6,
		frame.RegionOK: 7, frame.RegionRefused: 8, frame.Forget: 9, frame.Forgotten: 10, frame.Close: 11,
		frame.Closed: 12, frame.Ping: 13, frame.Pong: 14, frame.Start: 15, frame.Data: 16, frame.Read: 17,
		frame.Payload: 18, frame.Done: 19, frame.Ack: 20, frame.Deny: 21,
		frame.Attach: 22, frame.Ask: 23, frame.Present: 24, frame.Attached: 25,
		frame.Rails: 26, frame.Path: 27, frame.PathOK: 28, frame.PathRefused: 29, frame.PathUp: 30,
		frame.Lost: 31, frame.Fenced: 32, frame.Keyed: 33,
	}
	fromClient := map[frame.Type]bool{
		frame.Hello: true, frame.Proof: true, frame.Region: true, frame.Forget: true, frame.Close: true,
		frame.Ping: true, frame.Payload: true, frame.Ack: true, frame.Deny: true,
		frame.Attach: true, frame.Present: true, frame.Path: true, frame.PathUp: true, frame.Fenced: true,
		frame.Keyed: true,
	}
	for typ, n := range numbers {
		if uint8(typ) != n {
			t.Errorf("type %d, want %d", typ, n)
		}
		if typ.FromClient() != fromClient[typ] {
			t.Errorf("type %d: wrong side", typ)
		}
	}
	statuses := []frame.Status{
		frame.StatusOK, frame.StatusProof, frame.StatusLimit, frame.StatusSize, frame.StatusKind, frame.StatusSeals,
		frame.StatusSparse, frame.StatusDuplicate, frame.StatusUnknown, frame.StatusAborted, frame.StatusGet,
		frame.StatusPut, frame.StatusMap, frame.StatusForeign, frame.StatusOff, frame.StatusUser, frame.StatusProcess,
		frame.StatusDenied, frame.StatusAddress, frame.StatusRail, frame.StatusGID, frame.StatusDevice,
	}
	names := map[string]bool{}
	for i, s := range statuses {
		if int(s) != i {
			t.Errorf("status %d, want %d", s, i)
		}
		names[s.String()] = true
	}
	if len(names) != len(statuses) || frame.Status(200).String() != "unknown status" {
		t.Errorf("status names: %v", names)
	}
}

func TestDecodeInvalid(t *testing.T) {
	encode := func(h frame.Header) []byte {
		b := make([]byte, frame.HeaderBytes)
		h.Encode(b)
		return b
	}
	reserved := encode(frame.Header{Type: frame.Ping})
	reserved[3] = 1
	cases := map[string][]byte{
		"short":             make([]byte, frame.HeaderBytes-1),
		"type zero":         encode(frame.Header{}),
		"type unknown":      encode(frame.Header{Type: frame.Keyed + 1}),
		"status unknown":    encode(frame.Header{Type: frame.Done, Status: frame.StatusDevice + 1}),
		"reserved":          reserved,
		"data without body": encode(frame.Header{Type: frame.Data}),
		"data too long":     encode(frame.Header{Type: frame.Data, Length: frame.MaxPayload + 1}),
		"ping with body":    encode(frame.Header{Type: frame.Ping, Length: 1}),
		"hello length":      encode(frame.Header{Type: frame.Hello, Length: frame.HelloBytes - 1}),
		"proof length":      encode(frame.Header{Type: frame.Proof, Length: frame.ProofBytes + 1}),
		"offset":            encode(frame.Header{Type: frame.Read, Offset: frame.MaxNumber + 1}),
		"size":              encode(frame.Header{Type: frame.Read, Size: 1<<64 - 1}),
	}
	for name, b := range cases {
		if h, err := frame.Decode(b); !errors.Is(err, frame.ErrInvalid) || h != (frame.Header{}) {
			t.Errorf("%s: %+v, %v", name, h, err)
		}
	}
}

func TestRegionField(t *testing.T) {
	field := frame.JoinRegion(0x01020304, 0xa0b0c0d0)
	if field != 0xa0b0c0d001020304 {
		t.Errorf("%#x", field)
	}
	if number, tag := frame.SplitRegion(field); number != 0x01020304 || tag != 0xa0b0c0d0 {
		t.Errorf("%#x %#x", number, tag)
	}
}

// TestProofs recomputes the proofs with the standard library, as docs/wire.md describes them.
func TestProofs(t *testing.T) {
	secret, challenge := [32]byte{1, 2, 3}, [32]byte{4, 5}
	h := frame.HelloBody{Session: [16]byte{6, 7}, Nonce: [32]byte{8}, Index: 3}
	mac := func(key []byte, parts ...[]byte) []byte {
		m := hmac.New(sha256.New, key)
		for _, p := range parts {
			m.Write(p)
		}
		return m.Sum(nil)
	}
	ticket := mac(secret[:], []byte("penstock data connection, ticket v1"), h.Session[:], []byte{3, 0, 0, 0})
	label := []byte("penstock data connection, client proof v1")
	client := frame.ClientProof(secret, h, challenge)
	if !bytes.Equal(client[:], mac(ticket, label, h.Session[:], challenge[:])) {
		t.Error("client proof")
	}
	server := frame.ServerProof(secret, h, challenge)
	if !bytes.Equal(server[:], mac(ticket, []byte("penstock data connection, server proof v1"), h.Session[:],
		h.Nonce[:], challenge[:])) {
		t.Error("server proof")
	}
	h.Index = 0
	first := frame.ClientProof(secret, h, challenge)
	if !bytes.Equal(first[:], mac(secret[:], label, h.Session[:], challenge[:])) {
		t.Error("client proof of the first connection")
	}
	if frame.ProofEqual(client, first) {
		t.Error("proofs of two connections are equal")
	}
}

// keeper knows one session and admits while admit says so.
type keeper struct {
	session [16]byte
	secret  [32]byte
	status  frame.Status
}

func (k keeper) Secret(h frame.HelloBody) ([32]byte, bool) { return k.secret, h.Session == k.session }
func (k keeper) Admit(frame.HelloBody) frame.Status        { return k.status }

func handshake(t *testing.T, k keeper, session [16]byte, secret [32]byte) (frame.ReadyBody, error, error) {
	t.Helper()
	client, server := net.Pipe()
	deadline := time.Now().Add(10 * time.Second)
	_ = client.SetDeadline(deadline)
	_ = server.SetDeadline(deadline)
	accepted := make(chan error, 1)
	go func() {
		_, err := frame.Accept(server, k, frame.ReadyBody{
			RegionBytes: 5, Regions: 6, Conns: 7, Payload: 8, IdleMillis: 9,
		})
		_ = server.Close()
		accepted <- err
	}()
	ready, err := frame.Connect(client, session, secret, 2)
	_ = client.Close()
	return ready, err, <-accepted
}

func TestHandshake(t *testing.T) {
	k := keeper{session: [16]byte{1}, secret: [32]byte{2}}
	ready, err, accepted := handshake(t, k, k.session, k.secret)
	if err != nil || accepted != nil {
		t.Fatal(err, accepted)
	}
	ready.Proof = [32]byte{}
	if ready != (frame.ReadyBody{RegionBytes: 5, Regions: 6, Conns: 7, Payload: 8, IdleMillis: 9}) {
		t.Errorf("limits: %+v", ready)
	}
	refusals := []struct {
		name    string
		keeper  keeper
		session [16]byte
		secret  [32]byte
		want    frame.Status
	}{
		{"wrong secret", k, k.session, [32]byte{3}, frame.StatusProof},
		{"unknown session", k, [16]byte{9}, k.secret, frame.StatusProof},
		{"not admitted", keeper{session: k.session, secret: k.secret, status: frame.StatusLimit}, k.session, k.secret,
			frame.StatusLimit},
	}
	for _, c := range refusals {
		_, err, accepted := handshake(t, c.keeper, c.session, c.secret)
		for _, err := range []error{err, accepted} {
			if refused := new(frame.RefusedError); !errors.As(err, &refused) || refused.Status != c.want {
				t.Errorf("%s: %v", c.name, err)
			}
		}
	}
}

// TestServerMustProve lets a server answer that does not know the secret.
func TestServerMustProve(t *testing.T) {
	client, server := net.Pipe()
	go func() {
		defer func() { _ = server.Close() }()
		body := make([]byte, frame.HeaderBytes+frame.HelloBytes)
		_, _ = io.ReadFull(server, body)
		_ = frame.WriteFrame(server, frame.Header{Type: frame.Challenge}, make([]byte, frame.NonceBytes))
		_, _ = io.ReadFull(server, make([]byte, frame.HeaderBytes+frame.ProofBytes))
		_ = frame.WriteFrame(server, frame.Header{Type: frame.Ready}, make([]byte, frame.ReadyBytes))
	}()
	if _, err := frame.Connect(client, [16]byte{1}, [32]byte{2}, 0); !errors.Is(err, frame.ErrInvalid) {
		t.Errorf("impostor: %v", err)
	}
	_ = client.Close()
}

// scripted gives fixed bytes to read and swallows what is written.
type scripted struct{ io.Reader }

func (scripted) Write(b []byte) (int, error) { return len(b), nil }

// FuzzAccept feeds a server's handshake with anything: it must refuse, whatever comes.
func FuzzAccept(f *testing.F) {
	var hello [frame.HelloBytes]byte
	frame.HelloBody{Session: [16]byte{1}}.Encode(hello[:])
	var good bytes.Buffer
	_ = frame.WriteFrame(&good, frame.Header{Type: frame.Hello}, hello[:])
	_ = frame.WriteFrame(&good, frame.Header{Type: frame.Proof}, make([]byte, frame.ProofBytes))
	f.Add(good.Bytes())
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		k := keeper{session: [16]byte{1}, secret: [32]byte{2}}
		if _, err := frame.Accept(scripted{bytes.NewReader(b)}, k, frame.ReadyBody{}); err == nil {
			t.Fatal("accepted without a proof")
		}
	})
}

// FuzzConnect feeds a client's handshake with anything.
func FuzzConnect(f *testing.F) {
	var good bytes.Buffer
	_ = frame.WriteFrame(&good, frame.Header{Type: frame.Challenge}, make([]byte, frame.NonceBytes))
	_ = frame.WriteFrame(&good, frame.Header{Type: frame.Ready}, make([]byte, frame.ReadyBytes))
	f.Add(good.Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := frame.Connect(scripted{bytes.NewReader(b)}, [16]byte{1}, [32]byte{2}, 0); err == nil {
			t.Fatal("connected to a server without a proof")
		}
	})
}

func FuzzDecode(f *testing.F) {
	for typ := frame.Hello; typ <= frame.Keyed; typ++ {
		for _, length := range []uint32{0, frame.KeyBytes, frame.NonceBytes, frame.PathBytes} {
			b := make([]byte, frame.HeaderBytes)
			frame.Header{Type: typ, Length: length, ID: 1, Offset: 2, Size: 3}.Encode(b)
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := frame.Decode(b)
		if err != nil {
			return
		}
		if h.Length > frame.MaxPayload || h.Offset+h.Size < h.Offset || int64(h.Offset+h.Size) < 0 {
			t.Fatalf("accepted %+v", h)
		}
		back := make([]byte, frame.HeaderBytes)
		h.Encode(back)
		if !bytes.Equal(back, b[:frame.HeaderBytes]) {
			t.Fatalf("round trip of %+v", h)
		}
	})
}

func TestHelloInvalid(t *testing.T) {
	var b [frame.HelloBytes]byte
	frame.HelloBody{Session: [16]byte{1}, Index: 1}.Encode(b[:])
	if h, err := frame.DecodeHello(b[:]); err != nil || h.Index != 1 {
		t.Fatal(h, err)
	}
	change := func(at int, to byte) []byte {
		c := bytes.Clone(b[:])
		c[at] = to
		return c
	}
	for name, body := range map[string][]byte{
		"magic": change(0, 'X'), "version": change(7, 2), "index": change(56, frame.MaxConns),
		"reserved": change(63, 1), "short": b[:frame.HelloBytes-1],
	} {
		if _, err := frame.DecodeHello(body); !errors.Is(err, frame.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := frame.DecodeReady(b[:]); !errors.Is(err, frame.ErrInvalid) {
		t.Errorf("ready: %v", err)
	}
}

func reply() frame.SessionReply {
	return frame.SessionReply{
		Session: [16]byte{0xaa, 15: 0xbb}, Secret: token.SecretFrom([32]byte{0xde, 0xad, 31: 0xef}), Fabric: "shm",
		Network: "unix", Address: "@x", Expires: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
}

func TestSessionReply(t *testing.T) {
	body, err := reply().Encode()
	if err != nil {
		t.Fatal(err)
	}
	want := `{"session":"aa0000000000000000000000000000bb",` +
		`"secret":"dead0000000000000000000000000000000000000000000000000000000000ef",` +
		`"fabric":"shm","network":"unix","address":"@x","expires":"2026-01-02T03:04:05Z"}`
	if string(body) != want {
		t.Errorf("body %s", body)
	}
	back, err := frame.DecodeSessionReply(bytes.NewReader(body))
	if err != nil || back.Session != reply().Session || back.Secret.Reveal() != reply().Secret.Reveal() ||
		back.Address != "@x" || !back.Expires.Equal(reply().Expires) {
		t.Errorf("decoded: %v", err)
	}
	if _, err := (frame.SessionReply{}).Encode(); !errors.Is(err, frame.ErrInvalid) {
		t.Errorf("without a secret: %v", err)
	}
	for name, bad := range map[string]string{
		"empty": "", "array": "[]", "short session": strings.Replace(want, "aa00", "aa", 1),
		"secret not hex": strings.Replace(want, "dead", "dexd", 1),
		"too long":       strings.Repeat(" ", frame.MaxControlBytes) + want,
	} {
		if _, err := frame.DecodeSessionReply(strings.NewReader(bad)); !errors.Is(err, frame.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSessionReplyRedacted(t *testing.T) {
	r := reply()
	var texts []string
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d"} {
		texts = append(texts, fmt.Sprintf(verb, r), fmt.Sprintf(verb, &r), fmt.Sprintf(verb, []any{r}))
	}
	var b bytes.Buffer
	slog.New(slog.NewJSONHandler(&b, nil)).Info("x", "reply", r, "list", []frame.SessionReply{r})
	slog.New(slog.NewTextHandler(&b, nil)).Info("x", "reply", r, "list", []frame.SessionReply{r})
	j, err := json.Marshal(struct{ R frame.SessionReply }{r})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range append(texts, b.String(), string(j)) {
		for _, bad := range []string{"dead", "222 173", "0xde", "aa00", "170 0"} {
			if strings.Contains(strings.ToLower(text), bad) {
				t.Errorf("%q shows %q", text, bad)
			}
		}
	}
}

// TestSecretIsNeverPrinted prints a reply from where fmt calls no methods, with every verb: unexported
// fields, at any depth, and the secret by itself.
func TestSecretIsNeverPrinted(t *testing.T) {
	r := reply()
	type inner struct {
		reply  frame.SessionReply
		secret token.Secret
		list   []frame.SessionReply
		byKey  map[string]frame.SessionReply
		any    any
		to     *frame.SessionReply
	}
	type outer struct{ in inner }
	in := inner{r, r.Secret, []frame.SessionReply{r}, map[string]frame.SessionReply{"k": r}, r, &r}
	values := []any{r.Secret, &r.Secret, in, &in, outer{in}, &outer{in}, []any{outer{in}}, [1]outer{{in}}}
	secret := r.Secret.Reveal()
	for verb := '!'; verb <= '~'; verb++ {
		for _, flags := range []string{"", "+", "#", " ", "0", "-", "40", "# "} {
			for _, v := range values {
				raw := fmt.Sprintf("%"+flags+string(verb), v)
				text := strings.ToLower(raw)
				for _, bad := range []string{"dead00", "de ad", "0xde", "222 173", "336 255", "\\xde"} {
					if strings.Contains(text, bad) || strings.Contains(raw, string(secret[:2])) {
						t.Fatalf("%%%s%c of %T shows %q: %s", flags, verb, v, bad, text)
					}
				}
			}
		}
	}
	var b strings.Builder
	slog.New(slog.NewTextHandler(&b, nil)).Info("x", "nested", outer{in}, "secret", r.Secret, "pointer", &in)
	slog.New(slog.NewJSONHandler(&b, nil)).Info("x", "nested", outer{in}, "secret", r.Secret, "pointer", &in)
	if text := b.String(); strings.Contains(text, "dead00") || strings.Contains(text, "222 173") {
		t.Errorf("log shows the secret: %s", text)
	}
}

func FuzzControl(f *testing.F) {
	body, _ := reply().Encode()
	f.Add(body)
	f.Add([]byte(`{"fabric":"shm"}`))
	f.Add([]byte(`{"version":1,"node":"n","host":"h","fabrics":[{"name":"tcp","up":true}],"limits":{}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := frame.DecodeSessionReply(bytes.NewReader(b)); err == nil {
			again, err := r.Encode()
			if err != nil {
				return // a year that JSON does not know
			}
			if _, err := frame.DecodeSessionReply(bytes.NewReader(again)); err != nil {
				t.Fatal(err)
			}
		}
		_, _ = frame.DecodeNodeInfo(bytes.NewReader(b))
		_, _ = frame.DecodeSessionRequest(bytes.NewReader(b))
	})
}

func TestHostID(t *testing.T) {
	a := frame.HostID([]byte("m\n"), []byte("b\n"))
	other, shifted := frame.HostID([]byte("m\n"), []byte("c\n")), frame.HostID([]byte("m"), []byte("\nb\n"))
	if len(a) != 32 || a == other || a == shifted {
		t.Errorf("host id %q", a)
	}
	if a != frame.HostID([]byte("m\n"), []byte("b\n")) {
		t.Error("host id is not stable")
	}
}

func TestReadyNumbers(t *testing.T) {
	r := frame.ReadyBody{Proof: [32]byte{1}, RegionBytes: 1 << 40, Regions: 2, Conns: 3, Payload: 4, IdleMillis: 5}
	var b [frame.ReadyBytes]byte
	r.Encode(b[:])
	if binary.LittleEndian.Uint64(b[32:]) != 1<<40 || binary.LittleEndian.Uint32(b[52:]) != 5 {
		t.Errorf("layout %x", b)
	}
	if back, err := frame.DecodeReady(b[:]); err != nil || back != r {
		t.Errorf("decoded %+v, %v", back, err)
	}
}

// TestDocumented looks for the numbers of types, and for the labels, in docs/wire.md.
func TestDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/wire.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := []string{
		"HELLO | client", "CHALLENGE | server", "PROOF | client", "READY | server", "REFUSED | server",
		"REGION | client", "REGION_OK | server", "REGION_REFUSED | server", "FORGET | client", "FORGOTTEN | server",
		"CLOSE | client", "CLOSED | server", "PING | client", "PONG | server", "START | server", "DATA | server",
		"READ | server", "PAYLOAD | client", "DONE | server", "ACK | client", "DENY | client",
		"ATTACH | client", "ASK | server", "PRESENT | client", "ATTACHED | server",
	}
	for i, row := range rows {
		typ := frame.Type(i + 1)
		if want := fmt.Sprintf("| %d | %s |", typ, row); !bytes.Contains(text, []byte(want)) {
			t.Errorf("docs/wire.md has no row %q", want)
		}
		if typ.FromClient() != strings.HasSuffix(row, "client") {
			t.Errorf("row %q names the wrong side", row)
		}
	}
	for _, want := range []string{
		"client proof v1", "server proof v1", "ticket v1", frame.ControlPath, frame.SessionsPath,
		fmt.Sprintf("a header of %d bytes", frame.HeaderBytes),
		fmt.Sprintf("at most %d unanswered", frame.MaxOutstandingReads), fmt.Sprintf("Up to %d connections", frame.MaxConns),
	} {
		if !bytes.Contains(text, []byte(want)) {
			t.Errorf("docs/wire.md does not say %q", want)
		}
	}
}
