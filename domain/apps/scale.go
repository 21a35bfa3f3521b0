package apps

import (
	"context"
	"maps"
	"slices"
	"strings"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/fault"
)

// Scale sets the number of sandboxes of services of an app, and of those in reset to
// what their source asks for. It holds for the versions to come too. While a
// deployment is under way it is deferred: the deployment applies it when it ends.
// Errors: NotFound, InvalidArgument for a service that the active version has not, or
// a number that it cannot have, FailedPrecondition if no version serves.
func (s *Service) Scale(ctx context.Context, project, name string, set map[string]int64, reset []string) (a *app.App, deferred bool, err error) {
	err = entity.Retry(ctx, func() error {
		if a, err = s.Find(ctx, project, name); err != nil {
			return err
		}
		deferred = a.Status.ActiveDeployment != ""
		return s.scale(ctx, a, set, reset)
	})
	return a, deferred, err
}

func (s *Service) scale(ctx context.Context, a *app.App, set map[string]int64, reset []string) error {
	versions, err := Serving(ctx, s.Store, a)
	if err != nil {
		return err
	}
	for _, service := range slices.Concat(slices.Sorted(maps.Keys(set)), reset) {
		if err := checkScale(versions, service, set[service]); err != nil {
			return entity.Final(err)
		}
	}
	scale := maps.Clone(a.Spec.Scale)
	if scale == nil {
		scale = map[string]int64{}
	}
	maps.Copy(scale, set)
	for _, service := range reset {
		delete(scale, service)
	}
	a.Spec.Scale = scale
	// The status is written as it was read: a Conflict if a deployment has begun or
	// ended since.
	spec, err := entity.UpdateSpecOp(a)
	if err != nil {
		return err
	}
	status, err := entity.UpdateStatusOp(a)
	if err != nil {
		return err
	}
	ops := []entity.Op{spec, status}
	if a.Status.ActiveDeployment == "" {
		pools, err := Pools(ctx, s.Store, a.GetID())
		if err != nil {
			return err
		}
		for _, ver := range versions {
			for _, p := range PoolsOfVersion(pools, ver.GetID()) {
				i := serviceIndex(ver, p.Spec.Service)
				if i < 0 || p.Spec.Replicas == Replicas(a, &ver.Spec.Services[i]) {
					continue
				}
				p.Spec.Replicas = Replicas(a, &ver.Spec.Services[i])
				op, err := entity.UpdateSpecOp(p)
				if err != nil {
					return err
				}
				ops = append(ops, op)
			}
		}
	}
	fault.Point("app", "scale", fault.Before)
	_, err = s.Store.Txn(ctx, entity.TxnRequest{Ops: ops})
	fault.Point("app", "scale", fault.After)
	return entity.AsConflict(err)
}

func serviceIndex(ver *app.AppVersion, service string) int {
	return slices.IndexFunc(ver.Spec.Services, func(s app.Service) bool { return s.Name == service })
}

// checkScale returns InvalidArgument if none of the versions has such a service, or
// one of them cannot have that number of sandboxes of it.
func checkScale(versions []*app.AppVersion, service string, n int64) error {
	if n < 0 || n > sandbox.MaxReplicas {
		return errs.New(errs.InvalidArgument, "service %s cannot have %d sandboxes: 0 to %d", service, n, sandbox.MaxReplicas)
	}
	known := false
	for _, ver := range versions {
		if i := serviceIndex(ver, service); i >= 0 {
			known = true
			if err := checkWriters(&ver.Spec.Services[i], n); err != nil {
				return err
			}
		}
	}
	if known {
		return nil
	}
	var names []string
	for _, s := range versions[0].Spec.Services {
		names = append(names, s.Name)
	}
	return errs.New(errs.InvalidArgument, "v%d has no service %q", versions[0].Spec.Number, service).
		WithHint("its services: %s", strings.Join(names, ", "))
}

// checkWriters returns InvalidArgument if n sandboxes would write to one disk.
func checkWriters(svc *app.Service, n int64) error {
	j := slices.IndexFunc(svc.Volumes, func(v app.Volume) bool { return !v.ReadOnly })
	if n > 1 && j >= 0 {
		disk := svc.Volumes[j].Disk
		return errs.New(errs.InvalidArgument, "service %s cannot have %d sandboxes: one at a time writes to disk %s", svc.Name, n, disk).
			WithHint("set read_only = true in [services.%s.volumes.%s] of app.toml, and deploy", svc.Name, disk)
	}
	return nil
}
