package rpcserver

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
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
)

// chunk is how much output one message carries at most.
const chunk = 32 << 10

type execStream = rpc.ServerStream[sandbox.ExecInput, sandbox.ExecOutput]

// Exec runs a process and moves its streams until it has ended. The process is
// killed when the call ends before it does.
func (s *sandboxes) Exec(ctx context.Context, req *sandbox.ExecRequest, st execStream) error {
	if len(req.Command) == 0 {
		return errs.New(errs.InvalidArgument, "there is no command to execute")
	}
	if err := errors.Join(checkCommand(req.Command), checkEnv("env", req.Env)); err != nil {
		return errs.New(errs.InvalidArgument, "%w", err)
	}
	sid, err := s.execTarget(ctx, req)
	if err != nil {
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
	return move(ctx, sid, p, spec.TTY, st)
}

// execTarget returns the sandbox in which to run: the one named, as soon as it
// runs, or a ready one of the app's.
func (s *sandboxes) execTarget(ctx context.Context, req *sandbox.ExecRequest) (id.Sandbox, error) {
	if (req.Sandbox == "") == (req.App == "") {
		return "", errs.New(errs.InvalidArgument, "either a sandbox or an app says where to run the command")
	}
	if req.App != "" {
		sb, err := s.Service.ReadySandbox(ctx, req.Project, req.App, req.Service)
		if err != nil {
			return "", err
		}
		return sb.GetID(), nil
	}
	sb, err := s.until(ctx, req.Sandbox, sandbox.WaitUntilRunning)
	if err != nil {
		return "", err
	}
	if sb.Status.Phase.Ended() {
		return "", over(sb)
	}
	return sb.GetID(), nil
}

// notStarted answers as a shell does for a command that cannot be run: why on
// the error stream, and 127 or 126.
func notStarted(st execStream, sid id.Sandbox, err error, code int64) error {
	for _, m := range []*sandbox.ExecOutput{{Started: sid}, {Stderr: []byte(err.Error() + "\n")}, {ExitCode: &code}} {
		if err := st.Send(m); err != nil {
			return err
		}
	}
	return nil
}

// move moves the streams of p until it has ended and everything was sent.
func move(ctx context.Context, sid id.Sandbox, p execution.Process, tty bool, st execStream) error {
	// The reads below wait for the process, not for the call.
	stop := context.AfterFunc(ctx, func() { _ = p.Close() })
	defer stop()
	out := &output{st: st}
	if err := out.send(&sandbox.ExecOutput{Started: sid}); err != nil {
		return err
	}
	// It ends with the call: nothing else makes Recv return.
	go input(ctx, st, p)
	var g errgroup.Group
	pump := func(r io.Reader, wrap func([]byte) *sandbox.ExecOutput) {
		g.Go(func() error {
			err := out.copy(r, wrap)
			if err != nil {
				_ = p.Close() // so that the other stream ends too
			}
			return err
		})
	}
	pump(p.Stdout(), func(b []byte) *sandbox.ExecOutput { return &sandbox.ExecOutput{Stdout: b} })
	if !tty {
		pump(p.Stderr(), func(b []byte) *sandbox.ExecOutput { return &sandbox.ExecOutput{Stderr: b} })
	}
	err := g.Wait()
	var code int
	if err == nil {
		code, err = p.Wait(ctx)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return err
	}
	c := int64(code)
	return out.send(&sandbox.ExecOutput{ExitCode: &c})
}

// output sends what two streams of a process bring.
type output struct {
	mu sync.Mutex
	st execStream
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
func input(ctx context.Context, st execStream, p execution.Process) {
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
