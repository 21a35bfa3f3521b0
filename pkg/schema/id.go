package schema

import (
	"crypto/rand"
	"strings"
)

// idAlphabet has 32 characters without those that are easily confused.
const idAlphabet = "0123456789abcdefghjkmnpqrstvwxyz"

// NewID returns a fresh random id "prefix-" + 16 characters (80 bits).
func NewID(prefix string) ID {
	var b [16]byte
	rand.Read(b[:]) // never fails (crypto/rand)
	var sb strings.Builder
	sb.WriteString(prefix)
	sb.WriteByte('-')
	for _, c := range b {
		sb.WriteByte(idAlphabet[c&31])
	}
	return ID(sb.String())
}
