package deployment

import (
	"context"
	"fmt"
	"slices"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// releaseStep is the step of a deployment whose version has a release command. It is part of the phase starting.
const releaseStep = "release"

// releases reports whether the release command of a version runs: its database schema may change with new source,
// and a new environment may name another database. An earlier version's command has run already. A preview may share its
// database with the active version, so its command runs when the preview is promoted, and before only if app.toml says so.
func (r *rollout) releases(spec *app.AppVersionSpec) bool {
	if spec.Preview != "" && (spec.PreviewSettings == nil || !spec.PreviewSettings.Release) {
		return false
	}
	switch r.dep.Spec.Kind {
	case app.RolloutKindDeploy, app.RolloutKindConfig, app.RolloutKindPromote:
		return len(spec.Release) > 0
	}
	return false
}

// beginRelease enters the step, and returns the operation that creates the sandbox. It goes into the transaction
// that creates the version, so that the command runs once: a sandbox that is gone later is not made again.
func (r *rollout) beginRelease(ver *app.AppVersion) (entity.Op, error) {
	if !slices.ContainsFunc(r.dep.Status.Steps, func(s app.Step) bool { return s.Name == releaseStep }) {
		at := slices.IndexFunc(r.dep.Status.Steps, func(s app.Step) bool { return s.Name == "start" })
		r.dep.Status.Steps = slices.Insert(r.dep.Status.Steps, at, app.Step{Name: releaseStep, State: app.StepStatePending})
	}
	r.step(releaseStep, fmt.Sprintf("v%d: the release command runs", ver.Spec.Number))
	return entity.CreateOp(apps.ReleaseFor(r.app, ver))
}

// releaseRuns reports whether the deployment waits for the end of the release
// command.
func (r *rollout) releaseRuns() bool {
	return slices.ContainsFunc(r.dep.Status.Steps, func(s app.Step) bool { return s.Name == releaseStep && s.State == app.StepStateRunning })
}

// release waits for the end of the release command. done reports that the
// command succeeded.
func (r *rollout) release(ctx context.Context, ver *app.AppVersion) (done bool, err error) {
	now := r.now()
	sb, err := entity.ByName[sandbox.Sandbox](ctx, r.Store, r.app.Project, apps.ReleaseName(ver))
	if errs.Is(err, errs.NotFound) {
		return false, r.fail(ctx, app.Failure{
			Reason: app.FailureReasonInternal, Service: apps.ReleaseService,
			Message: "the sandbox of the release command was deleted before its end was known", Hint: "deploy again: `r deploy`",
		})
	}
	if err != nil {
		return false, err
	}
	switch {
	case sb.Status.Phase.Ended() && sb.Status.Reason == sandbox.EndReasonExit && sb.Status.ExitCode != nil && *sb.Status.ExitCode == 0:
		return true, nil
	case sb.Status.Phase.Ended():
		return false, r.fail(ctx, releaseFailure(sb))
	case sb.Spec.Node == "" && sb.Status.Message != "" && r.waited(now, r.stepStart(releaseStep)) >= capacityWait:
		return false, r.fail(ctx, app.Failure{
			Reason: app.FailureReasonCapacity, Service: apps.ReleaseService,
			Message: "no node has room for the release command: " + sb.Status.Message,
			Hint:    "it gets what [services.web] in app.toml has: lower cpu or memory there, or make room: `r node list`, `r app delete`",
		})
	case sb.Status.Message != "":
		return false, r.report(ctx, sb.Status.Message)
	}
	return false, nil
}

// releaseFailure explains a release command that did not succeed.
func releaseFailure(sb *sandbox.Sandbox) app.Failure {
	f := app.Failure{
		Reason: app.FailureReasonInternal, Service: apps.ReleaseService, ExitCode: sb.Status.ExitCode, LogTail: sb.Status.LogTail,
		Hint: "`r doctor` checks the server; `r deploy` tries again",
	}
	switch sb.Status.Reason {
	case sandbox.EndReasonExit:
		var code int64
		if sb.Status.ExitCode != nil {
			code = *sb.Status.ExitCode
		}
		f.Reason, f.Message = app.FailureReasonCrash, fmt.Sprintf("the release command ended with exit code %d", code)
		f.Hint = "the last lines that it printed say why"
		if code == 126 || code == 127 {
			f.Hint = "it could not be run: check release in app.toml, or the line release in Procfile"
		}
	case sandbox.EndReasonOOM:
		f.Reason = app.FailureReasonOOM
		f.Message = fmt.Sprintf("the release command used more than its %d MiB of memory and was killed", sb.Spec.Template.Resources.MemoryBytes>>20)
		f.Hint = "it gets the memory of [services.web] in app.toml: raise that"
	case sandbox.EndReasonTTL:
		f.Reason, f.Message = app.FailureReasonTimeout, fmt.Sprintf("the release command did not end within %s", apps.ReleaseTimeout)
		f.Hint = "it must end by itself; what takes longer belongs in a service"
	case sandbox.EndReasonUser:
		f.Reason, f.Message, f.Hint = app.FailureReasonCrash, "the release command was stopped", "deploy again: `r deploy`"
	default:
		f.Message = because("the sandbox of the release command failed", sb.Status.Message)
	}
	return f
}

// stopRelease stops the release command of a version that will not serve, if that has one.
func (r *rollout) stopRelease(ctx context.Context, v id.AppVersion) error {
	ver, err := get[app.AppVersion](ctx, r.Store, v)
	if errs.Is(err, errs.NotFound) {
		return nil // its sandboxes were deleted with it
	}
	if err != nil || len(ver.Spec.Release) == 0 {
		return err
	}
	sb, err := entity.ByName[sandbox.Sandbox](ctx, r.Store, r.app.Project, apps.ReleaseName(ver))
	if errs.Is(err, errs.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if !isRelease(sb) || sb.Status.Phase.Ended() || sb.Spec.Desired == sandbox.DesiredStateStopped {
		return nil
	}
	sb.Spec.Desired, sb.Spec.StopReason = sandbox.DesiredStateStopped, sandbox.EndReasonUser
	return entity.AsConflict(entity.UpdateSpec(ctx, r.Store, sb))
}

// isRelease reports whether a sandbox runs a release command.
func isRelease(sb *sandbox.Sandbox) bool {
	return sb.Spec.Pool == "" && sb.Spec.AppVersion != "" && sb.Spec.Service == apps.ReleaseService
}
