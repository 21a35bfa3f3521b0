package runsc

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/fault"
)

// frozenFile, in the sandbox's directory, says that its kernel may be stopped for a pause.
const frozenFile = "frozen"

// thawTimeout is how long the agent of a sandbox that runs may take to connect to the next server.
const thawTimeout = 5 * time.Second

// freeze stops the processes of a sandbox that is to be paused, if they could write to a volume. Volumes are not in the
// snapshot: what a sandbox writes to them after its memory was saved, it would write again after the pause.
func (d *Driver) freeze(ctx context.Context, s execution.Spec, b backend) (frozen bool, _ error) {
	writes := false
	for _, m := range s.Mounts {
		writes = writes || !m.ReadOnly
	}
	if !writes {
		return false, nil
	}
	if err := os.WriteFile(d.sandboxDir(s.ID, frozenFile), nil, 0o600); err != nil {
		return false, errs.New(errs.Unavailable, "begin to stop the sandbox: %w", err)
	}
	fault.Point("snapshot", "freeze", fault.Before)
	if err := b.freeze(ctx, s.ID); err != nil {
		return false, errors.Join(err, d.forgetFreeze(s.ID))
	}
	fault.Point("snapshot", "freeze", fault.After)
	return true, nil
}

// thaw ends freeze, also when the caller has given up.
func (d *Driver) thaw(ctx context.Context, id string, b backend) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardownTimeout)
	defer cancel()
	if err := b.thaw(ctx, id); err != nil {
		return err
	}
	return d.forgetFreeze(id)
}

func (d *Driver) forgetFreeze(id string) error {
	if err := os.Remove(d.sandboxDir(id, frozenFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errs.New(errs.Unavailable, "end the stop of sandbox %s: %w", id, err)
	}
	return nil
}

// recoverFrozen lets a sandbox go on that a server may have frozen before it ended. A kernel that is thawed and was not
// frozen dies, so an agent that connects shows first that it runs.
func (d *Driver) recoverFrozen(ctx context.Context, id string) error {
	if _, err := os.Lstat(d.sandboxDir(id, frozenFile)); err != nil {
		return nil
	}
	b, err := d.backendOf(ctx, id)
	if err != nil {
		return err
	}
	if err := d.attach(id); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, thawTimeout)
	defer cancel()
	if _, err := d.hub.Conn(wait, id); err == nil {
		return d.forgetFreeze(id)
	}
	return d.thaw(ctx, id, b)
}
