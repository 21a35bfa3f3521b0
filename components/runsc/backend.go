package runsc

import (
	"context"
	"time"

	"miren.dev/runtime/pkg/errs"
)

// Backends: ways of running a sandbox whose parts are there.
const (
	// BackendDirect has the node run runsc itself: a sandbox is sentry and gofer, and no other process.
	BackendDirect = "direct"
	// BackendContainerd makes each sandbox a task of containerd, behind a shim, so that containerd's tools show it.
	BackendContainerd = "containerd"
)

// backend runs sandboxes. Network, control group, root filesystem, agent and files
// are there already; they are the same for all. Each method may be repeated.
type backend interface {
	// start takes over what runs, before anything else is called.
	start(ctx context.Context) error
	// follow reports the ends of sandboxes to Driver.notify until ctx ends.
	follow(ctx context.Context) error
	// create runs the sandbox: when it returns the agent has been started.
	create(ctx context.Context, cr *creation) error
	// remove kills a sandbox and removes what the backend has of it. It serves
	// sandboxes of other backends too, of which it has nothing.
	remove(ctx context.Context, id string) error
	// state returns what became of the sandbox's processes, nil if none were started.
	state(ctx context.Context, id string) (*process, error)
	// ended returns a channel that is closed if the sandbox ends before ctx does.
	ended(ctx context.Context, id string) (<-chan struct{}, error)
	// list returns the sandboxes of which the backend has anything.
	list() ([]string, error)
	// runscDir is where runsc keeps its state.
	runscDir() string
	// close ends what start began. The sandboxes go on.
	close()
}

// process is the state of a sandbox's processes.
type process struct {
	Running bool
	Status  int       // exit status of the sentry; unknown if it is negative
	EndedAt time.Time // zero if it is not known
}

// backend returns the one by which a sandbox was made. Those of earlier versions do not say.
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

// removeTask has every backend remove what it has of the sandbox, whichever made it:
// that is in the container's record, which may be gone.
func (cr *creation) removeTask(ctx context.Context) error {
	for _, name := range []string{BackendDirect, BackendContainerd} {
		if err := cr.d.backends[name].remove(ctx, cr.spec.ID); err != nil {
			return err
		}
	}
	return nil
}
