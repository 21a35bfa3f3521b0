package pool

import (
	"slices"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/schema"
)

// suspends reports whether a pool sleeps as a paused sandbox.
func suspends(p *sandbox.SandboxPool) bool {
	return p.Spec.State == sandbox.PoolStateActive && p.Spec.Autoscale != nil && p.Spec.Autoscale.Suspend
}

// suspend pauses one of the sandboxes that a pool needs no more, if the pool goes to sleep, and returns the others. A
// sandbox that its node refused to pause is among them.
func suspend(p *sandbox.SandboxPool, m *sandboxes.Members, finished []*sandbox.Sandbox, wanted int) (ops []entity.Op, rest []*sandbox.Sandbox, err error) {
	if wanted > 0 || !suspends(p) || len(m.Suspended) > 0 {
		return nil, finished, nil
	}
	i := slices.IndexFunc(finished, func(sb *sandbox.Sandbox) bool {
		return sb.Status.Ready && sb.Status.HungAt == nil && sb.Status.PauseRefused == ""
	})
	if i < 0 {
		return nil, finished, nil
	}
	sb := finished[i]
	sb.Spec.Desired = sandbox.DesiredStatePaused
	op, err := entity.UpdateSpecOp(sb)
	if err != nil {
		return nil, nil, err
	}
	m.Suspended = append(m.Suspended, sb)
	return []entity.Op{op}, slices.Delete(slices.Clone(finished), i, i+1), nil
}

// resume has the suspended sandbox of a pool that wakes continue, and stops suspended ones that the pool needs no more: it
// is retired, does not sleep like that any more, or is awake already. What it resumes is added to the live ones.
func resume(p *sandbox.SandboxPool, m *sandboxes.Members, wanted int) (ops []entity.Op, err error) {
	for i, sb := range m.Suspended {
		if wanted == 0 && suspends(p) && i == 0 {
			continue
		}
		if len(m.Live) < wanted {
			sb.Spec.Desired, sb.Spec.DrainingAt = sandbox.DesiredStateRunning, nil
			m.Live = append(m.Live, sb)
		} else {
			sb.Spec.Desired, sb.Spec.StopReason = sandbox.DesiredStateStopped, sandbox.EndReasonUser
		}
		op, err := entity.UpdateSpecOp(sb)
		if err != nil {
			return nil, err
		}
		ops = append(ops, op)
	}
	return ops, nil
}

// suspendedShare lets the controller pause and resume sandboxes of pools.
func suspendedShare() kit.Share {
	return kit.Share{
		Field: kit.Fields(sandbox.SandboxKind, "spec.desired")[0], Owner: "api", Why: "to suspend one of its own while the app sleeps",
		When: func(before, after schema.Object) bool {
			b, a := before.(*sandbox.Sandbox), after.(*sandbox.Sandbox)
			return b.Spec.Pool != "" && (a.Spec.Desired == sandbox.DesiredStatePaused || b.Spec.Desired == sandbox.DesiredStatePaused)
		},
	}
}
