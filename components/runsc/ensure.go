package runsc

import (
	"context"
	"errors"
	"time"

	"miren.dev/runtime/components/agentdriver"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
)

// Bounds of work that must be finished although the caller may have given up.
const (
	teardownTimeout = 60 * time.Second
	adoptTimeout    = 10 * time.Second
)

// Ensure makes a sandbox exist and run.
func (d *Driver) Ensure(ctx context.Context, s execution.Spec) (execution.Instance, error) {
	if err := agentdriver.CheckSpec(s); err != nil {
		return execution.Instance{}, err
	}
	unlock, err := d.locks.Lock(ctx, s.ID)
	if err != nil {
		return execution.Instance{}, err
	}
	defer unlock()
	if paused, err := d.pausedInstance(ctx, s.ID); err != nil {
		return execution.Instance{}, err
	} else if paused != nil {
		return d.ensurePaused(ctx, s, *paused)
	}
	in, err := d.contained(ctx, s.ID)
	switch {
	case errs.Is(err, errs.NotFound): // other parts may exist; each step copes with them
	case err != nil:
		return execution.Instance{}, err
	case in.Phase == execution.Running:
		return in, errors.Join(d.forgetPause(s.ID), d.attach(s.ID))
	case in.Phase == execution.Exited:
		return in, nil
	default:
		if in, err := d.finish(ctx, s, in); err == nil {
			return in, nil
		}
		d.logger.Info("removing an interrupted set-up", "sandbox", s.ID)
		if err := d.teardown(ctx, s.ID); err != nil {
			return execution.Instance{}, err
		}
	}
	return d.create(ctx, s)
}

// ensurePaused restores a paused sandbox if the specification says so.
func (d *Driver) ensurePaused(ctx context.Context, s execution.Spec, paused execution.Instance) (execution.Instance, error) {
	if s.Restore == "" {
		return paused, nil
	}
	if err := d.finishPause(ctx, s.ID); err != nil {
		return paused, err
	}
	return d.create(ctx, s)
}

func (d *Driver) create(ctx context.Context, s execution.Spec) (execution.Instance, error) {
	b, err := d.backend(d.cfg.Backend)
	if err != nil {
		return execution.Instance{}, err
	}
	s, snapshot, err := d.fromSnapshot(s)
	if err != nil {
		return execution.Instance{}, err
	}
	cr := &creation{d: d, spec: s, snapshot: snapshot, backend: b}
	if err := setUp(ctx, cr.steps()); err != nil {
		if down := d.teardown(ctx, s.ID); down != nil {
			// The sandbox stays listed, and the next Ensure or Delete
			// continues.
			d.logger.Error("cannot remove the sandbox", "sandbox", s.ID, "error", down)
			err = errors.Join(err, down)
		}
		return execution.Instance{}, errs.Wrap(err, "set up sandbox %s", s.ID)
	}
	in := execution.Instance{ID: s.ID, Phase: execution.Running, Address: cr.address(), StartedAt: time.Now()}
	if status := cr.conn.Main(); status.Exit != nil {
		in.Phase, in.Exit = execution.Exited, status.Exit
	}
	d.Notify(s.ID)
	return in, nil
}

// finish completes a set-up that a server began before it ended. That set-up
// got as far as the agent, so it may have started the main process already.
func (d *Driver) finish(ctx context.Context, s execution.Spec, in execution.Instance) (execution.Instance, error) {
	b, err := d.backendOf(ctx, s.ID)
	if err != nil {
		return in, err
	}
	if p, err := b.state(ctx, s.ID); err != nil || p == nil || !p.Running {
		return in, errors.Join(errInterrupted, err)
	}
	if err := d.attach(s.ID); err != nil {
		return in, err
	}
	ctx, cancel := context.WithTimeout(ctx, adoptTimeout)
	defer cancel()
	s, snapshot, err := d.fromSnapshot(s)
	if err != nil {
		return in, err
	}
	cr := &creation{d: d, spec: s, snapshot: snapshot, backend: b}
	if cr.network, err = d.cfg.Network.Get(s.ID); err != nil {
		return in, err
	}
	if err := cr.setupConnection(ctx); err != nil {
		return in, err
	}
	if err := cr.setupIdentity(ctx); err != nil {
		return in, err
	}
	if err := cr.setupWarm(ctx); err != nil {
		return in, err
	}
	if err := cr.setupMain(ctx); err != nil {
		return in, err
	}
	return d.Get(ctx, s.ID)
}

// errInterrupted: no process of the sandbox runs yet.
var errInterrupted = errors.New("its task was not started")

// attach listens for the agent of a sandbox that another Driver made.
func (d *Driver) attach(id string) error { return d.hub.Attach(id) }

// teardown removes everything of a sandbox but its logs, also when the caller
// has given up.
func (d *Driver) teardown(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardownTimeout)
	defer cancel()
	cr := &creation{d: d, spec: execution.Spec{ID: id}}
	return tearDown(ctx, cr.steps())
}
