package deployment

import (
	"context"
	"slices"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/entity"
)

// url returns the URL at which the app answers without a route. It is empty if there is no ingress, if no version
// serves, if the version that serves has no web service with a port, and if another project has an older app of the
// same name: the ingress gives the host to the oldest app.
func (r *rollout) url(ctx context.Context) (string, error) {
	if r.URL == nil || r.app.Status.Active() == "" {
		return "", nil
	}
	ver, err := get[app.AppVersion](ctx, r.Store, r.app.Status.Active())
	if err != nil {
		return "", err
	}
	if !slices.ContainsFunc(ver.Spec.Services, func(s app.Service) bool { return s.Name == app.DefaultService && (s.Port == nil || *s.Port > 0) }) {
		return "", nil
	}
	same, _, err := entity.List[app.App](ctx, r.Store, entity.Query{Name: r.app.Name})
	if err != nil {
		return "", err
	}
	for _, a := range same {
		if a.Project != r.app.Project && a.CreateRevision < r.app.CreateRevision {
			return "", nil
		}
	}
	return r.URL(r.app), nil
}

// correctURL records the URL of the app again if the configuration of the
// ingress has changed since its last deployment recorded it.
func (r *rollout) correctURL(ctx context.Context) error {
	if !r.dep.Status.Phase.Ended() || r.app.Status.LastDeployment != r.dep.GetID() {
		return nil
	}
	url, err := r.url(ctx)
	if err != nil || url == r.dep.Status.URL {
		return err
	}
	r.dep.Status.URL = url
	return entity.UpdateStatus(ctx, r.Store, r.dep)
}
