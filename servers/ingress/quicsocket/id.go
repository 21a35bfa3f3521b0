package quicsocket

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"

	"github.com/quic-go/quic-go"
)

const (
	idSize  = 12 // of a connection id, in bytes
	macSize = 4
)

// generator issues the connection ids of a generation.
type generator struct {
	generation byte
	key        [32]byte
}

// GenerateConnectionID implements quic.ConnectionIDGenerator.
func (g *generator) GenerateConnectionID() (quic.ConnectionID, error) {
	b := make([]byte, idSize)
	b[0] = g.generation
	rand.Read(b[1 : idSize-macSize]) // never fails
	g.sign(b)
	return quic.ConnectionIDFromBytes(b), nil
}

// ConnectionIDLen implements quic.ConnectionIDGenerator.
func (g *generator) ConnectionIDLen() int { return idSize }

func (g *generator) sign(id []byte) {
	copy(id[idSize-macSize:], g.mac(id))
}

func (g *generator) mac(id []byte) []byte {
	h := hmac.New(sha256.New, g.key[:])
	h.Write(id[:idSize-macSize])
	return h.Sum(nil)[:macSize]
}

// foreign reports whether a packet belongs to a connection of another generation.
func (g *generator) foreign(packet []byte) bool {
	id := destination(packet)
	return len(id) == idSize && id[0] != g.generation && hmac.Equal(id[idSize-macSize:], g.mac(id))
}

// destination returns the connection id to which a packet is sent (RFC 8999), nil if it
// has none. One with a short header has an id that a server here issued.
func destination(packet []byte) []byte {
	if len(packet) == 0 {
		return nil
	}
	if packet[0]&0x80 == 0 {
		if len(packet) < 1+idSize {
			return nil
		}
		return packet[1 : 1+idSize]
	}
	const at = 1 + 4 // after the first byte and the version
	if len(packet) <= at {
		return nil
	}
	n := int(packet[at])
	if len(packet) < at+1+n {
		return nil
	}
	return packet[at+1 : at+1+n]
}
