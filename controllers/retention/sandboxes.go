package retention

import (
	"context"
	"log/slog"
	"time"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Sandboxes deletes sandboxes of no pool some time after they ended. The pool
// controllers delete the sandboxes of pools.
type Sandboxes struct {
	Store  entity.Store
	Logger *slog.Logger
	After  time.Duration    // how long a sandbox stays after its end, for its logs and its reason
	Now    func() time.Time // nil: time.Now
}

// Controller describes it to the controller runtime.
func (r *Sandboxes) Controller() kit.Controller {
	return kit.Controller{
		Name: "sandbox-retention", Kind: sandbox.SandboxKind,
		Filter: func(o schema.Object) bool {
			sb, ok := o.(*sandbox.Sandbox)
			return ok && ofNoPool(sb) && sb.Status.Phase.Ended()
		},
		Reconcile: r.Reconcile,
		Access:    kit.Access{Deletes: []*schema.Kind{sandbox.SandboxKind}},
	}
}

// Reconcile deletes one sandbox, or returns after how long it may be deleted.
func (r *Sandboxes) Reconcile(ctx context.Context, sid schema.ID) (time.Duration, error) {
	sb, err := entity.Get[sandbox.Sandbox](ctx, r.Store, sid)
	if errs.Is(err, errs.NotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if !ofNoPool(sb) || !sb.Status.Phase.Ended() {
		return 0, nil
	}
	now, ended := time.Now(), sb.UpdatedAt
	if r.Now != nil {
		now = r.Now()
	}
	if sb.Status.EndedAt != nil {
		ended = *sb.Status.EndedAt
	}
	if wait := ended.Add(r.After).Sub(now); wait > 0 {
		return wait, nil
	}
	if err := entity.Delete(ctx, r.Store, sb); err != nil && !errs.Is(err, errs.NotFound) {
		return 0, err
	}
	r.Logger.Info("deleted", "kind", sandbox.KindSandbox, "id", string(sid))
	return 0, nil
}

func ofNoPool(sb *sandbox.Sandbox) bool { return sb.Spec.Pool == "" && sb.Spec.WarmPool == "" }
