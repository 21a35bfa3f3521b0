package agentdriver

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
)

// Steps are what drivers do differently when a sandbox ends.
type Steps struct {
	// Kill ends a sandbox whose agent does not answer.
	Kill func(ctx context.Context, id string) error
	// Teardown removes everything of a sandbox but its logs, also when the caller has given up.
	Teardown func(ctx context.Context, id string) error
	// Started reports whether the main process was started, as far as that is known.
	Started func(id string) bool
	// Forget removes what is kept of a sandbox that was torn down, other than its logs; nil: nothing is.
	Forget func(id string) error
	// KillWait is how long the agent may take to report a killed main process.
	KillWait time.Duration
}

// Lifecycle ends and deletes sandboxes. Drivers embed it.
type Lifecycle struct {
	guests  *Guests
	changes *Changes
	locks   *KeyLock
	steps   Steps
	logger  *slog.Logger
}

// NewLifecycle returns the Lifecycle of a driver with these parts. locks are those
// under which the driver makes sandboxes.
func NewLifecycle(guests *Guests, changes *Changes, locks *KeyLock, steps Steps, logger *slog.Logger) Lifecycle {
	return Lifecycle{guests, changes, locks, steps, logger}
}

// killed is the exit of a main process that was killed.
func killed(cause execution.Cause, why string) execution.Exit {
	return execution.Exit{Cause: cause, Code: 128 + int(unix.SIGKILL), At: time.Now(), Message: "killed: " + why}
}

// Stop ends the main process; it first asks it to end. A sandbox whose set-up was
// interrupted has none: Stop removes it and returns NotFound.
func (l *Lifecycle) Stop(ctx context.Context, id string, grace time.Duration) (execution.Instance, error) {
	in, err := l.guests.State(ctx, id)
	if err != nil || in.Phase == execution.Exited {
		return in, err
	}
	if in.Phase == execution.Paused {
		return in, Paused(id)
	}
	if in.Phase != execution.Running {
		if in, err = l.finishSetUp(ctx, id); err != nil || in.Phase == execution.Exited {
			return in, err
		}
	}
	// Without the lock of the id: a Delete need not wait until the grace has passed.
	for _, s := range []struct {
		signal unix.Signal
		wait   time.Duration
	}{{unix.SIGTERM, grace}, {unix.SIGKILL, l.steps.KillWait}} {
		if s.wait <= 0 {
			continue
		}
		in, err := l.signalAndWait(ctx, id, s.signal, s.wait)
		if err != nil || in.Phase == execution.Exited {
			return in, err
		}
	}
	// The agent does not answer: kill the sandbox.
	unlock, err := l.locks.Lock(ctx, id)
	if err != nil {
		return in, err
	}
	defer unlock()
	if in, err = l.End(in, killed(execution.CauseExit, "it did not stop in time")); err != nil {
		return in, err
	}
	return in, l.steps.Kill(ctx, id)
}

// finishSetUp waits for a set-up under way, and removes one that was interrupted.
func (l *Lifecycle) finishSetUp(ctx context.Context, id string) (execution.Instance, error) {
	unlock, err := l.locks.Lock(ctx, id)
	if err != nil {
		return execution.Instance{}, err
	}
	defer unlock()
	in, err := l.guests.State(ctx, id)
	if err != nil || in.Phase != execution.Creating {
		return in, err
	}
	if err := l.steps.Teardown(ctx, id); err != nil {
		return in, errs.Wrap(err, "clear away sandbox %s", id)
	}
	l.changes.Notify(id)
	return execution.Instance{}, errs.New(errs.NotFound, "sandbox %s was never set up", id)
}

// signalAndWait returns the state of the sandbox after it has ended or wait has passed.
func (l *Lifecycle) signalAndWait(ctx context.Context, id string, sig unix.Signal, wait time.Duration) (execution.Instance, error) {
	parent := ctx
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	conn, err := l.guests.Hub.Conn(ctx, id)
	if err == nil {
		err = conn.Signal(ctx, int(sig))
	}
	if err != nil && parent.Err() == nil {
		l.logger.Warn("cannot signal the main process", "sandbox", id, "signal", sig.String(), "error", err)
	}
	in, err := l.changes.Await(ctx, id, l.guests.State, func(in execution.Instance) bool { return in.Phase == execution.Exited })
	if err != nil && ctx.Err() != nil && parent.Err() == nil {
		return execution.Instance{ID: id, Phase: execution.Running}, nil // not yet
	}
	return in, err
}

// End records an exit as the final one, unless another is recorded already.
func (l *Lifecycle) End(in execution.Instance, exit execution.Exit) (execution.Instance, error) {
	if err := l.guests.Hub.End(in.ID, exit); err != nil {
		return in, err
	}
	exit, err := l.guests.Hub.Exit(in.ID)
	if err != nil {
		return in, err
	}
	in.Phase, in.Exit = execution.Exited, &exit
	return in, nil
}

// EndExceeded ends a sandbox whose log is larger than its agent would write it.
func (l *Lifecycle) EndExceeded(ctx context.Context, id string) {
	_, err := l.End(execution.Instance{ID: id}, killed(execution.CauseCrash, "it wrote more than its log may take"))
	if err = errors.Join(err, l.steps.Kill(ctx, id)); err != nil {
		l.logger.Error("cannot end a sandbox whose log is too large", "sandbox", id, "error", err)
	}
	l.changes.Notify(id)
}

// Delete removes everything of a sandbox but its logs.
func (l *Lifecycle) Delete(ctx context.Context, id string) error {
	if err := CheckID(id); err != nil {
		return err
	}
	unlock, err := l.locks.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	// So that readers of its log return.
	if _, err := l.guests.Hub.Exit(id); errs.Is(err, errs.NotFound) && l.steps.Started(id) {
		if err := l.guests.Hub.End(id, killed(execution.CauseExit, "the sandbox was deleted")); err != nil {
			return err
		}
	}
	if err := l.steps.Teardown(ctx, id); err != nil {
		return errs.Wrap(err, "delete sandbox %s", id)
	}
	if l.steps.Forget != nil {
		if err := l.steps.Forget(id); err != nil {
			return err
		}
	}
	l.changes.Notify(id)
	return nil
}

// deletions is how many sandboxes DeleteAll deletes at once.
const deletions = 4

// DeleteAll deletes all of these sandboxes but paused ones.
func (l *Lifecycle) DeleteAll(ctx context.Context, all []execution.Instance) error {
	var g errgroup.Group
	g.SetLimit(deletions)
	for _, in := range all {
		if in.Phase != execution.Paused {
			g.Go(func() error { return l.Delete(ctx, in.ID) })
		}
	}
	return g.Wait()
}
