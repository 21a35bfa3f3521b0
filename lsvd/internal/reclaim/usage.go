package reclaim

import (
	"context"
	"maps"
	"slices"

	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

// Usage is what the manifests in a store name.
type Usage struct {
	volumes map[name.Volume]*manifest.Manifest
	named   map[name.Volume]bool // volumes with any manifest, be it of a snapshot
	// Refs are the objects that they name.
	Refs map[name.Ref]bool
}

// maxListings bounds how often ReadUsage lists the manifests.
const maxListings = 16

// ReadUsage reads every manifest, of volumes and snapshots, but those under the
// keys except. If one cannot be read it fails: what it names is unknown.
//
// A single listing is not enough. A clone may be created behind its position, and
// the snapshot that it was made of be deleted in front of it: neither is seen, and
// what the clone needs seems to be garbage. So the listing is repeated until it has
// the keys of the one before, whose manifests were all read in between. Then a clone
// that is not among them was created later, from a snapshot that is.
// Unavailable if manifests come and go faster.
func ReadUsage(ctx context.Context, st store.Store, except ...string) (*Usage, error) {
	var before map[string]*manifest.Manifest
	for range maxListings {
		now, same := map[string]*manifest.Manifest{}, before != nil
		for i, err := range st.List(ctx, name.Manifests) {
			if err != nil {
				return nil, err
			}
			if slices.Contains(except, i.Key) {
				continue
			}
			now[i.Key] = before[i.Key]
			same = same && now[i.Key] != nil
		}
		if same && len(now) == len(before) {
			u := &Usage{volumes: map[name.Volume]*manifest.Manifest{}, named: map[name.Volume]bool{}, Refs: map[name.Ref]bool{}}
			for _, m := range now {
				if !m.Snapshot {
					u.volumes[m.Volume] = m
				}
				u.named[m.Volume] = true
				u.Add(m)
			}
			return u, nil
		}
		for _, key := range slices.Sorted(maps.Keys(now)) {
			m, _, err := manifest.Load(ctx, st, key)
			if err != nil && !errs.Is(err, errs.NotFound) {
				return nil, err
			}
			now[key] = m // nil: deleted meanwhile, which the next listing shows
		}
		before = now
	}
	return nil, errs.New(errs.Unavailable, "volumes and snapshots come and go too fast to tell what they use")
}

// Add adds what another manifest names.
func (u *Usage) Add(m *manifest.Manifest) {
	for _, s := range m.Segments {
		u.Refs[s.Ref] = true
	}
	for _, r := range m.Maps {
		u.Refs[r] = true
	}
	if m.Boot != nil {
		u.Refs[*m.Boot] = true
	}
}
