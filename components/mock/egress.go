package mock

import (
	"context"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
)

// SetEgress implements execution.Driver. Machine.Spec returns the policy; nothing enforces it.
func (d *Driver) SetEgress(_ context.Context, id string, p egress.Policy) error {
	return d.call("SetEgress", id, func() error {
		if err := p.Validate(); err != nil {
			return err
		}
		b := d.m.box(id)
		if b == nil {
			return gone(id)
		}
		if b.spec().Network == execution.NetworkNone {
			return errs.New(errs.FailedPrecondition, "sandbox %s has no network", id)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		s := *b.spec()
		s.Egress = &p
		b.made.Store(&s)
		return nil
	})
}

// EgressLog implements execution.Driver. It is empty.
func (d *Driver) EgressLog(_ context.Context, id string) (records []egress.Record, err error) {
	err = d.call("EgressLog", id, func() error {
		if d.m.box(id) == nil {
			return gone(id)
		}
		return nil
	})
	return records, err
}
