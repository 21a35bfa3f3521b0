package docker

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/components/agentdriver"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
)

// killWait is how long the agent may take to report a killed main process.
const killWait = 3 * time.Second

// Stop ends the main process; it first asks it to end. A sandbox whose set-up was interrupted has none: Stop removes it
// and returns NotFound.
func (d *Driver) Stop(ctx context.Context, id string, grace time.Duration) (execution.Instance, error) {
	in, err := d.Get(ctx, id)
	if err != nil || in.Phase == execution.Exited {
		return in, err
	}
	if in.Phase != execution.Running {
		if in, err = d.finishSetUp(ctx, id); err != nil || in.Phase == execution.Exited {
			return in, err
		}
	}
	// Without the lock of the id: a Delete need not wait until the grace has passed.
	for _, s := range []struct {
		signal unix.Signal
		wait   time.Duration
	}{{unix.SIGTERM, grace}, {unix.SIGKILL, killWait}} {
		if s.wait <= 0 {
			continue
		}
		in, err := d.signalAndWait(ctx, id, s.signal, s.wait)
		if err != nil || in.Phase == execution.Exited {
			return in, err
		}
	}
	// The agent does not answer: kill the sandbox.
	unlock, err := d.locks.Lock(ctx, id)
	if err != nil {
		return in, err
	}
	defer unlock()
	exit := execution.Exit{Cause: execution.CauseExit, Code: 128 + int(unix.SIGKILL), At: time.Now(), Message: "killed: it did not stop in time"}
	if in, err = d.end(in, exit); err != nil {
		return in, err
	}
	return in, d.kill(ctx, id)
}

// finishSetUp waits for a set-up under way, and removes one that was interrupted.
func (d *Driver) finishSetUp(ctx context.Context, id string) (execution.Instance, error) {
	unlock, err := d.locks.Lock(ctx, id)
	if err != nil {
		return execution.Instance{}, err
	}
	defer unlock()
	in, err := d.Get(ctx, id)
	if err != nil || in.Phase != execution.Creating {
		return in, err
	}
	if err := d.teardown(ctx, id); err != nil {
		return in, errs.Wrap(err, "clear away sandbox %s", id)
	}
	d.changes.Notify(id)
	return execution.Instance{}, errs.New(errs.NotFound, "sandbox %s was never set up", id)
}

// signalAndWait returns the state of the sandbox after it has ended or wait has passed.
func (d *Driver) signalAndWait(ctx context.Context, id string, sig unix.Signal, wait time.Duration) (execution.Instance, error) {
	parent := ctx
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	conn, err := d.hub.Conn(ctx, id)
	if err == nil {
		err = conn.Signal(ctx, int(sig))
	}
	if err != nil && parent.Err() == nil {
		d.logger.Warn("cannot signal the main process", "sandbox", id, "signal", sig.String(), "error", err)
	}
	in, err := d.changes.Await(ctx, id, d.Get, func(in execution.Instance) bool { return in.Phase == execution.Exited })
	if err != nil && ctx.Err() != nil && parent.Err() == nil {
		return execution.Instance{ID: id, Phase: execution.Running}, nil // not yet
	}
	return in, err
}

// Delete removes everything of a sandbox but its logs.
func (d *Driver) Delete(ctx context.Context, id string) error {
	if err := agentdriver.CheckID(id); err != nil {
		return err
	}
	unlock, err := d.locks.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	// So that readers of its log return.
	if _, err := d.hub.Exit(id); errs.Is(err, errs.NotFound) {
		if started, _ := d.startedAt(id); !started.IsZero() {
			exit := execution.Exit{Cause: execution.CauseExit, Code: 128 + int(unix.SIGKILL), At: time.Now(), Message: "killed: the sandbox was deleted"}
			if err := d.hub.End(id, exit); err != nil {
				return err
			}
		}
	}
	if err := d.teardown(ctx, id); err != nil {
		return errs.Wrap(err, "delete sandbox %s", id)
	}
	d.changes.Notify(id)
	return nil
}
