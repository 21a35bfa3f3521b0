package lsvd

import (
	"bytes"
	"slices"
	"testing"

	"miren.dev/runtime/lsvd/inspect"
	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/pkg/errs"
)

// TestCheckFindsExactDamage damages one object after the other, and finds exactly that one
// and exactly the ranges that cannot be read.
func TestCheckFindsExactDamage(t *testing.T) {
	for seed := range uint64(4) {
		s := used(t, seed)
		s.check("snapshot", s.d.Snapshot(s.ctx(), "one"))
		for range 20 {
			s.change()
		}
		s.check("drain", s.d.Drain(s.ctx()))
		s.fs.Kill()
		steps := 0
		r, err := inspect.Check(s.ctx(), s.st, s.id, s.opts.Key, true, func(done, total int64) {
			if steps++; done > total {
				t.Errorf("%d of %d", done, total)
			}
		})
		s.check("check", err)
		if !r.OK() || r.Segments == 0 || r.Maps == 0 || r.Manifests != 2 || steps != r.Segments+1 || r.Checked < r.Bytes {
			s.fatal("of a sound volume: %+v, %d steps", r, steps)
		}
		keys, data := s.objects()
		for _, key := range keys {
			ref, ok := name.ParseKey(key)
			missing := s.rng.IntN(2) == 0
			hurt := map[string][]byte{}
			for k, b := range data {
				hurt[k] = b
			}
			if missing {
				delete(hurt, key)
			} else {
				hurt[key] = bytes.Clone(data[key])
				hurt[key][s.rng.IntN(len(data[key]))] ^= 4
			}
			s.withObjects(hurt)
			r, err := inspect.Check(s.ctx(), s.st, s.id, s.opts.Key, true, nil)
			if key == name.Manifest(s.id) && missing {
				if !errs.Is(err, errs.NotFound) {
					s.fatal("without a manifest: %v", err)
				}
				continue
			}
			s.check("check", err)
			if !slices.ContainsFunc(r.Damage, func(d inspect.Damage) bool { return d.Key == key }) {
				named := key == name.Manifest(s.id) || !ok && !missing
				for _, v := range []string{"", "one"} {
					m, err := manifest.LoadNamed(s.ctx(), s.st, s.id, v)
					if err != nil {
						continue
					}
					named = named || slices.Contains(m.Maps, ref)
					for _, x := range m.Segments {
						named = named || x.Ref == ref
					}
				}
				if named {
					s.fatal("damage of %s (missing: %v) was not found: %+v", key, missing, r)
				}
				continue
			}
			if len(r.Damage) != 1 || r.Damage[0].Err == nil {
				s.fatal("%s: %+v", key, r.Damage)
			}
			if missing != r.Damage[0].Missing && ok {
				s.fatal("%s: missing %v: %+v", key, missing, r.Damage)
			}
		}
		s.withObjects(data)
	}
}

func TestInfoOfOpenAndClonedVolume(t *testing.T) {
	s := used(t, 2)
	ctx := s.ctx()
	s.check("snapshot", s.d.Snapshot(ctx, "one"))
	i, err := inspect.Info(ctx, s.st, s.id)
	s.check("info", err)
	if i.Clean || i.Owner != s.d.Owner() || i.Size != s.d.Size() || len(i.Snapshots) != 1 || i.Segments == 0 || i.Stored == 0 {
		t.Errorf("of an open volume: %+v", i)
	}
	clone := NewID()
	s.check("clone", Clone(ctx, s.st, s.id, "one", clone, s.opts.Key))
	s.freeze()
	_, err = s.d.publish(ctx)
	s.check("publish", err)
	for range 5 {
		s.change()
	}
	s.freeze()
	_, err = s.d.publish(ctx)
	s.check("publish", err)
	d, err := inspect.Dump(ctx, s.st, s.id, "", s.opts.Key)
	s.check("dump", err)
	if d.Checkpoint == "" || len(d.Table) != i.Segments || len(d.Chain) == 0 || d.Fence != "" || d.Mapped == 0 {
		t.Errorf("%+v", d)
	}
	live := int64(0)
	for _, x := range d.Table {
		live += x.Live
	}
	if live != d.Mapped {
		t.Errorf("%d blocks are mapped, %d live", d.Mapped, live)
	}
	s.check("close", s.d.Close(ctx))
	if i, err = inspect.Info(ctx, s.st, s.id); err != nil || !i.Clean {
		t.Errorf("of a closed volume: %+v %v", i, err)
	}
	_, data := s.objects()
	data[name.Manifest(clone)][20] ^= 1
	s.withObjects(data)
	all, err := inspect.List(ctx, s.st)
	s.check("list", err)
	if len(all) != 2 {
		t.Fatalf("%+v", all)
	}
	for _, v := range all {
		if (v.Err != nil) != (v.ID == clone) || v.ID == s.id && (v.Revision != i.Revision || !slices.Equal(v.Snapshots, i.Snapshots) || len(v.Snapshots) == 0) {
			t.Errorf("%+v", v)
		}
	}
	if _, err := inspect.Info(ctx, s.st, NewID()); !errs.Is(err, errs.NotFound) {
		t.Errorf("of nothing: %v", err)
	}
}
