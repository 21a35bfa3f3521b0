package apps

import (
	"cmp"
	"context"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"strconv"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/fault"
	"miren.dev/runtime/pkg/schema"
)

// maxPoolName leaves room for the numbers in the names of the pool's sandboxes.
const maxPoolName = schema.MaxName - 8

// Port returns the port that a service serves on, 0 if none.
func Port(s *app.Service) int64 {
	switch {
	case s.Port != nil:
		return *s.Port
	case s.Name == app.DefaultService:
		return app.DefaultPort
	}
	return 0
}

// Pools lists the pools of an app.
func Pools(ctx context.Context, r entity.Reader, a id.App) ([]*sandbox.SandboxPool, error) {
	list, _, err := entity.List[sandbox.SandboxPool](ctx, r, entity.Where(sandbox.SandboxPoolAttrApp, a))
	return list, err
}

// PoolsOfVersion returns the pools that run a version.
func PoolsOfVersion(pools []*sandbox.SandboxPool, v id.AppVersion) []*sandbox.SandboxPool {
	return slices.DeleteFunc(slices.Clone(pools), func(p *sandbox.SandboxPool) bool { return p.Spec.AppVersion != v })
}

// Replicas returns the number of sandboxes of a service: that of the app's scale, or
// else the one that the source asks for. If it follows the load, this is the most of them.
func Replicas(a *app.App, svc *app.Service) int64 {
	if n, ok := a.Spec.Scale[svc.Name]; ok {
		return n
	}
	if auto := Autoscale(a, svc); auto != nil {
		return auto.Max
	}
	return svc.Replicas
}

// Autoscale returns the bounds and targets within which the number of sandboxes of a service follows the load: those that
// a user set, or else those that the source asks for. Nil: the number is fixed.
func Autoscale(a *app.App, svc *app.Service) *sandbox.Autoscale {
	if _, fixed := a.Spec.Scale[svc.Name]; fixed {
		return nil
	}
	var out sandbox.Autoscale
	out.SetDefaults()
	if svc.Autoscale != nil {
		out = *svc.Autoscale
	}
	if i := slices.IndexFunc(a.Spec.Bounds, func(b app.ScaleBounds) bool { return b.Service == svc.Name }); i >= 0 {
		out.Min, out.Max = a.Spec.Bounds[i].Min, a.Spec.Bounds[i].Max
	} else if svc.Autoscale == nil {
		return nil
	}
	if Port(svc) == 0 {
		out.Min = max(out.Min, 1) // no request would wake it
	}
	return &out
}

// Rescale gives a pool the number of sandboxes of its service in a version, or the bounds of that number. It reports whether
// this changes the pool.
func Rescale(p *sandbox.SandboxPool, a *app.App, ver *app.AppVersion, svc *app.Service) bool {
	n, auto := numbers(a, ver, svc)
	if p.Spec.Replicas == n && reflect.DeepEqual(p.Spec.Autoscale, auto) {
		return false
	}
	if auto != nil && p.Spec.Autoscale == nil {
		now := p.Spec.Replicas // until the load says another
		p.Spec.Autoscaled = &now
	}
	p.Spec.Replicas, p.Spec.Autoscale = n, auto
	return true
}

// Retire retires pools in one transaction, if the checks hold: the pool controller
// stops their sandboxes gracefully, and retention deletes the empty pools. Conflict if a pool changed or was deleted
// since it was read.
func Retire(ctx context.Context, s entity.Store, pools []*sandbox.SandboxPool, checks ...entity.Op) error {
	var ops []entity.Op
	for _, p := range pools {
		if p.Spec.State == sandbox.PoolStateRetired {
			continue
		}
		p.Spec.State = sandbox.PoolStateRetired
		op, err := entity.UpdateSpecOp(p)
		if err != nil {
			return err
		}
		ops = append(ops, op)
	}
	if len(ops) == 0 {
		return nil
	}
	fault.Point("deployment", "retire", fault.Before)
	_, err := s.Txn(ctx, entity.TxnRequest{Ops: append(ops, checks...)})
	fault.Point("deployment", "retire", fault.After)
	return entity.AsConflict(err) // the caller reads again: the other pools must still be retired
}

// PoolFor makes the pool of one of the Services of a version.
func PoolFor(a *app.App, ver *app.AppVersion, svc *app.Service) *sandbox.SandboxPool {
	env := map[string]string{}
	maps.Copy(env, ver.Spec.SourceEnv)
	maps.Copy(env, svc.Env)
	maps.Copy(env, ver.Spec.Env)
	secrets := ver.Spec.Secrets
	if ver.Spec.Preview != "" {
		secrets = previewEnv(ver, env)
	}
	env[envApp], env[envService], env[envVersion] = a.Name, svc.Name, strconv.FormatInt(ver.Spec.Number, 10)

	p := sandbox.NewSandboxPool()
	p.Project = a.Project
	p.Name = schema.ChildName(ver.Name, svc.Name, maxPoolName)
	p.Labels = map[string]string{"app": a.Name, "service": svc.Name}
	p.Spec.App, p.Spec.AppVersion, p.Spec.Service = a.GetID(), ver.GetID(), svc.Name
	p.Spec.Replicas, p.Spec.Autoscale = numbers(a, ver, svc)
	t := &p.Spec.Template
	t.Arch = runtime.GOARCH // the server builds on this machine, for its architecture
	t.Image, t.Command, t.Env, t.Secrets, t.StopTimeout = ver.Spec.Image, svc.Command, env, secrets, svc.StopTimeout
	t.Resources.CPUMillis, t.Resources.MemoryBytes, t.Resources.PIDs = svc.CPUMillis, svc.MemoryBytes, svc.PIDs
	t.Capabilities = sandbox.CapabilitySetDefault          // its image need not be made for gVisor
	t.Resources.BandwidthBytes = sandbox.MaxBandwidthBytes // the default is for code that its project does not trust
	if n := ver.Spec.Network; n != nil && n.Egress != "" {
		t.Egress = &sandbox.Egress{Mode: sandbox.EgressMode(n.Egress), Allow: n.Allow, Deny: n.Deny}
	}
	if port := Port(svc); port != 0 {
		env[envPort] = strconv.FormatInt(port, 10)
		probe := &sandbox.Probe{}
		probe.SetDefaults()
		probe.Port, probe.Deadline = port, svc.HealthDeadline
		if svc.HealthPath != "" {
			probe.Kind, probe.Path = sandbox.ProbeKindHTTP, svc.HealthPath
		}
		name := cmp.Or(string(svc.Protocol), "http") // by which the ingress knows the protocol
		t.Ports, t.Probe, t.Live = []sandbox.Port{{Name: name, Number: port}}, probe, liveness(svc, port)
	}
	return p
}

// liveness returns the check that finds hung processes of a service that listens on port, nil if it has none.
func liveness(svc *app.Service, port int64) *sandbox.Liveness {
	l := &sandbox.Liveness{}
	l.SetDefaults()
	l.Port = port
	if c := svc.Live; c != nil {
		if c.Off {
			return nil
		}
		l.Path, l.Interval, l.Timeout, l.Failures = c.Path, c.Interval, c.Timeout, c.Failures
	}
	return l
}
