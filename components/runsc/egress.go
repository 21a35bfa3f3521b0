package runsc

import (
	"context"

	"miren.dev/runtime/components/agentdriver"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/appnet"
	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
)

// SetEgress changes a sandbox's network policy. If it injects secrets, the sandbox
// trusts the proxy's authority first.
func (d *Driver) SetEgress(ctx context.Context, id string, p egress.Policy) error {
	if err := agentdriver.CheckID(id); err != nil {
		return err
	}
	unlock, err := d.locks.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	if len(p.Inject) > 0 {
		if _, err = d.cfg.Network.Get(id); err == nil {
			err = d.trustAuthority(id)
		}
	}
	if err == nil {
		err = d.cfg.Network.SetPolicy(ctx, id, p)
	}
	if errs.Is(err, errs.NotFound) {
		if paused, e := d.pausedInstance(ctx, id); e == nil && paused != nil {
			return errs.New(errs.FailedPrecondition, "sandbox %s is paused", id).WithHint("set its network policy when it is resumed")
		}
	}
	return err
}

// EgressLog returns a sandbox's requests and connections.
func (d *Driver) EgressLog(_ context.Context, id string) ([]egress.Record, error) {
	if err := agentdriver.CheckID(id); err != nil {
		return nil, err
	}
	if _, err := d.cfg.Network.Get(id); err != nil {
		return nil, err
	}
	return d.cfg.Network.Recent(id), nil
}

// SetApps sets the private networks of apps.
func (d *Driver) SetApps(ctx context.Context, apps []appnet.App) error {
	return d.cfg.Network.SetApps(ctx, apps)
}

// Connect connects to a port at the address of a sandbox of an app.
func (d *Driver) Connect(ctx context.Context, id string, port uint16) (execution.Conn, error) {
	c, err := d.cfg.Network.Connect(ctx, id, port)
	if err != nil {
		return nil, err
	}
	return c, nil
}
