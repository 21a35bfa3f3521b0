package mock

import (
	"bytes"
	"context"
	"io"
	"sync"
	"time"

	"miren.dev/runtime/pkg/errs"
)

// process runs a program. It is the execution.Process of an exec.
type process struct {
	box            *box
	args           []string
	dir, user      string
	env            []string
	in, out, err   *pipe
	stdout, stderr io.Writer
	oom            bool

	id      string
	tag     string
	number  int // in the sandbox
	started time.Time
	tty     bool
	// of a detached process
	outHistory, errHistory *history
	holder                 *attached // guarded by mu

	term   chan struct{} // closed by signal 15
	killed chan struct{} // closed by any other signal
	exited chan struct{}

	mu     sync.Mutex
	sig    int // the signal that killed it
	termed bool
	code   int
	size   [2]uint16 // size of the terminal
	sent   []int     // signals received
}

func newProcess(b *box, args []string, dir, user string, env []string) *process {
	return &process{
		box: b, args: args, dir: dir, user: user, env: env, in: newPipe(),
		term: make(chan struct{}), killed: make(chan struct{}), exited: make(chan struct{}),
	}
}

// run returns the exit code; it does not wait for a program that was killed.
func (p *process) run(f Program) int {
	done := make(chan int, 1)
	go func() { done <- f(p.guest()) }()
	select {
	case code := <-done:
		return code
	case <-p.killed:
		p.mu.Lock()
		defer p.mu.Unlock()
		return 128 + p.sig
	}
}

func (p *process) finish(code int) {
	p.mu.Lock()
	p.code = code
	p.mu.Unlock()
	if p.outHistory != nil {
		p.outHistory.close()
		p.errHistory.close()
	} else {
		p.out.close(io.EOF)
		p.err.close(io.EOF)
	}
	p.in.close(io.ErrClosedPipe)
	close(p.exited)
}

func (p *process) signal(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent = append(p.sent, n)
	switch {
	case n == 15 && !p.termed:
		p.termed = true
		close(p.term)
	case n != 15 && p.sig == 0:
		p.sig = n
		close(p.killed)
		p.in.close(io.ErrClosedPipe)
	}
}

// ID implements execution.Process.
func (p *process) ID() string { return p.id }

// PID implements execution.Process.
func (p *process) PID() int { return p.number }

// Detach leaves the process running.
func (p *process) Detach() {
	gone := errs.New(errs.Canceled, "the process was left")
	p.out.abort(gone)
	p.err.abort(gone)
}

func (p *process) Offsets() (stdout, stderr int64) { return p.out.offset(), p.err.offset() }

func (p *process) Stdin() io.WriteCloser { return stdin{p.in} }
func (p *process) Stdout() io.Reader     { return p.out }
func (p *process) Stderr() io.Reader     { return p.err }

func (p *process) Resize(_ context.Context, rows, cols uint16) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.size = [2]uint16{rows, cols}
	return nil
}

func (p *process) Signal(_ context.Context, n int) error {
	p.signal(n)
	return nil
}

func (p *process) Wait(ctx context.Context) (int, error) {
	select {
	case <-p.exited:
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.oom { // kills the kernel and the agent too, so that no one can report how it ended
			return 0, errs.New(errs.Unavailable, "the agent of sandbox %s is not connected", p.box.spec().ID)
		}
		return p.code, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (p *process) Close() error {
	gone := errs.New(errs.Canceled, "the process was closed")
	p.out.abort(gone)
	p.err.abort(gone)
	p.signal(9)
	return nil
}

// pipe is a bounded buffer between a writer and a reader.
type pipe struct {
	mu   sync.Mutex
	cond sync.Cond
	buf  []byte
	end  error // nothing more comes
	read int64
}

func (p *pipe) offset() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.read
}

const pipeSize = 64 << 10

func newPipe() *pipe {
	p := new(pipe)
	p.cond.L = &p.mu
	return p
}

func (p *pipe) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for n < len(b) {
		for len(p.buf) >= pipeSize && p.end == nil {
			p.cond.Wait()
		}
		if p.end != nil {
			return n, io.ErrClosedPipe
		}
		k := min(len(b)-n, pipeSize-len(p.buf))
		p.buf = append(p.buf, b[n:n+k]...)
		n += k
		p.cond.Broadcast()
	}
	return n, nil
}

func (p *pipe) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.buf) == 0 && p.end == nil {
		p.cond.Wait()
	}
	if len(p.buf) == 0 {
		return 0, p.end
	}
	n := copy(b, p.buf)
	p.buf = p.buf[n:]
	p.read += int64(n)
	p.cond.Broadcast()
	return n, nil
}

// close lets the reader read the buffered data.
func (p *pipe) close(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.end == nil {
		p.end = err
	}
	p.cond.Broadcast()
}

// abort discards the buffered data.
func (p *pipe) abort(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.buf, p.end = nil, err
	p.cond.Broadcast()
}

type stdin struct{ *pipe }

func (s stdin) Close() error {
	s.close(io.EOF)
	return nil
}

// terminal turns \n into \r\n as a terminal does.
type terminal struct{ w io.Writer }

func (t *terminal) Write(p []byte) (int, error) {
	_, err := t.w.Write(bytes.ReplaceAll(p, []byte("\n"), []byte("\r\n")))
	return len(p), err
}
