package rpcserver

import (
	"context"
	"io"
	"sync"

	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
)

// chunk bounds the output of one message, in bytes.
const chunk = 32 << 10

type execStream = rpc.ServerStream[sandbox.ExecInput, sandbox.ExecOutput]

// Exec runs a process and copies its streams until it has ended. The process is
// killed when the call ends before it does.
func (h *sandboxHandler) Exec(ctx context.Context, req *sandbox.ExecRequest, st execStream) error {
	out := &output{st: st}
	sid, p, err := h.sandboxes.Exec(ctx, sandboxes.ExecRequest{
		Sandbox: req.Sandbox, Project: req.Project, App: req.App, Service: req.Service, Command: req.Command, Env: req.Env,
		Workdir: req.Workdir, User: req.User, TTY: value(req.TTY), Rows: uint16(value(req.Rows)), Cols: uint16(value(req.Cols)),
		NoInput: noInput(req.Stdin, req.TTY), Note: out.note,
	})
	if sid != "" {
		rpc.SetSubjects(ctx, rpc.Subject{Kind: sandbox.KindSandbox, ID: string(sid)})
	}
	return attach(ctx, out, sid, p, err, value(req.Stdin), value(req.TTY))
}

// RunOnce runs a process in a new sandbox as Exec does.
func (h *sandboxHandler) RunOnce(ctx context.Context, req *sandbox.RunOnceRequest, st execStream) error {
	out := &output{st: st}
	sid, p, err := h.sandboxes.RunOnce(ctx, req.Sandbox.Project, sandboxes.RunOnceRequest{
		CreateRequest: withNote(createRequest(&req.Sandbox), out), TTY: value(req.TTY), Rows: uint16(value(req.Rows)), Cols: uint16(value(req.Cols)),
		Keep: value(req.Keep), StartTimeout: value(req.StartTimeout), NoInput: noInput(req.Stdin, req.TTY),
	})
	if sid != "" {
		rpc.SetSubjects(ctx, rpc.Subject{Kind: sandbox.KindSandbox, ID: string(sid)})
	}
	return attach(ctx, out, sid, p, err, value(req.Stdin), value(req.TTY))
}

// RunCode runs a program in a new sandbox as Exec runs a process.
func (h *sandboxHandler) RunCode(ctx context.Context, req *sandbox.RunCodeRequest, st execStream) error {
	out := &output{st: st}
	r := sandboxes.RunCodeRequest{
		RunOnceRequest: sandboxes.RunOnceRequest{
			CreateRequest: withNote(createRequest(&req.Sandbox), out), TTY: value(req.TTY), Rows: uint16(value(req.Rows)), Cols: uint16(value(req.Cols)),
			Keep: value(req.Keep), StartTimeout: value(req.StartTimeout), NoInput: noInput(req.Stdin, req.TTY),
		},
		Language: req.Language, Code: req.Code, File: req.File, Args: req.Args, Timeout: value(req.Timeout), Confine: value(req.Confine),
	}
	for _, f := range req.Files {
		r.Files = append(r.Files, sandboxes.InputFile{Path: f.Path, Data: f.Data, Executable: value(f.Executable)})
	}
	sid, p, err := h.sandboxes.RunCode(ctx, req.Sandbox.Project, r)
	if sid != "" {
		rpc.SetSubjects(ctx, rpc.Subject{Kind: sandbox.KindSandbox, ID: string(sid)})
	}
	return attach(ctx, out, sid, p, fileError(err), value(req.Stdin), value(req.TTY))
}

// withNote makes messages for the user part of the output.
func withNote(req sandboxes.CreateRequest, out *output) sandboxes.CreateRequest {
	req.Note = out.note
	return req
}

// noInput reports whether a process gets no input from the caller.
func noInput(stdin, tty *bool) bool { return !value(stdin) && !value(tty) }

// attach copies the streams of a process, or reports err, for which there is no process.
func attach(ctx context.Context, out *output, sid id.Sandbox, p sandboxes.Process, err error, stdin, tty bool) error {
	if code, ok := sandboxes.ExitCode(err); ok {
		return sendNotStarted(out, sid, err, code)
	}
	if err != nil {
		return err
	}
	defer p.Close()
	if !stdin {
		if err := p.Stdin().Close(); err != nil {
			return err
		}
	}
	return copyStreams(ctx, sid, p, tty, out)
}

// sendNotStarted answers like a shell whose command cannot be run: the reason
// on the error stream, then the exit code.
func sendNotStarted(out *output, sid id.Sandbox, err error, code int64) error {
	for _, m := range []*sandbox.ExecOutput{{Started: sid}, {Stderr: []byte(err.Error() + "\n")}, {ExitCode: &code}} {
		if err := out.send(m); err != nil {
			return err
		}
	}
	return nil
}

// copyStreams copies the streams of p until it has ended and all output was sent.
func copyStreams(ctx context.Context, sid id.Sandbox, p sandboxes.Process, tty bool, out *output) error {
	// The reads below wait for the process, not for the call.
	stop := context.AfterFunc(ctx, func() { _ = p.Close() })
	defer stop()
	if err := out.send(&sandbox.ExecOutput{Started: sid}); err != nil {
		return err
	}
	// This goroutine ends with the call, which alone makes Recv return.
	go input(ctx, out.st, p)
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

// output sends the data of both streams of a process.
type output struct {
	mu sync.Mutex
	st execStream
}

func (o *output) send(m *sandbox.ExecOutput) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.st.Send(m)
}

// note sends a message to the user. If sending fails, the next message fails
// too.
func (o *output) note(text string) { _ = o.send(&sandbox.ExecOutput{Note: text}) }

// copy sends the data of r until its end. A stream ends early only with its
// process, whose exit says why.
func (o *output) copy(r io.Reader, wrap func([]byte) *sandbox.ExecOutput) error {
	buf := make([]byte, chunk)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if serr := o.send(wrap(buf[:n])); serr != nil {
				return serr
			}
		}
		if err != nil {
			return nil
		}
	}
}

// input feeds the process until the caller ends its stream, or the call ends. A
// failure here shows in the exit of the process.
func input(ctx context.Context, st execStream, p sandboxes.Process) {
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
		case value(m.CloseStdin):
			err = p.Stdin().Close()
		case len(m.Stdin) > 0:
			_, err = p.Stdin().Write(m.Stdin)
		}
		if err != nil && errs.Is(err, errs.Canceled) {
			return
		}
	}
}
