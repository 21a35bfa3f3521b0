package inspect

import (
	"context"

	"miren.dev/runtime/lsvd/internal/chain"
	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/wal"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/pkg/errs"
)

// LogReport is what [CheckLog] found.
type LogReport struct {
	Here    bool   // the log that belongs to the volume is in this directory
	Bytes   int64  // of log files; all that count were read
	Durable uint64 // sequence number that the store has
	Last    uint64 // sequence number up to which the log goes on from there
	Damage  error  // why it should go further; nil: it is sound
}

// CheckLog reads all of the local log of a volume that is not open, and changes
// nothing. If the log is in use, that is a Conflict: what Open has not looked at
// is looked at before it is used or sent.
func CheckLog(ctx context.Context, st store.Store, fs vfs.FS, id name.Volume, key []byte) (r LogReport, err error) {
	lock, err := fs.Lock()
	if err != nil {
		return r, errs.Wrap(err, "check the log of volume %s", id)
	}
	defer lock.Close()
	m, _, err := manifest.Open(ctx, st, id, "", key)
	if err != nil {
		return r, err
	}
	chain, _, _, err := chain.Read(ctx, st, m)
	if err != nil && !errs.Is(err, errs.Corrupt) { // damage of the store is for Check to find
		return r, err
	}
	r.Durable = m.Durable
	if len(chain) > 0 {
		r.Durable = chain[len(chain)-1].Last
	}
	found, err := wal.Find(fs, id)
	if err != nil {
		return r, errs.Wrap(err, "check the log of volume %s", id)
	}
	defer found.Close()
	if r.Here = found.Has(m.ChainEpoch); !r.Here {
		return r, nil
	}
	if r.Bytes, err = found.Size(); err != nil {
		return r, err
	}
	var promised uint64
	r.Last, promised, err = found.Replay(m.ChainEpoch, r.Durable, true, func(*wal.Chunk) error { return ctx.Err() })
	if err != nil {
		return r, errs.Wrap(err, "check the log of volume %s", id)
	}
	if r.Last < promised {
		r.Damage = wal.Damaged(r.Last, promised)
	}
	return r, nil
}
