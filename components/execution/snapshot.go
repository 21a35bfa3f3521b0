package execution

import (
	"context"
	"time"
)

// SnapshotOptions say whether the sandbox continues.
type SnapshotOptions struct {
	// Leave lets the sandbox go on after the snapshot. Otherwise the sandbox is Paused when Snapshot returns: nothing leaves
	// it any more, and its processes end.
	Leave bool
}

// SnapshotInfo describes a snapshot: the memory of all processes of a sandbox and the files that they wrote.
type SnapshotInfo struct {
	ID      string
	Sandbox string // id of the sandbox of which it was taken
	Parent  string // id of the snapshot from which that sandbox was restored; empty: it was created
	// Spec is the sandbox's, without Env, which has secrets. Image, command, user, disk limit and the like are those
	// of every sandbox that is restored from the snapshot.
	Spec         Spec
	Bytes        int64    // that it takes on the disk
	RunscVersion string   // of the program that took it, and must restore it
	Agent        string   // name, by content, of the agent in its memory
	CPUFeatures  []string // of the machine on which it was taken, sorted
	CreatedAt    time.Time
}

// Snapshots takes snapshots of sandboxes on this machine and keeps them. A snapshot is whole or does not exist. It
// outlives its sandbox and a restart of the machine. Ensure with Spec.Restore makes a sandbox from it.
//
// A restored sandbox continues where the snapshot was taken, with the specification's id, host name, address and
// environment instead of the old ones, and with its own copy of the files. TCP connections to the outside are
// closed, those inside the sandbox go on.
type Snapshots interface {
	// Snapshot takes a snapshot of a running sandbox under an id with the form of a sandbox's. After an error there
	// is no snapshot and the sandbox goes on. It may be repeated: if the sandbox is Paused by this snapshot it
	// returns that. FailedPrecondition: the sandbox does not run, or it cannot be snapshotted. AlreadyExists: the
	// id is that of another snapshot. ResourceExhausted: the disk is full.
	Snapshot(ctx context.Context, id, snapshot string, o SnapshotOptions) (SnapshotInfo, error)
	// ListSnapshots returns all snapshots, by id.
	ListSnapshots(ctx context.Context) ([]SnapshotInfo, error)
	// DeleteSnapshot frees the space of a snapshot. Sandboxes that were restored from it go on. It returns nil if
	// there is no such snapshot. FailedPrecondition: a Paused sandbox needs it.
	DeleteSnapshot(ctx context.Context, snapshot string) error
}
