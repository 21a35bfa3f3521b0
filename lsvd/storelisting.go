package lsvd

import (
	"context"
	"slices"
	"sync"

	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/segment"
)

// storeListing is what Open reads of the store besides the manifest: which
// objects exist, and the directory of the map. It is read while the claim is
// made. That is safe: the claim replaces exactly the manifest that the listing
// is of, so this manifest was in force all the while, and objects that it names
// are not deleted. If the claim fails, the listing is discarded.
type storeListing struct {
	sizes  map[string]int64 // of the named objects that exist
	fences []name.Ref       // of the volume, in order, unless it is closed

	dir    *manifest.Directory // of the newest checkpoint, if there is one
	tail   []byte              // the end of its object, with which it was read
	dirErr error
}

// listObjects reads the listing of m, and meanwhile calls claim.
func (d *Device) listObjects(ctx context.Context, m *manifest.Manifest, claim func() error) (*storeListing, error) {
	v := &storeListing{sizes: map[string]int64{}}
	var mu sync.Mutex
	var steps []func(ctx context.Context) error
	prefixes, named := named(m)
	own := name.Prefix(d.vol) + name.Data.String() + "/"
	if !m.Clean && !slices.Contains(prefixes, own) {
		prefixes = append(prefixes, own)
	}
	for _, p := range prefixes {
		steps = append(steps, func(ctx context.Context) error {
			for i, err := range d.st.List(ctx, p) {
				if err != nil {
					return err
				}
				if named[i.Key] {
					mu.Lock()
					v.sizes[i.Key] = i.Size
					mu.Unlock()
				} else if r, ok := name.ParseKey(i.Key); ok && p == own && i.Size == segment.TrailerSize {
					v.fences = append(v.fences, r)
				}
			}
			return nil
		})
	}
	if m.Root != nil {
		steps = append(steps, func(ctx context.Context) error {
			v.dir, v.tail, v.dirErr = manifest.LoadDirectory(ctx, d.st, m.Root, d.keys)
			return nil // missing objects are reported first
		})
	}
	if d.opts.manual {
		err := claim()
		for _, step := range steps {
			if err == nil {
				err = step(ctx)
			}
		}
		return v, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make([]error, len(steps))
	var wg sync.WaitGroup
	for i, step := range steps {
		wg.Go(func() { failed[i] = step(ctx) })
	}
	err := claim()
	if err != nil {
		cancel()
	}
	wg.Wait()
	for _, f := range failed {
		if err == nil {
			err = f
		}
	}
	return v, err
}

// named returns the keys of the segments and checkpoints that m names, and the
// prefixes that they have.
func named(m *manifest.Manifest) (prefixes []string, keys map[string]bool) {
	keys = map[string]bool{}
	add := func(r name.Ref) {
		keys[r.Key()] = true
		if p := name.Prefix(r.Volume) + r.Kind.String() + "/"; !slices.Contains(prefixes, p) {
			prefixes = append(prefixes, p)
		}
	}
	for i := range m.Segments {
		add(m.Segments[i].Ref)
	}
	for _, r := range m.Maps {
		add(r)
	}
	return prefixes, keys
}
