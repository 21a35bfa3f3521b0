package kubernetes

import (
	"context"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
)

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
