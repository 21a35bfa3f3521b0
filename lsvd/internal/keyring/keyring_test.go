package keyring

import (
	"bytes"
	"encoding/binary"
	"testing"

	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/wire"
	"miren.dev/runtime/pkg/errs"
)

var (
	one, two = name.Volume{1}, name.Volume{2}
	user     = bytes.Repeat([]byte{1}, KeySize)
	other    = bytes.Repeat([]byte{2}, KeySize)
)

// TestRingOpensWithItsKeyOnly wraps and unwraps the keys of a clone, then changes every bit of the object, with and
// without a right checksum, and puts it in the place of another volume's.
func TestRingOpensWithItsKeyOnly(t *testing.T) {
	parent, err := New(one, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	clone, err := New(two, parent, []name.Volume{one})
	if err != nil {
		t.Fatal(err)
	}
	b := clone.Wrap(user)
	got, err := Unwrap(two, user, b)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []name.Volume{one, two} {
		want, err := clone.Data(v)
		have, err2 := got.Data(v)
		if err != nil || err2 != nil || !bytes.Equal(want, have) || len(have) != KeySize {
			t.Errorf("key of %s differs: %v, %v", v, err, err2)
		}
	}
	own, _ := clone.Data(two)
	if first, _ := parent.Data(one); bytes.Equal(first, own) || bytes.Contains(b, own) {
		t.Error("the clone has the data key of its origin, or it is not sealed")
	}
	if _, err := got.Data(name.Volume{3}); !errs.Is(err, errs.Corrupt) {
		t.Errorf("key of a volume that it has none of: %v", err)
	}
	if _, err := New(two, parent, []name.Volume{{3}}); !errs.Is(err, errs.Corrupt) {
		t.Errorf("clone of a volume whose keys are not there: %v", err)
	}
	if _, err := Unwrap(two, other, b); !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("with another key: %v", err)
	}
	if _, err := Unwrap(one, user, b); !errs.Is(err, errs.Corrupt) {
		t.Errorf("as the keys of another volume: %v", err)
	}
	for bit := range len(b) * 8 {
		x := bytes.Clone(b)
		x[bit/8] ^= 1 << (bit % 8)
		if _, err := Unwrap(two, user, x); !errs.Is(err, errs.Corrupt) {
			t.Fatalf("bit %d damaged: %v", bit, err)
		}
		binary.LittleEndian.PutUint32(x[len(x)-4:], wire.CRC(x[:len(x)-4]))
		if _, err := Unwrap(two, user, x); err == nil && bit/8 < len(b)-4 {
			t.Fatalf("bit %d changed unnoticed", bit)
		}
	}
	// In the place of another volume's, with its name put in.
	x := bytes.Clone(b)
	copy(x[16:], one[:])
	binary.LittleEndian.PutUint32(x[len(x)-4:], wire.CRC(x[:len(x)-4]))
	if _, err := Unwrap(one, user, x); err == nil {
		t.Error("opens as the keys of another volume")
	}
}

func FuzzUnwrap(f *testing.F) {
	r, err := New(one, nil, nil)
	if err != nil {
		f.Fatal(err)
	}
	b := r.Wrap(user)
	f.Add(b[:len(b)-4])
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = Unwrap(one, user, binary.LittleEndian.AppendUint32(b, wire.CRC(b)))
	})
}
