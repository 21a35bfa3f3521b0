package deployment

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/pkg/schema"
)

const (
	// settle is how long a process without a probe must run to count as started.
	settle = 2 * time.Second
	// maxSetupFailures is how many sandboxes of a service may fail for reasons of
	// the machine, not of the app, before the deployment fails.
	maxSetupFailures = 3
	// capacityWait is how long a sandbox may wait for room on a node.
	capacityWait = 30 * time.Second
	// overdueAfter is how long after its deadline a sandbox may stay not ready
	// before the deployment fails without a report from its node.
	overdueAfter = 15 * time.Second
	// setupTime is what a deployment allows beyond a service's own deadline, to set
	// the sandbox up.
	setupTime = 60 * time.Second
)

// readiness is the progress of the services of a version, or of one of them.
type readiness struct {
	ready      bool
	readySoFar bool           // all services that have a pool are ready
	missing    []*app.Service // the service has no pool
	writing    []*app.Service // the same, of services that write to disks
	message    string
	crowded    string        // a service that no node has room for
	again      time.Duration // time until the next assessment
	failure    *app.Failure  // the reason why the version will never be ready
}

// assessReadiness reads the pools of a version and their sandboxes.
func (r *rollout) assessReadiness(ctx context.Context, ver *app.AppVersion) (*readiness, error) {
	// Take the time before the first read: a sandbox that becomes ready while
	// the store is read, however long that takes, is not late.
	now := r.now()
	pools, err := apps.Pools(ctx, r.Store, r.app.GetID())
	if err != nil {
		return nil, err
	}
	pools = apps.PoolsOfVersion(pools, ver.GetID())
	st := &readiness{again: poll}
	ready := 0
	var waiting []string
	services := apps.Services(ver)
	for _, svc := range services {
		k := slices.IndexFunc(pools, func(p *sandbox.SandboxPool) bool { return p.Spec.Service == svc.Name })
		switch {
		case k < 0 && writes(svc):
			st.writing = append(st.writing, svc)
			continue
		case k < 0:
			st.missing = append(st.missing, svc)
			continue
		}
		all, err := sandboxes.InPool(ctx, r.Store, pools[k].GetID())
		if err != nil {
			return nil, err
		}
		sv := r.assessService(svc, pools[k], sandboxes.Classify(all), now)
		if sv.failure != nil {
			st.failure = sv.failure
			return st, nil
		}
		st.again = min(st.again, cmp.Or(sv.again, poll))
		if sv.ready {
			ready++
		} else if sv.message != "" {
			st.crowded = cmp.Or(st.crowded, sv.crowded)
			waiting = append(waiting, svc.Name+": "+sv.message)
		}
	}
	st.ready = ready == len(services)
	st.readySoFar = ready+len(st.missing)+len(st.writing) == len(services)
	st.message = fmt.Sprintf("v%d: %d of %d services ready", ver.Spec.Number, ready, len(services))
	if len(waiting) > 0 {
		st.message += "; " + strings.Join(waiting, "; ")
	}
	return st, nil
}

// assessService assesses the pool of one service. now must not be later than
// the time at which the pool was read.
func (r *rollout) assessService(svc *app.Service, p *sandbox.SandboxPool, sbs sandboxes.Members, now time.Time) readiness {
	setupFailures := 0
	for _, sb := range sbs.Ended {
		if !sandboxes.EndedUnexpectedly(sb) {
			continue // the pool replaces this sandbox
		}
		switch sb.Status.Reason {
		case sandbox.EndReasonExit, sandbox.EndReasonOOM, sandbox.EndReasonHung:
			return readiness{failure: ended(sb, svc)}
		}
		if sb.Status.Reason == sandbox.EndReasonSetup && sb.Status.StartedAt != nil && !sb.Status.Ready && sb.Status.ReadyAt == nil {
			return readiness{failure: notReady(sb, svc)} // the process ran, but did not become ready
		}
		if setupFailures++; setupFailures >= maxSetupFailures {
			return readiness{failure: ended(sb, svc)}
		}
	}
	ready, started := 0, r.stepStart("start")
	out := readiness{again: poll, message: p.Status.Message}
	for _, sb := range sbs.Live {
		switch {
		case sb.Status.Ready && sb.Spec.Template.Probe == nil && sb.Status.StartedAt != nil && now.Sub(*sb.Status.StartedAt) < settle:
			out.again = min(out.again, settle-now.Sub(*sb.Status.StartedAt))
		case sb.Status.Ready:
			ready++
		case sb.Status.ReadyAt != nil && r.dep.Status.Phase == app.DeploymentPhaseBaking:
			return readiness{failure: &app.Failure{
				Reason: app.FailureReasonUnhealthy, Service: svc.Name, LogTail: sb.Status.LogTail, Listening: sb.Status.Listening,
				Message: because(fmt.Sprintf("service %s was ready, and its probe fails", svc.Name), sb.Status.Message),
				Hint:    fmt.Sprintf("`r app logs %s -s %s` has its output", r.app.Name, svc.Name),
			}}
		case sb.Status.Overdue || sb.Status.StartedAt != nil && now.Sub(*sb.Status.StartedAt) >= svc.HealthDeadline+overdueAfter && r.waited(now, *sb.Status.StartedAt) >= overdueAfter:
			return readiness{failure: notReady(sb, svc)}
		case sb.Spec.Node == "" && sb.Status.Message != "":
			if since := r.crowdedSince(started); !since.IsZero() && r.waited(now, since) >= capacityWait {
				return readiness{failure: noRoom(sb, svc)}
			}
			out.message, out.crowded = sb.Status.Message, svc.Name
		default:
			if message, hint := wrongPort(sb, svc); message != "" {
				out.message = message + ": " + hint // long before the deadline
			} else if sb.Status.Message != "" {
				out.message = sb.Status.Message
			}
		}
	}
	if ready >= int(p.Wanted()) {
		return readiness{ready: true}
	}
	if limit := svc.HealthDeadline + setupTime; !started.IsZero() && r.waited(now, started) > limit {
		return readiness{failure: &app.Failure{
			Reason: app.FailureReasonTimeout, Service: svc.Name,
			Message: strings.TrimSuffix(fmt.Sprintf("only %d of %d sandboxes of service %s were ready after %s: %s", ready, p.Wanted(), svc.Name, limit, out.message), ": "),
			Hint:    fmt.Sprintf("`r sandbox list` shows where they are; raise health_deadline of [services.%s] in app.toml if it needs longer", svc.Name),
		}}
	}
	return out
}

func noRoom(sb *sandbox.Sandbox, svc *app.Service) *app.Failure {
	return &app.Failure{
		Reason: app.FailureReasonCapacity, Service: svc.Name,
		Message: fmt.Sprintf("no node has room for service %s: %s", svc.Name, sb.Status.Message),
		Hint:    fmt.Sprintf("lower cpu or memory of [services.%s] in app.toml, or make room: `r node list`, `r app delete`", svc.Name),
	}
}

// ended returns the failure of a sandbox that ended before the rollout was
// complete.
func ended(sb *sandbox.Sandbox, svc *app.Service) *app.Failure {
	f := &app.Failure{
		Reason: app.FailureReasonCrash, Service: svc.Name, ExitCode: sb.Status.ExitCode, LogTail: sb.Status.LogTail,
		Listening: sb.Status.Listening,
	}
	before := "before it was ready"
	if sb.Status.ReadyAt != nil {
		before = "soon after it was ready"
		if sb.Status.EndedAt != nil {
			before = "after it was ready for " + short(sb.Status.EndedAt.Sub(*sb.Status.ReadyAt))
		}
	}
	switch sb.Status.Reason {
	case sandbox.EndReasonOOM:
		f.Reason = app.FailureReasonOOM
		f.Message = fmt.Sprintf("service %s used more than its %d MiB of memory and was killed %s", svc.Name, svc.MemoryBytes>>20, before)
		f.Hint = fmt.Sprintf("raise memory of [services.%s] in app.toml", svc.Name)
	case sandbox.EndReasonExit:
		var code int64
		if sb.Status.ExitCode != nil {
			code = *sb.Status.ExitCode
		}
		f.Message = fmt.Sprintf("service %s ended with exit code %d %s", svc.Name, code, before)
		switch {
		case code == 126 || code == 127:
			f.Hint = fmt.Sprintf("its command could not be run: check command of [services.%s] in app.toml, or its line in Procfile", svc.Name)
		case code == 0:
			f.Hint = "a service must keep running in the foreground: do not let it fork into the background or finish"
		case code == 128+9:
			f.Hint = "something killed it (SIGKILL); what it printed last may tell"
		case len(sb.Status.LogTail) == 0:
			f.Hint = "it printed nothing; run its command locally with the same environment"
		default:
			f.Hint = "the last lines that it printed say why"
		}
	case sandbox.EndReasonHung:
		f.Reason = app.FailureReasonUnhealthy
		f.Message = because(fmt.Sprintf("service %s was stopped %s", svc.Name, before), sb.Status.Message)
		f.Hint = fmt.Sprintf("a service must take connections within checks.live.timeout; checks.live of [services.%s] in app.toml changes the check", svc.Name)
	case sandbox.EndReasonNode:
		f.Reason = app.FailureReasonInternal
		f.Message = fmt.Sprintf("the node of service %s went away %s", svc.Name, before)
		f.Hint = "`r node list` shows the nodes; `r deploy` tries again"
	case sandbox.EndReasonDisk:
		f.Reason = app.FailureReasonInternal
		f.Message = because(fmt.Sprintf("service %s was stopped %s", svc.Name, before), sb.Status.Message)
		f.Hint = "that is no fault of the app: `r disk show` says how its disk is; `r deploy` tries again"
	case sandbox.EndReasonCrash:
		f.Reason = app.FailureReasonInternal
		f.Message = because(fmt.Sprintf("the sandbox of service %s died %s", svc.Name, before), sb.Status.Message)
		f.Hint = "that is no fault of the app: `r doctor` checks the server; `r deploy` tries again"
	default:
		f.Reason = app.FailureReasonInternal
		f.Message = because(fmt.Sprintf("a sandbox for service %s could not be set up", svc.Name), sb.Status.Message)
		f.Hint = "`r doctor` checks the server; `r deploy` tries again"
	}
	return f
}

// notReady returns the failure of a sandbox that runs but did not become ready
// in time.
func notReady(sb *sandbox.Sandbox, svc *app.Service) *app.Failure {
	port := apps.Port(svc)
	f := &app.Failure{Service: svc.Name, Listening: sb.Status.Listening, LogTail: sb.Status.LogTail, ExitCode: sb.Status.ExitCode}
	if port == 0 {
		f.Reason = app.FailureReasonTimeout
		f.Message = because(fmt.Sprintf("service %s was not up within %s", svc.Name, svc.HealthDeadline), sb.Status.Message)
		f.Hint = "`r doctor` checks the server; `r deploy` tries again"
		return f
	}
	f.ExpectedPort = &port
	message, hint := wrongPort(sb, svc)
	switch {
	case message != "":
		f.Reason = app.FailureReasonPort
		f.Message, f.Hint = fmt.Sprintf("service %s %s", svc.Name, message), hint
	case slices.Contains(sb.Status.Listening, port):
		f.Reason = app.FailureReasonUnhealthy
		if svc.HealthPath != "" {
			f.Message = because(fmt.Sprintf("service %s listens on port %d but was not healthy within %s", svc.Name, port, svc.HealthDeadline), sb.Status.Message)
			f.Hint = fmt.Sprintf("GET %s must answer below 400: check health_path of [services.%s] in app.toml, or raise its health_deadline", svc.HealthPath, svc.Name)
		} else {
			f.Message = fmt.Sprintf("service %s listens on port %d, but took no connection from outside of its sandbox within %s", svc.Name, port, svc.HealthDeadline)
			f.Hint = "listen on 0.0.0.0, not only on 127.0.0.1"
		}
	default:
		f.Reason = app.FailureReasonPort
		f.Message = fmt.Sprintf("service %s listened on no port within %s; port %d was expected", svc.Name, svc.HealthDeadline, port)
		f.Hint = fmt.Sprintf("listen on the port that $PORT names; if the service serves nothing, set port = 0 under [services.%s] in app.toml; if it needs longer, raise health_deadline", svc.Name)
	}
	return f
}

// wrongPort returns a message and advice if a sandbox listens, but not where
// requests to its service reach it. Otherwise both are "".
func wrongPort(sb *sandbox.Sandbox, svc *app.Service) (message, hint string) {
	port, local := apps.Port(svc), sb.Status.Unreachable
	switch {
	case port == 0 || len(sb.Status.Listening) == 0:
		return "", ""
	case slices.Contains(local, port):
		return fmt.Sprintf("listens on port %d of 127.0.0.1 alone, where no request reaches it", port), "listen on 0.0.0.0 (or [::]), not on 127.0.0.1"
	case slices.Contains(sb.Status.Listening, port):
		return "", ""
	}
	reachable := slices.DeleteFunc(slices.Clone(sb.Status.Listening), func(p int64) bool { return slices.Contains(local, p) })
	if len(reachable) == 0 {
		return fmt.Sprintf("listens on port %s of 127.0.0.1 alone, but its port is %d", schema.Cell(local), port), "listen on 0.0.0.0, on the port that $PORT names"
	}
	return fmt.Sprintf("listens on port %s, but its port is %d", schema.Cell(reachable), port),
		fmt.Sprintf("set port = %d under [services.%s] in app.toml, or listen on the port that $PORT names", reachable[0], svc.Name)
}

func because(what, why string) string {
	if why == "" {
		return what
	}
	return what + ": " + why
}

func short(d time.Duration) string {
	if d < time.Second {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(100 * time.Millisecond).String()
}
