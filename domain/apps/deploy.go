package apps

import (
	"context"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/fault"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/pkg/source"
	"miren.dev/runtime/pkg/stack"
)

// revokeTimeout bounds the revocation of the lease of a refused deployment.
const revokeTimeout = 5 * time.Second

// DeployRequest asks for a rollout.
type DeployRequest struct {
	Kind        app.RolloutKind
	Source      source.Digest       // kind deploy: the uploaded source
	NoCache     bool                // kind deploy: ignore the build cache
	Stack       string              // kind deploy: the stack to build with; "": from app.toml, or detected
	Folder      string              // kind deploy: the app's folder in the source; "": the source itself
	Canary      int64               // kind deploy: percentage of the requests that the new version gets; 0: all
	Preview     *app.PreviewRequest // kind deploy: the new version becomes this preview; nil: it is for the app's hosts
	Target      id.AppVersion       // other kinds
	Message     string
	RequestedBy string
	Git         *app.GitInfo
	// Change, if set, changes the app's spec in the same transaction. It may be
	// called more than once.
	Change func(*app.App) error
}

// DeploySource accepts a rollout of a source that was uploaded completely. With
// create it creates the app if that does not exist. Errors: FailedPrecondition
// if a part of the source is missing, InvalidArgument for a stack that does not
// exist, and the errors of Deploy.
func (s *Service) DeploySource(ctx context.Context, project, name string, create bool, req DeployRequest) (*app.Deployment, error) {
	if req.Stack != "" {
		if err := stack.CheckName(req.Stack); err != nil {
			return nil, err
		}
	}
	if err := s.Sources.CheckUploaded(req.Source); err != nil {
		return nil, err
	}
	find := s.Find
	if create {
		find = s.Ensure
	}
	a, err := find(ctx, project, name)
	if err == nil {
		err = checkOwn(a)
	}
	if err != nil {
		return nil, err
	}
	req.Kind = app.RolloutKindDeploy
	return s.Deploy(ctx, a, req)
}

// Deploy accepts a rollout of an app: it writes build, deployment and lease
// together or not at all, also against concurrent writers of the app. Errors:
// Conflict with app.DetailLease while another deployment is under way,
// InvalidArgument if the request names no source or version.
func (s *Service) Deploy(ctx context.Context, a *app.App, req DeployRequest) (*app.Deployment, error) {
	if err := checkNotHeld(ctx, s.Store, a); err != nil {
		return nil, err
	}
	lease, err := s.Store.Grant(ctx, LeaseTTL)
	if err != nil {
		return nil, err
	}
	var dep *app.Deployment
	err = entity.Retry(ctx, func() error {
		now, err := entity.Get[app.App](ctx, s.Store, a.GetID())
		if err != nil {
			return err
		}
		dep, err = s.accept(ctx, now, req, lease.ID)
		if errs.Is(err, errs.AlreadyExists) {
			if held := checkNotHeld(ctx, s.Store, a); held != nil {
				return entity.Final(held)
			}
			return errs.New(errs.Conflict, "%w", err) // the other deployment ended meanwhile
		}
		return err
	})
	if err != nil {
		// Either nothing was written, or the outcome is unknown: then the
		// deployment ends without its lease. If the lease cannot be revoked
		// now, it lapses.
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokeTimeout)
		defer cancel()
		if rerr := s.Store.Revoke(bounded, lease.ID); rerr != nil {
			s.Logger.Warn("revoke lease of a refused deployment", "lease", string(lease.ID), "error", rerr)
		}
		return nil, err
	}
	return dep, nil
}

// accept writes a rollout of a, conditional on its revision. AlreadyExists if
// another deployment holds the app's lease.
func (s *Service) accept(ctx context.Context, a *app.App, req DeployRequest, lease schema.LeaseID) (*app.Deployment, error) {
	if err := checkPreview(a, &req); err != nil {
		return nil, entity.Final(err)
	}
	now := time.Now()
	dep := app.NewDeployment()
	dep.ID, dep.Project = schema.NewID(app.DeploymentKind.Prefix), a.Project
	dep.Spec.App, dep.Spec.Kind, dep.Spec.Target, dep.Spec.Message = a.GetID(), req.Kind, req.Target, req.Message
	dep.Spec.RequestedBy, dep.Spec.Git, dep.Spec.Canary, dep.Spec.Preview = req.RequestedBy, req.Git, req.Canary, req.Preview
	dep.Status.StartedAt = &now
	var objects []schema.Object
	switch req.Kind {
	case app.RolloutKindDeploy:
		if req.Source == "" {
			return nil, errs.New(errs.InvalidArgument, "a deployment of new source needs the source")
		}
		b := app.NewBuild()
		b.ID, b.Project = schema.NewID(app.BuildKind.Prefix), a.Project
		b.Spec.App, b.Spec.Source, b.Spec.NoCache, b.Spec.Stack, b.Spec.Folder = a.GetID(), string(req.Source), req.NoCache, req.Stack, req.Folder
		dep.Spec.Build = b.GetID()
		objects = append(objects, b)
	default:
		if req.Target == "" {
			return nil, errs.New(errs.InvalidArgument, "a %s needs a version", req.Kind)
		}
	}
	l := app.NewDeployLease()
	l.Project, l.Name, l.Lease = a.Project, LeaseName(a.GetID()), lease
	l.Spec.App, l.Spec.Deployment = a.GetID(), dep.GetID()
	var ops []entity.Op
	for _, o := range append(objects, dep, l) {
		op, err := entity.CreateOp(o)
		if err != nil {
			return nil, err
		}
		ops = append(ops, op)
	}
	if req.Change != nil {
		if err := req.Change(a); err != nil {
			return nil, entity.Final(err)
		}
		op, err := entity.UpdateSpecOp(a)
		if err != nil {
			return nil, err
		}
		ops = append(ops, op)
	}
	a.Status.ActiveDeployment = dep.GetID()
	op, err := entity.UpdateStatusOp(a)
	if err != nil {
		return nil, err
	}
	fault.Point("deployment", "accept", fault.Before)
	res, err := s.Store.Txn(ctx, entity.TxnRequest{RequestID: string(dep.ID), Ops: append(ops, op)})
	if err != nil {
		return nil, err
	}
	fault.Point("deployment", "accept", fault.After)
	for i := range res.Records {
		if res.Records[i].ID == dep.ID {
			dep.Meta = res.Records[i].Meta
		}
	}
	return dep, nil
}
