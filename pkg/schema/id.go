package schema

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
)

// idAlphabet has 32 characters without those that are easily confused.
const idAlphabet = "0123456789abcdefghjkmnpqrstvwxyz"

// seeded makes the bytes of an id that follows from a seed; nil: they are random.
var seeded atomic.Pointer[func(prefix string, b []byte)]

// SeedIDs makes the ids of this process follow from a number from now on: the nth id
// of a prefix is the same each time. It is for mock servers: such ids can be guessed,
// and two processes with one seed make the same ones. Call it before any NewID.
func SeedIDs(seed uint64) {
	var mu sync.Mutex
	made := map[string]int{}
	f := func(prefix string, b []byte) {
		mu.Lock()
		n := made[prefix]
		made[prefix]++
		mu.Unlock()
		sum := sha256.Sum256(fmt.Appendf(nil, "%d %s %d", seed, prefix, n))
		copy(b, sum[:])
	}
	seeded.Store(&f)
}

// NewID returns a fresh random id "prefix-" + 16 characters (80 bits).
func NewID(prefix string) ID {
	var b [16]byte
	if f := seeded.Load(); f != nil {
		(*f)(prefix, b[:])
	} else {
		rand.Read(b[:]) // never fails (crypto/rand)
	}
	var sb strings.Builder
	sb.WriteString(prefix)
	sb.WriteByte('-')
	for _, c := range b {
		sb.WriteByte(idAlphabet[c&31])
	}
	return ID(sb.String())
}
