package rpcserver

import (
	"context"
	"errors"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/servers/service"
)

// sandboxes serves sandbox.Sandboxes.
type sandboxes struct{ Deps }

func (s *sandboxes) Run(ctx context.Context, req *sandbox.RunRequest) (*sandbox.SandboxResponse, error) {
	r := service.RunRequest{
		Name: req.Name, Labels: req.Labels, App: req.App, Service: req.Service, Command: req.Command,
		Workdir: req.Workdir, User: req.User, Env: req.Env, EnvSecret: req.EnvSecret, CPUMillis: value(req.CPUMillis),
		MemoryBytes: value(req.MemoryBytes), PIDs: value(req.PIDs), DiskBytes: value(req.DiskBytes), Network: req.Network,
		StopTimeout: req.StopTimeout,
	}
	if req.TTL != nil {
		r.TTL = *req.TTL
	}
	if err := errors.Join(checkCommand(req.Command), checkEnv("env", req.Env), checkEnv("env_secret", req.EnvSecret)); err != nil {
		return nil, errs.New(errs.InvalidArgument, "%w", err)
	}
	if req.Image != "" {
		var err error
		if r.Image, err = s.Image(ctx, req.Image); err != nil {
			return nil, err
		}
	}
	return sandboxResponse(s.Service.Run(ctx, req.Project, r))
}

func sandboxResponse(sb *sandbox.Sandbox, err error) (*sandbox.SandboxResponse, error) {
	if err != nil {
		return nil, err
	}
	rec, err := record(sb)
	return &sandbox.SandboxResponse{Sandbox: rec}, err
}

func (s *sandboxes) Wait(ctx context.Context, req *sandbox.WaitRequest) (*sandbox.SandboxResponse, error) {
	return sandboxResponse(s.until(ctx, req.Sandbox, req.Until))
}

// until waits for a sandbox to have come so far, or to have ended.
func (s *sandboxes) until(ctx context.Context, sid id.Sandbox, what sandbox.WaitUntil) (*sandbox.Sandbox, error) {
	return informer.Of[sandbox.Sandbox](s.Informers).Await(ctx, schema.ID(sid), func(sb *sandbox.Sandbox) (bool, error) {
		ended := sb.Status.Phase.Ended()
		switch what {
		case sandbox.WaitUntilRunning:
			return ended || sb.Status.Phase == sandbox.SandboxPhaseRunning, nil
		case sandbox.WaitUntilReady:
			return ended || sb.Status.Ready, nil
		}
		return ended, nil
	})
}

func (s *sandboxes) Stop(ctx context.Context, req *sandbox.StopRequest) (*sandbox.SandboxResponse, error) {
	sb, err := s.Service.Stop(ctx, req.Sandbox)
	if err != nil || !yes(req.Wait) {
		return sandboxResponse(sb, err)
	}
	return sandboxResponse(s.until(ctx, req.Sandbox, sandbox.WaitUntilEnded))
}

func (s *sandboxes) Delete(ctx context.Context, req *sandbox.SandboxRequest) error {
	return s.Service.DeleteSandbox(ctx, req.Sandbox)
}

func (s *sandboxes) Stats(ctx context.Context, req *sandbox.SandboxRequest) (*sandbox.Stats, error) {
	sb, err := entity.Get[sandbox.Sandbox](ctx, s.Store, req.Sandbox)
	if err != nil {
		return nil, err
	}
	if sb.Status.Phase.Ended() {
		return nil, over(sb)
	}
	st, err := s.Driver.Stats(ctx, string(req.Sandbox))
	if errs.Is(err, errs.NotFound) {
		return nil, errs.New(errs.FailedPrecondition, "sandbox %s is %s: nothing of it runs yet", sb.ID, sb.Status.Phase)
	}
	if err != nil {
		return nil, err
	}
	return &sandbox.Stats{At: st.At, CPU: st.CPU, MemoryBytes: st.MemoryBytes, PIDs: st.PIDs}, nil
}

// over is the error of what needs a sandbox that has not ended.
func over(sb *sandbox.Sandbox) error {
	why := string(sb.Status.Reason)
	if sb.Status.Message != "" {
		why += ": " + sb.Status.Message
	}
	return errs.New(errs.FailedPrecondition, "sandbox %s has ended (%s)", sb.ID, why).WithHint("`r sandbox logs %s` shows what it printed", sb.ID)
}
