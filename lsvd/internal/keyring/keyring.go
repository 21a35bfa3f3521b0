// Package keyring has the data keys of encrypted volumes, and the object that
// keeps them under the user's key:
//
//	keys/<volume>, little-endian:
//	  0  "LSVDKEYS"
//	  8  version u32
//	 12  0 u32
//	 16  volume [16]
//	 32  salt [16]
//	 48  v number of data keys and, sealed with a tag of 16 bytes, each:
//	     volume [16], key [32]
//	     CRC-32C of all before u32
//
// The data keys are sealed with AES-256-GCM under the key HKDF-SHA-256(user's
// key, salt, bytes 0..48). A salt is used once, so the nonce is 0.
//
// Each volume has a random data key of its own. Everything that it writes
// depends on this key: segments, maps, its manifest and those of its
// snapshots. A clone reads objects of the volumes that it comes from, so its
// object has their data keys too. Data keys never change; a change of the
// user's key replaces the object and nothing else.
package keyring

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"slices"

	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/wire"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

// Version is the version of the format, the only one that is read.
const Version = 1

// Sizes of the format, in bytes.
const (
	KeySize = 32 // of the user's key and of data keys
	MACSize = 16

	magic    = "LSVDKEYS"
	head     = 48
	tagSize  = 16
	keyEntry = 16 + KeySize
)

// keys are derived from the data key of one volume.
type keys struct {
	data, manifests, maps []byte
}

// Ring has the data keys of a volume and of those that it was cloned from. A nil
// *Ring is that of a volume that is not encrypted.
type Ring struct {
	volume name.Volume
	of     map[name.Volume]keys
}

// New makes the ring of a new volume: a random key of its own, and those that
// from has of other volumes. from may be nil.
func New(volume name.Volume, from *Ring, others []name.Volume) (*Ring, error) {
	r := &Ring{volume: volume, of: map[name.Volume]keys{}}
	for _, v := range others {
		key, err := from.Data(v)
		if err != nil {
			return nil, err
		}
		r.add(v, key)
	}
	own := make([]byte, KeySize)
	rand.Read(own)
	r.add(volume, own)
	return r, nil
}

func (r *Ring) add(v name.Volume, data []byte) {
	r.of[v] = keys{data: data, manifests: derive(data, nil, "lsvd manifests"), maps: derive(data, nil, "lsvd maps")}
}

func derive(key, salt []byte, info string) []byte {
	k, err := hkdf.Key(sha256.New, key, salt, info, KeySize)
	if err != nil {
		panic(err) // 32 bytes are never too many
	}
	return k
}

func (r *Ring) get(v name.Volume) (keys, error) {
	k, ok := r.of[v]
	if !ok {
		return k, wire.Corrupt("the keys of volume %s have none for objects of volume %s", r.volume, v)
	}
	return k, nil
}

// Data is the key of segments of a volume; nil without encryption.
func (r *Ring) Data(v name.Volume) ([]byte, error) {
	if r == nil {
		return nil, nil
	}
	k, err := r.get(v)
	return k.data, err
}

// Manifest authenticates a manifest of the ring's volume under its key in the
// store: no other object, nor this one under another key, has the result.
func (r *Ring) Manifest(key string, body []byte) []byte {
	var w wire.Writer
	w.String(key)
	return mac(r.of[r.volume].manifests, w.B, body)
}

// Map authenticates a piece of a checkpoint: a page, by its leaf, or the
// directory with another number.
func (r *Ring) Map(ref name.Ref, piece uint64, body []byte) ([]byte, error) {
	k, err := r.get(ref.Volume)
	if err != nil {
		return nil, err
	}
	w := wire.Writer{B: make([]byte, 0, 24)}
	w.U64(ref.Epoch)
	w.U64(ref.Num)
	w.U64(piece)
	return mac(k.maps, w.B, body), nil
}

func mac(key []byte, parts ...[]byte) []byte {
	h := hmac.New(sha256.New, key)
	for _, p := range parts {
		h.Write(p)
	}
	return h.Sum(nil)[:MACSize]
}

// Equal compares MACs in constant time.
func Equal(a, b []byte) bool { return hmac.Equal(a, b) }

func seal(user, header []byte) cipher.AEAD {
	b, err := aes.NewCipher(derive(user, header[32:head], string(header)))
	if err != nil {
		panic(err) // the key has 32 bytes
	}
	g, err := cipher.NewGCM(b)
	if err != nil {
		panic(err) // AES has blocks of 16 bytes
	}
	return g
}

// Wrap returns the object that has the ring under the user's key.
func (r *Ring) Wrap(user []byte) []byte {
	var w, plain wire.Writer
	w.Bytes([]byte(magic))
	w.U32(Version)
	w.U32(0)
	w.Bytes(r.volume[:])
	var salt [16]byte
	rand.Read(salt[:])
	w.Bytes(salt[:])
	volumes := make([]name.Volume, 0, len(r.of))
	for v := range r.of {
		volumes = append(volumes, v)
	}
	slices.SortFunc(volumes, func(a, b name.Volume) int { return slices.Compare(a[:], b[:]) })
	for _, v := range volumes {
		plain.Bytes(v[:])
		plain.Bytes(r.of[v].data)
	}
	g := seal(user, w.B)
	w.Uvarint(uint64(len(volumes)))
	w.B = g.Seal(w.B, make([]byte, g.NonceSize()), plain.B, nil)
	w.U32(wire.CRC(w.B))
	return w.B
}

// Check verifies the object of a volume as far as that needs no key, and
// returns what is sealed in it.
func Check(v name.Volume, b []byte) (sealed []byte, err error) {
	if len(b) < head+4 || string(b[:8]) != magic {
		return nil, wire.Corrupt("%s has no keys", name.Keys(v))
	}
	sum := wire.Reader{B: b[len(b)-4:]}
	if sum.U32() != wire.CRC(b[:len(b)-4]) {
		return nil, wire.Corrupt("%s is damaged", name.Keys(v))
	}
	r := wire.Reader{B: b[8 : len(b)-4]}
	if n := r.U32(); n != Version {
		return nil, errs.New(errs.FailedPrecondition, "%s has version %d, this program knows %d", name.Keys(v), n, Version)
	}
	r.U32()
	if name.Volume(r.Bytes(16)) != v {
		return nil, wire.Corrupt("%s has the keys of another volume", name.Keys(v))
	}
	r.Bytes(16)
	n := r.Count(keyEntry)
	if sealed = r.Bytes(n*keyEntry + tagSize); r.End() != nil || n == 0 {
		return nil, wire.Corrupt("%s is cut off", name.Keys(v))
	}
	return sealed, nil
}

// Unwrap opens the object of a volume. FailedPrecondition: the user's key is
// another one.
func Unwrap(v name.Volume, user, b []byte) (*Ring, error) {
	sealed, err := Check(v, b)
	if err != nil {
		return nil, err
	}
	g := seal(user, b[:head])
	plain, err := g.Open(nil, make([]byte, g.NonceSize()), sealed, nil)
	if err != nil {
		return nil, errs.New(errs.FailedPrecondition, "volume %s is encrypted with another key", v).With("reason", "wrong_key").
			WithHint("give the key of the volume. If its key was rotated, the newest one is needed")
	}
	ring := &Ring{volume: v, of: map[name.Volume]keys{}}
	for r := (wire.Reader{B: plain}); len(r.B) > 0; {
		of := name.Volume(r.Bytes(16))
		ring.add(of, r.Bytes(KeySize))
	}
	if _, err := ring.get(v); err != nil {
		return nil, err
	}
	return ring, nil
}

// Load reads the ring of a volume. NotFound: the store has none.
func Load(ctx context.Context, st store.Store, v name.Volume, user []byte) (r *Ring, version store.Version, err error) {
	err = store.RetryCorrupt(func() error {
		var b []byte
		if b, version, err = st.Get(ctx, name.Keys(v)); err != nil {
			return err
		}
		r, err = Unwrap(v, user, b)
		return err
	})
	return r, version, err
}
