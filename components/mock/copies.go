package mock

import (
	"context"
	"encoding/json"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
)

// copySum is the checksum of every copy.
const copySum = "sum"

// CopySnapshot implements execution.SnapshotCopier.
func (d *Driver) CopySnapshot(ctx context.Context, snapshot string, o execution.Objects) (c execution.SnapshotCopy, err error) {
	err = d.call("CopySnapshot", snapshot, func() error {
		d.m.mu.Lock()
		info, ok := d.m.snapshots[snapshot]
		d.m.mu.Unlock()
		if !ok {
			return errs.New(errs.NotFound, "there is no snapshot %s", snapshot)
		}
		b, err := json.Marshal(info)
		if err != nil {
			return err
		}
		c = execution.SnapshotCopy{Sum: copySum, Bytes: int64(len(b))}
		for _, key := range []string{"chunk", "manifest"} {
			if err := o.Create(ctx, key, b); err != nil && !errs.Is(err, errs.AlreadyExists) {
				return err
			}
		}
		return nil
	})
	return c, err
}

// FetchSnapshot implements execution.SnapshotCopier.
func (d *Driver) FetchSnapshot(ctx context.Context, snapshot, sum string, o execution.Objects) error {
	return d.call("FetchSnapshot", snapshot, func() error {
		b, err := o.Get(ctx, "manifest")
		if err != nil {
			return err
		}
		var info execution.SnapshotInfo
		if err := json.Unmarshal(b, &info); err != nil || sum != copySum || info.ID != snapshot {
			return errs.New(errs.Corrupt, "the copy is not of snapshot %s: %v", snapshot, err)
		}
		d.m.mu.Lock()
		defer d.m.mu.Unlock()
		d.m.snapshots[snapshot] = info
		return nil
	})
}

// DeleteSnapshotCopy implements execution.SnapshotCopier.
func (d *Driver) DeleteSnapshotCopy(ctx context.Context, o execution.Objects) error {
	return d.call("DeleteSnapshotCopy", "", func() error {
		for _, key := range []string{"manifest", "chunk"} {
			if err := o.Delete(ctx, key); err != nil {
				return err
			}
		}
		return nil
	})
}

var _ execution.SnapshotCopier = (*Driver)(nil)
