package runsc

import (
	"context"
	"time"

	"miren.dev/runtime/pkg/errs"
)

// Backends: the ways to run a sandbox.
const (
	// BackendDirect has the node run runsc itself: a sandbox is sentry and gofer, and no other process.
	BackendDirect = "direct"
	// BackendContainerd makes each sandbox a task of containerd, behind a shim, so that containerd's tools show it.
	BackendContainerd = "containerd"
)

// backend runs sandboxes. Their network, control group, root filesystem, agent and
// files exist already; these are the same for all backends. Each method may be
// repeated, but freeze and thaw.
type backend interface {
	// start adopts the sandboxes that run, before any other method is called.
	start(ctx context.Context) error
	// follow reports the ends of sandboxes to Driver.notify until ctx ends.
	follow(ctx context.Context) error
	// create starts the sandbox, and returns when its agent was started. With
	// creation.snapshot it restores the sandbox.
	create(ctx context.Context, cr *creation) error
	// canSnapshot returns FailedPrecondition if the backend has no save and restores
	// nothing.
	canSnapshot() error
	// save writes the image of a running sandbox to a new directory. The sandbox goes
	// on, also after an error.
	save(ctx context.Context, id, dir string) error
	// freeze stops the processes of a running sandbox, which save does not start again;
	// thaw does, once for each freeze: repeated, it ends the sandbox.
	freeze(ctx context.Context, id string) error
	thaw(ctx context.Context, id string) error
	// setHostname sets the host name of a running sandbox.
	setHostname(ctx context.Context, id, name string) error
	// remove kills a sandbox and removes the backend's files of it. For a sandbox of
	// another backend it does nothing.
	remove(ctx context.Context, id string) error
	// state returns the state of the sandbox's processes, nil if none were started.
	state(ctx context.Context, id string) (*process, error)
	// ended returns a channel that is closed if the sandbox ends before ctx does.
	ended(ctx context.Context, id string) (<-chan struct{}, error)
	// list returns the ids of the sandboxes of which the backend has files.
	list() ([]string, error)
	// runscDir is where runsc keeps its state.
	runscDir() string
	// close ends the watch of the sandboxes, which go on.
	close()
}

// process is the state of a sandbox's processes.
type process struct {
	Running bool
	Status  int       // exit status of the sentry; unknown if it is negative
	EndedAt time.Time // zero if it is unknown
}

// backend returns the backend with this name. The records of earlier versions have
// none, and mean BackendContainerd.
func (d *Driver) backend(name string) (backend, error) {
	if name == "" {
		name = BackendContainerd
	}
	b, ok := d.backends[name]
	if !ok {
		return nil, errs.New(errs.FailedPrecondition, "the sandbox was made by backend %q, which this version does not have", name)
	}
	return b, nil
}

// removeTask has every backend remove its files of the sandbox: the container's record,
// which names the backend, may be gone.
func (cr *creation) removeTask(ctx context.Context) error {
	for _, name := range []string{BackendDirect, BackendContainerd} {
		if err := cr.d.backends[name].remove(ctx, cr.spec.ID); err != nil {
			return err
		}
	}
	return nil
}
