// Package name has the identities of volumes and objects, and the keys they
// have in the store:
//
//	manifests/<id>/volume                    the volume
//	manifests/<id>/snapshots/<name>          a snapshot's manifest
//	manifests/<id>/copying/<name>            that of a snapshot that is being copied here
//	objects/<id>/data/<epoch>-<number>       segments of cuts, or the fence
//	objects/<id>/gc/<epoch>-<number>         segments written by GC
//	objects/<id>/map/<epoch>-<number>        checkpoints of the map
//	objects/<id>/boot/<epoch>-<number>       boot lists
//	keys/<id>                                data keys of an encrypted volume
//	clones/<id>/<clone>                      the clone may name objects of the volume
//	sweeps/<random>                          a sweep that is deleting objects
//
// Epoch and number are 16 hexadecimal digits.
package name

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"

	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

// Volume identifies a volume for ever; it is never used again.
type Volume [16]byte

// NewVolume makes a random identity.
func NewVolume() Volume {
	var v Volume
	rand.Read(v[:])
	return v
}

// ParseVolume reads the string form of a Volume.
func ParseVolume(s string) (Volume, error) {
	var v Volume
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(v) {
		return v, errs.New(errs.InvalidArgument, "volume id %q is not 32 hexadecimal digits", s)
	}
	copy(v[:], b)
	return v, nil
}

func (v Volume) String() string { return hex.EncodeToString(v[:]) }

// Kind is what an object is; its value is stored.
type Kind uint8

// The kinds of numbered objects.
const (
	Data Kind = 1 // segment of a cut, part of the chain
	GC   Kind = 2 // segment of moved data
	Map  Kind = 3 // checkpoint of the map
	Boot Kind = 4 // what is read first after the volume was opened
)

func (k Kind) String() string {
	switch k {
	case Data:
		return "data"
	case GC:
		return "gc"
	case Map:
		return "map"
	case Boot:
		return "boot"
	}
	return fmt.Sprintf("kind%d", uint8(k))
}

// Ref names one numbered object.
type Ref struct {
	Volume Volume
	Kind   Kind
	Epoch  uint64
	Num    uint64
}

// Key is the key of the object in the store.
func (r Ref) Key() string {
	return fmt.Sprintf("%s%s/%016x-%016x", Prefix(r.Volume), r.Kind, r.Epoch, r.Num)
}

func (r Ref) String() string { return r.Key() }

// ParseKey reads the key of a numbered object; ok is false for other keys.
func ParseKey(key string) (r Ref, ok bool) {
	parts := strings.Split(key, "/")
	if len(parts) != 4 || parts[0]+"/" != Objects {
		return r, false
	}
	v, err := ParseVolume(parts[1])
	if err != nil {
		return r, false
	}
	r.Volume = v
	for k := Data; k <= Boot; k++ {
		if k.String() == parts[2] {
			r.Kind = k
		}
	}
	if _, err := fmt.Sscanf(parts[3], "%016x-%016x", &r.Epoch, &r.Num); err != nil {
		return r, false
	}
	return r, r.Kind != 0 && r.Key() == key
}

// Prefixes of all manifests, of all numbered objects, of all data keys, and of all
// marks of clones and of sweeps.
const (
	Manifests = "manifests/"
	Objects   = "objects/"
	AllKeys   = "keys/"
	Clones    = "clones/"
	Sweeps    = "sweeps/"
)

// Keys is the key of the object with the data keys of an encrypted volume.
func Keys(v Volume) string { return AllKeys + v.String() }

// ManifestsOf is the prefix of the manifests of a volume and its snapshots.
func ManifestsOf(v Volume) string { return Manifests + v.String() + "/" }

// ClonesOf is the prefix of the marks of clones that may name objects of a volume.
func ClonesOf(v Volume) string { return Clones + v.String() + "/" }

// Clone is the key of the mark that a clone may name objects of a volume.
func Clone(v, clone Volume) string { return ClonesOf(v) + clone.String() }

// ParseClone reads the key of the mark of a clone; ok is false for other keys.
func ParseClone(key string) (v, clone Volume, ok bool) {
	rest, ok := strings.CutPrefix(key, Clones)
	of, id, found := strings.Cut(rest, "/")
	v, err := ParseVolume(of)
	if !ok || !found || err != nil {
		return v, clone, false
	}
	clone, err = ParseVolume(id)
	return v, clone, err == nil
}

// Prefix is the prefix of the numbered objects of a volume.
func Prefix(v Volume) string { return Objects + v.String() + "/" }

// Manifest is the key of a volume's manifest.
func Manifest(v Volume) string { return ManifestsOf(v) + "volume" }

// ParseManifest reads the key of a manifest; snapshot is empty for that of a
// volume, and ok false for other keys.
func ParseManifest(key string) (v Volume, snapshot string, ok bool) {
	rest, ok := strings.CutPrefix(key, Manifests)
	id, rest, found := strings.Cut(rest, "/")
	v, err := ParseVolume(id)
	if !ok || !found || err != nil {
		return v, "", false
	}
	if rest == "volume" {
		return v, "", true
	}
	snapshot, ok = strings.CutPrefix(rest, "snapshots/")
	return v, snapshot, ok && snapshot != "" && !strings.Contains(snapshot, "/")
}

// Snapshots is the prefix of the manifests of a volume's snapshots.
func Snapshots(v Volume) string { return ManifestsOf(v) + "snapshots/" }

// Snapshot is the key of the manifest of a snapshot.
func Snapshot(v Volume, name string) (string, error) {
	key := Snapshots(v) + name
	if strings.Contains(name, "/") || store.CheckKey(key) != nil {
		return "", errs.New(errs.InvalidArgument, "snapshot name %q: use letters, digits, '.', '_' and '-', not beginning with a dot", name)
	}
	return key, nil
}

// Copying is the key of the manifest of a snapshot while it is copied into the
// store. It keeps garbage collection away from objects that have arrived.
func Copying(v Volume, name string) (string, error) {
	if _, err := Snapshot(v, name); err != nil {
		return "", err
	}
	return ManifestsOf(v) + "copying/" + name, nil
}
