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

// Scaling is a change of how many sandboxes services of an app have.
type Scaling struct {
	Set    map[string]int64  // by service: a fixed number
	Bounds []app.ScaleBounds // services whose number follows the load
	Reset  []string          // services that have what their source asks for again
}

// Scale changes the number of sandboxes of services of an app, or the bounds of it. It holds for the versions to come
// too. While a deployment is under way it is deferred: the deployment applies it when it ends.
// Errors: NotFound, InvalidArgument for a service that the active version has not, or
// a number that it cannot have, FailedPrecondition if no version serves.
func (s *Service) Scale(ctx context.Context, project, name string, change Scaling) (a *app.App, deferred bool, err error) {
	err = entity.Retry(ctx, func() error {
		if a, err = s.findOwn(ctx, project, name); err != nil {
			return err
		}
		deferred = a.Status.ActiveDeployment != ""
		return s.scale(ctx, a, change)
	})
	return a, deferred, err
}

func (s *Service) scale(ctx context.Context, a *app.App, change Scaling) error {
	versions, err := Serving(ctx, s.Store, a)
	if err != nil {
		return err
	}
	for _, service := range slices.Concat(slices.Sorted(maps.Keys(change.Set)), change.Reset) {
		if err := checkScale(versions, service, change.Set[service]); err != nil {
			return entity.Final(err)
		}
	}
	for _, b := range change.Bounds {
		if err := checkBounds(versions, b); err != nil {
			return entity.Final(err)
		}
	}
	change.apply(&a.Spec)
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
				if i < 0 || !Rescale(p, a, ver, &ver.Spec.Services[i]) {
					continue
				}
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

// apply writes the change into the spec of an app. The last word about a service counts.
func (c *Scaling) apply(spec *app.AppSpec) {
	scale := maps.Clone(spec.Scale)
	if scale == nil {
		scale = map[string]int64{}
	}
	unbound := func(service string) {
		spec.Bounds = slices.DeleteFunc(slices.Clone(spec.Bounds), func(b app.ScaleBounds) bool { return b.Service == service })
	}
	for _, service := range c.Reset {
		delete(scale, service)
		unbound(service)
	}
	for service, n := range c.Set {
		scale[service] = n
		unbound(service)
	}
	for _, b := range c.Bounds {
		delete(scale, b.Service)
		unbound(b.Service)
		spec.Bounds = append(spec.Bounds, b)
	}
	spec.Scale = scale
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

// checkBounds returns InvalidArgument if none of the versions has the service, or one of them cannot have such bounds.
func checkBounds(versions []*app.AppVersion, b app.ScaleBounds) error {
	if b.Min < 0 || b.Max < 1 || b.Min > b.Max {
		return errs.New(errs.InvalidArgument, "service %s cannot have %d to %d sandboxes", b.Service, b.Min, b.Max).
			WithHint("the least number is 0 or more, the most is 1 or more and not below the least: %s=0..5", b.Service)
	}
	for _, ver := range versions {
		i := serviceIndex(ver, b.Service)
		if i < 0 || Port(&ver.Spec.Services[i]) != 0 {
			continue
		}
		if auto := ver.Spec.Services[i].Autoscale; b.Min == 0 {
			return errs.New(errs.InvalidArgument, "service %s cannot have 0 sandboxes: it has no port, so no request would wake it", b.Service).
				WithHint("%s=1..%d keeps one; %s=0 stops it", b.Service, b.Max, b.Service)
		} else if auto == nil || auto.CPU == nil {
			return errs.New(errs.InvalidArgument, "service %s has no port, so its number of sandboxes cannot follow requests", b.Service).
				WithHint("set scale = {max = %d, cpu = 70} in [services.%s] of app.toml, or a fixed number: %s=%d", b.Max, b.Service, b.Service, b.Max)
		}
	}
	return checkScale(versions, b.Service, b.Max)
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
