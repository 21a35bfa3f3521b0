package quicsocket

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"

	"github.com/quic-go/quic-go"

	"miren.dev/runtime/pkg/errs"
)

// secretSize is the size of a Secret, in bytes.
const secretSize = 32

// Secret is that from which the keys of a socket are made. All processes that serve a
// socket, also after each other, must have the same: by it one can tell the clients of another
// that their connections are gone. Who knows it can end connections.
type Secret []byte

// NewSecret returns a random secret.
func NewSecret() Secret {
	s := make(Secret, secretSize)
	rand.Read(s) // never fails
	return s
}

// Check returns InvalidArgument for a secret of another size.
func (s Secret) Check() error {
	if len(s) != secretSize {
		return errs.New(errs.InvalidArgument, "a secret of QUIC has %d bytes, not %d", secretSize, len(s))
	}
	return nil
}

// String keeps the secret out of logs.
func (s Secret) String() string { return "[secret]" }

// GoString keeps the secret out of logs.
func (s Secret) GoString() string { return s.String() }

// keys are made from a secret.
type keys struct {
	id    [32]byte
	reset quic.StatelessResetKey
	token quic.TokenGeneratorKey
}

func (s Secret) keys() (k keys, err error) {
	if err := s.Check(); err != nil {
		return k, err
	}
	for info, key := range map[string][]byte{"connection id": k.id[:], "stateless reset": k.reset[:], "address token": k.token[:]} {
		b, err := hkdf.Expand(sha256.New, s, "miren runtime quic "+info, len(key))
		if err != nil {
			return k, errs.Wrap(err, "make the key of QUIC")
		}
		copy(key, b)
	}
	return k, nil
}
