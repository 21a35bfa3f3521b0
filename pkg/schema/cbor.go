package schema

import (
	"reflect"

	"github.com/fxamacker/cbor/v2"

	"miren.dev/runtime/pkg/errs"
)

// Bounds of decoding. They hold for everything that comes from outside.
const (
	MaxEncoded  = 16 << 20 // bytes that one Unmarshal accepts
	maxNesting  = 32
	maxElements = 1 << 17 // elements of one array or map
)

var (
	encMode cbor.EncMode
	decMode cbor.DecMode
)

func init() {
	enc := cbor.CoreDetEncOptions() // RFC 8949, core deterministic
	enc.Time = cbor.TimeRFC3339NanoUTC
	enc.TagsMd = cbor.TagsForbidden
	em, err := enc.EncMode()
	if err != nil {
		panic(err)
	}
	dm, err := cbor.DecOptions{
		DupMapKey:        cbor.DupMapKeyEnforcedAPF,
		MaxNestedLevels:  maxNesting,
		MaxArrayElements: maxElements,
		MaxMapPairs:      maxElements,
		IndefLength:      cbor.IndefLengthForbidden,
		TagsMd:           cbor.TagsForbidden,
		UTF8:             cbor.UTF8DecodeInvalid,
		// A number that does not fit is an error; values of type any decode to
		// plain types.
		IntDec:         cbor.IntDecConvertSignedOrFail,
		DefaultMapType: reflect.TypeFor[map[string]any](),
	}.DecMode()
	if err != nil {
		panic(err)
	}
	encMode, decMode = em, dm
}

// Marshal encodes v as deterministic CBOR (RFC 8949 core deterministic): the
// same value always gives the same bytes. Times are RFC 3339 text in UTC with
// nanoseconds, durations integers in nanoseconds. Go strings that are not
// UTF-8 survive a round trip.
func Marshal(v any) ([]byte, error) {
	b, err := encMode.Marshal(v)
	if err != nil {
		return nil, errs.New(errs.InvalidArgument, "encode %T: %w", v, err)
	}
	return b, nil
}

// Unmarshal decodes CBOR into v, which must be a pointer. Size, nesting and
// number of elements are bounded; indefinite lengths, tags and repeated keys
// are errors; unknown fields are ignored, so that newer peers can add some.
// Errors have class Corrupt.
func Unmarshal(b []byte, v any) error {
	if len(b) > MaxEncoded {
		return errs.New(errs.Corrupt, "decode %T: %d bytes are more than %d", v, len(b), MaxEncoded)
	}
	if err := decMode.Unmarshal(b, v); err != nil {
		return errs.New(errs.Corrupt, "decode %T: %w", v, err)
	}
	return nil
}
