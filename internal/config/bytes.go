package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes is a size. It reads "64KiB", "1GB" (10^9), "512" and prints the largest exact binary unit.
type Bytes int64

// Units.
const (
	KiB Bytes = 1 << 10
	MiB Bytes = 1 << 20
	GiB Bytes = 1 << 30
	TiB Bytes = 1 << 40
)

// unit is one suffix. The order matters: a longer suffix comes before one that ends it.
type unit struct {
	suffix string
	bytes  Bytes
}

func units() []unit {
	return []unit{
		{"TiB", TiB}, {"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB},
		{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"KB", 1e3}, {"B", 1},
	}
}

// ParseBytes reads a size.
func ParseBytes(s string) (Bytes, error) {
	number, factor := strings.TrimSpace(s), Bytes(1)
	for _, u := range units() {
		if rest, ok := strings.CutSuffix(number, u.suffix); ok {
			number, factor = strings.TrimSpace(rest), u.bytes
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/int64(factor) {
		return 0, fmt.Errorf("%w: size %q: want a whole number and B, kB, MB, GB, TB, KiB, MiB, GiB or TiB",
			ErrInvalid, s)
	}
	return Bytes(n) * factor, nil
}

// String prints the largest binary unit that is exact.
func (b Bytes) String() string {
	for _, u := range units()[:4] {
		if b != 0 && b%u.bytes == 0 {
			return strconv.FormatInt(int64(b/u.bytes), 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// MarshalText is String.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText is ParseBytes.
func (b *Bytes) UnmarshalText(text []byte) error {
	n, err := ParseBytes(string(text))
	if err != nil {
		return err
	}
	*b = n
	return nil
}
