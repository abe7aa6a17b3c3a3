package token_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/penstock-store/penstock/internal/token"
)

const (
	dcText = "00007f7c80000000:00400000:01f2e973:0000:007a03:1:00000000000000000000ffff0a000102"
	// The sample of a public client with its address and size appended.
	dcSuffix   = dcText + ":00007f7c80000000:0000000000400000"
	sessionHex = "00112233445566778899aabbccddeeff"
	rcText     = "rc:" + sessionHex + ":00007f7c80000000:00400000:01f2e973"
	ofiText    = "7f7c80000000:400000:ofi1:verbs:0a0b0c0d:00000000deadbeef"
	ps1Text    = "ps1:shm:" + sessionHex + ":0000000700000003:0000000000001000:0000000000400000"
)

var (
	gid     = [16]byte{10: 0xff, 11: 0xff, 12: 10, 13: 0, 14: 1, 15: 2}
	session = [16]byte{0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff}
)

func dc() token.Descriptor {
	return token.Descriptor{
		Kind: token.DC, Addr: 0x7f7c80000000, Size: 4 << 20, RKey: 0x01f2e973, QPN: 0x7a03, HasGID: true, GID: gid,
	}
}

func ps1(fabric string) token.Descriptor {
	return token.Descriptor{
		Kind: token.Session, Fabric: fabric, SessionID: session, Region: 7<<32 | 3, Addr: 4096, Size: 4 << 20,
	}
}

// hipText is written out by offset, independently of the parser: transport RC, QPN 0x01020304, GID,
// rkey 0xa0b0c0d0, address 0x1122334455667788, length 0x7fffffff, port 1, LID 0x0203.
const hipText = "01" + "04030201" + "00000000000000000000ffff0a000102" + "d0c0b0a0" +
	"8877665544332211" + "ffffff7f00000000" + "01" + "0302"

func TestParse(t *testing.T) {
	with := func(d token.Descriptor, change func(*token.Descriptor)) token.Descriptor {
		change(&d)
		return d
	}
	cases := []struct {
		name, text string
		want       token.Descriptor
	}{
		{"dc", dcText, dc()},
		{"dc upper case", strings.ToUpper(dcText), dc()},
		{"dc without leading zeros", "7f7c80000000:400000:1f2e973:0:7a03:1:ffff0a000102", dc()},
		{"dc trailing semicolon", dcText + ";", dc()},
		{"dc RF_06 suffix of the whole window", dcSuffix, dc()},
		{"dc suffix and semicolon", dcSuffix + ";", dc()},
		{"dc suffix narrows", dcText + ":00007f7c80001000:0000000000002000", with(dc(), func(d *token.Descriptor) {
			d.Addr, d.Size = 0x7f7c80001000, 0x2000
		})},
		{"dc suffix at the end", dcText + ":7f7c80400000:0", with(dc(), func(d *token.Descriptor) {
			d.Addr, d.Size = 0x7f7c80400000, 0
		})},
		{"dc no gid", "1:2:3:4:5:0:0", token.Descriptor{Kind: token.DC, Addr: 1, Size: 2, RKey: 3, LID: 4, QPN: 5}},
		{"dc largest window", "0:ffffffff:0:ffff:ffffff:1:" + strings.Repeat("f", 32), token.Descriptor{
			Kind: token.DC, Size: token.MaxWindow, LID: 0xffff, QPN: 0xffffff, HasGID: true,
			GID: [16]byte(bytes.Repeat([]byte{0xff}, 16)),
		}},
		{"dc ends at the top", "ffffffffffff0000:0000ffff:0:0:0:0:0", token.Descriptor{
			Kind: token.DC, Addr: 0xffffffffffff0000, Size: 0xffff,
		}},
		{"rc", rcText, token.Descriptor{
			Kind: token.RC, SessionID: session, Addr: 0x7f7c80000000, Size: 4 << 20, RKey: 0x01f2e973,
		}},
		{"hipobj", hipText, token.Descriptor{
			Kind: token.HipObj, HipRC: true, QPN: 0x01020304, GID: gid, RKey: 0xa0b0c0d0,
			Addr: 0x1122334455667788, Size: 0x7fffffff, Port: 1, LID: 0x0203,
		}},
		{"hipobj suffix narrows", hipText + ":1122334455667798:0000000000000010", token.Descriptor{
			Kind: token.HipObj, HipRC: true, QPN: 0x01020304, GID: gid, RKey: 0xa0b0c0d0,
			Addr: 0x1122334455667798, Size: 16, Port: 1, LID: 0x0203,
		}},
		{"ofi", ofiText, token.Descriptor{
			Kind: token.OFI, Addr: 0x7f7c80000000, Size: 4 << 20, Endpoint: "verbs:0a0b0c0d:00000000deadbeef",
		}},
		{"ps1 shm", ps1Text, ps1("shm")},
		{"ps1 tcp", strings.Replace(ps1Text, "shm", "tcp", 1), ps1("tcp")},
		{"ps1 rc", strings.Replace(ps1Text, "shm", "rc", 1), ps1("rc")},
		{"ps1 upper case hex", "ps1:shm:" + strings.ToUpper(ps1Text[8:]), ps1("shm")},
		{"ps1 suffix tolerated", ps1Text + ":00007f7c80000000:0000000000400000", ps1("shm")},
		{"ps1 suffix narrows", ps1Text + ":00007f7c80000000:0000000000000010",
			with(ps1("shm"), func(d *token.Descriptor) { d.Size = 16 })},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := token.Parse(c.text)
			if err != nil {
				t.Fatal(err)
			}
			if got != c.want {
				t.Errorf("wrong descriptor: kind %d size %#x addr %#x region %#x qpn %#x", got.Kind, got.Size, got.Addr,
					got.Region, got.QPN)
			}
			again, err := token.Parse(got.Encode())
			if err != nil || again != got {
				t.Errorf("round trip: %v", err)
			}
		})
	}
}

// TestCanonical checks that Encode gives exactly the texts of the documented examples.
func TestCanonical(t *testing.T) {
	for _, text := range []string{dcText, rcText, hipText, ofiText, ps1Text} {
		d, err := token.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if d.Encode() != text {
			t.Errorf("%s: %s", text, d.Encode())
		}
	}
	if got := (token.Descriptor{}).Encode(); got != "" {
		t.Errorf("no kind: %q", got)
	}
	if len(dcText) != 81 || len(dcSuffix) != 115 {
		t.Errorf("lengths %d and %d", len(dcText), len(dcSuffix))
	}
}

func TestParseInvalid(t *testing.T) {
	big := strings.Replace(hipText, "ffffff7f00000000", "0000000001000000", 1)
	cases := map[string]string{
		"empty":                       "",
		"word":                        "hello",
		"too long":                    strings.Repeat("0", token.MaxTokenBytes+1),
		"dc six fields":               "1:2:3:4:5:1",
		"dc eight fields":             dcText + ":0",
		"dc empty field":              "1::3:4:5:1:0",
		"dc wide address":             "0" + dcText,
		"dc wide size":                "1:000000002:3:4:5:1:0",
		"dc wide gid":                 "1:2:3:4:5:1:" + strings.Repeat("0", 33),
		"dc flag":                     "1:2:3:4:5:2:0",
		"dc not hex":                  "1:2:3:4:5:1:g",
		"dc sign":                     "1:+2:3:4:5:1:0",
		"dc prefix":                   "0x1:2:3:4:5:1:0",
		"dc space":                    " " + dcText,
		"dc two semicolons":           dcText + ";;",
		"dc wraps":                    "ffffffffffffffff:00000002:0:0:0:0:0",
		"dc suffix below":             dcText + ":00007f7c7fffffff:0000000000000001",
		"dc suffix beyond":            dcText + ":00007f7c80000001:0000000000400000",
		"dc suffix larger":            dcText + ":00007f7c80000000:0000000000400001",
		"dc suffix size wraps":        dcText + ":00007f7c80000001:ffffffffffffffff",
		"dc suffix not hex":           dcText + ":00007f7c80000000:xyz",
		"rc four fields":              "rc:" + sessionHex + ":1:2",
		"rc short session":            "rc:0011:1:2:3",
		"rc wraps":                    "rc:" + sessionHex + ":ffffffffffffffff:00000002:0",
		"rc semicolon":                rcText + ";",
		"hipobj transport":            "02" + hipText[2:],
		"hipobj window":               big,
		"hipobj not hex":              "zz" + hipText[2:],
		"hipobj short":                hipText[:86],
		"hipobj wraps":                hipText[:50] + "ffffffffffffffff" + hipText[66:],
		"hipobj one suffix field":     hipText + ":0",
		"hipobj suffix below":         hipText + ":1122334455667787:1",
		"hipobj suffix larger":        hipText + ":1122334455667788:80000000",
		"ofi five fields":             "1:2:ofi1:verbs:0a",
		"ofi no key":                  "1:2:ofi1:verbs:0a:",
		"ofi not third":               "1:2:3:ofi1:verbs:0a",
		"ofi not hex":                 "1:x:ofi1:verbs:0a:1",
		"ofi window":                  "1:100000000:ofi1:verbs:0a:1",
		"ofi wraps":                   "ffffffffffffffff:2:ofi1:verbs:0a:1",
		"ps1 unknown fabric":          strings.Replace(ps1Text, "shm", "dc", 1),
		"ps1 no fabric":               strings.Replace(ps1Text, "shm", "", 1),
		"ps1 short session":           "ps1:shm:00:0000000000000001:0000000000000000:0000000000000001",
		"ps1 short field":             "ps1:shm:" + sessionHex + ":1:0000000000000000:0000000000000001",
		"ps1 window":                  "ps1:shm:" + sessionHex + ":0000000000000001:0000000000000000:0000000100000000",
		"ps1 wraps":                   "ps1:shm:" + sessionHex + ":0000000000000001:ffffffffffffffff:0000000000000002",
		"ps1 suffix larger":           ps1Text + ":0000000000000000:0000000000400001",
		"ps1 one suffix field":        ps1Text + ":0000000000000000",
		"ps1 upper case prefix":       "PS1" + ps1Text[3:],
		"ps1 suffix does not fix big": ps1Text[:len(ps1Text)-16] + "zzzzzzzzzzzzzzzz:0:1",
	}
	for name, text := range cases {
		d, err := token.Parse(text)
		if !errors.Is(err, token.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		if d != (token.Descriptor{}) {
			t.Errorf("%s: descriptor with an error", name)
		}
		if err != nil && len(text) > 8 && strings.Contains(err.Error(), text) {
			t.Errorf("%s: the error quotes the token", name)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		dcText, dcSuffix, dcText + ";", rcText, hipText, ofiText, ps1Text, ps1Text + ":0:1", "ps1:", "rc:", ":",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := token.Parse(text)
		if err != nil {
			if !errors.Is(err, token.ErrInvalid) || d != (token.Descriptor{}) {
				t.Fatalf("error %v with a descriptor", err)
			}
			return
		}
		if d.Size < 0 || d.Size > token.MaxWindow || d.Addr+uint64(d.Size) < d.Addr {
			t.Fatalf("window accepted: %#x + %#x", d.Addr, d.Size)
		}
		again, err := token.Parse(d.Encode())
		if err != nil || again != d {
			t.Fatalf("round trip: %v", err)
		}
	})
}

// TestRF_50_Redacted prints secrets in every way that logging and debugging know, and looks for
// their text: the fields in hex and decimal.
func TestRF_50_Redacted(t *testing.T) {
	d := ps1("shm")
	d.RKey = 0x01f2e973
	secret := token.SecretFrom([32]byte{0: 0xde, 1: 0xad, 2: 0xbe, 3: 0xef, 30: 0xca, 31: 0xfe})
	type outer struct {
		D     token.Descriptor
		P     *token.Descriptor
		S     token.Secret
		M     map[string]token.Secret
		L     []token.Descriptor
		quiet token.Secret // fmt cannot call methods of unexported fields
	}
	o := outer{
		D: d, P: &d, S: secret, M: map[string]token.Secret{"k": secret}, L: []token.Descriptor{d}, quiet: secret,
	}
	raw := secret.Reveal()
	forbidden := []string{
		sessionHex, "1f2e973", "32696691", "7900", "0 17 34 51", "[0 0x11", "0x0, 0x11", "112233",
		hex.EncodeToString(raw[:]), "222 173 190", "0xde, 0xad", "deadbeef", "700000003",
	}
	var texts []string
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%X", "%q", "%d", "%o", "%b", "%T%v"} {
		for _, value := range []any{d, &d, secret, &secret, o, []token.Secret{secret}} {
			texts = append(texts, fmt.Sprintf(verb, value))
		}
	}
	for _, value := range []any{d, secret, o, &o} {
		for _, name := range []string{"text", "json"} {
			var b bytes.Buffer
			var handler slog.Handler = slog.NewTextHandler(&b, nil)
			if name == "json" {
				handler = slog.NewJSONHandler(&b, nil)
			}
			slog.New(handler).Info("test", "value", value, slog.Group("group", "value", value))
			texts = append(texts, b.String())
		}
		j, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(j))
	}
	texts = append(texts, d.GoString(), secret.GoString(), d.LogValue().String(), secret.LogValue().String())
	for _, text := range texts {
		lower := strings.ToLower(text)
		for _, bad := range forbidden {
			if strings.Contains(lower, bad) {
				t.Errorf("%q shows %q", text, bad)
			}
		}
	}
}

func TestSecret(t *testing.T) {
	a, b := token.NewSecret(), token.NewSecret()
	if a.Reveal() == b.Reveal() || a.Reveal() == [32]byte{} {
		t.Error("secrets are not random")
	}
	if a.IsZero() || !(token.Secret{}).IsZero() || (token.Secret{}).Reveal() != [32]byte{} {
		t.Error("zero secret")
	}
}

// TestNarrow: a part is taken only if it lies inside the window, and a session's window ignores the address.
func TestNarrow(t *testing.T) {
	for _, c := range []struct {
		d          token.Descriptor
		addr, size uint64
		want       uint64 // address of the result
		ok         bool
	}{
		{dc(), dc().Addr, 4 << 20, dc().Addr, true},
		{dc(), dc().Addr + 1, 4<<20 - 1, dc().Addr + 1, true},
		{dc(), dc().Addr + 4<<20, 0, dc().Addr + 4<<20, true},
		{dc(), dc().Addr + 1, 4 << 20, 0, false},
		{dc(), dc().Addr - 1, 1, 0, false},
		{dc(), 0, 1, 0, false},
		{dc(), ^uint64(0), 1, 0, false},
		{dc(), dc().Addr, ^uint64(0), 0, false},
		{ps1("tcp"), 0x7fff00000000, 16, 4096, true},
		{ps1("tcp"), 0, 4<<20 + 1, 0, false},
	} {
		got, err := c.d.Narrow(c.addr, c.size)
		if c.ok != (err == nil) || err != nil && !errors.Is(err, token.ErrInvalid) {
			t.Errorf("%#x+%#x: %v", c.addr, c.size, err)
		} else if c.ok && (got.Addr != c.want || got.Size != int64(c.size) || got.Kind != c.d.Kind) {
			t.Errorf("%#x+%#x: window %#x+%#x", c.addr, c.size, got.Addr, got.Size)
		}
	}
}
