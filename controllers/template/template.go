// Package template records how the builds of versions of templates end.
//
//	building -> ready | failed
//
// In: builds of versions, which controllers/build runs. Out: the version's
// image, or why there is none; and with the image, in the same transaction, the
// template's tags, the version that its name alone selects, and the deletion of
// its oldest versions beyond a number. So a build that fails, or a server that
// dies, leaves the previous version selected.
package template

import (
	"context"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/domain/templates"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Reconciler settles versions of templates. Templates writes to the store.
type Reconciler struct {
	Templates *templates.Service
}

// Controller describes the reconciler to the controller runtime.
func (r *Reconciler) Controller() kit.Controller {
	var shares []kit.Share
	for _, f := range kit.Fields(sandbox.TemplateVersionKind, "status") {
		shares = append(shares, kit.Share{Field: f, Owner: "api", Why: "to record how its build ended", When: func(before, _ schema.Object) bool {
			return before.(*sandbox.TemplateVersion).Status.Phase == sandbox.TemplatePhaseBuilding
		}})
	}
	for _, f := range kit.Fields(sandbox.TemplateKind, "spec.tags", "status.version") {
		shares = append(shares, kit.Share{Field: f, Owner: "api", Why: "to select the version that was built", When: func(_, _ schema.Object) bool { return true }})
	}
	return kit.Controller{
		Name: "template", Kind: sandbox.TemplateVersionKind, Reconcile: r.Reconcile, Workers: 2,
		Watches: []kit.Source{kit.Map(func(b *app.Build) []id.TemplateVersion { return kit.Key(b.Spec.TemplateVersion) })},
		Access: kit.Access{
			Reads: []*schema.Kind{sandbox.TemplateKind}, Deletes: []*schema.Kind{sandbox.TemplateVersionKind}, Shares: shares,
		},
	}
}

// Reconcile settles one version if its build has ended.
func (r *Reconciler) Reconcile(ctx context.Context, vid schema.ID) (time.Duration, error) {
	v, err := entity.Get[sandbox.TemplateVersion](ctx, r.Templates.Store, vid)
	if errs.Is(err, errs.NotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return 0, r.Templates.Settle(ctx, v)
}
