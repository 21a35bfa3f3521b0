// Package catalog gives the volumes of a store names, and lists them.
//
//	names/<name>    which volume has the name; made with the volume
//	ids/<id>        the same object, made before: which name the volume may have
//	owners/<id>     who opened the volume last, for people: advice, never a lock
//
// A volume exists if its manifest does (package lsvd). A name that points to a
// volume without manifest is what a crash left, and is free. The volume is made
// before its name and deleted before it, so a crash leaves at worst a volume
// without a name, which is listed and reachable by its ID.
//
// A name object, little-endian: "LSVDNAME", version u32, volume [16], uvarint
// length of the name, the name, CRC-32C of all before u32.
package catalog

import (
	"cmp"
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/inspect"
	"miren.dev/runtime/lsvd/internal/wire"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/suggest"
)

const (
	prefix  = "names/"
	ids     = "ids/"
	magic   = "LSVDNAME"
	version = 1
)

// parallel bounds the requests that a listing has under way.
const parallel = 16

var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// Volume is what the store says of a volume.
type Volume struct {
	inspect.VolumeInfo
	Name string // empty: it has none
}

// Label is the name, or the ID of a volume without one.
func (v *Volume) Label() string { return cmp.Or(v.Name, v.ID.String()) }

// CheckName reports a name that a volume cannot have.
func CheckName(s string) error {
	if !validName.MatchString(s) {
		return errs.New(errs.InvalidArgument, "volume name %q: use 1 to 63 letters, digits, '.', '_' and '-', beginning with a letter or digit", s)
	}
	if _, err := lsvd.ParseID(s); err == nil {
		return errs.New(errs.InvalidArgument, "volume name %q looks like an ID", s)
	}
	return nil
}

// Create makes an empty volume with a name; with a key it is encrypted.
func Create(ctx context.Context, st store.Store, volume string, size int64, key []byte) (lsvd.ID, error) {
	return Make(ctx, st, volume, func(id lsvd.ID) error { return lsvd.Create(ctx, st, id, size, key) })
}

// Clone makes a volume with a name and the content of a snapshot. key is that of
// an encrypted volume.
func Clone(ctx context.Context, st store.Store, from lsvd.ID, snapshot, volume string, key []byte) (lsvd.ID, error) {
	return Make(ctx, st, volume, func(id lsvd.ID) error { return lsvd.Clone(ctx, st, from, snapshot, id, key) })
}

// Make makes a volume by f, which leaves nothing if it fails, and names it
// when it is complete: until then no lookup of the name finds it.
func Make(ctx context.Context, st store.Store, volume string, f func(lsvd.ID) error) (lsvd.ID, error) {
	if err := CheckName(volume); err != nil {
		return lsvd.ID{}, err
	}
	taken := errs.New(errs.AlreadyExists, "a volume named %q exists", volume)
	old, stale, err := resolve(ctx, st, volume)
	switch {
	case err == nil:
		if _, err := load(ctx, st, old); err == nil {
			return lsvd.ID{}, taken
		} else if !errs.Is(err, errs.NotFound) {
			return lsvd.ID{}, err
		}
	case !errs.Is(err, errs.NotFound):
		return lsvd.ID{}, err
	}
	id := lsvd.NewID()
	if err := f(id); err != nil {
		return lsvd.ID{}, err
	}
	if _, err = st.Create(ctx, ids+id.String(), encode(volume, id)); err == nil {
		if stale == "" {
			_, err = st.Create(ctx, prefix+volume, encode(volume, id))
		} else {
			_, err = st.Replace(ctx, prefix+volume, encode(volume, id), stale)
		}
	}
	if err == nil {
		return id, nil
	}
	// An attempt of unknown outcome may have gone through.
	if have, _, rerr := resolve(ctx, st, volume); rerr == nil && have == id {
		return id, nil
	}
	clean := context.WithoutCancel(ctx)
	if derr := errors.Join(lsvd.Delete(clean, st, id), st.Delete(clean, ids+id.String())); derr != nil {
		return lsvd.ID{}, errs.New(errs.ClassOf(err), "name the new volume %s: %w", id, err).WithHint("the volume without a name can be deleted by its ID")
	}
	if errs.Is(err, errs.AlreadyExists) || errs.Is(err, errs.Conflict) {
		return lsvd.ID{}, taken
	}
	return lsvd.ID{}, errs.Wrap(err, "name the new volume")
}

// Find returns the volume with a name or ID.
func Find(ctx context.Context, st store.Store, nameOrID string) (*Volume, error) {
	id, err := lsvd.ParseID(nameOrID)
	named := err != nil
	if named {
		if err := CheckName(nameOrID); err != nil {
			return nil, err
		}
		if id, _, err = resolve(ctx, st, nameOrID); err != nil && !errs.Is(err, errs.NotFound) {
			return nil, err
		}
	}
	var v *Volume
	if err == nil || !named {
		v, err = load(ctx, st, id)
	}
	if errs.Is(err, errs.NotFound) {
		return nil, notFound(ctx, st, nameOrID)
	}
	if err != nil {
		return nil, errs.Wrap(err, "read volume %s", nameOrID)
	}
	if named {
		v.Name = nameOrID
		return v, nil
	}
	v.Name, err = nameOf(ctx, st, id)
	return v, err
}

// nameOf returns the name of a volume, or "" if it has none.
func nameOf(ctx context.Context, st store.Store, id lsvd.ID) (string, error) {
	key := ids + id.String()
	b, _, err := st.Get(ctx, key)
	if errs.Is(err, errs.NotFound) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	volume, has, err := decode(key, b)
	if err == nil && has != id {
		err = wire.Corrupt("object %s is of volume %s", key, has)
	}
	if err != nil {
		return "", err
	}
	switch has, _, err = resolve(ctx, st, volume); {
	case errs.Is(err, errs.NotFound) || err == nil && has != id:
		return "", nil // it was not made, or not deleted, to the end
	case err != nil:
		return "", err
	}
	return volume, nil
}

func notFound(ctx context.Context, st store.Store, volume string) error {
	e := errs.New(errs.NotFound, "there is no volume %q in the store", volume)
	var known []string
	for i, err := range st.List(ctx, prefix) {
		if err != nil {
			break // only a suggestion is lost
		}
		known = append(known, strings.TrimPrefix(i.Key, prefix))
	}
	if s := suggest.Nearest(volume, known); s != "" {
		return e.WithHint("did you mean %q?", s)
	}
	return e.WithHint("`r lsvd list` shows what there is; is it the right --store?")
}

// List returns all volumes, by name; those without one come last. One that
// cannot be read has Err set.
func List(ctx context.Context, st store.Store) ([]*Volume, error) {
	names, err := readNames(ctx, st)
	if err != nil {
		return nil, err
	}
	all, err := inspect.List(ctx, st)
	if err != nil {
		return nil, err
	}
	var out []*Volume
	for _, i := range all {
		out = append(out, &Volume{VolumeInfo: i, Name: names[i.ID]})
	}
	slices.SortFunc(out, func(a, b *Volume) int {
		if (a.Name == "") != (b.Name == "") {
			return cmp.Compare(b.Name, a.Name) // the empty one last
		}
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID.String(), b.ID.String()))
	})
	return out, nil
}

// Delete forgets a volume, which must not be open anywhere, and its name. With
// force it does so even if the volume may be open: its owner fails then. It
// refuses while the volume has snapshots. lsvd.Sweep frees the space.
func Delete(ctx context.Context, st store.Store, v *Volume, force bool) error {
	now, err := load(ctx, st, v.ID)
	if err != nil {
		return errs.Wrap(err, "delete volume %s", v.Label())
	}
	if !now.Clean && !force {
		return errs.New(errs.FailedPrecondition, "volume %s is open%s, or was when its machine died", v.Label(), by(ctx, st, now)).With("reason", "open")
	}
	if err := lsvd.Delete(ctx, st, v.ID); err != nil {
		return err
	}
	for _, key := range []string{ownerKey(v.ID), ids + v.ID.String()} {
		if err := st.Delete(ctx, key); err != nil {
			return err
		}
	}
	if v.Name == "" {
		return nil
	}
	if id, _, err := resolve(ctx, st, v.Name); errs.Is(err, errs.NotFound) || err == nil && id != v.ID {
		return nil // another process has made it anew
	} else if err != nil {
		return err
	}
	return st.Delete(ctx, prefix+v.Name)
}

func load(ctx context.Context, st store.Store, id lsvd.ID) (*Volume, error) {
	i, err := inspect.Info(ctx, st, id)
	if err != nil {
		return nil, err
	}
	return &Volume{VolumeInfo: i}, nil
}

// resolve reads a name; the version is set if the object is there.
func resolve(ctx context.Context, st store.Store, volume string) (lsvd.ID, store.Version, error) {
	b, v, err := st.Get(ctx, prefix+volume)
	if err != nil {
		return lsvd.ID{}, "", err
	}
	have, id, err := decode(prefix+volume, b)
	if err == nil && have != volume {
		err = wire.Corrupt("object %s%s is the name %q", prefix, volume, have)
	}
	return id, v, err
}

// readNames returns the names of all volumes that have one.
func readNames(ctx context.Context, st store.Store) (map[lsvd.ID]string, error) {
	var mu sync.Mutex
	names := map[lsvd.ID]string{}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for i, err := range st.List(ctx, prefix) {
		if err != nil {
			g.Wait()
			return nil, err
		}
		g.Go(func() error {
			volume := strings.TrimPrefix(i.Key, prefix)
			id, _, err := resolve(gctx, st, volume)
			if errs.Is(err, errs.NotFound) {
				return nil // deleted meanwhile
			}
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			names[id] = volume
			return nil
		})
	}
	return names, g.Wait()
}

func encode(volume string, id lsvd.ID) []byte {
	var w wire.Writer
	w.Bytes([]byte(magic))
	w.U32(version)
	w.Bytes(id[:])
	w.String(volume)
	w.U32(wire.CRC(w.B))
	return w.B
}

func decode(key string, b []byte) (volume string, id lsvd.ID, err error) {
	if len(b) < 16 || string(b[:8]) != magic {
		return "", id, wire.Corrupt("object %s is not a name", key)
	}
	sum := wire.Reader{B: b[len(b)-4:]}
	if sum.U32() != wire.CRC(b[:len(b)-4]) {
		return "", id, wire.Corrupt("object %s is damaged", key)
	}
	r := wire.Reader{B: b[8 : len(b)-4]}
	if v := r.U32(); v != version {
		return "", id, errs.New(errs.FailedPrecondition, "object %s has format version %d, this program knows %d", key, v, version).
			WithHint("use the newer program that wrote it")
	}
	copy(id[:], r.Bytes(len(id)))
	volume = r.String()
	return volume, id, r.End()
}
