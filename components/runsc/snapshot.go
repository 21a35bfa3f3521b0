package runsc

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/components/agentdriver"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/fault"
)

const (
	// snapshotTimeout bounds a snapshot. It is the time to write all memory and files of a sandbox.
	snapshotTimeout = 10 * time.Minute
	// suspendTimeout bounds how long the agent may take to let go of the host.
	suspendTimeout = 5 * time.Second
)

// Snapshot takes a snapshot of a running sandbox.
func (d *Driver) Snapshot(ctx context.Context, id, snapshot string, o execution.SnapshotOptions) (execution.SnapshotInfo, error) {
	for _, name := range []string{id, snapshot} {
		if err := agentdriver.CheckID(name); err != nil {
			return execution.SnapshotInfo{}, err
		}
	}
	unlock, err := d.locks.Lock(ctx, id)
	if err != nil {
		return execution.SnapshotInfo{}, err
	}
	info, paused, err := d.snapshot(ctx, id, snapshot, o)
	if !paused {
		unlock()
		return info, err
	}
	// The caller need not wait for the rest: no packet leaves the sandbox, and the next operation on it waits for the lock.
	d.background.Go(func() {
		defer unlock()
		if err := d.finishPause(context.WithoutCancel(ctx), id); err != nil {
			d.logger.Error("cannot remove the processes of a paused sandbox", "sandbox", id, "error", err)
		}
		d.Notify(id)
	})
	return info, err
}

// snapshot is called with the lock of the sandbox. paused says that the sandbox is in the snapshot, and its processes are
// to be removed.
func (d *Driver) snapshot(ctx context.Context, id, snapshot string, o execution.SnapshotOptions) (_ execution.SnapshotInfo, paused bool, _ error) {
	unlock, err := d.locks.Lock(ctx, snapshotLock(snapshot))
	if err != nil {
		return execution.SnapshotInfo{}, false, err
	}
	defer unlock()
	in, err := d.Get(ctx, id)
	if err != nil {
		return execution.SnapshotInfo{}, false, err
	}
	if in.Phase == execution.Paused && in.Snapshot == snapshot && !o.Leave {
		r, err := d.snapshotRecord(snapshot)
		if err != nil {
			return execution.SnapshotInfo{}, false, err
		}
		return r.SnapshotInfo, true, nil
	}
	if in.Phase != execution.Running {
		return execution.SnapshotInfo{}, false, errs.New(errs.FailedPrecondition, "sandbox %s is %s: only a running one has a snapshot", id, in.Phase)
	}
	if exists, err := d.hasSnapshot(snapshot); err != nil {
		return execution.SnapshotInfo{}, false, err
	} else if exists {
		return execution.SnapshotInfo{}, false, errs.New(errs.AlreadyExists, "there is a snapshot %s already", snapshot)
	}
	r, b, err := d.describeSnapshot(ctx, in, snapshot)
	if err != nil {
		return execution.SnapshotInfo{}, false, err
	}
	// Not given up half-way: the sandbox's kernel would go on.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), snapshotTimeout)
	defer cancel()
	if err := d.takeSnapshot(ctx, r, b, o); err != nil {
		return execution.SnapshotInfo{}, false, errs.Wrap(err, "snapshot of sandbox %s", id)
	}
	return r.SnapshotInfo, !o.Leave, nil
}

// describeSnapshot returns the record of a snapshot that may be taken, and the backend that takes it.
func (d *Driver) describeSnapshot(ctx context.Context, in execution.Instance, snapshot string) (*snapshotRecord, backend, error) {
	rec, err := d.record(ctx, in.ID)
	if err != nil {
		return nil, nil, err
	}
	b, err := d.backend(rec.Backend)
	if err == nil {
		err = b.canSnapshot()
	}
	if err != nil {
		return nil, nil, err
	}
	binary, err := d.hub.Binary(in.ID)
	if err != nil {
		return nil, nil, err
	}
	if binary == "" {
		return nil, nil, errs.New(errs.FailedPrecondition, "sandbox %s was made by a version without snapshots", in.ID).
			WithHint("sandboxes that are created from now on have them")
	}
	at, err := d.cfg.Network.Get(in.ID)
	if err != nil {
		return nil, nil, err
	}
	r := &snapshotRecord{ShmBytes: cmp.Or(rec.ShmBytes, shmBytes(rec.Spec)), Files: map[string]string{}, Volumes: rec.Volumes}
	files := d.cfg.Network.Files(hostname(rec.Spec), at.Address)
	for name, content := range etcFiles(files) {
		r.Files["/etc/"+name] = string(content)
	}
	r.ID, r.Sandbox, r.Parent, r.Spec, r.Agent = snapshot, in.ID, rec.Spec.Restore, rec.Spec, binary
	r.Spec.Restore = ""
	if p, ok := d.cfg.Network.Policy(in.ID); ok { // it may have been changed
		r.Spec.Egress = &p
	}
	if r.RunscVersion, err = d.runscVersion(); err != nil {
		return nil, nil, err
	}
	r.CPUFeatures, err = cpuFeatures()
	return r, b, err
}

// takeSnapshot takes and publishes a snapshot. After an error it removes its files and the sandbox keeps running.
func (d *Driver) takeSnapshot(ctx context.Context, r *snapshotRecord, b backend, o execution.SnapshotOptions) (err error) {
	id, dir, frozen := r.Sandbox, d.snapshotDir(newSnapshot+r.ID), false
	defer func() {
		if err != nil && frozen {
			err = errors.Join(err, d.thaw(ctx, id, b))
		}
		if err != nil {
			err = errors.Join(d.explainSave(err), d.abandonSnapshot(id, r.ID))
		}
	}()
	if err := os.RemoveAll(dir); err != nil {
		return errs.New(errs.Unavailable, "remove an unfinished snapshot: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return errs.New(errs.Unavailable, "directory of the snapshot: %w", err)
	}
	if _, err := d.cfg.Images.Keep(ctx, r.Spec.Image, imagePrefix+r.ID); err != nil {
		return err
	}
	if err := os.WriteFile(d.sandboxDir(id, snapshotFile), []byte(r.ID), 0o600); err != nil {
		return errs.New(errs.Unavailable, "begin the snapshot: %w", err)
	}
	suspend, cancel := context.WithTimeout(ctx, suspendTimeout)
	defer cancel()
	fault.Point("snapshot", "suspend", fault.Before)
	if err := d.hub.Suspend(suspend, id); err != nil {
		return err
	}
	fault.Point("snapshot", "suspend", fault.After)
	if !o.Leave {
		// The sandbox runs from its last instruction in the snapshot to its end: no packet of that time may leave,
		// which would be sent again after the pause.
		if err := d.cfg.Network.Cut(id); err != nil {
			return err
		}
		if frozen, err = d.freeze(ctx, r.Spec, b); err != nil {
			return err
		}
	}
	fault.Point("snapshot", "save", fault.Before)
	if err := b.save(ctx, id, dir); err != nil {
		return err
	}
	fault.Point("snapshot", "save", fault.After)
	if !o.Leave {
		if err := atomicfile.Write(d.pausedFile(id), []byte(r.ID), 0o600); err != nil {
			return err
		}
	}
	if err := d.publish(r, dir); err != nil {
		return err
	}
	if o.Leave {
		return d.proceed(id)
	}
	return nil
}

// abandonSnapshot removes a snapshot that could not be taken, and lets the sandbox go on.
func (d *Driver) abandonSnapshot(id, snapshot string) error {
	ctx, cancel := context.WithTimeout(context.Background(), teardownTimeout)
	defer cancel()
	err := errors.Join(d.forgetPause(id), os.RemoveAll(d.snapshotDir(newSnapshot+snapshot)), d.removeSnapshot(ctx, snapshot))
	return errors.Join(err, d.proceed(id))
}

// explainSave says whether the disk was full, which the sentry tells in words only.
func (d *Driver) explainSave(err error) error {
	const little = 1 << 20
	var st unix.Statfs_t
	if unix.Statfs(d.snapshotDir(), &st) == nil && st.Bavail*uint64(st.Bsize) < little {
		return errs.New(errs.ResourceExhausted, "the disk with the snapshots is full: %w", err).
			WithHint("delete snapshots that are no longer needed")
	}
	return err
}

// finishPause removes the processes of a sandbox whose snapshot was published. Its address and its disk are free then:
// a pause may last for weeks, and connections do not outlive it anyway.
func (d *Driver) finishPause(ctx context.Context, id string) error {
	if !d.pausing(id) {
		return nil
	}
	fault.Point("snapshot", "end", fault.Before)
	if err := d.teardown(ctx, id); err != nil {
		return errs.Wrap(err, "end the processes of paused sandbox %s", id)
	}
	fault.Point("snapshot", "end", fault.After)
	return nil
}

// cpuFeatures returns the features of this machine's processors, sorted.
func cpuFeatures() ([]string, error) {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return nil, errs.New(errs.Unavailable, "features of the CPU: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(line, ":")
		if name = strings.TrimSpace(name); name == "flags" || name == "Features" { // of amd64 and arm64
			features := strings.Fields(value)
			slices.Sort(features)
			return features, nil
		}
	}
	return nil, errs.New(errs.Internal, "/proc/cpuinfo has no features of the CPU")
}
