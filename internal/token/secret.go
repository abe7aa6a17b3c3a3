package token

import (
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
)

// SecretBytes is the length of a session secret.
const SecretBytes = 32

// Secret is the secret of a session. It prints redacted in every way: the bytes sit behind two
// pointers, since fmt follows one, even inside an unexported field, where it cannot call methods. The
// zero Secret holds nothing.
type Secret struct{ inner *hidden }

type hidden struct{ key *[SecretBytes]byte }

// NewSecret draws a random secret.
func NewSecret() Secret {
	var key [SecretBytes]byte
	_, _ = rand.Read(key[:]) // documented to never fail
	return SecretFrom(key)
}

// SecretFrom wraps the bytes.
func SecretFrom(key [SecretBytes]byte) Secret { return Secret{inner: &hidden{key: &key}} }

// Reveal returns the secret bytes; zeros for the zero Secret.
func (s Secret) Reveal() [SecretBytes]byte {
	if s.inner == nil {
		return [SecretBytes]byte{}
	}
	return *s.inner.key
}

// IsZero tells whether the Secret holds nothing.
func (s Secret) IsZero() bool { return s.inner == nil }

// String is redacted.
func (s Secret) String() string { return "secret(redacted)" }

// GoString is redacted.
func (s Secret) GoString() string { return s.String() }

// Format is redacted for every verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// LogValue is redacted.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText is redacted.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
