package runsc

import (
	"context"

	"miren.dev/runtime/pkg/egress"
)

// SetEgress changes what a sandbox may reach.
func (d *Driver) SetEgress(ctx context.Context, id string, p egress.Policy) error {
	if err := checkID(id); err != nil {
		return err
	}
	unlock, err := d.locks.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	return d.cfg.Network.SetPolicy(ctx, id, p)
}

// EgressLog returns what a sandbox asked for.
func (d *Driver) EgressLog(_ context.Context, id string) ([]egress.Record, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	if _, err := d.cfg.Network.Get(id); err != nil {
		return nil, err
	}
	return d.cfg.Network.Recent(id), nil
}
