package deployment

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/controllers/pool"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

const (
	// DefaultPort is where the service web listens if its configuration does not say.
	DefaultPort = 8080
	// settle is how long a process without a probe must run to count as started.
	settle = 2 * time.Second
	// maxSetupFailures is how many sandboxes of a new version may fail for
	// reasons of the machine, not of the app, before the deployment fails.
	maxSetupFailures = 3
	// slack is what a deployment allows beyond a service's own deadline, for
	// setting up the sandbox.
	slack = 60 * time.Second
)

// Port returns the port that a service serves on, 0 if none.
func Port(s *app.Service) int64 {
	switch {
	case s.Port != nil:
		return *s.Port
	case s.Name == "web":
		return DefaultPort
	}
	return 0
}

// Pools lists the pools of an app.
func Pools(ctx context.Context, s entity.Reader, a id.App) ([]*sandbox.SandboxPool, error) {
	list, _, err := entity.List[sandbox.SandboxPool](ctx, s, entity.Query{Index: []entity.IndexMatch{{
		Attr: sandbox.SandboxPoolAttrApp, Op: entity.IndexEq, Value: schema.EncodeIndexString(string(a)),
	}}})
	return list, err
}

func poolsOf(all []*sandbox.SandboxPool, v id.AppVersion) []*sandbox.SandboxPool {
	return slices.DeleteFunc(slices.Clone(all), func(p *sandbox.SandboxPool) bool { return p.Spec.AppVersion != v })
}

// PoolFor makes the pool of one service of a version.
func PoolFor(a *app.App, ver *app.AppVersion, svc *app.Service) *sandbox.SandboxPool {
	port := Port(svc)
	env := map[string]string{}
	maps.Copy(env, ver.Spec.SourceEnv)
	maps.Copy(env, svc.Env)
	maps.Copy(env, ver.Spec.Env)
	env["RUNTIME_APP"], env["RUNTIME_SERVICE"], env["RUNTIME_VERSION"] = a.Name, svc.Name, strconv.FormatInt(ver.Spec.Number, 10)
	p := sandbox.NewSandboxPool()
	p.Project = a.Project
	p.Name = fmt.Sprintf("%s-%s", ver.Name, svc.Name)
	p.Labels = map[string]string{"app": a.Name, "service": svc.Name}
	res := p.Spec.Template.Resources
	res.CPUMillis, res.MemoryBytes, res.PIDs = svc.CPUMillis, svc.MemoryBytes, svc.PIDs
	p.Spec = sandbox.SandboxPoolSpec{
		App: a.GetID(), AppVersion: ver.GetID(), Service: svc.Name, Replicas: svc.Replicas,
		Template: sandbox.SandboxTemplate{
			Image: ver.Spec.Image, Command: svc.Command, Env: env, Secrets: ver.Spec.Secrets,
			Resources: res, Network: sandbox.NetworkModeBridge, StopTimeout: svc.StopTimeout,
		},
	}
	if port != 0 {
		env["PORT"] = strconv.FormatInt(port, 10)
		var probe sandbox.Probe
		probe.SetDefaults()
		probe.Port, probe.Deadline = port, svc.HealthDeadline
		if svc.HealthPath != "" {
			probe.Kind, probe.Path = sandbox.ProbeKindHTTP, svc.HealthPath
		}
		p.Spec.Template.Ports = []sandbox.Port{{Name: "http", Number: port}}
		p.Spec.Template.Probe = &probe
	}
	return p
}

// start brings up the pools of the new version and waits until each is ready.
func (r *rollout) start(ctx context.Context) (time.Duration, error) {
	ver, err := entity.Get[app.AppVersion](ctx, r.Store, r.dep.Status.Version)
	if err != nil {
		return 0, err
	}
	all, err := Pools(ctx, r.Store, r.app.GetID())
	if err != nil {
		return 0, err
	}
	have := poolsOf(all, ver.GetID())
	ready, again := 0, poll
	for i := range ver.Spec.Services {
		svc := &ver.Spec.Services[i]
		k := slices.IndexFunc(have, func(p *sandbox.SandboxPool) bool { return p.Spec.Service == svc.Name })
		if k < 0 {
			if err := entity.Create(ctx, r.Store, PoolFor(r.app, ver, svc)); err != nil && !errs.Is(err, errs.AlreadyExists) {
				return 0, err
			}
			continue
		}
		ok, wait, failure, err := r.progress(ctx, have[k], svc)
		if err != nil {
			return 0, err
		}
		if failure != nil {
			return 0, r.fail(ctx, *failure)
		}
		again = min(again, wait)
		if ok {
			ready++
		}
	}
	if ready < len(ver.Spec.Services) {
		return again, r.report(ctx, fmt.Sprintf("v%d: %d of %d services ready", ver.Spec.Number, ready, len(ver.Spec.Services)))
	}
	r.step("shift", "")
	return poll, r.enter(ctx, app.DeploymentPhaseShifting)
}

// report stores the progress of the running step, if it is news.
func (r *rollout) report(ctx context.Context, message string) error {
	for i := range r.dep.Status.Steps {
		if s := &r.dep.Status.Steps[i]; s.State == app.StepStateRunning && s.Message != message {
			s.Message = message
			return entity.UpdateStatus(ctx, r.Store, r.dep)
		}
	}
	return nil
}

// progress tells whether the pool of a service is ready, and if it will never be, why.
func (r *rollout) progress(ctx context.Context, p *sandbox.SandboxPool, svc *app.Service) (ok bool, wait time.Duration, f *app.Failure, err error) {
	all, err := pool.Sandboxes(ctx, r.Store, p.GetID())
	if err != nil {
		return false, 0, nil, err
	}
	st := pool.Survey(all)
	setupFailures := 0
	for _, sb := range st.Ended {
		switch sb.Status.Reason {
		case sandbox.EndReasonExit, sandbox.EndReasonOOM:
			return false, 0, ended(sb, svc), nil
		case sandbox.EndReasonSetup, sandbox.EndReasonCrash, sandbox.EndReasonNode:
			if setupFailures++; setupFailures >= maxSetupFailures {
				return false, 0, ended(sb, svc), nil
			}
		}
	}
	now, ready := r.now(), 0
	wait = poll
	for _, sb := range st.Live {
		switch {
		case !sb.Status.Ready:
			if f := late(sb, svc, now); f != nil {
				return false, 0, f, nil
			}
		case sb.Spec.Template.Probe == nil && sb.Status.StartedAt != nil && now.Sub(*sb.Status.StartedAt) < settle:
			wait = min(wait, settle-now.Sub(*sb.Status.StartedAt))
		default:
			ready++
		}
	}
	if ready >= int(p.Spec.Replicas) {
		return true, wait, nil, nil
	}
	if begun := r.stepStart("start"); !begun.IsZero() && now.Sub(begun) > svc.HealthDeadline+slack {
		f := &app.Failure{Reason: app.FailureReasonTimeout, Service: svc.Name,
			Message: fmt.Sprintf("only %d of %d sandboxes of service %s were ready after %s", ready, p.Spec.Replicas, svc.Name, svc.HealthDeadline+slack)}
		for _, sb := range st.Live {
			if sb.Spec.Node == "" {
				f.Reason, f.Message = app.FailureReasonCapacity, "no node has room for service "+svc.Name+": "+sb.Status.Message
				f.Hint = "lower cpu or memory of the service, or free some with `r app delete`"
			}
		}
		return false, 0, f, nil
	}
	return false, wait, nil, nil
}

func (r *rollout) stepStart(name string) time.Time {
	for _, s := range r.dep.Status.Steps {
		if s.Name == name && s.StartedAt != nil {
			return *s.StartedAt
		}
	}
	return time.Time{}
}

// ended explains a sandbox that ended before it was ready.
func ended(sb *sandbox.Sandbox, svc *app.Service) *app.Failure {
	f := &app.Failure{
		Reason: app.FailureReasonCrash, Service: svc.Name, ExitCode: sb.Status.ExitCode, LogTail: sb.Status.LogTail,
		Listening: sb.Status.Listening,
	}
	switch sb.Status.Reason {
	case sandbox.EndReasonOOM:
		f.Reason = app.FailureReasonOOM
		f.Message = fmt.Sprintf("service %s used more than its %d MiB of memory", svc.Name, svc.MemoryBytes>>20)
		f.Hint = fmt.Sprintf("raise memory of [services.%s] in app.toml", svc.Name)
	case sandbox.EndReasonExit:
		var code int64
		if sb.Status.ExitCode != nil {
			code = *sb.Status.ExitCode
		}
		f.Message = fmt.Sprintf("service %s ended with exit code %d before it was ready", svc.Name, code)
		f.Hint = "the last lines above say what the process printed; `r app logs` has more"
		if code == 127 || code == 126 {
			f.Hint = fmt.Sprintf("the command of service %s could not be run: check it in app.toml or Procfile", svc.Name)
		}
	default:
		f.Reason = app.FailureReasonInternal
		f.Message = fmt.Sprintf("sandbox of service %s could not be kept up: %s", svc.Name, sb.Status.Message)
		f.Hint = "`r doctor` checks the server; `r deploy` tries again"
	}
	return f
}

// late explains a sandbox that runs but did not become ready in time, or
// returns nil while there is time.
func late(sb *sandbox.Sandbox, svc *app.Service, now time.Time) *app.Failure {
	if sb.Status.StartedAt == nil || now.Sub(*sb.Status.StartedAt) < svc.HealthDeadline {
		return nil
	}
	port := Port(svc)
	f := &app.Failure{
		Reason: app.FailureReasonPort, Service: svc.Name, ExpectedPort: &port, Listening: sb.Status.Listening, LogTail: sb.Status.LogTail,
	}
	switch {
	case slices.Contains(sb.Status.Listening, port):
		f.Reason = app.FailureReasonUnhealthy
		f.Message = fmt.Sprintf("service %s listens on port %d but was not healthy within %s: %s", svc.Name, port, svc.HealthDeadline, sb.Status.Message)
		f.Hint = fmt.Sprintf("check health_path of [services.%s], or raise health_deadline", svc.Name)
	case len(sb.Status.Listening) > 0:
		f.Message = fmt.Sprintf("service %s listens on port %v, but port %d was expected", svc.Name, sb.Status.Listening, port)
		f.Hint = fmt.Sprintf("listen on $PORT, or set port = %d under [services.%s] in app.toml", sb.Status.Listening[0], svc.Name)
	default:
		f.Message = fmt.Sprintf("service %s listens on no port after %s; port %d was expected", svc.Name, svc.HealthDeadline, port)
		f.Hint = "listen on 0.0.0.0:$PORT (not on 127.0.0.1); if the service serves nothing, set port = 0"
	}
	return f
}

// shift makes the new version the one that serves. This is the point of no return.
func (r *rollout) shift(ctx context.Context) (time.Duration, error) {
	if r.app.Status.ActiveVersion != r.dep.Status.Version {
		ver, err := entity.Get[app.AppVersion](ctx, r.Store, r.dep.Status.Version)
		if err != nil {
			return 0, err
		}
		var ops []entity.Op
		if r.dep.Spec.Kind == app.RolloutKindRollback {
			r.app.Spec.Env, r.app.Spec.Secrets = ver.Spec.Env, ver.Spec.Secrets
			op, err := entity.UpdateSpecOp(r.app)
			if err != nil {
				return 0, err
			}
			ops = append(ops, op)
		}
		r.app.Status.ActiveVersion = ver.GetID()
		op, err := entity.UpdateStatusOp(r.app)
		if err != nil {
			return 0, err
		}
		if _, err := r.Store.Txn(ctx, entity.TxnRequest{Ops: append(ops, op)}); err != nil {
			return 0, err
		}
	}
	if r.URL != nil {
		r.dep.Status.URL = r.URL(r.app)
	}
	r.step("drain", "")
	return time.Millisecond, r.enter(ctx, app.DeploymentPhaseDraining)
}

// drain waits until the ingress has moved on and finished with every other
// version, and retires their pools.
func (r *rollout) drain(ctx context.Context) (time.Duration, error) {
	all, err := Pools(ctx, r.Store, r.app.GetID())
	if err != nil {
		return 0, err
	}
	waited := r.now().Sub(r.stepStart("drain"))
	others := map[id.AppVersion]bool{}
	for _, p := range all {
		if p.Spec.AppVersion != r.app.Status.ActiveVersion {
			others[p.Spec.AppVersion] = true
		}
	}
	if r.Drainer != nil && waited < r.DrainTimeout {
		// An ingress that does not answer serves nobody: errors do not hold the rollout up
		// beyond the timeout, but they are no proof that it is idle either.
		ask, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if err := r.Drainer.Synced(ask, r.app.StatusRevision); err != nil {
			return 50 * time.Millisecond, nil
		}
		for v := range others {
			if n, err := r.Drainer.Inflight(ask, schema.ID(v)); err != nil || n.Total > 0 {
				return 100 * time.Millisecond, nil
			}
		}
	}
	for v := range others {
		if err := r.retire(ctx, v); err != nil {
			return 0, err
		}
	}
	r.endSteps(app.StepStateDone, "")
	return 0, r.end(ctx, app.DeploymentPhaseSucceeded)
}

// retire asks the pools of a version for no sandboxes; the pool's controller
// stops them gracefully, Sweeper deletes the empty pools.
func (r *rollout) retire(ctx context.Context, v id.AppVersion) error {
	all, err := Pools(ctx, r.Store, r.app.GetID())
	if err != nil {
		return err
	}
	for _, p := range poolsOf(all, v) {
		if p.Spec.Replicas == 0 {
			continue
		}
		p.Spec.Replicas = 0
		if err := entity.UpdateSpec(ctx, r.Store, p); err != nil && !errs.Is(err, errs.NotFound) {
			return err
		}
	}
	return nil
}
