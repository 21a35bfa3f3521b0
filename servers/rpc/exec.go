package rpcserver

import (
	"context"
	"errors"
	"io"
	"sync"

	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/opt"
	"miren.dev/runtime/pkg/rpc"
)

// chunk bounds the output of one message, in bytes.
const chunk = 32 << 10

type execStream = rpc.ServerStream[sandbox.ExecInput, sandbox.ExecOutput]

// Exec runs a process and copies its streams until it has ended. The process is
// killed when the call ends before it does, unless it has a tag and the server
// stops: then the next server can continue it.
func (h *sandboxHandler) Exec(ctx context.Context, req *sandbox.ExecRequest, st execStream) error {
	out := &output{st: st}
	sid, p, err := h.sandboxes.Exec(ctx, sandboxes.ExecRequest{
		Sandbox: req.Sandbox, Project: req.Project, App: req.App, Service: req.Service, Command: req.Command, Env: req.Env,
		Workdir: req.Workdir, User: req.User, TTY: opt.Value(req.TTY), Rows: uint16(opt.Value(req.Rows)), Cols: uint16(opt.Value(req.Cols)),
		NoInput: noInput(req.Stdin, req.TTY), Detached: opt.Value(req.Detached), Tag: req.Tag, Note: out.note,
	})
	if sid != "" {
		rpc.SetSubjects(ctx, rpc.Subject{Kind: sandbox.KindSandbox, ID: string(sid)})
	}
	return attach(ctx, out, sid, p, err, streams{
		stdin: opt.Value(req.Stdin), tty: opt.Value(req.TTY), detached: opt.Value(req.Detached), keep: !opt.Value(req.Stdin), lingers: req.Tag != "",
	})
}

// Attach continues a detached process as Exec runs one.
func (h *sandboxHandler) Attach(ctx context.Context, req *sandbox.AttachRequest, st execStream) error {
	out := &output{st: st}
	p, err := h.sandboxes.Attach(ctx, req.Sandbox, req.Process, opt.Value(req.StdoutOffset), opt.Value(req.StderrOffset), out.note)
	if err == nil && opt.Value(req.Rows) > 0 && opt.Value(req.Cols) > 0 {
		_ = p.Resize(ctx, uint16(*req.Rows), uint16(*req.Cols)) // a process that has ended has no terminal
	}
	return attach(ctx, out, req.Sandbox, p, err, streams{stdin: true, detached: true, keep: opt.Value(req.Keep), offsets: true})
}

// RunOnce runs a process in a new sandbox as Exec does.
func (h *sandboxHandler) RunOnce(ctx context.Context, req *sandbox.RunOnceRequest, st execStream) error {
	out := &output{st: st}
	sid, p, err := h.sandboxes.RunOnce(ctx, req.Sandbox.Project, sandboxes.RunOnceRequest{
		CreateRequest: withNote(createRequest(ctx, &req.Sandbox), out), TTY: opt.Value(req.TTY), Rows: uint16(opt.Value(req.Rows)), Cols: uint16(opt.Value(req.Cols)),
		Keep: opt.Value(req.Keep), StartTimeout: opt.Value(req.StartTimeout), NoInput: noInput(req.Stdin, req.TTY),
	})
	if sid != "" {
		rpc.SetSubjects(ctx, rpc.Subject{Kind: sandbox.KindSandbox, ID: string(sid)})
	}
	return attach(ctx, out, sid, p, err, streams{
		stdin: opt.Value(req.Stdin), tty: opt.Value(req.TTY),
		ended: func() error { return h.sendOutputs(ctx, sid, req.Outputs, out) },
	})
}

// RunCode runs a program in a new sandbox as Exec runs a process.
func (h *sandboxHandler) RunCode(ctx context.Context, req *sandbox.RunCodeRequest, st execStream) error {
	out := &output{st: st}
	r := sandboxes.RunCodeRequest{
		RunOnceRequest: sandboxes.RunOnceRequest{
			CreateRequest: withNote(createRequest(ctx, &req.Sandbox), out), TTY: opt.Value(req.TTY), Rows: uint16(opt.Value(req.Rows)), Cols: uint16(opt.Value(req.Cols)),
			Keep: opt.Value(req.Keep), StartTimeout: opt.Value(req.StartTimeout), NoInput: noInput(req.Stdin, req.TTY),
		},
		Language: req.Language, Code: req.Code, File: req.File, Args: req.Args, Timeout: opt.Value(req.Timeout), Confine: opt.Value(req.Confine),
	}
	for _, f := range req.Files {
		r.Files = append(r.Files, sandboxes.InputFile{Path: f.Path, Data: f.Data, Executable: opt.Value(f.Executable)})
	}
	sid, p, err := h.sandboxes.RunCode(ctx, req.Sandbox.Project, r)
	if sid != "" {
		rpc.SetSubjects(ctx, rpc.Subject{Kind: sandbox.KindSandbox, ID: string(sid)})
	}
	return attach(ctx, out, sid, p, fileError(err), streams{
		stdin: opt.Value(req.Stdin), tty: opt.Value(req.TTY),
		ended: func() error { return h.sendOutputs(ctx, sid, req.Outputs, out) },
	})
}

// sendOutputs sends files and directories of a sandbox. An output that cannot be
// read does not end the call: the caller gets the reason.
func (h *sandboxHandler) sendOutputs(ctx context.Context, sid id.Sandbox, paths []string, out *output) error {
	for i, path := range paths {
		index := int64(i)
		var sendErr error
		send := func(d sandbox.OutputData) error {
			d.Index = index
			sendErr = out.send(&sandbox.ExecOutput{Output: &d})
			return sendErr
		}
		err := h.sendOutput(ctx, sid, path, send)
		if sendErr != nil {
			return sendErr
		}
		if err != nil {
			if err := send(sandbox.OutputData{Error: err.Error()}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (h *sandboxHandler) sendOutput(ctx context.Context, sid id.Sandbox, path string, send func(sandbox.OutputData) error) error {
	files, err := h.sandboxes.Files(ctx, sid, "")
	if err != nil {
		return err
	}
	i, r, err := sandboxes.Open(ctx, files, path)
	if err != nil {
		return err
	}
	defer closing(ctx, r)()
	info := fileInfo(i)
	if err := send(sandbox.OutputData{Info: &info}); err != nil {
		return err
	}
	return sendAll(r, func(b []byte) error { return send(sandbox.OutputData{Data: b}) })
}

// withNote makes messages for the user part of the output.
func withNote(req sandboxes.CreateRequest, out *output) sandboxes.CreateRequest {
	req.Note = out.note
	return req
}

// noInput reports whether a process gets no input from the caller.
func noInput(stdin, tty *bool) bool { return !opt.Value(stdin) && !opt.Value(tty) }

// streams says which streams of a process are copied, and how.
type streams struct {
	stdin    bool // the caller sends input
	tty      bool // stdout carries everything
	detached bool // the process goes on when the call ends before it does
	// keep: a detached process that ends during the call stays listed with its
	// exit code, since its caller may have left after the start.
	keep bool
	// lingers: when the stop of the server ends the call, the process goes on for
	// the next server, which finds it by its tag.
	lingers bool
	// offsets: output is sent with its offset.
	offsets bool
	// ended, if set, is called when the process has ended, before its exit code is sent.
	ended func() error
}

// attach copies the streams of a process, or reports err, for which there is no process.
func attach(ctx context.Context, out *output, sid id.Sandbox, p sandboxes.Process, err error, s streams) error {
	if code, ok := sandboxes.ExitCode(err); ok {
		return sendNotStarted(out, sid, err, code)
	}
	if err != nil {
		return err
	}
	leave := func() { _ = p.Close() }
	switch {
	case s.detached:
		leave = p.Detach
	case s.lingers:
		leave = func() {
			if rpc.Stopping(ctx) {
				p.Detach()
				return
			}
			_ = p.Close()
		}
	}
	defer func() { leave() }()
	if !s.stdin && !s.detached { // that of a detached process stays open for its next caller
		if err := p.Stdin().Close(); err != nil {
			return err
		}
	}
	err = copyStreams(ctx, sid, p, s, leave, out)
	if err == nil && !s.keep { // the caller has the exit code, so the sandbox need not keep it
		leave = func() { _ = p.Close() }
	}
	return err
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
// It calls leave when the call ends before that.
func copyStreams(ctx context.Context, sid id.Sandbox, p sandboxes.Process, s streams, leave func(), out *output) error {
	// The reads below wait for the process, not for the call.
	stop := context.AfterFunc(ctx, leave)
	defer stop()
	if err := out.send(&sandbox.ExecOutput{Started: sid, Process: p.ID(), PID: opt.Of(int64(p.PID()))}); err != nil {
		return err
	}
	// This goroutine ends with the call, which alone makes Recv return.
	go input(ctx, out.st, p, s.detached)
	var g errgroup.Group
	pump := func(r io.Reader, next func() int64, wrap func([]byte) *sandbox.ExecOutput) {
		g.Go(func() error {
			err := out.copy(r, func(b []byte) *sandbox.ExecOutput {
				m := wrap(b)
				if s.offsets {
					at := next() - int64(len(b))
					m.Offset = &at
				}
				return m
			})
			if err != nil {
				leave() // so that the other stream ends too
			}
			return err
		})
	}
	pump(p.Stdout(), func() int64 { n, _ := p.Offsets(); return n }, func(b []byte) *sandbox.ExecOutput { return &sandbox.ExecOutput{Stdout: b} })
	if !s.tty {
		pump(p.Stderr(), func() int64 { _, n := p.Offsets(); return n }, func(b []byte) *sandbox.ExecOutput { return &sandbox.ExecOutput{Stderr: b} })
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
	if s.ended != nil {
		if err := s.ended(); err != nil {
			return err
		}
	}
	c := int64(code)
	return out.send(&sandbox.ExecOutput{ExitCode: &c, Reason: p.Reason()})
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

// input feeds the process until the caller ends its stream, which ends the input, or the
// call ends. A failure here shows in the exit of the process. The input of a detached
// process stays open for the next caller, and that of one that outlives the server for
// the next server.
func input(ctx context.Context, st execStream, p sandboxes.Process, detached bool) {
	for {
		m, err := st.Recv()
		if errors.Is(err, io.EOF) && !detached {
			_ = p.Stdin().Close() // the exit of the process shows a failure
		}
		if err != nil {
			return
		}
		switch {
		case m.Resize != nil:
			err = p.Resize(ctx, uint16(m.Resize.Rows), uint16(m.Resize.Cols))
		case m.Signal != nil:
			err = p.Signal(ctx, int(*m.Signal))
		case opt.Value(m.CloseStdin):
			err = p.Stdin().Close()
		case len(m.Stdin) > 0:
			_, err = p.Stdin().Write(m.Stdin)
		}
		if err != nil && errs.Is(err, errs.Canceled) {
			return
		}
	}
}
