package manifest

import (
	"bytes"
	"encoding/binary"
	"testing"

	"miren.dev/runtime/lsvd/internal/keyring"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/wire"
	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/pkg/errs"
)

// ring makes keys of a volume, with those of the other one.
func ring(t *testing.T, of, other name.Volume) *keyring.Ring {
	t.Helper()
	from, err := keyring.New(other, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := keyring.New(of, from, []name.Volume{other})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// repair gives b a right checksum, as an attacker can.
func repair(b []byte) []byte {
	return binary.LittleEndian.AppendUint32(b[:len(b)-4], wire.CRC(b[:len(b)-4]))
}

// TestManifestIsAuthentic flips every bit and repairs the checksum, and puts the manifest under other keys of the
// store: only the original under its own key is read with the keys.
func TestManifestIsAuthentic(t *testing.T) {
	key, err := name.Snapshot(one, "monday")
	if err != nil {
		t.Fatal(err)
	}
	m := sample()
	m.Keys = ring(t, one, two)
	b := m.Encode(key)
	read := func(key string, b []byte, keys *keyring.Ring) error {
		st := &storesim.Mem{}
		if _, err := st.Create(t.Context(), key, b); err != nil {
			t.Fatal(err)
		}
		_, _, err := LoadWith(t.Context(), st, key, keys)
		return err
	}
	if err := read(key, b, m.Keys); err != nil {
		t.Fatal(err)
	}
	for bit := range (len(b) - 4) * 8 {
		x := bytes.Clone(b)
		x[bit/8] ^= 1 << (bit % 8)
		if err := read(key, repair(x), m.Keys); err == nil {
			t.Fatalf("bit %d changed unnoticed", bit)
		}
	}
	other, err := name.Snapshot(one, "tuesday")
	if err != nil {
		t.Fatal(err)
	}
	plain := sample()
	plain.Encrypted = false
	for what, err := range map[string]error{
		"of another snapshot":   read(other, b, m.Keys),
		"of the volume":         read(name.Manifest(one), b, m.Keys),
		"with other keys":       read(key, b, ring(t, one, two)),
		"plain":                 read(key, plain.Encode(key), m.Keys),
		"made without any keys": read(key, sample().Encode(key), m.Keys),
	} {
		if !errs.Is(err, errs.Corrupt) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestCheckpointIsAuthentic: pages and directory are read with the keys only if nothing was changed, whatever the
// checksums say, and each for its own leaf and object.
func TestCheckpointIsAuthentic(t *testing.T) {
	keys := ring(t, one, two)
	b := checkpoint(keys)
	size := int64(len(b))
	d, _, err := DecodeDirectory(cp, keys, size, b)
	if err != nil {
		t.Fatal(err)
	}
	if all, err := pages(d, keys, b); err != nil || len(all) != 2 {
		t.Fatalf("%v %v", all, err)
	}
	if err := VerifyCheckpoint(cp, nil, b); err != nil {
		t.Errorf("checksums alone: %v", err)
	}
	first, last := d.Pages[0], d.Pages[2]
	page := b[first.Off : first.Off+first.Len]
	for bit := range (len(page) - 4) * 8 {
		x := bytes.Clone(page)
		x[bit/8] ^= 1 << (bit % 8)
		if _, err := DecodePage(cp, first.Leaf, keys, repair(x)); !errs.Is(err, errs.Corrupt) {
			t.Fatalf("bit %d of a page changed unnoticed: %v", bit, err)
		}
	}
	older := cp
	older.Num--
	for what, try := range map[string]struct {
		ref  name.Ref
		leaf uint64
		keys *keyring.Ring
	}{
		"of another leaf":   {cp, last.Leaf, keys},
		"of another object": {older, first.Leaf, keys},
		"of another volume": {name.Ref{Volume: two, Kind: name.Map, Epoch: cp.Epoch, Num: cp.Num}, first.Leaf, keys},
		"with other keys":   {cp, first.Leaf, ring(t, one, two)},
	} {
		if _, err := DecodePage(try.ref, try.leaf, try.keys, page); !errs.Is(err, errs.Corrupt) {
			t.Errorf("page %s: %v", what, err)
		}
	}
	dir := int(last.Off + last.Len)
	for bit := dir * 8; bit < (len(b)-8)*8; bit++ {
		x := bytes.Clone(b)
		x[bit/8] ^= 1 << (bit % 8)
		binary.LittleEndian.PutUint32(x[len(x)-8:], wire.CRC(x[dir:len(x)-mapTrailer]))
		binary.LittleEndian.PutUint32(x[len(x)-4:], wire.CRC(x[len(x)-mapTrailer:len(x)-4]))
		if d, need, err := DecodeDirectory(cp, keys, size, x); err == nil && need == 0 {
			t.Fatalf("bit %d of the directory changed unnoticed: %+v", bit, d)
		}
	}
	plain := checkpoint(nil)
	if _, _, err := DecodeDirectory(cp, keys, int64(len(plain)), plain); !errs.Is(err, errs.Corrupt) {
		t.Errorf("plain: %v", err)
	}
	d, _, err = DecodeDirectory(cp, nil, int64(len(plain)), plain)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pages(d, keys, plain); !errs.Is(err, errs.Corrupt) {
		t.Errorf("plain pages: %v", err)
	}
}
