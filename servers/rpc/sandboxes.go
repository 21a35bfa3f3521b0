package rpc

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/execution"
	controller "miren.dev/runtime/controllers/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
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
	sb, err := entity.Get[sandbox.Sandbox](ctx, s.Store, req.Sandbox)
	if err != nil {
		return nil, err
	}
	sb, err = await(ctx, s.Store, sb.Project, req.Sandbox, func(sb *sandbox.Sandbox) (bool, error) {
		ended := controller.Ended(sb)
		switch req.Until {
		case sandbox.WaitUntilRunning:
			return ended || sb.Status.Phase == sandbox.SandboxPhaseRunning, nil
		case sandbox.WaitUntilReady:
			return ended || sb.Status.Ready, nil
		}
		return ended, nil
	})
	return sandboxResponse(sb, err)
}

func (s *sandboxes) Stop(ctx context.Context, req *sandbox.StopRequest) (*sandbox.SandboxResponse, error) {
	sb, err := s.Service.Stop(ctx, req.Sandbox)
	if err != nil || !yes(req.Wait) {
		return sandboxResponse(sb, err)
	}
	return s.Wait(ctx, &sandbox.WaitRequest{Sandbox: req.Sandbox, Until: sandbox.WaitUntilEnded})
}

func (s *sandboxes) Delete(ctx context.Context, req *sandbox.SandboxRequest) error {
	return s.Service.DeleteSandbox(ctx, req.Sandbox)
}

func (s *sandboxes) Stats(ctx context.Context, req *sandbox.SandboxRequest) (*sandbox.Stats, error) {
	st, err := s.Driver.Stats(ctx, string(req.Sandbox))
	if err != nil {
		return nil, err
	}
	return &sandbox.Stats{At: st.At, CPU: st.CPU, MemoryBytes: st.MemoryBytes, PIDs: st.PIDs}, nil
}

// chunk is how much output one message carries at most.
const chunk = 32 << 10

// Exec runs a process and moves its streams until it has ended.
func (s *sandboxes) Exec(ctx context.Context, req *sandbox.ExecRequest, st rpc.ServerStream[sandbox.ExecInput, sandbox.ExecOutput]) error {
	sid := req.Sandbox
	if sid == "" {
		sb, err := s.Service.ReadySandbox(ctx, req.Project, req.App, req.Service)
		if err != nil {
			return err
		}
		sid = sb.GetID()
	} else if err := s.awaitRunning(ctx, sid); err != nil {
		return err
	}
	spec := execution.ExecSpec{
		Command: req.Command, WorkDir: req.Workdir, User: req.User, TTY: yes(req.TTY), Rows: uint16(value(req.Rows)), Cols: uint16(value(req.Cols)),
	}
	for k, v := range req.Env {
		spec.Env = append(spec.Env, k+"="+v)
	}
	slices.Sort(spec.Env)
	p, err := s.Driver.Exec(ctx, string(sid), spec)
	if code, perr := strconv.ParseInt(errs.Detail(err, "exit_code"), 10, 64); perr == nil {
		return notStarted(st, sid, err, code)
	}
	if err != nil {
		return err
	}
	defer p.Close()
	if !yes(req.Stdin) {
		if err := p.Stdin().Close(); err != nil {
			return err
		}
	}
	out := &output{st: st}
	if err := out.send(&sandbox.ExecOutput{Started: sid}); err != nil {
		return err
	}
	go input(ctx, st, p)
	var g errgroup.Group
	g.Go(func() error {
		return out.copy(p.Stdout(), func(b []byte) *sandbox.ExecOutput { return &sandbox.ExecOutput{Stdout: b} })
	})
	if !spec.TTY {
		g.Go(func() error {
			return out.copy(p.Stderr(), func(b []byte) *sandbox.ExecOutput { return &sandbox.ExecOutput{Stderr: b} })
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	code, err := p.Wait(ctx)
	if err != nil {
		return err
	}
	c := int64(code)
	return out.send(&sandbox.ExecOutput{ExitCode: &c})
}

// notStarted answers as a shell does for a command that cannot be run: why on
// the error stream, and 127 or 126.
func notStarted(st rpc.ServerStream[sandbox.ExecInput, sandbox.ExecOutput], sid id.Sandbox, err error, code int64) error {
	for _, m := range []*sandbox.ExecOutput{{Started: sid}, {Stderr: []byte(err.Error() + "\n")}, {ExitCode: &code}} {
		if err := st.Send(m); err != nil {
			return err
		}
	}
	return nil
}

// awaitRunning waits for a sandbox that is being set up.
func (s *sandboxes) awaitRunning(ctx context.Context, sid id.Sandbox) error {
	resp, err := s.Wait(ctx, &sandbox.WaitRequest{Sandbox: sid, Until: sandbox.WaitUntilRunning})
	if err != nil {
		return err
	}
	sb, err := entity.Decode[sandbox.Sandbox](&resp.Sandbox)
	if err != nil {
		return err
	}
	if controller.Ended(sb) {
		return errs.New(errs.FailedPrecondition, "sandbox %s has ended: %s", sid, sb.Status.Reason)
	}
	return nil
}

// output sends what two streams of a process bring.
type output struct {
	mu sync.Mutex
	st rpc.ServerStream[sandbox.ExecInput, sandbox.ExecOutput]
}

func (o *output) send(m *sandbox.ExecOutput) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.st.Send(m)
}

func (o *output) copy(r io.Reader, wrap func([]byte) *sandbox.ExecOutput) error {
	buf := make([]byte, chunk)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if serr := o.send(wrap(buf[:n])); serr != nil {
				return serr
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// input feeds the process until the caller ends its stream or goes away; the
// call's end ends it. What fails here shows in the process's end.
func input(ctx context.Context, st rpc.ServerStream[sandbox.ExecInput, sandbox.ExecOutput], p execution.Process) {
	defer p.Stdin().Close()
	for {
		m, err := st.Recv()
		if err != nil {
			return
		}
		switch {
		case m.Resize != nil:
			err = p.Resize(ctx, uint16(m.Resize.Rows), uint16(m.Resize.Cols))
		case m.Signal != nil:
			err = p.Signal(ctx, int(*m.Signal))
		case yes(m.CloseStdin):
			err = p.Stdin().Close()
		case len(m.Stdin) > 0:
			_, err = p.Stdin().Write(m.Stdin)
		}
		if err != nil && errs.Is(err, errs.Canceled) {
			return
		}
	}
}
