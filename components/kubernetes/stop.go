package kubernetes

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/components/agentdriver"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
)

// killWait is how long the agent may take to report a killed main process.
const killWait = 10 * time.Second

// Stop ends the main process; it first asks it to end. A sandbox whose set-up was
// interrupted has none: Stop removes it and returns NotFound.
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
	// The agent does not answer: delete the pod.
	unlock, err := d.locks.Lock(ctx, id)
	if err != nil {
		return in, err
	}
	defer unlock()
	exit := execution.Exit{Cause: execution.CauseExit, Code: 128 + int(unix.SIGKILL), At: time.Now(), Message: "killed: it did not stop in time"}
	if in, err = d.end(in, exit); err != nil {
		return in, err
	}
	d.stopRelay(id)
	return in, d.deletePod(ctx, id)
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
	d.Notify(id)
	return execution.Instance{}, errs.New(errs.NotFound, "sandbox %s was never set up", id)
}

// signalAndWait returns the state of the sandbox after it has ended or wait has passed.
func (d *Driver) signalAndWait(ctx context.Context, id string, sig unix.Signal, wait time.Duration) (execution.Instance, error) {
	parent := ctx
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	conn, err := d.Hub.Conn(ctx, id)
	if err == nil {
		err = conn.Signal(ctx, int(sig))
	}
	if err != nil && parent.Err() == nil {
		d.logger.Warn("cannot signal the main process", "sandbox", id, "signal", sig.String(), "error", err)
	}
	in, err := d.Await(ctx, id, d.Get, func(in execution.Instance) bool { return in.Phase == execution.Exited })
	if err != nil && ctx.Err() != nil && parent.Err() == nil {
		return in, nil // not yet
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
	if _, err := d.Hub.Exit(id); errs.Is(err, errs.NotFound) {
		if rec, _ := d.record(id); rec.Started {
			exit := execution.Exit{Cause: execution.CauseExit, Code: 128 + int(unix.SIGKILL), At: time.Now(), Message: "killed: the sandbox was deleted"}
			if err := d.Hub.End(id, exit); err != nil {
				return err
			}
		}
	}
	if err := d.teardown(ctx, id); err != nil {
		return errs.Wrap(err, "delete sandbox %s", id)
	}
	d.Notify(id)
	return nil
}

// Configure gives a sandbox to its user. Limits of CPU and memory cannot be lowered.
func (d *Driver) Configure(ctx context.Context, id string, i execution.Identity) error {
	if err := i.Check(); err != nil {
		return err
	}
	c, err := d.Conn(ctx, id)
	if err != nil {
		return err
	}
	rec, err := d.record(id)
	if err != nil {
		return err
	}
	if err := i.CheckLimits(rec.Spec); err != nil {
		return err
	}
	lower := i.CPUMillis > 0 && i.CPUMillis < rec.Spec.CPUMillis || i.MemoryBytes > 0 && i.MemoryBytes < rec.Spec.MemoryBytes
	if lower || len(i.Mounts) > 0 {
		return errs.New(errs.Unimplemented, "sandbox %s: the Kubernetes driver cannot give a claim lower limits of CPU and memory, or volumes", id).
			WithHint("claim one that was made with these limits")
	}
	return d.Explain(ctx, id, c.Configure(ctx, i))
}
