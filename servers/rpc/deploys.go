package rpcserver

import (
	"context"
	"sync"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/buildlog"
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
	if err := s.complete(digest); err != nil {
		return nil, err
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

// complete fails unless all of a source was uploaded.
func (s *deploys) complete(digest source.Digest) error {
	m, err := s.Sources.Manifest(digest)
	if err != nil {
		return errs.Wrap(err, "source")
	}
	b, err := m.Encode()
	if err != nil {
		return errs.Wrap(err, "source")
	}
	_, missing, err := s.Sources.Missing(b)
	if err != nil {
		return errs.Wrap(err, "source")
	}
	if len(missing) > 0 {
		return errs.New(errs.FailedPrecondition, "%d contents of source %s were not uploaded", len(missing), digest).WithHint("deploy again; what is there already is not sent again")
	}
	return nil
}

func (s *deploys) Cancel(ctx context.Context, req *app.DeploymentRequest) (*app.DeploymentResponse, error) {
	d, err := entity.ModifySpec(ctx, s.Store, req.Deployment, func(d *app.Deployment) error {
		switch {
		case d.Status.Phase.Ended():
			return errs.New(errs.FailedPrecondition, "deployment %s has ended: %s", d.ID, d.Status.Phase)
		case !d.Status.Phase.Cancelable():
			return errs.New(errs.FailedPrecondition, "the new version takes the traffic already").WithHint("`r app rollback` brings the version before back")
		}
		d.Spec.Cancel = true
		return nil
	})
	return respond(d, err)
}

// logGrace is how long the end of a deployment waits for the end of its build's
// log, which comes before it unless the build is stuck.
const logGrace = 5 * time.Second

// Follow sends the deployment whenever it changes, and the log of its build
// meanwhile, until the deployment has ended and all of the log was sent.
func (s *deploys) Follow(ctx context.Context, req *app.FollowRequest, st rpc.ServerStream[rpc.None, app.DeployEvent]) error {
	d, err := entity.Get[app.Deployment](ctx, s.Store, req.Deployment)
	if err != nil {
		return err
	}
	f := &follower{deploys: s, st: st}
	logCtx, cancel := context.WithCancel(ctx)
	logDone := make(chan struct{})
	defer func() {
		cancel()
		<-logDone
	}()
	go func() {
		defer close(logDone)
		f.buildLog(logCtx, d, value(req.BuildOffset))
	}()
	final, err := f.changes(ctx, d)
	if err != nil {
		return err
	}
	t := time.NewTimer(logGrace)
	defer t.Stop()
	select {
	case <-logDone:
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
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
	return informer.Of[app.Deployment](f.Informers).Await(ctx, d.ID, func(d *app.Deployment) (bool, error) {
		if d.Status.Phase.Ended() {
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

// buildAgain is how long to wait at most before a build and its log, which are
// written apart, are looked at again.
const buildAgain = 250 * time.Millisecond

// followBuild reads a build's log; with follow it waits for the log to begin
// and goes on until the build has ended, also over a restart of the build.
func followBuild(ctx context.Context, d Deps, bid id.Build, offset int64, follow bool, fn func(app.BuildEvent, int64) error) error {
	for {
		b, err := entity.Get[app.Build](ctx, d.Store, bid)
		if err != nil {
			return err
		}
		ended := b.Status.Phase.Ended() // asked before reading, so that nothing is missed
		err = d.BuildLogs.Read(ctx, string(bid), offset, follow, func(e buildlog.Event, next int64) error {
			offset = next
			return fn(buildEvent(&e), next)
		})
		switch {
		case errs.Is(err, errs.NotFound) && follow && !ended:
		case err != nil:
			return err
		case ended || !follow:
			return nil
		}
		if err := changed(ctx, d.Informers, b, buildAgain); err != nil {
			return err
		}
	}
}

// changed waits until a build is newer than b, or for limit.
func changed(ctx context.Context, s *informer.Set, b *app.Build, limit time.Duration) error {
	short, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	_, err := informer.Of[app.Build](s).After(short, b.ID, b.Revision)
	if short.Err() != nil {
		return ctx.Err()
	}
	return err
}

func buildEvent(e *buildlog.Event) app.BuildEvent {
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
