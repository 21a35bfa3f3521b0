// Package attach connects the terminal or the pipes of this process with a
// process in a sandbox: input, output, size, signals, and at the end its exit
// code.
package attach

import (
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/term"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
)

// maxInterrupts is how many interrupts end this process, whatever the remote one does.
const maxInterrupts = 3

// chunk is the size of a message of input, at most, in bytes.
const chunk = 32 << 10

// attachment connects this process with a remote one.
type attachment struct {
	c          *console.Console
	tty, stdin bool
	starting   *starting // shows the start; nil for an existing sandbox
	receive    func(*sandbox.OutputData)
	stream     stream
	mu         sync.Mutex  // guards Send
	running    atomic.Bool // the process was started
	detached   atomic.Bool // the user left a detached process
	keys       *detachKeys // the keys with which the user leaves it; nil for any other process
	sandbox    id.Sandbox  // of the process; set by output, as is process
	process    string      // its id
	restore    func()      // restores the terminal; nil before raw mode
}

// stream carries what a process reads and writes.
type stream = rpc.ClientStream[sandbox.ExecInput, sandbox.ExecOutput]

func (s *attachment) send(m *sandbox.ExecInput) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stream.Send(m)
}

// Run runs a process and returns its exit code. A signal does not end it but
// goes to the process; the third interrupt ends it. On a terminal the user can
// leave a detached process by its keys.
func Run(ctx context.Context, c *console.Console, client sandbox.SandboxesClient, req *sandbox.ExecRequest) (int, error) {
	s := &attachment{c: c, tty: isSet(req.TTY), stdin: isSet(req.Stdin)}
	req.Cols, req.Rows = s.size()
	if isSet(req.Detached) {
		s.keys = &detachKeys{}
	}
	return s.run(ctx, func(ctx context.Context) (stream, error) { return client.Exec(ctx, req) })
}

// Attach continues a detached process as Run runs one.
func Attach(ctx context.Context, c *console.Console, client sandbox.SandboxesClient, req *sandbox.AttachRequest, tty bool) (int, error) {
	s := &attachment{c: c, tty: tty, stdin: true, keys: &detachKeys{}}
	req.Cols, req.Rows = s.size()
	return s.run(ctx, func(ctx context.Context) (stream, error) { return client.Attach(ctx, req) })
}

// RunOnce runs a process in a new sandbox as Run does, and shows the start of
// the sandbox. Until the sandbox runs, the first interrupt ends the call. receive
// is called with the parts of the command's outputs.
func RunOnce(ctx context.Context, c *console.Console, client sandbox.SandboxesClient, req *sandbox.RunOnceRequest, receive func(*sandbox.OutputData)) (int, error) {
	s := &attachment{c: c, tty: isSet(req.TTY), stdin: isSet(req.Stdin), receive: receive}
	req.Cols, req.Rows = s.size()
	s.starting = showStart(c)
	defer s.starting.end()
	return s.run(ctx, func(ctx context.Context) (stream, error) { return client.RunOnce(ctx, req) })
}

// RunCode runs a program in a new sandbox as RunOnce runs a process.
func RunCode(ctx context.Context, c *console.Console, client sandbox.SandboxesClient, req *sandbox.RunCodeRequest, receive func(*sandbox.OutputData)) (int, error) {
	s := &attachment{c: c, tty: isSet(req.TTY), stdin: isSet(req.Stdin), receive: receive}
	req.Cols, req.Rows = s.size()
	s.starting = showStart(c)
	defer s.starting.end()
	return s.run(ctx, func(ctx context.Context) (stream, error) { return client.RunCode(ctx, req) })
}

func isSet(b *bool) bool { return b != nil && *b }

// size returns the size of the terminal for a request; nil without one.
func (s *attachment) size() (cols, rows *int64) {
	if !s.tty {
		return nil, nil
	}
	w, h := size(s.c)
	return &w, &h
}

func (s *attachment) run(ctx context.Context, open func(context.Context) (stream, error)) (int, error) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	stop := make(chan struct{})
	defer close(stop)
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, slices.Collect(maps.Keys(forwarded))...)
	defer signal.Stop(signals)
	var resized <-chan os.Signal
	if s.tty {
		var stopResizes func()
		resized, stopResizes = resizes(func() (int64, int64) { return size(s.c) })
		defer stopResizes()
	}
	var err error
	if s.stream, err = open(ctx); err != nil {
		return 0, err
	}
	defer s.stream.Close()
	wg.Go(func() { s.signals(signals, resized, stop, cancel) })
	defer func() {
		if s.restore != nil {
			s.restore()
		}
	}()
	code, err := s.output()
	if s.detached.Load() {
		s.note("\r\ndetached from process " + s.process)
		return 0, nil
	}
	if cause := context.Cause(ctx); cause != nil && err != nil {
		return 0, exit.With(exit.Interrupted, nil)
	}
	if errs.Is(err, errs.Unavailable) && s.keys != nil && s.process != "" {
		err = errs.New(errs.Unavailable, "%w", err).WithHint("the process goes on: `r sandbox attach %s %s` continues it", s.sandbox, s.process)
	}
	return code, err
}

// begin connects the input, now that the process runs.
func (s *attachment) begin() error {
	s.starting.end()
	s.running.Store(true)
	if s.tty {
		var err error
		if s.restore, err = raw(s.c); err != nil {
			return err
		}
	}
	if s.stdin {
		// A read of a terminal cannot be canceled: this one ends with the process.
		go s.input()
	}
	return nil
}

// input sends what this process reads, and at its end closes the input of the remote process.
func (s *attachment) input() {
	buf := make([]byte, chunk)
	for {
		n, err := s.c.In.Read(buf)
		leave := false
		if s.keys != nil && s.tty {
			n, leave = s.keys.find(buf[:n], time.Now())
		}
		if n > 0 {
			if s.send(&sandbox.ExecInput{Stdin: append([]byte(nil), buf[:n]...)}) != nil {
				return // the call has ended; output returns the error
			}
		}
		if leave {
			s.leave()
			return
		}
		if err != nil {
			if s.keys != nil {
				return // the input of a detached process stays open for the next caller
			}
			yes := true
			_ = s.send(&sandbox.ExecInput{CloseStdin: &yes}) // the call has ended; output returns the error
			return
		}
	}
}

// leave ends the call; output returns. The detached process goes on.
func (s *attachment) leave() {
	s.detached.Store(true)
	_ = s.stream.Close() // it never fails
}

// signals forwards signals and the size of the terminal.
func (s *attachment) signals(ch, resized <-chan os.Signal, stop <-chan struct{}, cancel context.CancelCauseFunc) {
	interrupts := 0
	for {
		select {
		case <-resized:
			cols, rows := size(s.c)
			_ = s.send(&sandbox.ExecInput{Resize: &sandbox.TerminalSize{Rows: rows, Cols: cols}}) // output returns the error
		case sig := <-ch:
			if s.keys != nil && s.tty && sig != os.Interrupt { // the terminal is gone, for example
				s.leave()
				return
			}
			if sig == os.Interrupt {
				if interrupts++; interrupts == maxInterrupts || !s.running.Load() {
					cancel(errs.New(errs.Canceled, "interrupted"))
					return
				}
			}
			number := forwarded[sig]
			_ = s.send(&sandbox.ExecInput{Signal: &number}) // the call has ended; output returns the error
		case <-stop:
			return
		}
	}
}

// output writes the output of the remote process until that has ended, and
// returns its exit code.
func (s *attachment) output() (int, error) {
	for {
		m, err := s.stream.Recv()
		if errors.Is(err, io.EOF) {
			return 0, errs.New(errs.Unavailable, "the server ended the call without an exit code")
		}
		if err != nil {
			return 0, err
		}
		if m.Started != "" {
			s.sandbox, s.process = m.Started, m.Process
			if err := s.begin(); err != nil {
				return 0, err
			}
		}
		if m.Note != "" {
			s.note(m.Note)
		}
		for _, out := range []struct {
			w io.Writer
			b []byte
		}{{s.c.Out, m.Stdout}, {s.c.Err, m.Stderr}} {
			if len(out.b) == 0 {
				continue
			}
			if _, err := out.w.Write(out.b); err != nil {
				return 0, errs.New(errs.Unavailable, "write the output: %w", err)
			}
		}
		if m.Output != nil && s.receive != nil {
			s.receive(m.Output)
		}
		if m.ExitCode != nil {
			return int(*m.ExitCode), nil
		}
	}
}

// note shows a message of the server; a raw terminal needs a carriage return
// too.
func (s *attachment) note(text string) {
	if s.starting.note(text) {
		return
	}
	end := "\n"
	if s.restore != nil {
		end = "\r\n"
	}
	s.c.Notef("%s%s", text, end)
}

// raw makes the terminal pass every key to the remote process.
func raw(c *console.Console) (restore func(), err error) {
	f, ok := c.In.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return func() {}, nil
	}
	old, err := term.MakeRaw(int(f.Fd()))
	if err != nil {
		return nil, errs.New(errs.FailedPrecondition, "set up the terminal: %w", err)
	}
	return func() { _ = term.Restore(int(f.Fd()), old) }, nil // there is nothing else to try
}

// size returns the size of the terminal, 80 by 24 without one.
func size(c *console.Console) (cols, rows int64) {
	w, h := c.Width(), c.Height()
	if w <= 0 || h <= 0 {
		return 80, 24
	}
	return int64(w), int64(h)
}

// Code returns an error with the exit code of a remote process.
func Code(code int, err error) error {
	if err != nil || code == 0 {
		return err
	}
	return exit.With(code, nil)
}
