package agentdriver

import (
	"context"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
)

// NoSnapshots answers the calls about snapshots for drivers that take none. Drivers
// embed it.
type NoSnapshots struct {
	// Refusal is the error of each call, with the reason. A sandbox goes on after a refused pause if the error has the class
	// that execution.Driver declares for that.
	Refusal error
}

var _ execution.SnapshotCopier = NoSnapshots{}

// Snapshot is refused.
func (n NoSnapshots) Snapshot(context.Context, string, string, execution.SnapshotOptions) (execution.SnapshotInfo, error) {
	return execution.SnapshotInfo{}, n.Refusal
}

// ListSnapshots returns none.
func (NoSnapshots) ListSnapshots(context.Context) ([]execution.SnapshotInfo, error) { return nil, nil }

// DeleteSnapshot returns nil: there is none to delete.
func (NoSnapshots) DeleteSnapshot(context.Context, string) error { return nil }

// CopySnapshot returns NotFound: there are no snapshots.
func (n NoSnapshots) CopySnapshot(_ context.Context, snapshot string, _ execution.Objects) (execution.SnapshotCopy, error) {
	return execution.SnapshotCopy{}, errs.New(errs.NotFound, "there is no snapshot %s on this node: %w", snapshot, n.Refusal)
}

// FetchSnapshot is refused.
func (n NoSnapshots) FetchSnapshot(context.Context, string, string, execution.Objects) error {
	return n.Refusal
}

// DeleteSnapshotCopy is refused: this node made no copy.
func (n NoSnapshots) DeleteSnapshotCopy(context.Context, execution.Objects) error { return n.Refusal }
