// Package reclaim tells which objects of a store no manifest names, and deletes
// those that no open disk may still need.
package reclaim

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"time"

	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/segment"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

// A sweep deletes for at most sweepTime on one reading of the manifests, and
// its mark counts for sweepMark: the difference allows for a slow request and
// for clocks that differ.
const (
	sweepTime = 5 * time.Minute
	sweepMark = 15 * time.Minute
)

// candidate is an object that no manifest named.
type candidate struct {
	key    string
	size   int64
	unused func(*Usage) bool
}

// Sweep deletes the objects in st that no manifest names and no open disk may
// still add to one: leftovers of crashes, of deleted volumes and snapshots,
// and of clones that moved on. It may run beside open disks and copies, and
// reports how many objects and bytes it deleted.
//
// Manifests are read twice, the second time after the listing, so that a
// clone made meanwhile keeps what its origin gave up. A mark in the store spans
// the second reading and the deletions: a copy that begins meanwhile would use
// objects that are about to be deleted, so Copy waits for it.
func Sweep(ctx context.Context, st store.Store) (objects int, bytes int64, err error) {
	before, err := ReadUsage(ctx, st)
	if err != nil {
		return 0, 0, err
	}
	var found []candidate
	for i, err := range st.List(ctx, name.Objects) {
		if err != nil {
			return 0, 0, err
		}
		r, ok := name.ParseKey(i.Key)
		unused := func(u *Usage) bool { return !u.Refs[r] && u.idle(r, i.Size) }
		if ok && unused(before) {
			found = append(found, candidate{i.Key, i.Size, unused})
		}
	}
	for i, err := range st.List(ctx, name.AllKeys) {
		if err != nil {
			return 0, 0, err
		}
		// Keys come after a manifest of their volume.
		v, err := name.ParseVolume(strings.TrimPrefix(i.Key, name.AllKeys))
		unused := func(u *Usage) bool { return !u.named[v] }
		if err == nil && unused(before) {
			found = append(found, candidate{i.Key, i.Size, unused})
		}
	}
	if err := before.sweepMarks(ctx, st); err != nil {
		return 0, 0, err
	}
	for len(found) > 0 {
		left, n, size, err := sweepSome(ctx, st, found)
		objects, bytes, found = objects+n, bytes+size, left
		if err != nil {
			return objects, bytes, err
		}
	}
	return objects, bytes, nil
}

// sweepSome deletes candidates that are still unused, for at most sweepTime,
// and returns those that are left.
func sweepSome(ctx context.Context, st store.Store, found []candidate) (left []candidate, objects int, bytes int64, err error) {
	var id [8]byte
	rand.Read(id[:])
	began, key := time.Now(), name.Sweeps+hex.EncodeToString(id[:])
	if _, err := st.Create(ctx, key, binary.LittleEndian.AppendUint64(nil, uint64(began.UnixNano()))); err != nil {
		return found, 0, 0, errs.Wrap(err, "mark the sweep")
	}
	defer func() {
		// A mark that stays delays copies until it has expired.
		if derr := st.Delete(context.WithoutCancel(ctx), key); err == nil {
			err = derr
		}
	}()
	after, err := ReadUsage(ctx, st)
	if err != nil {
		return found, 0, 0, err
	}
	for i, c := range found {
		if time.Since(began) > sweepTime {
			return found[i:], objects, bytes, nil
		}
		if !c.unused(after) {
			continue
		}
		if err := st.Delete(ctx, c.key); err != nil {
			return found[i:], objects, bytes, err
		}
		objects++
		bytes += c.size
	}
	return nil, objects, bytes, nil
}

// CheckSweeps returns Unavailable while a sweep deletes objects of st. It deletes
// the marks of sweeps that were killed.
func CheckSweeps(ctx context.Context, st store.Store) error {
	for i, err := range st.List(ctx, name.Sweeps) {
		if err != nil {
			return err
		}
		b, _, err := st.Get(ctx, i.Key)
		if errs.Is(err, errs.NotFound) {
			continue // it has ended
		}
		if err != nil {
			return err
		}
		if len(b) == 8 {
			began := time.Unix(0, int64(binary.LittleEndian.Uint64(b)))
			if age := time.Since(began); age > sweepMark {
				if err := st.Delete(ctx, i.Key); err != nil {
					return err
				}
				continue
			}
		}
		return errs.New(errs.Unavailable, "a sweep deletes unused objects of the store").With("reason", "sweeping").
			WithHint("try again; the mark %s of a sweep that was killed expires after %s", i.Key, sweepMark)
	}
	return nil
}

// idle reports that no disk that is or may be open can yet name the object.
func (u *Usage) idle(r name.Ref, size int64) bool {
	m := u.volumes[r.Volume]
	switch {
	case m == nil:
		return true // the volume is deleted
	case r.Kind == name.Data:
		// Fences stay: they tell a late owner that it is one.
		return r.Epoch < m.ChainEpoch && size > segment.TrailerSize || r.Epoch == m.ChainEpoch && r.Num < m.ChainNext
	}
	return r.Epoch < m.Epoch
}
