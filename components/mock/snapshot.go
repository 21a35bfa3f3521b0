package mock

import (
	"context"
	"os"
	"time"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
)

// Snapshot implements execution.Snapshots. The programs of a Paused sandbox only become unreachable, and those of a
// sandbox that is made from the snapshot of another start anew.
func (d *Driver) Snapshot(ctx context.Context, id, snapshot string, o execution.SnapshotOptions) (info execution.SnapshotInfo, err error) {
	err = d.call("Snapshot", id, func() error {
		if info, err = d.snapshot(ctx, id, snapshot, o); err == nil {
			d.m.notify(id)
		}
		return err
	})
	return info, err
}

func (d *Driver) snapshot(ctx context.Context, id, snapshot string, o execution.SnapshotOptions) (info execution.SnapshotInfo, err error) {
	if err := checkID(id); err != nil {
		return info, err
	}
	if err := checkID(snapshot); err != nil {
		return info, err
	}
	if ctx.Err() != nil {
		return info, ctx.Err()
	}
	b := d.m.box(id)
	if b == nil {
		return info, gone(id)
	}
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	info, taken := d.m.snapshots[snapshot]
	switch {
	case b.paused == snapshot && taken:
		return info, nil
	case b.paused != "" || b.exit != nil:
		return info, errs.New(errs.FailedPrecondition, "sandbox %s does not run", id)
	case taken:
		return info, errs.New(errs.AlreadyExists, "there is a snapshot %s already", snapshot)
	}
	spec := *b.spec()
	spec.Env, spec.Restore = nil, ""
	info = execution.SnapshotInfo{
		ID: snapshot, Sandbox: id, Parent: b.spec().Restore, Spec: spec, Bytes: 1 << 20,
		RunscVersion: "fake", Agent: "fake", CPUFeatures: []string{"fake"}, CreatedAt: time.Now(),
	}
	if b.files != "" {
		if err := os.CopyFS(d.m.saved(snapshot), os.DirFS(b.files)); err != nil {
			return execution.SnapshotInfo{}, errs.New(errs.Unavailable, "files of snapshot %s: %w", snapshot, err)
		}
	}
	d.m.snapshots[snapshot] = info
	if !o.Leave {
		b.paused, b.address = snapshot, ""
	}
	return info, nil
}

// ListSnapshots implements execution.Snapshots.
func (d *Driver) ListSnapshots(context.Context) (list []execution.SnapshotInfo, err error) {
	err = d.call("ListSnapshots", "", func() error {
		d.m.mu.Lock()
		defer d.m.mu.Unlock()
		for _, id := range keys(d.m.snapshots) {
			list = append(list, d.m.snapshots[id])
		}
		return nil
	})
	return list, err
}

// DeleteSnapshot implements execution.Snapshots.
func (d *Driver) DeleteSnapshot(_ context.Context, snapshot string) error {
	return d.call("DeleteSnapshot", snapshot, func() error {
		if err := checkID(snapshot); err != nil {
			return err
		}
		d.m.mu.Lock()
		defer d.m.mu.Unlock()
		for id, b := range d.m.boxes {
			b.mu.Lock()
			needed := b.paused == snapshot
			b.mu.Unlock()
			if needed {
				return errs.New(errs.FailedPrecondition, "snapshot %s has the paused sandbox %s", snapshot, id)
			}
		}
		delete(d.m.snapshots, snapshot)
		if d.m.cfg.Dir == "" {
			return nil
		}
		return os.RemoveAll(d.m.saved(snapshot))
	})
}

// restored completes a spec from the snapshot that it names. It is called with Machine.mu held.
func (m *Machine) restored(s execution.Spec) (execution.Spec, error) {
	info, ok := m.snapshots[s.Restore]
	if !ok {
		return s, errs.New(errs.NotFound, "there is no snapshot %s", s.Restore)
	}
	of := info.Spec
	s.Image, s.Command, s.Idle, s.WorkDir, s.User = of.Image, of.Command, of.Idle, of.WorkDir, of.User
	s.DiskFiles, s.OpenFiles, s.FileBytes = of.DiskFiles, of.OpenFiles, of.FileBytes
	s.DiskBytes, s.ReadOnlyRoot, s.Capabilities = of.DiskBytes, of.ReadOnlyRoot, of.Capabilities
	return s, nil
}

// resume continues a Paused sandbox.
func (b *box) resume(s execution.Spec, address string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.made.Store(&s)
	b.address, b.paused = address, ""
}
