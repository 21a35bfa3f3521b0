package reclaim

import (
	"context"
	"encoding/binary"
	"maps"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

// A clone names objects of other volumes. Before its manifest is created, a mark
// clones/<volume>/<clone> is created for each of these volumes. So the manifests
// that may name an object of a volume are found without a listing of all: they are
// the manifests of the volume, of its clones, and of the snapshots of both.
//
// The marks stay until the clone and its snapshots are deleted. They may stay
// longer: a mark without a clone costs two requests. Sweep deletes it when it is so
// old that the clone cannot be on its way any more.

// A clone is created within cloneTime after its marks, or not at all; a mark without
// a clone is kept for markTime: the difference allows for clocks that differ.
const (
	cloneTime = time.Hour
	markTime  = 24 * time.Hour
)

// maxUsers bounds how many volumes and snapshots AddUsers reads for one volume.
const maxUsers = 64

// Marks are those of one clone.
type Marks struct {
	keys  []string
	began time.Time // when the oldest one was created
}

// MarkClone marks that a clone of the snapshot m may name what m names.
func MarkClone(ctx context.Context, st store.Store, m *manifest.Manifest, clone name.Volume) (*Marks, error) {
	marks := marks(m, clone)
	for _, key := range marks.keys {
		_, err := st.Create(ctx, key, binary.LittleEndian.AppendUint64(nil, uint64(marks.began.UnixNano())))
		if errs.Is(err, errs.AlreadyExists) { // of an attempt before
			var at time.Time
			if at, err = markedAt(ctx, st, key); err == nil && at.Before(marks.began) {
				marks.began = at
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return marks, nil
}

// MarksOf returns the marks that a clone with the manifest m may have.
func MarksOf(m *manifest.Manifest) *Marks {
	x := marks(m, m.Volume)
	origin, _, _ := strings.Cut(m.Origin, "@")
	if v, err := name.ParseVolume(origin); err == nil && !slices.Contains(x.keys, name.Clone(v, m.Volume)) {
		x.keys = append(x.keys, name.Clone(v, m.Volume))
	}
	return x
}

func marks(m *manifest.Manifest, clone name.Volume) *Marks {
	keys := map[string]bool{}
	each(m, func(r name.Ref) {
		if r.Volume != clone {
			keys[name.Clone(r.Volume, clone)] = true
		}
	})
	return &Marks{keys: slices.Sorted(maps.Keys(keys)), began: time.Now()}
}

// Valid returns Unavailable if the marks are so old that Sweep may delete them.
func (x *Marks) Valid() error {
	if time.Since(x.began) < cloneTime {
		return nil
	}
	return errs.New(errs.Unavailable, "the clone took longer than %s", cloneTime).WithHint("try again, with another ID")
}

// Delete deletes the marks of a clone that has no manifest. Sweep deletes what stays.
func (x *Marks) Delete(ctx context.Context, st store.Store) {
	for _, key := range x.keys {
		if st.Delete(ctx, key) != nil {
			return
		}
	}
}

func markedAt(ctx context.Context, st store.Store, key string) (time.Time, error) {
	b, _, err := st.Get(ctx, key)
	if err != nil {
		return time.Time{}, err
	}
	if len(b) != 8 {
		return time.Time{}, errs.New(errs.Unavailable, "mark %s reads as damaged", key)
	}
	return time.Unix(0, int64(binary.LittleEndian.Uint64(b))), nil
}

// AddUsers adds what manifests name of the objects of v: the manifests of v, of its
// clones, and of the snapshots of both, but not that of the volume except. Unless
// they are too many: then MayName holds for all objects of v.
//
// A device that calls it for its own volume, after its manifest has dropped an object,
// learns for sure whether another manifest names the object, or ever will. Clone creates the mark, then
// the manifest of the clone, and then sees that the snapshot still exists. Here a
// volume is read before its snapshots, and marks are listed until no further one is
// found after everything was read. Say a clone is missed that names the object:
//
//   - Its mark was not there at the last listing, or its manifest was not there when
//     it was looked for after all the reading. So its snapshot existed after the reading.
//   - A snapshot of a volume that was read, and that existed after the reading, was
//     seen, or was created after its volume was read. That volume then named the
//     object when it was read: it gets no objects of other volumes.
//   - The volume of the snapshot was not read: it is a clone that was missed, earlier.
func (u *Usage) AddUsers(ctx context.Context, st store.Store, v, except name.Volume) error {
	left := maxUsers
	if _, err := u.addVolume(ctx, st, v, except, &left); err != nil {
		return err
	}
	read, absent := map[name.Volume]bool{}, map[name.Volume]bool{}
	for again := true; again && left > 0; {
		again = false
		for i, err := range st.List(ctx, name.ClonesOf(v)) {
			if err != nil {
				return err
			}
			_, c, ok := name.ParseClone(i.Key)
			if !ok || read[c] || left <= 0 {
				continue
			}
			there, err := u.addVolume(ctx, st, c, except, &left)
			if err != nil {
				return err
			}
			again = again || there || !absent[c]
			read[c], absent[c] = there, true
		}
	}
	u.whole[v] = u.whole[v] || left <= 0
	return nil
}

// addVolume adds what the manifests of v and its snapshots name, and reports whether
// there are any and all were read.
func (u *Usage) addVolume(ctx context.Context, st store.Store, v, except name.Volume, left *int) (bool, error) {
	*left--
	there := v == except
	add := func(key string) error {
		m, _, err := manifest.Load(ctx, st, key)
		if err == nil {
			u.Add(m)
			there = true
		} else if errs.Is(err, errs.NotFound) {
			return nil
		}
		return err
	}
	if v != except {
		if err := add(name.Manifest(v)); err != nil {
			return false, err
		}
	}
	whole := there
	for i, err := range st.List(ctx, name.ManifestsOf(v)) {
		if err != nil {
			return false, err
		}
		if i.Key == name.Manifest(v) {
			if !whole {
				return false, nil // it was created meanwhile
			}
			continue
		}
		if *left--; *left <= 0 {
			return there, nil
		}
		if err := add(i.Key); err != nil {
			return false, err
		}
	}
	return there, nil
}

// sweepMarks deletes the marks of clones that do not exist. u has all manifests.
func (u *Usage) sweepMarks(ctx context.Context, st store.Store) error {
	for i, err := range st.List(ctx, name.Clones) {
		if err != nil {
			return err
		}
		_, clone, ok := name.ParseClone(i.Key)
		if !ok || u.named[clone] {
			continue
		}
		at, err := markedAt(ctx, st, i.Key)
		if errs.Is(err, errs.NotFound) || err == nil && time.Since(at) < markTime {
			continue
		}
		if err == nil {
			err = st.Delete(ctx, i.Key)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
