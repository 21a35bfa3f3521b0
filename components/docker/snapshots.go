package docker

import (
	"context"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
)

// noSnapshots is of the class with which the other drivers refuse a snapshot, so that a sandbox goes on after a pause that
// is refused. The engine's checkpoints are CRIU's, of runc; it has none of gVisor, and restores none under another name.
func noSnapshots() error {
	return errs.New(errs.FailedPrecondition, "the Docker driver has no snapshots of memory: a Docker engine takes none of gVisor").
		WithHint("pause, snapshot and fork sandboxes on a node with node.driver runsc")
}

// Snapshot is refused.
func (d *Driver) Snapshot(context.Context, string, string, execution.SnapshotOptions) (execution.SnapshotInfo, error) {
	return execution.SnapshotInfo{}, noSnapshots()
}

// ListSnapshots returns none.
func (d *Driver) ListSnapshots(context.Context) ([]execution.SnapshotInfo, error) { return nil, nil }

// DeleteSnapshot returns nil: there is none to delete.
func (d *Driver) DeleteSnapshot(context.Context, string) error { return nil }

// CopySnapshot returns NotFound: there are no snapshots.
func (d *Driver) CopySnapshot(_ context.Context, snapshot string, _ execution.Objects) (execution.SnapshotCopy, error) {
	return execution.SnapshotCopy{}, errs.New(errs.NotFound, "there is no snapshot %s on this node: %w", snapshot, noSnapshots())
}

// FetchSnapshot is refused.
func (d *Driver) FetchSnapshot(context.Context, string, string, execution.Objects) error {
	return noSnapshots()
}

// DeleteSnapshotCopy is refused: this node made no copy.
func (d *Driver) DeleteSnapshotCopy(context.Context, execution.Objects) error { return noSnapshots() }

var _ execution.SnapshotCopier = (*Driver)(nil)
