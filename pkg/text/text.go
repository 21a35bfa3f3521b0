// Package text shortens text.
package text

import "unicode/utf8"

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
