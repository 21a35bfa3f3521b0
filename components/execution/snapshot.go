package execution

import (
	"context"
	"iter"
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

// SnapshotCopier copies snapshots to object stores, and from there to other nodes. A copy is whole or does not
// exist. It has what the sandbox had in its memory, secrets included.
type SnapshotCopier interface {
	// CopySnapshot copies a snapshot of this node to objects that are for it alone. It may be repeated, also after
	// a crash: it sends only the objects that the store lacks. NotFound: there is no such snapshot. Unavailable: a
	// later call may succeed.
	CopySnapshot(ctx context.Context, snapshot string, o Objects) (SnapshotCopy, error)
	// FetchSnapshot makes a snapshot of this node of its copy, unless the node has it. Before it reads more than the
	// description of the copy it returns the errors of Ensure with Spec.Restore, if this node cannot restore the
	// snapshot. NotFound: there is no copy. Corrupt: it is not the one with this sum, or is damaged.
	FetchSnapshot(ctx context.Context, snapshot, sum string, o Objects) error
	// DeleteSnapshotCopy deletes a copy, complete or not.
	DeleteSnapshotCopy(ctx context.Context, o Objects) error
}

// SnapshotCopy is a copy of a snapshot.
type SnapshotCopy struct {
	Sum   string // of its description, which has the sums of its content
	Bytes int64  // that it takes in the store
}

// Objects are objects of a store that belong to one owner. Keys have the characters of ids.
type Objects interface {
	// Get returns an object; NotFound if there is none.
	Get(ctx context.Context, key string) ([]byte, error)
	// Create makes an object durable; AlreadyExists if there is one with the key.
	Create(ctx context.Context, key string, data []byte) error
	// Delete deletes an object; that there is none is no error.
	Delete(ctx context.Context, key string) error
	// List yields keys and sizes in bytes, and stops after the first error.
	List(ctx context.Context) iter.Seq2[ObjectInfo, error]
}

// ObjectInfo is an object of a list.
type ObjectInfo struct {
	Key  string
	Size int64
}
