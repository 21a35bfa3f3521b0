package manifest

import (
	"context"
	"strings"

	"miren.dev/runtime/lsvd/internal/extent"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

// LostSource is the segment number of blocks that are lost for good: a page of
// the map was damaged when the loss was accepted.
const LostSource = 0

// Load reads a manifest of a volume or snapshot.
func Load(ctx context.Context, st store.Store, key string) (m *Manifest, v store.Version, err error) {
	err = store.RetryCorrupt(func() error {
		var b []byte
		if b, v, err = st.Get(ctx, key); err != nil {
			return err
		}
		m, err = Decode(b)
		return errs.Wrap(err, "read %s", key)
	})
	return m, v, err
}

// LoadSnapshot reads the manifest of a snapshot.
func LoadSnapshot(ctx context.Context, st store.Store, id name.Volume, snapshot string) (*Manifest, error) {
	key, err := name.Snapshot(id, snapshot)
	if err != nil {
		return nil, err
	}
	m, _, err := Load(ctx, st, key)
	return m, errs.Wrap(err, "snapshot %q of volume %s", snapshot, id)
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
func LoadDirectory(ctx context.Context, st store.Store, root *Root) (dir *Directory, tail []byte, err error) {
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
				dir, need, err = DecodeDirectory(root.Ref, root.Size, b)
			}
			return err
		})
		if err != nil || dir != nil {
			return dir, tail, err
		}
		n = need
	}
}

// VerifyCheckpoint verifies a whole checkpoint of the map.
func VerifyCheckpoint(r name.Ref, b []byte) error {
	n := int64(len(b))
	dir, _, err := DecodeDirectory(r, n, b)
	if err != nil {
		return err
	}
	for _, p := range dir.Pages {
		if dir.Objects[p.Object] != r {
			continue
		}
		if _, err := DecodePage(r, b[min(int64(p.Off), n):min(int64(p.Off)+int64(p.Len), n)]); err != nil {
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
	dir, _, err := LoadDirectory(ctx, st, m.Root)
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
			runs, err = DecodePage(ref, b[min(int(p.Off), len(b)):min(int(p.Off)+int(p.Len), len(b))])
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
