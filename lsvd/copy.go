package lsvd

import (
	"bytes"
	"context"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/lsvd/internal/boot"
	"miren.dev/runtime/lsvd/internal/extent"
	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/readcache"
	"miren.dev/runtime/lsvd/internal/reclaim"
	"miren.dev/runtime/lsvd/internal/segment"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

// copyParallel bounds the objects that a copy has in memory, each twice while
// it is compared: 128 MiB with segments of 16 MiB.
const copyParallel = 4

// CopyStats says what a copy consists of.
type CopyStats struct {
	Objects, Bytes         int64 // all segments and maps
	SentObjects, SentBytes int64 // of these, what the store did not have
}

// Copy copies a snapshot of a volume to another store, where it is a snapshot
// of the same volume named as: [Clone] and [ReadSnapshot] take it. It sends only
// what earlier copies have not sent, and compares each object with what arrived.
// A repeated call completes a copy that was interrupted. progress may be nil.
//
// FailedPrecondition with the reason "same_store": a volume with these objects
// lives in the other store, whose garbage collection would delete them.
// Corrupt: the snapshot is damaged. Unavailable: try again.
//
// A copy needs no key: it has the bytes of the original, and data keys under the
// user's key of the first copy in the other store ([RotateKey] there changes it).
// A snapshot of an encrypted volume keeps its name, to which it is bound.
//
// Objects are safe from [Sweep] before they arrive: their manifest is first
// created as that of a copy in progress. A sweep that read the manifests before
// that has left its mark, for which Copy does not wait: it returns Unavailable.
func Copy(ctx context.Context, from store.Store, id ID, snapshot string, to store.Store, as string, progress func(CopyStats)) (CopyStats, error) {
	key, err := name.Snapshot(id, as)
	if err != nil {
		return CopyStats{}, err
	}
	pin, err := name.Copying(id, as)
	if err != nil {
		return CopyStats{}, err
	}
	m, data, err := manifest.LoadSource(ctx, from, id, snapshot)
	if err != nil {
		return CopyStats{}, err
	}
	if m.Encrypted && as != snapshot {
		return CopyStats{}, errs.New(errs.FailedPrecondition, "volume %s is encrypted: the copy of its snapshot %q must have the same name, not %q", id, snapshot, as)
	}
	c := &copier{from: from, to: to, m: m, progress: progress}
	switch have, _, err := to.Get(ctx, key); {
	case err == nil && bytes.Equal(have, data): // complete
		for i := range m.Segments {
			c.stats.Bytes += m.Segments[i].Size
		}
		c.stats.Objects = int64(len(c.refs()))
		return c.stats, to.Delete(ctx, pin)
	case err == nil && decodes(key, have) != nil:
		return c.stats, errs.New(errs.Unavailable, "manifest %s reads as damaged", key)
	case err == nil:
		return c.stats, errs.New(errs.AlreadyExists, "the store has another snapshot %q of volume %s", as, id)
	case !errs.Is(err, errs.NotFound):
		return c.stats, err
	}
	if err := c.absent(ctx); err != nil {
		return c.stats, err
	}
	if err := createNamed(ctx, to, pin, data); err != nil {
		return c.stats, errs.Wrap(err, "begin the copy %q", as)
	}
	if err := reclaim.CheckSweeps(ctx, to); err != nil {
		return c.stats, err
	}
	if m.Encrypted {
		if err := c.sendKeys(ctx); err != nil {
			return c.stats, err
		}
	}
	if err := c.listTarget(ctx); err != nil {
		return c.stats, err
	}
	if err := c.send(ctx); err != nil {
		if errs.Is(err, errs.NotFound) {
			if _, gone := manifest.LoadSnapshot(ctx, from, id, snapshot); errs.Is(gone, errs.NotFound) {
				return c.stats, errs.New(errs.NotFound, "snapshot %q of volume %s was deleted while it was copied", snapshot, id)
			}
			return c.stats, errs.New(errs.Corrupt, "the snapshot is damaged: %w", err)
		}
		return c.stats, err
	}
	if err := createNamed(ctx, to, key, data); err != nil {
		return c.stats, errs.Wrap(err, "complete the copy %q", as)
	}
	return c.stats, to.Delete(ctx, pin)
}

// DeleteCopy forgets a copy, complete or not; [Sweep] frees what only it used.
// That there is none is no error.
func DeleteCopy(ctx context.Context, st store.Store, id ID, as string) error {
	key, err := name.Snapshot(id, as)
	if err != nil {
		return err
	}
	pin, err := name.Copying(id, as)
	if err != nil {
		return err
	}
	if err := st.Delete(ctx, key); err != nil {
		return err
	}
	return st.Delete(ctx, pin)
}

// copier copies one snapshot.
type copier struct {
	from, to store.Store
	m        *manifest.Manifest
	progress func(CopyStats)

	sizes   map[string]int64  // of the objects that the other store has
	arrived map[name.Ref]bool // those of complete copies

	mu    sync.Mutex
	stats CopyStats
}

// refs returns the objects of the snapshot with their sizes; of a map and a boot
// list it is not known: -1.
func (c *copier) refs() map[name.Ref]int64 {
	all := map[name.Ref]int64{}
	for i := range c.m.Segments {
		all[c.m.Segments[i].Ref] = c.m.Segments[i].Size
	}
	for _, r := range c.m.Maps {
		all[r] = -1
	}
	if c.m.Boot != nil {
		all[*c.m.Boot] = -1
	}
	return all
}

// volumes returns the volumes whose objects the snapshot has: its own, and
// those that it was cloned from.
func (c *copier) volumes() []name.Volume {
	all := []name.Volume{c.m.Volume}
	for r := range c.refs() {
		if !slices.Contains(all, r.Volume) {
			all = append(all, r.Volume)
		}
	}
	return all
}

// absent refuses a store that has one of the volumes itself. Its owner deletes
// objects without regard to copies that begin.
func (c *copier) absent(ctx context.Context) error {
	for _, v := range c.volumes() {
		switch _, _, err := c.to.Get(ctx, name.Manifest(v)); {
		case err == nil:
			return errs.New(errs.FailedPrecondition, "the store has volume %s itself", v).With("reason", "same_store").
				WithHint("copy to another directory, or to another prefix of the bucket")
		case !errs.Is(err, errs.NotFound):
			return err
		}
	}
	return nil
}

// listTarget finds out what the other store has.
func (c *copier) listTarget(ctx context.Context) error {
	c.sizes, c.arrived = map[string]int64{}, map[name.Ref]bool{}
	for _, v := range c.volumes() {
		for i, err := range c.to.List(ctx, name.Prefix(v)) {
			if err != nil {
				return err
			}
			c.sizes[i.Key] = i.Size
		}
	}
	copies, err := Snapshots(ctx, c.to, c.m.Volume)
	if err != nil {
		return err
	}
	for _, s := range copies {
		m, err := manifest.LoadSnapshot(ctx, c.to, c.m.Volume, s)
		if errs.Is(err, errs.NotFound) || errs.Is(err, errs.Corrupt) {
			continue // what it has is compared
		}
		if err != nil {
			return err
		}
		for i := range m.Segments {
			c.arrived[m.Segments[i].Ref] = true
		}
		for _, r := range m.Maps {
			c.arrived[r] = true
		}
		if m.Boot != nil {
			c.arrived[*m.Boot] = true
		}
	}
	return nil
}

// sendKeys sends the data keys of the volume. Those that the other store has stay
// if they are whole: they are the same, maybe under another user's key.
func (c *copier) sendKeys(ctx context.Context) error {
	key := name.Keys(c.m.Volume)
	var data []byte
	err := store.RetryCorrupt(func() (err error) {
		if data, _, err = c.from.Get(ctx, key); err == nil {
			err = decodes(key, data)
		}
		return err
	})
	if err != nil {
		return errs.Wrap(err, "read the data keys of volume %s", c.m.Volume)
	}
	for try := 0; ; try++ {
		have, _, err := c.to.Get(ctx, key)
		switch {
		case err == nil && decodes(key, have) == nil:
			return nil
		case err == nil && try < 3:
			continue // the transfer may have been cut off
		case err == nil:
			err = c.to.Delete(ctx, key)
		case errs.Is(err, errs.NotFound):
			err = createNamed(ctx, c.to, key, data)
		}
		if err != nil && !errs.Is(err, errs.AlreadyExists) || try > 4 {
			return errs.Wrap(err, "send the data keys of volume %s", c.m.Volume)
		}
	}
}

// send sends what the other store does not have.
func (c *copier) send(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(copyParallel)
	for r, size := range c.refs() {
		if gctx.Err() != nil {
			break
		}
		g.Go(func() error { return c.object(gctx, r, size) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// object sends one object if it is not there.
func (c *copier) object(ctx context.Context, r name.Ref, size int64) error {
	have, there := c.sizes[r.Key()]
	if there && c.arrived[r] && (size < 0 || have == size) {
		c.count(have, false)
		return nil
	}
	var data []byte
	err := store.RetryCorrupt(func() (err error) {
		if data, _, err = c.from.Get(ctx, r.Key()); err != nil {
			return err
		}
		switch r.Kind {
		case name.Map:
			return manifest.VerifyCheckpoint(r, nil, data)
		case name.Boot:
			_, err = boot.Decode(r, data)
			return err
		}
		if int64(len(data)) != size {
			return errs.New(errs.Corrupt, "segment %s has %d bytes, not %d", r, len(data), size)
		}
		return segment.Intact(r, data)
	})
	if r.Kind == name.Boot && (errs.Is(err, errs.NotFound) || errs.Is(err, errs.Corrupt)) {
		return nil // only a hint
	}
	if err != nil {
		return err
	}
	if there { // of a copy that was interrupted, or deleted
		switch err := c.compare(ctx, r.Key(), data); {
		case err == nil:
			c.count(int64(len(data)), false)
			return nil
		case !errs.Is(err, errs.Corrupt) && !errs.Is(err, errs.NotFound):
			return err
		}
		if err := c.to.Delete(ctx, r.Key()); err != nil {
			return err
		}
	}
	if _, err := c.to.Create(ctx, r.Key(), data); err != nil && !errs.Is(err, errs.AlreadyExists) {
		return err
	}
	if err := c.compare(ctx, r.Key(), data); errs.Is(err, errs.Corrupt) {
		return errs.New(errs.Unavailable, "%w", err) // the next attempt sends it again
	} else if err != nil {
		return err
	}
	c.count(int64(len(data)), true)
	return nil
}

// compare returns Corrupt if an object of the other store is not data.
func (c *copier) compare(ctx context.Context, key string, data []byte) error {
	return store.RetryCorrupt(func() error {
		have, _, err := c.to.Get(ctx, key)
		if err == nil && !bytes.Equal(have, data) {
			return errs.New(errs.Corrupt, "object %s did not arrive as it was sent", key)
		}
		return err
	})
}

func (c *copier) count(size int64, sent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Objects++
	c.stats.Bytes += size
	if sent {
		c.stats.SentObjects++
		c.stats.SentBytes += size
	}
	if c.progress != nil {
		c.progress(c.stats)
	}
}

// ReadSnapshot calls f with all data of a snapshot and their offsets, from
// several goroutines at a time. What it leaves out reads as zeros. Corrupt: a
// part is damaged.
func ReadSnapshot(ctx context.Context, st store.Store, id ID, snapshot string, key []byte, f func(off int64, data []byte) error) error {
	m, _, err := manifest.Open(ctx, st, id, snapshot, key)
	if err != nil {
		return err
	}
	table := map[uint64]*manifest.Segment{}
	for i := range m.Segments {
		s := &m.Segments[i]
		if s.Ref.Kind == name.Data && (m.Root == nil || s.First > m.Root.Seq) {
			return errs.New(errs.Internal, "snapshot %q of volume %s has segments that its map does not", snapshot, id)
		}
		table[s.Num] = s
	}
	ca := readcache.New(st, readcache.Config{Keys: m.Keys, Bytes: 64 << 20})
	defer ca.Close()
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(2 * copyParallel)
	err = manifest.EachLeaf(gctx, st, m, func(leaf uint64, runs []extent.Run) error {
		for _, r := range runs {
			off := int64(leaf*extent.LeafBlocks+uint64(r.Start)) * BlockSize
			if r.Src == manifest.LostSource {
				return errs.New(errs.Corrupt, "%d bytes of the snapshot from %d on are lost", int64(r.N)*BlockSize, off)
			}
			n := min(int64(r.N)*BlockSize, int64(m.Size)-off)
			if n <= 0 {
				continue
			}
			g.Go(func() error {
				p := make([]byte, n)
				if err := ca.Read(gctx, table[r.Src], uint64(r.Off), p); err != nil {
					return err
				}
				return f(off, p)
			})
		}
		return gctx.Err()
	})
	if werr := g.Wait(); werr != nil {
		return werr
	}
	return err
}
