package cli_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/schema"
)

type fakeTemplates struct{ *fake }

func (f *fake) fakeTemplates() fakeTemplates { return fakeTemplates{f} }

func (f fakeTemplates) template() (*sandbox.Template, *sandbox.TemplateVersion) {
	t, v := sandbox.NewTemplate(), sandbox.NewTemplateVersion()
	t.ID, t.Name, t.Project, t.Spec.Title, t.Spec.Tags = "tpl-1", "python", f.project, "Python and pip", map[string]int64{"stable": 1}
	v.ID, v.Project, v.Spec.Template, v.Spec.Number, v.Spec.Base = "tplv-1", f.project, t.GetID(), 1, "runtime/sandbox:python"
	t.Status.Version, t.Status.Number = v.GetID(), 1
	return t, v
}

func (f fakeTemplates) List(context.Context, *sandbox.TemplatesRequest) (*sandbox.TemplatesResponse, error) {
	t, _ := f.template()
	return &sandbox.TemplatesResponse{Templates: []schema.Record{*record(t)}}, nil
}

func (f fakeTemplates) Show(_ context.Context, req *sandbox.TemplateRequest) (*sandbox.TemplateResponse, error) {
	t, v := f.template()
	if name, _, _ := strings.Cut(req.Template, ":"); name != t.Name {
		return f.built(name)
	}
	return &sandbox.TemplateResponse{Template: *record(t), Selected: record(v), Versions: []schema.Record{*record(v)}}, nil
}

// built is a template whose version 3 was built, or was not.
func (f fakeTemplates) built(name string) (*sandbox.TemplateResponse, error) {
	t, v := f.template()
	t.Name, t.Spec.Tags = name, map[string]int64{"latest": 3, "beta": 3}
	v.Spec.Number, v.Spec.Base, v.Status.Phase, v.Status.Bytes = 3, "", sandbox.TemplatePhaseReady, 5<<20
	b := app.NewBuild()
	b.ID, b.Project, b.Spec.TemplateVersion = "bld-1", f.project, v.GetID()
	if name == "broken" {
		v.Status.Phase, v.Status.Message = sandbox.TemplatePhaseFailed, "RUN make: exit code 2"
		b.Status.Hint = "mend the Makefile"
	}
	return &sandbox.TemplateResponse{
		Template: *record(t), Selected: record(v), Versions: []schema.Record{*record(v)}, Builds: []schema.Record{*record(b)},
	}, nil
}

func (f fakeTemplates) Build(_ context.Context, req *sandbox.BuildTemplateRequest) (*sandbox.BuildTemplateResponse, error) {
	f.mu.Lock()
	f.templateBuilds = append(f.templateBuilds, req)
	f.mu.Unlock()
	resp, err := f.built(req.Name)
	return &sandbox.BuildTemplateResponse{Template: resp.Template, Version: *resp.Selected, Build: resp.Builds[0]}, err
}

func (f fakeTemplates) Wait(ctx context.Context, req *sandbox.TemplateRequest) (*sandbox.TemplateResponse, error) {
	return f.Show(ctx, req)
}

func (f fakeTemplates) Tag(ctx context.Context, req *sandbox.TagTemplateRequest) (*sandbox.TemplateResponse, error) {
	f.note(fmt.Sprintf("tag %s %s %v", req.Template, req.Tag, *req.Remove))
	return f.Show(ctx, &sandbox.TemplateRequest{Template: req.Template})
}

func (f fakeTemplates) Alias(ctx context.Context, req *sandbox.AliasTemplateRequest) (*sandbox.TemplateResponse, error) {
	f.note(fmt.Sprintf("alias %s %s %v", req.Template, req.Alias, *req.Remove))
	return f.Show(ctx, &sandbox.TemplateRequest{Template: req.Template})
}

func (f fakeTemplates) Delete(_ context.Context, req *sandbox.TemplateRequest) error {
	f.note("delete template " + req.Template)
	return nil
}

func (f fakeTemplates) SetPool(_ context.Context, req *sandbox.SetPoolRequest) (*sandbox.PoolResponse, error) {
	p := sandbox.NewWarmPool()
	p.ID, p.Project, p.Name, p.Spec.Template = "warm-1", f.project, req.Template, "tpl-1"
	if req.Min != nil {
		p.Spec.Min = *req.Min
	}
	if req.Max != nil {
		p.Spec.Max = *req.Max
	}
	return &sandbox.PoolResponse{Pool: *record(p)}, nil
}

func (f fakeTemplates) DeletePool(_ context.Context, req *sandbox.PoolRequest) error {
	if req.Template != "python" {
		return errs.New(errs.NotFound, "template %s has no warm pool in this project", req.Template)
	}
	return nil
}

type fakeSandboxes struct{ *fake }

func (f fakeSandboxes) Run(ctx context.Context, req *sandbox.RunRequest) (*sandbox.SandboxResponse, error) {
	f.mu.Lock()
	f.runs = append(f.runs, req)
	f.mu.Unlock()
	s := newSandbox("", req.Image)
	s.Name, s.Project = req.Name, f.project
	if err := entity.Create(ctx, f.store, s); err != nil {
		return nil, err
	}
	return &sandbox.SandboxResponse{Sandbox: *record(s)}, nil
}
func (f fakeSandboxes) get(ctx context.Context, sid id.Sandbox) (*sandbox.SandboxResponse, error) {
	s, err := entity.Get[sandbox.Sandbox](ctx, f.store, sid)
	if err != nil {
		return nil, err
	}
	return &sandbox.SandboxResponse{Sandbox: *record(s)}, nil
}
func (f fakeSandboxes) Wait(ctx context.Context, req *sandbox.WaitRequest) (*sandbox.SandboxResponse, error) {
	return f.get(ctx, req.Sandbox)
}

func (f fakeSandboxes) RunOnce(ctx context.Context, req *sandbox.RunOnceRequest, s rpc.ServerStream[sandbox.ExecInput, sandbox.ExecOutput]) error {
	f.mu.Lock()
	f.runs = append(f.runs, &req.Sandbox)
	f.mu.Unlock()
	if err := s.Send(&sandbox.ExecOutput{Note: "waiting: no node has room"}); err != nil {
		return err
	}
	return f.Exec(ctx, &sandbox.ExecRequest{Command: req.Sandbox.Command}, s)
}

func (f fakeSandboxes) change(ctx context.Context, sid id.Sandbox, set func(*sandbox.Sandbox)) (*sandbox.SandboxResponse, error) {
	s, err := entity.ModifySpec(ctx, f.store, sid, func(s *sandbox.Sandbox) error { set(s); return nil })
	if err != nil {
		return nil, err
	}
	return &sandbox.SandboxResponse{Sandbox: *record(s)}, nil
}

func (f fakeSandboxes) Pause(ctx context.Context, req *sandbox.PauseRequest) (*sandbox.SandboxResponse, error) {
	return f.change(ctx, req.Sandbox, func(s *sandbox.Sandbox) { s.Spec.Desired = sandbox.DesiredStatePaused })
}

func (f fakeSandboxes) Resume(ctx context.Context, req *sandbox.PauseRequest) (*sandbox.SandboxResponse, error) {
	return f.change(ctx, req.Sandbox, func(s *sandbox.Sandbox) { s.Spec.Desired = sandbox.DesiredStateRunning })
}

func (f fakeSandboxes) SetEgress(ctx context.Context, req *sandbox.EgressRequest) (*sandbox.SandboxResponse, error) {
	return f.change(ctx, req.Sandbox, func(s *sandbox.Sandbox) { s.Spec.Template.Egress = &req.Egress })
}

func (f fakeSandboxes) EgressLog(context.Context, *sandbox.SandboxRequest) (*sandbox.EgressLogResponse, error) {
	return &sandbox.EgressLogResponse{Records: []sandbox.EgressRecord{{Protocol: "dns", Name: "pypi.org", Permitted: true}, {Protocol: "tls", Name: "example.com", Why: "no rule"}}}, nil
}

func (f fakeSandboxes) Extend(ctx context.Context, req *sandbox.ExtendRequest) (*sandbox.SandboxResponse, error) {
	return f.change(ctx, req.Sandbox, func(s *sandbox.Sandbox) { s.Spec.TTL = req.TTL })
}

func (f fakeSandboxes) CheckExec(ctx context.Context, req *sandbox.SandboxRequest) error {
	_, err := f.get(ctx, req.Sandbox)
	return err
}

func (f fakeSandboxes) SetIdle(ctx context.Context, req *sandbox.IdleRequest) (*sandbox.SandboxResponse, error) {
	return f.change(ctx, req.Sandbox, func(s *sandbox.Sandbox) { s.Spec.IdleTimeout = req.IdleTimeout })
}

func (f fakeSandboxes) Snapshot(ctx context.Context, req *sandbox.SnapshotRequest) (*sandbox.SnapshotResponse, error) {
	n, s := core.NewNode(), sandbox.NewSnapshot()
	n.Name, n.Spec.Arch, n.Spec.CPUMillis, n.Spec.MemoryBytes = "keeper", "amd64", 1000, 1<<30
	if err := entity.Create(ctx, f.store, n); err != nil {
		return nil, err
	}
	s.Project, s.Name, s.Spec.Sandbox, s.Spec.Node, s.Spec.Template.Image = f.project, req.Name, req.Sandbox, n.GetID(), "image"
	if err := entity.Create(ctx, f.store, s); err != nil {
		return nil, err
	}
	return &sandbox.SnapshotResponse{Snapshot: *record(s)}, nil
}

func (f fakeSandboxes) DeleteSnapshot(ctx context.Context, req *sandbox.DeleteSnapshotRequest) error {
	return entity.Remove[sandbox.Snapshot](ctx, f.store, req.Snapshot)
}

func (f fakeSandboxes) Fork(_ context.Context, req *sandbox.ForkRequest) (*sandbox.ForkResponse, error) {
	resp := &sandbox.ForkResponse{}
	for i := range *req.Count {
		s := newSandbox("", "image")
		s.ID, s.Project, s.Spec.Restore = schema.ID(fmt.Sprintf("sb-fork%d", i)), f.project, string(req.Snapshot)
		resp.Sandboxes = append(resp.Sandboxes, *record(s))
	}
	return resp, nil
}

// RunCode answers with the program itself.
func (f fakeSandboxes) RunCode(_ context.Context, req *sandbox.RunCodeRequest, s rpc.ServerStream[sandbox.ExecInput, sandbox.ExecOutput]) error {
	f.mu.Lock()
	f.programs = append(f.programs, req)
	f.mu.Unlock()
	code := int64(0)
	for _, m := range []*sandbox.ExecOutput{{Started: "sb-program"}, {Stdout: req.Code}, {ExitCode: &code}} {
		if err := s.Send(m); err != nil {
			return err
		}
	}
	return nil
}

// Exec knows cat, both, where and shells.
func (f fakeSandboxes) Exec(_ context.Context, req *sandbox.ExecRequest, s rpc.ServerStream[sandbox.ExecInput, sandbox.ExecOutput]) error {
	if err := s.Send(&sandbox.ExecOutput{Started: cmpOr(req.Sandbox, "sb-ofapp")}); err != nil {
		return err
	}
	code := int64(0)
	switch req.Command[0] {
	case "cat":
		for {
			in, err := s.Recv()
			if errors.Is(err, io.EOF) || err == nil && in.CloseStdin != nil {
				break
			}
			if err != nil {
				return err
			}
			if err := s.Send(&sandbox.ExecOutput{Stdout: in.Stdin}); err != nil {
				return err
			}
		}
	case "both":
		if err := s.Send(&sandbox.ExecOutput{Stdout: []byte("out\n")}); err != nil {
			return err
		}
		if err := s.Send(&sandbox.ExecOutput{Stderr: []byte("err\n")}); err != nil {
			return err
		}
		code = 7
	case "where", "/bin/sh": // the shell of a console
		if err := s.Send(&sandbox.ExecOutput{Stdout: []byte(req.App + "/" + req.Service + " " + req.Workdir + " " + req.Env["K"])}); err != nil {
			return err
		}
	}
	return s.Send(&sandbox.ExecOutput{ExitCode: &code})
}
func (f fakeSandboxes) Logs(ctx context.Context, req *sandbox.LogsRequest, s rpc.ServerStream[rpc.None, sandbox.LogBatch]) error {
	return f.logs(ctx, req, s.Send)
}
func (f fakeSandboxes) Stop(ctx context.Context, req *sandbox.StopRequest) (*sandbox.SandboxResponse, error) {
	if _, err := entity.ModifyStatus(ctx, f.store, req.Sandbox, func(s *sandbox.Sandbox) error {
		s.Status.Phase = sandbox.SandboxPhaseStopped
		return nil
	}); err != nil {
		return nil, err
	}
	return f.get(ctx, req.Sandbox)
}
func (f fakeSandboxes) Delete(ctx context.Context, req *sandbox.SandboxRequest) error {
	s, err := entity.Get[sandbox.Sandbox](ctx, f.store, req.Sandbox)
	if err != nil {
		return err
	}
	return entity.Delete(ctx, f.store, s)
}
func (f fakeSandboxes) Stats(context.Context, *sandbox.SandboxRequest) (*sandbox.Stats, error) {
	return &sandbox.Stats{At: time.Now(), CPU: 1500 * time.Millisecond, MemoryBytes: 20 << 20, PIDs: 4}, nil
}

func cmpOr[T comparable](a, b T) T {
	var zero T
	if a != zero {
		return a
	}
	return b
}
