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

// Usage is what manifests in a store name.
type Usage struct {
	volumes map[name.Volume]*manifest.Manifest
	named   map[name.Volume]bool // volumes with any manifest, be it of a snapshot
	whole   map[name.Volume]bool // volumes with too many users to read
	// Refs are the objects that they name.
	Refs map[name.Ref]bool
}

// NewUsage returns an empty usage.
func NewUsage() *Usage {
	return &Usage{volumes: map[name.Volume]*manifest.Manifest{}, named: map[name.Volume]bool{}, whole: map[name.Volume]bool{}, Refs: map[name.Ref]bool{}}
}

// MayName reports whether a manifest names the object, or its volume has too many
// users to read.
func (u *Usage) MayName(r name.Ref) bool { return u.Refs[r] || u.whole[r.Volume] }

// ReadUsage lists the manifests at most maxListings times, until quietListings
// listings in a row had the keys of the one before.
const (
	maxListings   = 16
	quietListings = 2
)

// ReadUsage reads every manifest, of volumes and snapshots. If one cannot be read it
// fails: what it names is unknown.
//
// A single listing is not enough. A clone may be created behind its position, and
// the snapshot that it was made of be deleted in front of it: neither is seen, and
// what the clone needs seems to be garbage. So the listing is repeated until it has
// the keys of the one before, whose manifests were all read in between. A snapshot
// that came and went between these two may have left a clone, which a third listing
// shows. Every other clone was created later, from what was read.
// Unavailable if manifests come and go faster.
func ReadUsage(ctx context.Context, st store.Store) (*Usage, error) {
	var before map[string]*manifest.Manifest
	quiet := 0
	for range maxListings {
		now, same := map[string]*manifest.Manifest{}, before != nil
		for i, err := range st.List(ctx, name.Manifests) {
			if err != nil {
				return nil, err
			}
			now[i.Key] = before[i.Key]
			same = same && now[i.Key] != nil
		}
		if same && len(now) == len(before) {
			if quiet++; quiet < quietListings {
				continue
			}
			u := NewUsage()
			for _, m := range now {
				u.Add(m)
			}
			return u, nil
		}
		quiet = 0
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
	u.named[m.Volume] = true
	if !m.Snapshot {
		u.volumes[m.Volume] = m
	}
	each(m, func(r name.Ref) { u.Refs[r] = true })
}

// each calls f with every object that m names.
func each(m *manifest.Manifest, f func(name.Ref)) {
	for _, s := range m.Segments {
		f(s.Ref)
	}
	for _, r := range m.Maps {
		f(r)
	}
	if m.Boot != nil {
		f(*m.Boot)
	}
}
