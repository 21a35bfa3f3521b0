package rpc

import (
	"bytes"
	"sync"

	"github.com/fxamacker/cbor/v2"

	"miren.dev/runtime/pkg/errs"
)

// The codec is that of pkg/schema, except that maps are not sorted: messages
// are not compared or hashed.
var encMode, decMode = func() (cbor.UserBufferEncMode, cbor.DecMode) {
	enc, err := cbor.EncOptions{
		Sort: cbor.SortNone, Time: cbor.TimeRFC3339NanoUTC, IndefLength: cbor.IndefLengthForbidden, TagsMd: cbor.TagsForbidden,
	}.UserBufferEncMode()
	if err != nil {
		panic(err)
	}
	dec, err := cbor.DecOptions{
		MaxNestedLevels: 32, MaxArrayElements: 1 << 17, MaxMapPairs: 1 << 17, IndefLength: cbor.IndefLengthForbidden,
		TagsMd: cbor.TagsForbidden, UTF8: cbor.UTF8DecodeInvalid, IntDec: cbor.IntDecConvertSignedOrFail,
	}.DecMode()
	if err != nil {
		panic(err)
	}
	return enc, dec
}()

// buffer is a pooled byte slice.
type buffer struct{ b []byte }

// Pooled buffers larger than this are dropped, in bytes.
const maxPooled = 256 << 10

var buffers = sync.Pool{New: func() any { return &buffer{b: make([]byte, 0, 1024)} }}

func getBuffer() *buffer { return buffers.Get().(*buffer) }

func putBuffer(b *buffer) {
	if b == nil || cap(b.b) > maxPooled {
		return
	}
	b.b = b.b[:0]
	buffers.Put(b)
}

// encode appends the encoding of v.
func (b *buffer) encode(v any) error {
	w := bytes.NewBuffer(b.b)
	err := encMode.MarshalToBuffer(v, w)
	b.b = w.Bytes()
	if err != nil {
		return errs.New(errs.InvalidArgument, "encode %T: %w", v, err)
	}
	return nil
}

func decode(p []byte, v any) error {
	if err := decMode.Unmarshal(p, v); err != nil {
		return errs.New(errs.InvalidArgument, "decode %T: %w", v, err)
	}
	return nil
}
