package rpc

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/components/buildkit"
	"miren.dev/runtime/controllers/deployment"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/source"
)

// deploys serves app.Deploys.
type deploys struct{ Deps }

func (s *deploys) PlanUpload(_ context.Context, req *app.PlanUploadRequest) (*app.PlanUploadResponse, error) {
	digest, missing, err := s.Sources.Missing(req.Manifest)
	if err != nil {
		return nil, err
	}
	resp := &app.PlanUploadResponse{Source: string(digest)}
	for _, m := range missing {
		resp.Missing = append(resp.Missing, string(m))
	}
	return resp, nil
}

func (s *deploys) Upload(ctx context.Context, req *app.UploadRequest, st rpc.ServerStream[rpc.Bytes, app.UploadResult]) error {
	digest := source.Digest(req.Source)
	if !digest.Valid() {
		return errs.New(errs.InvalidArgument, "%q is not the digest of a source", req.Source)
	}
	n, err := s.Sources.ReadPack(ctx, digest, st.Reader())
	if err != nil {
		return err
	}
	return st.Send(&app.UploadResult{Contents: int64(n)})
}

func (s *deploys) Deploy(ctx context.Context, req *app.DeployRequest) (*app.DeploymentResponse, error) {
	digest := source.Digest(req.Source)
	if !digest.Valid() {
		return nil, errs.New(errs.InvalidArgument, "%q is not the digest of a source", req.Source)
	}
	if _, err := s.Sources.Manifest(digest); err != nil {
		return nil, errs.Wrap(err, "source")
	}
	find := s.Service.App
	if req.Create {
		find = s.Service.EnsureApp
	}
	a, err := find(ctx, req.Project, req.App)
	if err != nil {
		return nil, err
	}
	r := request(ctx, req.Message)
	r.Kind, r.Source, r.Git, r.NoCache = app.RolloutKindDeploy, req.Source, req.Git, yes(req.NoCache)
	return respond(s.Service.Deploy(ctx, a, r))
}

func (s *deploys) Cancel(ctx context.Context, req *app.DeploymentRequest) (*app.DeploymentResponse, error) {
	d, err := entity.ModifySpec(ctx, s.Store, req.Deployment, func(d *app.Deployment) error {
		if deployment.Ended(d.Status.Phase) {
			return errs.New(errs.FailedPrecondition, "deployment %s has ended: %s", d.ID, d.Status.Phase)
		}
		d.Spec.Cancel = true
		return nil
	})
	return respond(d, err)
}

// Follow sends the deployment whenever it changes, and the log of its build
// meanwhile, until the deployment has ended and all of the log was sent.
func (s *deploys) Follow(ctx context.Context, req *app.FollowRequest, st rpc.ServerStream[rpc.None, app.DeployEvent]) error {
	d, err := entity.Get[app.Deployment](ctx, s.Store, req.Deployment)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f := &follower{deploys: s, st: st}
	logDone := make(chan struct{})
	go func() {
		defer close(logDone)
		f.buildLog(ctx, d, value(req.BuildOffset))
	}()
	final, err := f.changes(ctx, d)
	if err != nil {
		cancel()
		<-logDone
		return err
	}
	// The log ends with the build, which ended before the deployment did.
	select {
	case <-logDone:
	case <-ctx.Done():
	}
	return f.sendDeployment(final)
}

type follower struct {
	*deploys
	mu sync.Mutex // of st
	st rpc.ServerStream[rpc.None, app.DeployEvent]
}

func (f *follower) send(e *app.DeployEvent) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.st.Send(e)
}

func (f *follower) sendDeployment(d *app.Deployment) error {
	rec, err := record(d)
	if err != nil {
		return err
	}
	return f.send(&app.DeployEvent{Deployment: &rec})
}

// changes sends every state of the deployment but the last, which it returns.
func (f *follower) changes(ctx context.Context, d *app.Deployment) (*app.Deployment, error) {
	return await(ctx, f.Store, d.Project, d.GetID(), func(d *app.Deployment) (bool, error) {
		if deployment.Ended(d.Status.Phase) {
			return true, nil
		}
		return false, f.sendDeployment(d)
	})
}

// buildLog sends the log of the deployment's build until that has ended.
func (f *follower) buildLog(ctx context.Context, d *app.Deployment, offset int64) {
	if d.Spec.Build == "" {
		return
	}
	err := followBuild(ctx, f.Deps, d.Spec.Build, offset, true, func(e app.BuildEvent, next int64) error {
		return f.send(&app.DeployEvent{Build: &e, BuildOffset: &next})
	})
	if err != nil && ctx.Err() == nil && !errs.Is(err, errs.NotFound) {
		f.Log.Warn("follow a build log", "build", string(d.Spec.Build), "error", err)
	}
}

// builds serves app.Builds.
type builds struct{ Deps }

func (s *builds) Logs(ctx context.Context, req *app.BuildLogsRequest, st rpc.ServerStream[rpc.None, app.BuildLog]) error {
	return followBuild(ctx, s.Deps, req.Build, value(req.Offset), yes(req.Follow), func(e app.BuildEvent, next int64) error {
		return st.Send(&app.BuildLog{Event: e, Offset: next})
	})
}

// followBuild reads a build's log; with follow it waits for the log to begin
// and goes on until the build has ended, also over a restart of the build.
func followBuild(ctx context.Context, d Deps, bid id.Build, offset int64, follow bool, fn func(app.BuildEvent, int64) error) error {
	for {
		b, err := entity.Get[app.Build](ctx, d.Store, bid)
		if err != nil {
			return err
		}
		ended := deployment.BuildEnded(b)
		err = d.BuildLogs.Read(ctx, string(bid), offset, follow, func(raw json.RawMessage, next int64) error {
			offset = next
			var e buildkit.Event
			if err := json.Unmarshal(raw, &e); err != nil {
				return nil // a line torn by a crash
			}
			return fn(buildEvent(&e), next)
		})
		switch {
		case errs.Is(err, errs.NotFound) && follow && !ended:
		case err != nil:
			return err
		case ended || !follow:
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func buildEvent(e *buildkit.Event) app.BuildEvent {
	return app.BuildEvent{
		Kind: string(e.Kind), Step: ptr(int64(e.Step)), Name: e.Name, At: e.At, Took: ptr(e.Took), Text: e.Text,
		Stderr: ptr(e.Stderr), Current: ptr(e.Current), Total: ptr(e.Total), Internal: ptr(e.Internal),
	}
}

// respond is the answer with a deployment.
func respond(d *app.Deployment, err error) (*app.DeploymentResponse, error) {
	if err != nil || d == nil {
		return &app.DeploymentResponse{}, err
	}
	rec, err := record(d)
	return &app.DeploymentResponse{Deployment: &rec}, err
}
