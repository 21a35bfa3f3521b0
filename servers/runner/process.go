package runner

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/runner"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/opt"
	"miren.dev/runtime/pkg/rpc"
)

const (
	// maxUnread bounds what waits of one stream of a process, in bytes: then the
	// call, and with it the process, waits for the reader.
	maxUnread = 1 << 20
	// inputChunk bounds one message of input, in bytes.
	inputChunk = 32 << 10
	// closeTimeout bounds the call that ends a detached process.
	closeTimeout = 10 * time.Second
)

// process is a process of a sandbox of a runner.
type process struct {
	n        *remoteNode
	sid      id.Sandbox
	name     string
	pid      int
	detached bool
	st       rpc.ClientStream[sandbox.ExecInput, sandbox.ExecOutput]
	cancel   context.CancelFunc
	stdout   *unread
	stderr   *unread
	ended    chan struct{} // closed when code, reason and err are set
	code     int
	reason   sandbox.EndReason
	err      error
	once     sync.Once
	sendMu   sync.Mutex
}

var _ sandboxes.Process = (*process)(nil)

func newProcess(n *remoteNode, sid id.Sandbox, st rpc.ClientStream[sandbox.ExecInput, sandbox.ExecOutput], cancel context.CancelFunc, started *sandbox.ExecOutput, detached bool) *process {
	p := &process{
		n: n, sid: sid, name: started.Process, pid: int(opt.Value(started.PID)), detached: detached, st: st, cancel: cancel,
		stdout: newUnread(), stderr: newUnread(), ended: make(chan struct{}),
	}
	go p.receive()
	return p
}

// receive distributes the output. It ends with the call.
func (p *process) receive() {
	defer close(p.ended)
	defer p.stderr.end()
	defer p.stdout.end()
	for {
		m, err := p.st.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = errs.New(errs.Unavailable, "the connection to the runner ended before the process")
			}
			p.err = err
			return
		}
		switch {
		case len(m.Stdout) > 0:
			p.stdout.add(m.Stdout, opt.Value(m.Offset))
		case len(m.Stderr) > 0:
			p.stderr.add(m.Stderr, opt.Value(m.Offset))
		case m.ExitCode != nil:
			p.code, p.reason = int(*m.ExitCode), m.Reason
			return
		}
	}
}

func (p *process) ID() string        { return p.name }
func (p *process) PID() int          { return p.pid }
func (p *process) Stdout() io.Reader { return p.stdout }
func (p *process) Stderr() io.Reader { return p.stderr }

// Offsets implements sandboxes.Process.
func (p *process) Offsets() (stdout, stderr int64) { return p.stdout.position(), p.stderr.position() }

func (p *process) send(m *sandbox.ExecInput) error {
	p.sendMu.Lock()
	defer p.sendMu.Unlock()
	if err := p.st.Send(m); err != nil {
		return errs.New(errs.Canceled, "the process has ended: %w", err)
	}
	return nil
}

// Stdin implements sandboxes.Process.
func (p *process) Stdin() io.WriteCloser { return (*stdin)(p) }

type stdin process

func (s *stdin) Write(b []byte) (int, error) {
	n := 0
	for n < len(b) {
		part := b[n:min(len(b), n+inputChunk)]
		if err := (*process)(s).send(&sandbox.ExecInput{Stdin: part}); err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

func (s *stdin) Close() error {
	yes := true
	_ = (*process)(s).send(&sandbox.ExecInput{CloseStdin: &yes}) // the input of a process that has ended is closed
	return nil
}

// Resize implements sandboxes.Process.
func (p *process) Resize(_ context.Context, rows, cols uint16) error {
	return p.send(&sandbox.ExecInput{Resize: &sandbox.TerminalSize{Rows: int64(rows), Cols: int64(cols)}})
}

// Signal implements sandboxes.Process. It is a call of its own, since input that
// the process does not read blocks the stream.
func (p *process) Signal(ctx context.Context, signal int) error {
	return p.n.node.Signal(ctx, &runner.SignalRequest{Sandbox: p.sid, Process: p.name, Signal: int64(signal)})
}

// Wait implements sandboxes.Process.
func (p *process) Wait(ctx context.Context) (int, error) {
	select {
	case <-p.ended:
		return p.code, p.err
	case <-ctx.Done():
		return 0, errs.New(errs.ClassOf(ctx.Err()), "wait for the process: %w", ctx.Err())
	}
}

// Reason implements sandboxes.Process.
func (p *process) Reason() sandbox.EndReason {
	select {
	case <-p.ended:
		return p.reason
	default:
		return ""
	}
}

// leave ends the call, and returns false if it was left before.
func (p *process) leave() (first bool) {
	p.once.Do(func() {
		first = true
		p.cancel()
		_ = p.st.Close()
		p.stdout.close()
		p.stderr.close()
	})
	return first
}

// Close implements sandboxes.Process. The end of its call ends a process that is
// not detached.
func (p *process) Close() error {
	if !p.leave() || !p.detached {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return p.n.node.CloseProcess(ctx, &runner.ProcessRequest{Sandbox: p.sid, Process: p.name})
}

// Detach implements sandboxes.Process. The end of its call ends a process that is
// not detached.
func (p *process) Detach() { p.leave() }

// unread is output that was received and not read.
type unread struct {
	mu     sync.Mutex
	cond   sync.Cond
	parts  []part
	bytes  int
	at     int64 // offset of the next byte if none waits
	ended  bool
	closed bool
}

type part struct {
	data   []byte
	offset int64
}

func newUnread() *unread {
	u := &unread{}
	u.cond.L = &u.mu
	return u
}

// add waits for room.
func (u *unread) add(b []byte, offset int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for u.bytes >= maxUnread && !u.closed {
		u.cond.Wait()
	}
	if u.closed {
		return
	}
	u.parts = append(u.parts, part{b, offset})
	u.bytes += len(b)
	u.cond.Broadcast()
}

func (u *unread) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ended = true
	u.cond.Broadcast()
}

// close discards what waits.
func (u *unread) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closed, u.parts, u.bytes = true, nil, 0
	u.cond.Broadcast()
}

func (u *unread) position() int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.parts) > 0 {
		return u.parts[0].offset
	}
	return u.at
}

// Read implements io.Reader. It does not read over a jump of the offset, so that
// the position after it minus what was read is the position before.
func (u *unread) Read(b []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for len(u.parts) == 0 && !u.ended && !u.closed {
		u.cond.Wait()
	}
	if len(u.parts) == 0 {
		return 0, io.EOF
	}
	p := &u.parts[0]
	n := copy(b, p.data)
	p.data, p.offset = p.data[n:], p.offset+int64(n)
	u.at = p.offset
	if u.bytes -= n; len(p.data) == 0 {
		u.parts = u.parts[1:]
	}
	u.cond.Broadcast()
	return n, nil
}
