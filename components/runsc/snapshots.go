package runsc

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
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

// Snapshots on the disk:
//
//	<state dir>/snapshots/<snapshot>/info.json    snapshotRecord
//	                                 *.img        the image, as runsc writes it
//	<state dir>/snapshots/.new-<snapshot>/        being taken
//	<state dir>/snapshots/.old-<snapshot>/        being deleted
//	<state dir>/paused/<sandbox>                  the id of the snapshot that the sandbox is in
//	<run dir>/sandboxes/<sandbox>/snapshot        the id of the snapshot that is being taken
//	<run dir>/sandboxes/<sandbox>/frozen          there while its kernel may be stopped for that
//
// A snapshot is published by renaming its directory, which also pauses its sandbox if it is not to go on: the file in
// paused/ is there before, and means nothing without the snapshot. The file in the sandbox's directory is there from before
// the sandbox is disturbed until it continues or is gone.

// Prefixes of directories that are no snapshots.
const (
	newSnapshot = ".new-"
	oldSnapshot = ".old-"
)

const (
	infoFile     = "info.json"
	snapshotFile = "snapshot" // in the sandbox's directory
)

// snapshotRecord describes a snapshot.
type snapshotRecord struct {
	execution.SnapshotInfo
	// ShmBytes is the size of the sandbox's /dev/shm, which no restore can change.
	ShmBytes int64
	// Files are those of /etc, by path, that said where the sandbox was.
	Files map[string]string
	// Volumes is that of the sandbox's record.
	Volumes bool
}

func (d *Driver) snapshotDir(name ...string) string {
	return d.cfg.Instance.State(append([]string{"snapshots"}, name...)...)
}

func (d *Driver) pausedFile(id string) string { return d.cfg.Instance.State("paused", id) }

// snapshotRecord reads the record of a snapshot; NotFound if there is none.
func (d *Driver) snapshotRecord(snapshot string) (*snapshotRecord, error) {
	b, err := os.ReadFile(d.snapshotDir(snapshot, infoFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errs.New(errs.NotFound, "there is no snapshot %s on this node", snapshot)
	}
	if err != nil {
		return nil, errs.New(errs.Unavailable, "snapshot %s: %w", snapshot, err)
	}
	var r snapshotRecord
	if err := json.Unmarshal(b, &r); err != nil || r.ID != snapshot {
		return nil, errs.New(errs.Corrupt, "the record of snapshot %s is damaged: %v", snapshot, err)
	}
	return &r, nil
}

// hasSnapshot says whether a snapshot exists, whatever its record holds.
func (d *Driver) hasSnapshot(snapshot string) (bool, error) {
	_, err := os.Lstat(d.snapshotDir(snapshot))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, errs.New(errs.Unavailable, "snapshot %s: %w", snapshot, err)
	}
	return true, nil
}

// snapshotIDs returns the ids of all snapshots, sorted.
func (d *Driver) snapshotIDs() ([]string, error) {
	names, err := dirNames(d.snapshotDir())
	return slices.DeleteFunc(names, func(n string) bool { return agentdriver.CheckID(n) != nil }), err
}

// ListSnapshots returns the snapshots whose record can be read.
func (d *Driver) ListSnapshots(context.Context) ([]execution.SnapshotInfo, error) {
	ids, err := d.snapshotIDs()
	if err != nil {
		return nil, err
	}
	var list []execution.SnapshotInfo
	for _, id := range ids {
		r, err := d.snapshotRecord(id)
		switch {
		case err == nil:
			list = append(list, r.SnapshotInfo)
		case errs.Is(err, errs.Corrupt):
			d.logger.Error("a snapshot is damaged", "snapshot", id, "error", err)
		case !errs.Is(err, errs.NotFound):
			return nil, err
		}
	}
	return list, nil
}

// snapshotAgents returns the agents that snapshots have in their memory.
func (d *Driver) snapshotAgents() ([]string, error) {
	ids, err := d.snapshotIDs()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, id := range ids {
		r, err := d.snapshotRecord(id)
		if err == nil {
			names = append(names, r.Agent)
		} else if !errs.Is(err, errs.NotFound) {
			return nil, err // it may have any
		}
	}
	return names, nil
}

// DeleteSnapshot removes a snapshot that no paused sandbox needs.
func (d *Driver) DeleteSnapshot(ctx context.Context, snapshot string) error {
	if err := agentdriver.CheckID(snapshot); err != nil {
		return err
	}
	unlock, err := d.locks.Lock(ctx, snapshotLock(snapshot))
	if err != nil {
		return err
	}
	defer unlock()
	paused, err := d.pausedIDs()
	if err != nil {
		return err
	}
	for _, id := range paused {
		in, err := d.pausedInstance(ctx, id)
		if err != nil {
			return err
		}
		if in != nil && in.Snapshot == snapshot {
			return errs.New(errs.FailedPrecondition, "snapshot %s has the paused sandbox %s", snapshot, id).
				WithHint("resume or delete the sandbox first")
		}
	}
	return d.removeSnapshot(ctx, snapshot)
}

func (d *Driver) removeSnapshot(ctx context.Context, snapshot string) error {
	fault.Point("snapshot", "delete", fault.Before)
	err := atomicfile.Rename(d.snapshotDir(snapshot), d.snapshotDir(oldSnapshot+snapshot))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errs.New(errs.Unavailable, "delete snapshot %s: %w", snapshot, err)
	}
	fault.Point("snapshot", "delete", fault.After)
	if err := os.RemoveAll(d.snapshotDir(oldSnapshot + snapshot)); err != nil {
		return errs.New(errs.Unavailable, "delete snapshot %s: %w", snapshot, err)
	}
	return d.releaseImages(ctx, func(of string) bool { return of == snapshot })
}

// imagePrefix begins the names by which snapshots keep their images; the snapshot's id follows.
const imagePrefix = "runtime.local/snapshot-"

// releaseImages deletes the names by which the snapshots that match kept their images.
func (d *Driver) releaseImages(ctx context.Context, match func(snapshot string) bool) error {
	all, err := d.cfg.Images.List(ctx, nil)
	if err != nil {
		return err
	}
	for _, image := range all {
		name, _, _ := strings.Cut(image.Ref, "@")
		if of, ok := strings.CutPrefix(name, imagePrefix); ok && match(of) {
			if err := d.cfg.Images.Delete(ctx, image.Ref); err != nil {
				return err
			}
		}
	}
	return nil
}

// snapshotLock is the key of the lock of a snapshot, which is taken after that of a sandbox.
func snapshotLock(snapshot string) string { return "snapshot/" + snapshot }

// pausedIDs returns the sandboxes that may be paused.
func (d *Driver) pausedIDs() ([]string, error) {
	entries, err := os.ReadDir(d.cfg.Instance.State("paused"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errs.New(errs.Unavailable, "list paused sandboxes: %w", err)
	}
	var ids []string
	for _, e := range entries {
		if agentdriver.CheckID(e.Name()) == nil {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// pausedIn returns the snapshot that a sandbox was paused by and not resumed from, empty if there is none.
func (d *Driver) pausedIn(id string) (string, error) {
	b, err := os.ReadFile(d.pausedFile(id))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", errs.New(errs.Unavailable, "paused sandbox %s: %w", id, err)
	}
	snapshot := string(b)
	if ok, err := d.hasSnapshot(snapshot); err != nil || !ok || agentdriver.CheckID(snapshot) != nil {
		return "", err
	}
	return snapshot, nil
}

// pausedInstance returns a sandbox if it is paused, else nil. While it is resumed, it has a container.
func (d *Driver) pausedInstance(ctx context.Context, id string) (*execution.Instance, error) {
	snapshot, err := d.pausedIn(id)
	if err != nil || snapshot == "" {
		return nil, err
	}
	if !d.pausing(id) {
		if exists, err := d.hasContainer(ctx, id); err != nil || exists {
			return nil, err
		}
	}
	return &execution.Instance{ID: id, Phase: execution.Paused, Snapshot: snapshot}, nil
}

// pausing says whether a snapshot of the sandbox is under way, or was interrupted.
func (d *Driver) pausing(id string) bool {
	_, err := os.Lstat(d.sandboxDir(id, snapshotFile))
	return err == nil
}

// forgetPause is for a sandbox that was resumed or deleted.
func (d *Driver) forgetPause(id string) error {
	if err := os.Remove(d.pausedFile(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errs.New(errs.Unavailable, "forget the pause of sandbox %s: %w", id, err)
	}
	return nil
}

// recoverSnapshots ends the snapshots that a server began and did not finish.
func (d *Driver) recoverSnapshots(ctx context.Context) error {
	for _, dir := range []string{d.snapshotDir(), d.cfg.Instance.State("paused")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return errs.New(errs.FailedPrecondition, "directory of snapshots: %w", err)
		}
	}
	entries, err := os.ReadDir(d.snapshotDir())
	if err != nil {
		return errs.New(errs.Unavailable, "list snapshots: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), newSnapshot) || strings.HasPrefix(e.Name(), oldSnapshot) {
			if err := os.RemoveAll(d.snapshotDir(e.Name())); err != nil {
				return errs.New(errs.Unavailable, "remove an unfinished snapshot: %w", err)
			}
		}
	}
	ids, err := d.snapshotIDs()
	if err != nil {
		return err
	}
	if err := d.releaseImages(ctx, func(of string) bool { return !slices.Contains(ids, of) }); err != nil {
		// containerd may have been started this moment; sandboxes that run do not wait for it.
		d.logger.Warn("images of deleted snapshots are kept until the next start", "error", err)
	}
	return errors.Join(d.recoverPaused(ctx), d.recoverRunning(ctx))
}

// recoverPaused removes the processes and mounts of sandboxes that are paused.
func (d *Driver) recoverPaused(ctx context.Context) error {
	paused, err := d.pausedIDs()
	if err != nil || len(paused) == 0 {
		return err
	}
	left, err := d.leftovers(ctx)
	if err != nil {
		return err
	}
	for _, id := range paused {
		snapshot, err := d.pausedIn(id)
		if err != nil {
			return err
		}
		if snapshot == "" { // the snapshot was never published
			if err := d.forgetPause(id); err != nil {
				return err
			}
			continue
		}
		old, err := d.ofEarlierBoot(ctx, id)
		if err != nil {
			return err
		}
		in, err := d.pausedInstance(ctx, id)
		if err != nil {
			return err
		}
		if old || in != nil && (d.pausing(id) || slices.Contains(left, id)) {
			if err := d.teardown(ctx, id); err != nil {
				d.logger.Error("cannot remove the processes of a paused sandbox", "sandbox", id, "error", err)
			}
		}
	}
	return nil
}

// recoverRunning lets the sandboxes go on whose snapshot was not published. Their agents come back by themselves.
func (d *Driver) recoverRunning(ctx context.Context) error {
	ids, err := dirNames(d.sandboxDir())
	if err != nil {
		return err
	}
	for _, id := range ids {
		if !d.pausing(id) {
			continue
		}
		if snapshot, err := d.pausedIn(id); err != nil || snapshot != "" {
			continue // its removal has failed: it stays paused, and the next Ensure or Delete removes the rest
		}
		unlock, err := d.locks.Lock(ctx, id)
		if err != nil {
			return err
		}
		err = d.proceed(id)
		// The start of the server does not wait for agents; what uses the sandbox does.
		d.background.Go(func() {
			defer unlock()
			if err := errors.Join(err, d.recoverFrozen(context.WithoutCancel(ctx), id)); err != nil {
				d.logger.Error("cannot let a sandbox go on after an interrupted snapshot", "sandbox", id, "error", err)
			}
		})
	}
	return nil
}

// proceed lets a sandbox go on whose snapshot is done or has failed. It may be repeated.
func (d *Driver) proceed(id string) error {
	err := errors.Join(d.cfg.Network.Mend(id), d.hub.Readmit(id))
	if err != nil {
		return err
	}
	if err := os.Remove(d.sandboxDir(id, snapshotFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errs.New(errs.Unavailable, "end the snapshot of sandbox %s: %w", id, err)
	}
	return nil
}

// diskBytes returns how much space the files of a directory take, in bytes.
func diskBytes(dir string) (sum int64, err error) {
	err = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &st)
		}
		sum += st.Blocks * 512
		return err
	})
	return sum, err
}

// publish makes a snapshot of a directory that holds all of it. A fetched one keeps the size and the time of
// the one that was copied.
func (d *Driver) publish(r *snapshotRecord, dir string) (err error) {
	if r.CreatedAt.IsZero() {
		if r.Bytes, err = diskBytes(dir); err != nil {
			return err
		}
		r.CreatedAt = time.Now()
	}
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, infoFile), b, 0o600); err != nil {
		return err
	}
	if err := atomicfile.SyncTree(dir); err != nil {
		return err
	}
	fault.Point("snapshot", "publish", fault.Before)
	if err := atomicfile.Rename(dir, d.snapshotDir(r.ID)); err != nil {
		return err
	}
	fault.Point("snapshot", "publish", fault.After)
	return nil
}
