package sandbox

import (
	"context"
	"slices"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
)

// roomWait is the wait before a node without room for a paused sandbox is
// looked at again.
const roomWait = 2 * time.Second

// awaitsRoom reports whether a sandbox is paused and is to run again. It
// reserves its resources from then on, so that the scheduler gives its room to
// no other sandbox.
func awaitsRoom(sb *sandbox.Sandbox) bool {
	return sb.Status.Phase == sandbox.SandboxPhasePaused && sb.Spec.Desired == sandbox.DesiredStateRunning
}

// room returns ResourceExhausted if the node has no room to resume a sandbox.
// Of those that wait the oldest comes first; one that does not fit delays no
// other.
func (r *Reconciler) room(ctx context.Context, sb *sandbox.Sandbox) error {
	n, err := entity.Get[core.Node](ctx, r.Store, r.Node)
	if err != nil {
		return err
	}
	all, _, err := entity.List[sandbox.Sandbox](ctx, r.Store, entity.Where(sandbox.SandboxAttrNode, r.Node))
	if err != nil {
		return err
	}
	slices.SortFunc(all, sandboxes.ByAge)
	cpu, memory := n.Spec.CPUMillis, n.Spec.MemoryBytes
	for _, o := range all {
		if !o.Status.Phase.Ended() && !awaitsRoom(o) {
			c, m := o.Reserved()
			cpu, memory = cpu-c, memory-m
		}
	}
	for _, o := range all {
		if !awaitsRoom(o) {
			continue
		}
		c, m := o.Reserved()
		fits := c <= cpu && m <= memory
		switch {
		case o.ID == sb.ID && fits:
			return nil
		case o.ID == sb.ID:
			return sandboxes.ErrNoRoom(cpu, memory, c, m)
		case fits:
			cpu, memory = cpu-c, memory-m
		}
	}
	return nil // it was changed meanwhile: the next write fails
}

// withoutRoom records why a sandbox stays paused. One of a pool fails instead: another node may have room for a new one.
func (r *Reconciler) withoutRoom(ctx context.Context, sb *sandbox.Sandbox, why error) (time.Duration, error) {
	if sb.Spec.Pool != "" {
		return r.fail(ctx, sb, why)
	}
	if m := brief(why.Error()); sb.Status.Message != m {
		sb.Status.Message = m
		return roomWait, r.write(ctx, sb)
	}
	return roomWait, nil
}
