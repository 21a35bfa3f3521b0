package schema

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/fxamacker/cbor/v2"
)

// redacted is the text that every rendering of a secret shows.
const redacted = "[secret]"

// maxSealed bounds the sealed bytes of one secret.
const maxSealed = 64<<10 + 256

// Secret is a secret value, sealed by a Sealer. It cannot be printed: every
// format verb, JSON, text and slog show "[secret]". CBOR carries the sealed
// bytes; encoding a Secret that is not sealed is an error. It is immutable and
// comparable with Equal.
type Secret struct {
	sealed []byte
	keep   bool // "[secret]" of JSON input: stands for the stored value
}

var errNotSealed = errors.New("the secret is not sealed")

// Sealed reports whether s holds a sealed value.
func (s Secret) Sealed() bool { return len(s.sealed) > 0 }

// IsZero reports whether s is absent.
func (s Secret) IsZero() bool { return len(s.sealed) == 0 && !s.keep }

// Equal reports whether both are the same sealed bytes. Two sealings of one
// value are not equal.
func (s Secret) Equal(o Secret) bool { return bytes.Equal(s.sealed, o.sealed) && s.keep == o.keep }

// String returns "[secret]".
func (Secret) String() string { return redacted }

// GoString returns "[secret]".
func (Secret) GoString() string { return redacted }

// Format writes "[secret]" for every verb.
func (Secret) Format(f fmt.State, _ rune) { io.WriteString(f, redacted) }

// LogValue returns "[secret]".
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText returns "[secret]".
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// MarshalJSON returns "[secret]".
func (Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// UnmarshalJSON accepts only "[secret]", which stands for the stored value (see
// KeepSecrets). Plain text goes through JSONOptions.Seal.
func (s *Secret) UnmarshalJSON(b []byte) error {
	if string(b) != `"`+redacted+`"` {
		return errors.New("a secret cannot be given in plain JSON")
	}
	*s = Secret{keep: true}
	return nil
}

// MarshalCBOR encodes the sealed bytes.
func (s Secret) MarshalCBOR() ([]byte, error) {
	if !s.Sealed() {
		return nil, errNotSealed
	}
	return encMode.Marshal(s.sealed)
}

// UnmarshalCBOR decodes sealed bytes.
func (s *Secret) UnmarshalCBOR(b []byte) error {
	if len(b) > maxSealed+9 {
		return fmt.Errorf("a sealed secret of %d bytes", len(b))
	}
	var sealed []byte
	if err := decMode.Unmarshal(b, &sealed); err != nil {
		return err
	}
	if len(sealed) == 0 {
		return errNotSealed
	}
	*s = Secret{sealed: bytes.Clone(sealed)}
	return nil
}

var (
	_ cbor.Marshaler   = Secret{}
	_ cbor.Unmarshaler = (*Secret)(nil)
)
