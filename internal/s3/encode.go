package s3

import "strings"

const upperHex = "0123456789ABCDEF"

// unreserved says whether SigV4 leaves the byte as it is (RFC 3986 unreserved characters).
func unreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		c == '-' || c == '_' || c == '.' || c == '~'
}

// appendEscaped appends s percent-encoded once; keepSlash leaves "/" as it is.
func appendEscaped(dst []byte, s string, keepSlash bool) []byte {
	for i := range len(s) {
		c := s[i]
		if unreserved(c) || keepSlash && c == '/' {
			dst = append(dst, c)
			continue
		}
		dst = append(dst, '%', upperHex[c>>4], upperHex[c&15])
	}
	return dst
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10, true
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}

// unescape decodes percent escapes, and "+" to a space when plusIsSpace. ok is false for a broken
// escape.
func unescape(s string, plusIsSpace bool) (out string, ok bool) {
	i := strings.IndexByte(s, '%')
	if i < 0 && (!plusIsSpace || strings.IndexByte(s, '+') < 0) {
		return s, true
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '%':
			if i+2 >= len(s) {
				return "", false
			}
			hi, ok1 := hexDigit(s[i+1])
			lo, ok2 := hexDigit(s[i+2])
			if !ok1 || !ok2 {
				return "", false
			}
			b = append(b, hi<<4|lo)
			i += 2
		case plusIsSpace && s[i] == '+':
			b = append(b, ' ')
		default:
			b = append(b, s[i])
		}
	}
	return string(b), true
}

// canonicalEscape brings an encoded string into the one form that SigV4 signs: decoded, then
// encoded once with upper-case escapes. It returns raw itself when that is its form already.
func canonicalEscape(raw string, path bool) (out string, ok bool) {
	if isCanonical(raw, path) {
		return raw, true
	}
	decoded, ok := unescape(raw, !path)
	if !ok {
		return "", false
	}
	return string(appendEscaped(make([]byte, 0, len(raw)+16), decoded, path)), true
}

func isCanonical(raw string, path bool) bool {
	for i := range len(raw) {
		if c := raw[i]; !unreserved(c) && !(path && c == '/') {
			return false
		}
	}
	return true
}

// appendListEscaped encodes a key or prefix for encoding-type=url as S3 does: letters, digits and
// "-._*/" stay, a space becomes "+", every other byte %XX.
func appendListEscaped(dst []byte, s string) []byte {
	for i := range len(s) {
		c := s[i]
		switch {
		case c == ' ':
			dst = append(dst, '+')
		case c == '*' || c == '/' || unreserved(c) && c != '~':
			dst = append(dst, c)
		default:
			dst = append(dst, '%', upperHex[c>>4], upperHex[c&15])
		}
	}
	return dst
}
