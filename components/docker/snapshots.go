package docker

import "miren.dev/runtime/pkg/errs"

// noSnapshots is of the class with which the other drivers refuse a snapshot, so that a sandbox goes on after a pause that
// is refused. The engine's checkpoints are CRIU's, of runc; it has none of gVisor, and restores none under another name.
func noSnapshots() error {
	return errs.New(errs.FailedPrecondition, "the Docker driver has no snapshots of memory: a Docker engine takes none of gVisor").
		WithHint("pause, snapshot and fork sandboxes on a node with node.driver runsc")
}
