package lsvd

import (
	"context"
	"errors"
	"io"
	"time"

	"miren.dev/runtime/lsvd/internal/chain"
	"miren.dev/runtime/lsvd/internal/extent"
	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/readcache"
	"miren.dev/runtime/lsvd/internal/segment"
	"miren.dev/runtime/lsvd/internal/wal"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/pkg/errs"
)

// Create makes an empty volume of size bytes in st. With a key, of 32 bytes, it
// is encrypted with a random data key that only this key opens.
func Create(ctx context.Context, st store.Store, id ID, size int64, key []byte) error {
	if size < BlockSize || size > MaxSize || size%BlockSize != 0 {
		return errs.New(errs.InvalidArgument, "disk size %d is not a multiple of 4096 up to 16 TiB", size)
	}
	m := &manifest.Manifest{Volume: id, Size: uint64(size), NextSegment: 1, Clean: true, Created: uint64(time.Now().UnixNano())}
	return errs.Wrap(createVolume(ctx, st, m, nil, key), "create volume %s", id)
}

// Recovery says what Open found.
type Recovery struct {
	Durable   uint64 // sequence number that the store's state has
	Last      uint64 // sequence number that the disk has, with the local log
	Adopted   int    // segments found after the manifest
	LostLog   bool   // the log that belongs to the volume is not here
	LostAfter bool   // chain or log had more, which is damaged or missing
	Damaged   bool   // of these, damaged. A missing segment may have been on its way when its owner ended

	// Stranded is set if Open has refused the log, which has writes that a takeover has
	// left out of the volume. The log is for [Salvage]: open the volume with another.
	Stranded *Takeover

	// Missing are the objects that the manifest names and the store does not
	// have whole. What only they have is lost: reading it fails.
	Missing []string
}

// claims is how often Open tries to claim a volume whose owner writes the
// manifest, or that others claim, at the same time.
const claims = 10

// Open claims the volume and recovers it from the store st and the log in fs.
// It takes over from a process that has the volume open, which fails with its next
// operation on the store. The log is held by at most one process.
func Open(ctx context.Context, st store.Store, fs vfs.FS, id ID, opts Options) (d *Device, rec Recovery, err error) {
	for range claims {
		if d, rec, err = open(ctx, st, fs, id, opts); !errors.Is(err, errChanged) || ctx.Err() != nil {
			break
		}
	}
	return d, rec, err
}

func open(ctx context.Context, st store.Store, fs vfs.FS, id ID, opts Options) (*Device, Recovery, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, Recovery{}, err
	}
	d := &Device{
		opts: opts, st: st, pub: make(ctxMutex, 1), logger: opts.Logger, vol: id,
		active: newCut(), base: extent.New(extent.MaxBlocks), table: map[uint64]*seg{}, readers: newReaderEpoch(),
		space: make(chan struct{}), kick: make(chan struct{}, 1), collecting: make(ctxMutex, 1), deleting: make(ctxMutex, 1), reclaiming: make(chan struct{}, 1), done: make(chan struct{}), ending: make(chan struct{}), failing: make(chan struct{}),
		objects: map[uint32]mapObject{}, lostMaps: map[name.Ref]bool{}, cache: readcache.New(st, readcache.Config{Bytes: opts.CacheBytes, Disk: opts.DiskCache.cache(), Manual: opts.manual}),
	}
	d.mapLimit = opts.MapBytes
	d.plain = opts.Compression == CompressNone || opts.Compression == CompressRemote && d.cache.Local()
	d.base.Dropped = d.dropped
	d.recent = d.newRecent()
	if d.lock, err = fs.Lock(); err != nil {
		return nil, Recovery{}, errs.Wrap(err, "open volume %s", id)
	}
	rec, err := d.recover(ctx, fs)
	if err != nil {
		d.cache.Close()
		if d.wal != nil {
			d.wal.Close()
		}
		d.lock.Close()
		return nil, rec, errs.Wrap(err, "open volume %s", id)
	}
	d.logger.Info("volume is open", "volume", id.String(), "epoch", d.epoch, "durable", rec.Durable, "last", rec.Last, "adopted", rec.Adopted)
	if !opts.manual {
		run, stop := context.WithCancel(context.WithoutCancel(ctx))
		d.stop = stop
		go d.run(run)
		d.background.Go(func() { d.wal.Ahead(run) })
		d.background.Go(func() { d.watchOwner(run) })
		d.background.Go(func() { d.reclaim(run) })
	}
	d.mu.Lock()
	d.last = rec.Last
	d.updateWritable()
	d.mu.Unlock()
	opts.Memory.join(d)
	return d, rec, nil
}

func (d *Device) recover(ctx context.Context, fs vfs.FS) (rec Recovery, err error) {
	found, err := wal.Find(fs, d.vol)
	if err != nil {
		return rec, err
	}
	defer func() {
		if d.wal == nil {
			found.Close()
		}
	}()
	if d.man, d.version, err = manifest.Open(ctx, d.st, d.vol, "", d.opts.Key); err != nil {
		return rec, err
	}
	d.keys = d.man.Keys
	d.cache.UseKeys(d.keys)
	d.size.Store(int64(d.man.Size))
	if d.size.Load() > MaxSize {
		return rec, errs.New(errs.Corrupt, "its size is %d", d.size.Load())
	}
	if rec.Stranded, err = stranded(ctx, d.st, d.man, found); err != nil {
		return rec, err
	}
	if rec.Stranded != nil {
		return rec, errs.New(errs.FailedPrecondition, "the local log has writes that are not in the volume since it was opened without this log (snapshot %s)", rec.Stranded).
			WithHint("move the log aside and salvage it")
	}
	chain := d.man.ChainEpoch
	if rec.LostLog = !d.man.Clean && !found.Has(chain); rec.LostLog {
		if !d.opts.AcceptLoss && !d.opts.WithoutLog {
			return rec, errs.New(errs.FailedPrecondition, "the local log of epoch %d is not here", chain).
				WithHint("open it where it was open last; or accept the loss of what had not reached the store")
		}
		d.logger.Warn("local log is lost: the disk goes back to what the store has", "volume", d.vol.String(), "epoch", chain)
	}
	list := d.askBoot()
	claim := d.man.Clone()
	claim.Epoch++
	if _, err := io.ReadFull(d.opts.Random, claim.Owner[:]); err != nil {
		return rec, err
	}
	d.epoch, d.owner = claim.Epoch, claim.Owner
	d.cache.Warm(d.man.Segments)
	// From the claim on, the owner before us cannot write the manifest. A takeover that
	// damage refuses must leave the volume to its owner, so it is claimed after the check.
	claimIt := func() error { return d.replace(ctx, claim) }
	var seen *storeListing
	if rec.LostLog && !d.opts.AcceptLoss {
		if seen, err = d.checkUnclaimed(ctx, chain, found, &rec); err == nil {
			claim.Segments, claim.NextSegment, claim.ChainNext, claim.Durable = d.man.Segments, d.man.NextSegment, d.man.ChainNext, d.man.Durable
			err = claimIt()
		}
	} else if seen, err = d.listObjects(ctx, d.man, claimIt); err == nil {
		err = d.loadMap(ctx, seen, &rec)
	}
	if err != nil {
		return rec, err
	}
	d.warmMap()
	if err := d.adoptChain(ctx, chain, found, &rec, true); err != nil {
		return rec, err
	}
	rec.Durable = d.man.Durable
	var promised uint64
	now := d.opts.Now()
	rec.Last, promised, err = found.Replay(chain, rec.Durable, d.opts.AcceptLoss, func(c *wal.Chunk) error {
		if c.LBA+c.Blocks > uint64(d.size.Load()/BlockSize) {
			return errs.New(errs.Corrupt, "log has a write behind the end of the disk")
		}
		d.apply(c, now)
		return nil
	})
	if err != nil {
		return rec, err
	}
	if rec.Last < promised {
		rec.LostAfter, rec.Damaged = true, true
		if !d.opts.AcceptLoss {
			return rec, wal.Damaged(rec.Last, promised)
		}
		d.logger.Warn("local log ends early: it is damaged", "volume", d.vol.String(), "last", rec.Last, "flushed", promised)
	}
	if rec.LostLog {
		if err := d.keepTakeover(ctx, Takeover{chain, rec.Durable}); err != nil {
			return rec, err
		}
	}
	d.wal, err = wal.Start(wal.Config{FS: fs, Volume: d.vol, Epoch: d.epoch, PrevEpoch: chain, PrevSeq: rec.Last, FileSize: d.opts.LogFile, Space: d.opts.LogSpace.budget()}, found)
	if err != nil {
		return rec, err
	}
	m := d.man.Clone()
	m.ChainEpoch, m.ChainNext, m.Clean = d.epoch, 0, false
	if err := d.replace(ctx, m); err != nil {
		return rec, err
	}
	d.doomFences(ctx, seen.fences)
	d.beginBoot(list)
	return rec, nil
}

// checkUnclaimed reads what the store has of a volume that another process may have open,
// and adopts the chain as far as that has it, before the claim. What it finds holds if the
// manifest is still the one that it has read: objects that this one names are not deleted.
// The claim makes sure of that; here an error does.
func (d *Device) checkUnclaimed(ctx context.Context, chain uint64, found *wal.Found, rec *Recovery) (*storeListing, error) {
	seen, err := d.listObjects(ctx, d.man, func() error { return nil })
	if err == nil {
		err = d.loadMap(ctx, seen, rec)
	}
	if err == nil {
		err = d.adoptChain(ctx, chain, found, rec, false)
	}
	if err != nil {
		if _, now, merr := manifest.Open(ctx, d.st, d.vol, "", d.opts.Key); merr == nil && now != d.version {
			return nil, errs.New(errs.Unavailable, "manifest of %s %w", d.vol, errChanged)
		}
	}
	return seen, err
}

// adoptChain adopts the segments after the manifest. With fence it ends the chain with
// a fence, so that its owner cannot add to it. An owner that has closed the volume
// clean needs none: it adds nothing. A repeated call goes on where the first has ended.
func (d *Device) adoptChain(ctx context.Context, epoch uint64, found *wal.Found, rec *Recovery, fence bool) error {
	if epoch == 0 {
		return nil // never opened
	}
	for {
		l, err := chain.ReadLink(ctx, d.st, name.Ref{Volume: d.vol, Kind: name.Data, Epoch: epoch, Num: d.man.ChainNext}, d.keys, d.man.Durable)
		if rec.Damaged = errs.Is(err, errs.Corrupt); rec.Damaged && d.opts.AcceptLoss {
			rec.LostAfter = true
			d.logger.Warn("chain ends early: a segment is damaged", "segment", l.End.String(), "error", err)
			return nil
		}
		if err != nil {
			return err
		}
		if l.Fence {
			return nil
		}
		if len(l.Segments) == 0 {
			if err := d.lostAfter(ctx, l.End, found, rec); errors.Is(err, errArrived) {
				continue
			} else if err != nil {
				return err
			}
			if d.man.Clean || !fence {
				return nil
			}
			if _, err := d.st.Create(ctx, l.End.Key(), segment.Fence(l.End)); err == nil {
				return nil
			} else if !errs.Is(err, errs.AlreadyExists) {
				return err
			}
			continue
		}
		for i := range l.Segments {
			s := &l.Segments[i]
			s.Num = d.man.NextSegment
			d.adopt(s, l.Entries[i])
			d.man.ChainNext++
			d.since++
			rec.Adopted++
		}
	}
}

// errArrived is why lostAfter says nothing: the owner has sent the segment meanwhile.
var errArrived = errors.New("the segment is there now")

// lostAfter refuses, unless told to accept it, a chain that has segments after
// ref, which is not there. It is no loss if the log has what they have: they
// were on their way together when their owner ended. Without a log, it is none if they
// may have been.
func (d *Device) lostAfter(ctx context.Context, ref name.Ref, found *wal.Found, rec *Recovery) error {
	var later *name.Ref
	var size int64
	for i, err := range d.st.List(ctx, name.Prefix(d.vol)+name.Data.String()+"/") {
		if err != nil {
			return err
		}
		if r, ok := name.ParseKey(i.Key); ok && r.Epoch == ref.Epoch && r.Num > ref.Num && i.Size > segment.TrailerSize && (later == nil || r.Num > later.Num) {
			later, size = &r, i.Size
		}
	}
	if later == nil {
		return nil
	}
	switch _, err := d.st.GetRange(ctx, ref.Key(), 0, 1); {
	case err == nil:
		return errArrived
	case !errs.Is(err, errs.NotFound):
		return err
	}
	var has uint64
	err := store.RetryCorrupt(func() error {
		tail, err := d.st.GetRange(ctx, later.Key(), size-segment.TrailerSize, segment.TrailerSize)
		if err == nil {
			has, err = segment.Last(*later, tail)
		}
		return err
	})
	if err == nil {
		var last uint64
		if last, _, err = found.Replay(ref.Epoch, d.man.Durable, true, func(*wal.Chunk) error { return nil }); err == nil && last >= has {
			return nil
		}
	}
	if err != nil && !errs.Is(err, errs.Corrupt) {
		return err
	}
	rec.LostAfter = true
	if !d.opts.AcceptLoss && !(rec.LostLog && d.opts.WithoutLog && later.Num < ref.Num+uploads) {
		rec.Damaged = true
		return errs.New(errs.Corrupt, "segment %s is missing, but later ones exist and the local log does not have what they have", ref).
			WithHint("restore the object; or accept that the disk goes back to what it was before it")
	}
	d.logger.Warn("chain ends early: a segment is missing", "segment", ref.String())
	return nil
}
