package agent

import (
	"context"
	"io"
	"strconv"
	"time"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/agentproto"
	"miren.dev/runtime/pkg/errs"
)

// Process is a process beside the main one. It implements execution.Process.
type Process struct {
	ch *channel
}

// Exec starts a process beside the main one. If it cannot be started the
// error is InvalidArgument with the detail "exit_code" (127 not found, 126 not
// executable). Without ExecSpec.Detached it outlives the loss of its connection
// by agentproto.Linger.
func (c *Conn) Exec(ctx context.Context, s execution.ExecSpec) (*Process, error) {
	if len(s.Command) == 0 {
		return nil, errs.New(errs.InvalidArgument, "there is no command to execute")
	}
	if len(s.Tag) > agentproto.MaxTag {
		return nil, errs.New(errs.InvalidArgument, "the tag of a process has at most %d bytes, not %d", agentproto.MaxTag, len(s.Tag))
	}
	m := agentproto.Process{
		Command: s.Command, Env: s.Env, WorkDir: s.WorkDir, User: s.User, TTY: s.TTY,
		Size: agentproto.Size{Rows: s.Rows, Cols: s.Cols}, NoInput: s.NoInput && !s.TTY, Tag: s.Tag,
	}
	o := agentproto.Open{Kind: agentproto.KindProcess, Lifetime: agentproto.LifeLinger, Params: m.Append(nil)}
	if s.Detached {
		o.Lifetime = agentproto.LifeDetached
	}
	ch, err := c.open(ctx, o)
	if err != nil {
		return nil, err
	}
	return &Process{ch: ch}, nil
}

// Warm makes a claim and the first process in a sandbox that nobody uses yet as quick as later ones. It leaves no trace
// there. An error means nothing: an image may have no shell, and an earlier agent does not know the request.
func (c *Conn) Warm(ctx context.Context) error {
	_, err := c.request(ctx, agentproto.KindWarm, nil)
	return err
}

// Attach continues a detached process, also one of an earlier hub, and takes it
// from another caller. Output is read from the given offsets, or from where the
// agent still has it. NotFound if the sandbox does not know the process (any
// more).
func (c *Conn) Attach(ctx context.Context, id string, stdout, stderr int64) (*Process, error) {
	n, err := strconv.ParseUint(id, 16, 64)
	if err != nil {
		return nil, errs.New(errs.NotFound, "sandbox %s has no process %q", c.id, id)
	}
	ch, err := c.attach(ctx, n, stdout, stderr)
	if err != nil {
		return nil, err
	}
	return &Process{ch: ch}, nil
}

// Processes returns the processes beside the main one that run, and detached
// ones that have ended, the latest first.
func (c *Conn) Processes(ctx context.Context) ([]execution.ProcessInfo, error) {
	b, err := c.request(ctx, agentproto.KindProcesses, nil)
	if err != nil {
		return nil, err
	}
	m, err := agentproto.DecodeProcesses(b)
	if err != nil {
		return nil, errs.New(errs.Internal, "list of processes of %s: %w", c.id, err)
	}
	var list []execution.ProcessInfo
	for _, p := range m {
		i := execution.ProcessInfo{
			ID: processID(p.ID), PID: int(p.PID), Command: p.Command, Tag: p.Tag,
			StartedAt: time.Unix(0, p.StartedAt), TTY: p.TTY, Detached: p.Detached,
		}
		if p.Ended {
			e := exitFrom(p.Exit)
			i.Exit = &e
		}
		list = append(list, i)
	}
	return list, nil
}

func processID(id uint64) string { return strconv.FormatUint(id, 16) }

// ID names the process within its sandbox, for Attach.
func (p *Process) ID() string { return processID(p.ch.id) }

// PID is the number of the process in the sandbox, as the agent says; 0 if what
// it says is malformed.
func (p *Process) PID() int {
	p.ch.mu.Lock()
	defer p.ch.mu.Unlock()
	info, _ := agentproto.DecodeProcessInfo(p.ch.info)
	return int(info.PID)
}

// Stdin is the input of the process; closing it ends the input.
func (p *Process) Stdin() io.WriteCloser { return p.ch.in }

// Stdout is all output with a terminal. It ends with the process, even if
// processes that it started keep it open.
func (p *Process) Stdout() io.Reader { return p.ch.out }

// Stderr is empty with a terminal.
func (p *Process) Stderr() io.Reader { return p.ch.err }

// Offsets returns how many bytes of each stream came before the next one that
// is read.
func (p *Process) Offsets() (stdout, stderr int64) { return p.ch.out.offset(), p.ch.err.offset() }

// Resize sets the size of the terminal.
func (p *Process) Resize(_ context.Context, rows, cols uint16) error {
	p.ch.send(frame(agentproto.TControl, agentproto.ControlResize, p.ch.id, agentproto.Size{Rows: rows, Cols: cols}))
	return nil
}

// Signal sends a signal to the process and its process group; no error if it
// has ended.
func (p *Process) Signal(_ context.Context, sig int) error {
	if sig < 0 || sig > 64 {
		return errs.New(errs.InvalidArgument, "%d is no signal", sig)
	}
	s, err := p.ch.c.current()
	if err != nil {
		return err
	}
	if err := s.w.Send(frame(agentproto.TControl, agentproto.ControlSignal, p.ch.id, agentproto.Number(sig))); err != nil {
		return errs.New(errs.Unavailable, "the agent of %s was lost: %w", p.ch.c.id, err)
	}
	return nil
}

// Wait returns the exit code when the process has ended and all its output has
// arrived here, where it can still be read. More than agentproto.OutWindow of
// a stream arrives only if it is read meanwhile.
func (p *Process) Wait(ctx context.Context) (int, error) {
	select {
	case <-p.ch.ended:
	case <-ctx.Done():
		return 0, errs.Wrap(ctx.Err(), "wait for exec in %s", p.ch.c.id)
	}
	b, err := p.ch.outcome()
	if err != nil {
		return 0, err
	}
	exit, err := agentproto.DecodeExit(b)
	if err != nil {
		return 0, errs.New(errs.Internal, "end of a process of %s: %w", p.ch.c.id, err)
	}
	return int(min(max(exit.Code, 0), 255)), nil
}

// Close abandons the process: its streams are closed and it is killed with
// everything that it has started.
func (p *Process) Close() error {
	p.ch.close()
	return nil
}

// Detach leaves the process running, with its output, for Attach. One that is not
// detached is killed when its agent has had no connection for agentproto.Linger.
func (p *Process) Detach() { p.ch.detach() }
