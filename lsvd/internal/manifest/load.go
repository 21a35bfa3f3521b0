package manifest

import (
	"context"
	"fmt"
	"strings"

	"miren.dev/runtime/lsvd/internal/extent"
	"miren.dev/runtime/lsvd/internal/keyring"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

// LostSource is the segment number of blocks that are lost for good: a page of
// the map was damaged when the loss was accepted.
const LostSource = 0

// Load reads a manifest of a volume or snapshot. It does not authenticate that of
// an encrypted volume: see [Open].
func Load(ctx context.Context, st store.Store, key string) (*Manifest, store.Version, error) {
	return LoadWith(ctx, st, key, nil)
}

// LoadWith reads a manifest, and authenticates it if there are keys.
func LoadWith(ctx context.Context, st store.Store, key string, keys *keyring.Ring) (m *Manifest, v store.Version, err error) {
	m, _, v, err = load(ctx, st, key, keys)
	return m, v, err
}

func load(ctx context.Context, st store.Store, key string, keys *keyring.Ring) (m *Manifest, b []byte, v store.Version, err error) {
	err = store.RetryCorrupt(func() error {
		if b, v, err = st.Get(ctx, key); err != nil {
			return err
		}
		if m, err = Decode(b); err == nil && keys != nil {
			err = m.authenticate(key, b, keys)
		}
		return errs.Wrap(err, "read %s", key)
	})
	return m, b, v, err
}

// LoadSnapshot reads the manifest of a snapshot, as [Load] does.
func LoadSnapshot(ctx context.Context, st store.Store, id name.Volume, snapshot string) (*Manifest, error) {
	m, _, err := LoadSource(ctx, st, id, snapshot)
	return m, err
}

// LoadSource is LoadSnapshot, and also returns the object.
func LoadSource(ctx context.Context, st store.Store, id name.Volume, snapshot string) (*Manifest, []byte, error) {
	key, err := name.Snapshot(id, snapshot)
	if err != nil {
		return nil, nil, err
	}
	m, b, _, err := load(ctx, st, key, nil)
	return m, b, errs.Wrap(err, "snapshot %q of volume %s", snapshot, id)
}

// LoadNamed reads the manifest of a volume, or of its snapshot if snapshot is
// not empty.
func LoadNamed(ctx context.Context, st store.Store, id name.Volume, snapshot string) (*Manifest, error) {
	if snapshot != "" {
		return LoadSnapshot(ctx, st, id, snapshot)
	}
	m, _, err := Load(ctx, st, name.Manifest(id))
	return m, errs.Wrap(err, "volume %s", id)
}

// Open reads the manifest of a volume, or of its snapshot if snapshot is not
// empty, for a reader of its data. user is the user's key; nil: the volume is not
// encrypted. FailedPrecondition: it is, or is not, or has another key. Corrupt:
// the manifest is damaged or not authentic.
func Open(ctx context.Context, st store.Store, id name.Volume, snapshot string, user []byte) (m *Manifest, v store.Version, err error) {
	key, what := name.Manifest(id), "volume "+id.String()
	if snapshot != "" {
		if key, err = name.Snapshot(id, snapshot); err != nil {
			return nil, "", err
		}
		what = fmt.Sprintf("snapshot %q of %s", snapshot, what)
	}
	var keys *keyring.Ring
	if user != nil {
		if keys, _, err = keyring.Load(ctx, st, id, user); err != nil && !errs.Is(err, errs.NotFound) {
			return nil, "", err
		}
	}
	m, v, err = LoadWith(ctx, st, key, keys)
	switch {
	case err != nil:
		err = errs.Wrap(err, "%s", what)
	case m.Volume != id || m.Snapshot != (snapshot != ""):
		err = errs.New(errs.Corrupt, "%s has the manifest of something else", what)
	case m.Encrypted && user == nil:
		err = errs.New(errs.FailedPrecondition, "%s is encrypted", what).WithHint("give its key")
	case !m.Encrypted && user != nil:
		err = errs.New(errs.FailedPrecondition, "%s is not encrypted, and a key was given", what).WithHint("leave out the key")
	case m.Encrypted && keys == nil:
		err = errs.New(errs.Corrupt, "%s is encrypted, and the object %s with its data keys is missing", what, name.Keys(id)).WithHint("restore the object")
	}
	if err != nil {
		return nil, "", err
	}
	return m, v, nil
}

// Snapshots lists the snapshots of a volume.
func Snapshots(ctx context.Context, st store.Store, id name.Volume) ([]string, error) {
	var names []string
	for i, err := range st.List(ctx, name.Snapshots(id)) {
		if err != nil {
			return nil, err
		}
		names = append(names, strings.TrimPrefix(i.Key, name.Snapshots(id)))
	}
	return names, nil
}

// directoryTail is how much of the end of a checkpoint is read at first: it
// mostly has the directory, and some pages before it.
const directoryTail = 512 << 10

// LoadDirectory reads the directory of a checkpoint, and returns with it the
// end of the object that it was read with.
func LoadDirectory(ctx context.Context, st store.Store, root *Root, keys *keyring.Ring) (dir *Directory, tail []byte, err error) {
	n := min(root.Size, directoryTail)
	for {
		var need int64
		err = store.RetryCorrupt(func() error {
			b, err := st.GetRange(ctx, root.Ref.Key(), root.Size-n, n)
			tail = b
			if errs.Is(err, errs.NotFound) || errs.Is(err, errs.InvalidArgument) {
				return errs.New(errs.Corrupt, "checkpoint %s is missing or cut off", root.Ref)
			}
			if err == nil {
				dir, need, err = DecodeDirectory(root.Ref, keys, root.Size, b)
			}
			return err
		})
		if err != nil || dir != nil {
			return dir, tail, err
		}
		n = need
	}
}

// VerifyCheckpoint verifies a whole checkpoint of the map: with keys that it is
// authentic, without them its checksums.
func VerifyCheckpoint(r name.Ref, keys *keyring.Ring, b []byte) error {
	n := int64(len(b))
	dir, _, err := DecodeDirectory(r, keys, n, b)
	if err != nil {
		return err
	}
	for _, p := range dir.Pages {
		if dir.Objects[p.Object] != r {
			continue
		}
		page := b[min(int64(p.Off), n):min(int64(p.Off)+int64(p.Len), n)]
		if dir.authenticated && keys == nil {
			_, err = checkPage(r, page)
		} else {
			_, err = DecodePage(r, p.Leaf, keys, page)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// EachLeaf calls f for every leaf of the map that m's checkpoint has, in
// order, and checks that it names blocks that exist.
func EachLeaf(ctx context.Context, st store.Store, m *Manifest, f func(leaf uint64, runs []extent.Run) error) error {
	if m.Root == nil {
		return nil
	}
	blocks := map[uint64]uint64{}
	for _, s := range m.Segments {
		blocks[s.Num] = s.Blocks
	}
	dir, _, err := LoadDirectory(ctx, st, m.Root, m.Keys)
	if err != nil {
		return err
	}
	objects := make([][]byte, len(dir.Objects))
	for _, p := range dir.Pages {
		if p.Leaf >= extent.MaxBlocks/extent.LeafBlocks {
			return errs.New(errs.Corrupt, "checkpoint %s has a leaf behind the end", m.Root.Ref)
		}
		ref := dir.Objects[p.Object]
		var runs []extent.Run
		err := store.RetryCorrupt(func() (err error) {
			if objects[p.Object] == nil {
				if objects[p.Object], _, err = st.Get(ctx, ref.Key()); errs.Is(err, errs.NotFound) {
					return errs.New(errs.Corrupt, "checkpoint %s is missing", ref)
				}
				if err != nil {
					return err
				}
			}
			b := objects[p.Object]
			runs, err = DecodePage(ref, p.Leaf, m.Keys, b[min(int(p.Off), len(b)):min(int(p.Off)+int(p.Len), len(b))])
			if err != nil {
				objects[p.Object] = nil
			}
			return err
		})
		if err != nil {
			return err
		}
		for _, r := range runs {
			if n, ok := blocks[r.Src]; r.Src != LostSource && (!ok || uint64(r.Off)+uint64(r.N) > n) {
				return errs.New(errs.Corrupt, "checkpoint %s names blocks that no segment has", ref)
			}
		}
		if err := f(p.Leaf, runs); err != nil {
			return err
		}
	}
	return nil
}
