package agent

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"io"
	"sync"
	"time"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/agentproto"
	"miren.dev/runtime/pkg/errs"
)

// Process is an exec. It implements execution.Process.
type Process struct {
	c   *Conn
	id  uint64
	out *output
	err *output
	in  *stdin
	// keep: only Close makes the agent forget the process and its output.
	keep bool

	mu      sync.Mutex
	started chan struct{} // closed when the agent has answered, or failed is set
	exited  chan struct{} // closed when exit or failed is set
	begun   bool          // started is closed
	over    bool          // exited is closed

	tty    bool
	failed error
	exit   agentproto.Exit
}

func newProcess(c *Conn, id uint64, stdout, stderr int64) *Process {
	p := &Process{c: c, id: id, started: make(chan struct{}), exited: make(chan struct{})}
	p.out = newOutput(p, agentproto.Stdout, stdout)
	p.err = newOutput(p, agentproto.Stderr, stderr)
	p.in = newStdin(p)
	return p
}

func (c *Conn) exec(ctx context.Context, s execution.ExecSpec, linger time.Duration) (*Process, error) {
	if len(s.Command) == 0 {
		return nil, errs.New(errs.InvalidArgument, "there is no command to execute")
	}
	m := agentproto.Exec{
		Command: s.Command, Env: s.Env, WorkDir: s.WorkDir, User: s.User, TTY: s.TTY,
		Size: agentproto.Size{Rows: s.Rows, Cols: s.Cols}, Linger: int64(linger),
	}
	payload := m.Append(nil)
	if len(payload) > agentproto.MaxFromNode {
		return nil, errs.New(errs.InvalidArgument, "command and environment have %d bytes, which is more than %d", len(payload), agentproto.MaxFromNode)
	}
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	p := newProcess(c, binary.LittleEndian.Uint64(id[:]), 0, 0)
	p.in.granted = agentproto.InWindow
	p.keep = linger > 0
	if err := p.begin(ctx, agentproto.TExec, raw(payload)); err != nil {
		return nil, err
	}
	return p, nil
}

// Reattach continues an exec of an earlier hub, or of an earlier connection
// that gave it up. Output is read from the given offsets, or from where the
// agent still has it: what was read before and not lost is gone. NotFound if
// the sandbox does not know the exec (any more).
func (c *Conn) Reattach(ctx context.Context, id uint64, stdout, stderr int64) (*Process, error) {
	if stdout < 0 || stderr < 0 {
		return nil, errs.New(errs.InvalidArgument, "negative offset")
	}
	p := newProcess(c, id, stdout, stderr)
	p.in.unknown = true
	p.keep = true
	if err := p.begin(ctx, agentproto.TAttach, p.where()); err != nil {
		return nil, err
	}
	return p, nil
}

type raw []byte

func (r raw) Append(b []byte) []byte { return append(b, r...) }

// begin sends the first frame and waits for the answer.
func (p *Process) begin(ctx context.Context, t agentproto.Type, m appender) error {
	c := p.c
	c.mu.Lock()
	s := c.connection
	if s == nil || c.procs[p.id] != nil {
		c.mu.Unlock()
		if s != nil {
			return errs.New(errs.FailedPrecondition, "exec %d is attached already", p.id)
		}
		return errs.New(errs.Unavailable, "the agent of sandbox %s is not connected", c.id)
	}
	c.procs[p.id] = p
	c.mu.Unlock()
	_ = s.w.Send(frame(t, 0, p.id, m)) // if the connection is lost, the next one asks for it
	select {
	case <-p.started:
	case <-ctx.Done():
		p.Close()
		return errs.Wrap(ctx.Err(), "start exec in %s", c.id)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

// where returns the offsets up to which output has been read and has arrived.
func (p *Process) where() agentproto.Attach {
	return agentproto.Attach{Out: p.out.where(), Err: p.err.where()}
}

// resume continues the exec on a new connection.
func (p *Process) resume(s *connection) {
	_ = s.w.Send(frame(agentproto.TAttach, 0, p.id, p.where())) // the next connection repeats it
}

// send sends a frame on the present connection, if there is one.
func (p *Process) send(add func([]byte) []byte) {
	if s, err := p.c.current(); err == nil {
		_ = s.w.Send(add) // resume repeats the frames that matter
	}
}

// handle handles a frame of the agent; an error ends the connection.
func (p *Process) handle(s *connection, f agentproto.Frame) error {
	switch f.Type {
	case agentproto.TOut:
		at, b, err := f.Data()
		if err != nil {
			return err
		}
		return p.stream(f.Stream).take(at, b)
	case agentproto.TGrant:
		n, err := agentproto.DecodeNumber(f.Payload)
		if err != nil {
			return err
		}
		p.in.grant(n)
	case agentproto.TStarted:
		m, err := agentproto.DecodeStarted(f.Payload)
		if err != nil {
			return err
		}
		return p.hasStarted(s, m)
	case agentproto.TExited:
		m, err := agentproto.DecodeExited(f.Payload)
		if err != nil {
			return err
		}
		if !p.out.end(m.Out) || !p.err.end(m.Err) {
			return agentproto.ErrMalformed
		}
		p.finish(nil, m.Exit)
		if !p.keep {
			p.c.forget(p)
			return s.w.Queue(frame(agentproto.TClose, 0, p.id, nil))
		}
	}
	return nil
}

func (p *Process) stream(n uint8) *output {
	if n == agentproto.Stderr {
		return p.err
	}
	return p.out
}

func (p *Process) hasStarted(s *connection, m agentproto.Started) error {
	if err := failure(m.Failure); err != nil {
		p.mu.Lock()
		begun := p.begun
		p.mu.Unlock()
		if begun && m.Kind == agentproto.NotFound {
			err = errs.New(errs.Unavailable, "sandbox %s has lost the process", p.c.id)
		}
		p.c.forget(p)
		p.fail(err)
		return nil
	}
	if m.PID == 0 {
		return nil // attached before it was started: another frame follows
	}
	p.out.begin(m.Out)
	p.err.begin(m.Err)
	p.mu.Lock()
	if !p.begun {
		p.begun, p.tty = true, m.TTY
		close(p.started)
	}
	p.mu.Unlock()
	p.in.resume(s, m.In, m.InGrant)
	return nil
}

// fail ends the process for its users.
func (p *Process) fail(err error) { p.finish(err, agentproto.Exit{}) }

func (p *Process) finish(err error, exit agentproto.Exit) {
	p.mu.Lock()
	if p.over {
		p.mu.Unlock()
		return
	}
	p.over, p.failed, p.exit = true, err, exit
	if !p.begun {
		p.begun = true
		close(p.started)
	}
	close(p.exited)
	p.mu.Unlock()
	if err == nil {
		err = io.EOF
	}
	p.out.fail(err)
	p.err.fail(err)
	p.in.fail()
}

// ID names the exec within its sandbox, for Reattach.
func (p *Process) ID() uint64 { return p.id }

// Stdin is the input of the process; closing it ends the input.
func (p *Process) Stdin() io.WriteCloser { return p.in }

// Stdout is all output with a terminal. It ends with the process, even if
// processes that it started keep it open.
func (p *Process) Stdout() io.Reader { return p.out }

// Stderr is empty with a terminal.
func (p *Process) Stderr() io.Reader { return p.err }

// Resize sets the size of the terminal.
func (p *Process) Resize(_ context.Context, rows, cols uint16) error {
	p.send(frame(agentproto.TResize, 0, p.id, agentproto.Size{Rows: rows, Cols: cols}))
	return nil
}

// Signal sends a signal to the process; no error if it has ended.
func (p *Process) Signal(_ context.Context, sig int) error {
	if sig < 0 || sig > 64 {
		return errs.New(errs.InvalidArgument, "%d is no signal", sig)
	}
	s, err := p.c.current()
	if err != nil {
		return err
	}
	if err := s.w.Send(frame(agentproto.TKill, 0, p.id, agentproto.Number(sig))); err != nil {
		return errs.New(errs.Unavailable, "the agent of %s was lost: %w", p.c.id, err)
	}
	return nil
}

// Wait returns the exit code when the process has ended and all its output has
// arrived here, where it can still be read. More than agentproto.OutWindow of
// a stream arrives only if it is read meanwhile.
func (p *Process) Wait(ctx context.Context) (int, error) {
	select {
	case <-p.exited:
	case <-ctx.Done():
		return 0, errs.Wrap(ctx.Err(), "wait for exec in %s", p.c.id)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return int(min(max(p.exit.Code, 0), 255)), p.failed
}

// Close abandons the process: its streams are closed and it is killed with
// everything that it has started.
func (p *Process) Close() error {
	if p.c.process(p.id) == p {
		p.c.forget(p)
		p.send(frame(agentproto.TClose, 0, p.id, nil)) // otherwise it lingers for its time
	}
	p.fail(errs.New(errs.Canceled, "the process was closed"))
	return nil
}

// Detach keeps the process running; Reattach may continue it within its linger
// time.
func (p *Process) Detach() {
	p.c.forget(p)
	p.fail(errs.New(errs.Canceled, "the process was detached"))
}
