package config

import (
	"net/url"
	"strings"
)

// escape percent-encodes every byte of s except letters, digits, "-._~" and the bytes
// of keep.
func escape(s, keep string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9',
			strings.IndexByte("-._~", c) >= 0, strings.IndexByte(keep, c) >= 0:
			b.WriteByte(c)
		default:
			b.Write([]byte{'%', hex[c>>4], hex[c&15]})
		}
	}
	return b.String()
}

// unescape decodes percent encoding. A plus sign is a plus sign.
func unescape(s string) (string, bool) {
	decoded, err := url.PathUnescape(s)
	return decoded, err == nil
}
