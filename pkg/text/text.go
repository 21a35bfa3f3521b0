// Package text shortens text, and makes names of it.
package text

import (
	"strings"
	"unicode/utf8"
)

// Cut returns the longest beginning of s that has at most n bytes and ends
// with a whole character.
func Cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// Name makes a name of any text: lower-case letters, digits and single dashes, beginning with a
// letter, at most max bytes. It returns "" if no character is left.
func Name(s string, max int) string {
	var b strings.Builder
	for _, r := range strings.ToLower(s) {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9' && b.Len() > 0:
			b.WriteRune(r)
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
		if b.Len() == max {
			break
		}
	}
	return strings.TrimRight(b.String(), "-")
}
