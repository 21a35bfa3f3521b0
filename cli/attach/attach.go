// Package attach connects the terminal or the pipes of this process with a
// process in a sandbox: input, output, size, signals, and at the end its exit
// code.
package attach

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/term"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
)

// forwarded are the signals that go to the remote process.
var forwarded = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2}

// giveUp is how many interrupts end this process, whatever the remote one does.
const giveUp = 3

// chunk is how much input is sent at once.
const chunk = 32 << 10

// session is one attached process.
type session struct {
	c      *console.Console
	stream rpc.ClientStream[sandbox.ExecInput, sandbox.ExecOutput]
	mu     sync.Mutex // of Send
}

func (s *session) send(m *sandbox.ExecInput) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stream.Send(m)
}

// Run runs a process and returns its exit code. A signal does not end it but
// goes to the process; the third interrupt ends it.
func Run(ctx context.Context, c *console.Console, client sandbox.SandboxesClient, req *sandbox.ExecRequest, started func(id.Sandbox)) (int, error) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	tty := req.TTY != nil && *req.TTY
	if tty {
		cols, rows := size(c)
		req.Cols, req.Rows = &cols, &rows
	}
	stream, err := client.Exec(ctx, req)
	if err != nil {
		return 0, err
	}
	defer stream.Close()
	s := &session{c: c, stream: stream}
	if tty {
		restore, err := raw(c)
		if err != nil {
			return 0, err
		}
		defer restore()
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	stop := make(chan struct{})
	defer close(stop)
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, forwarded...)
	if tty {
		signal.Notify(signals, syscall.SIGWINCH)
	}
	defer signal.Stop(signals)
	wg.Go(func() { s.signals(signals, stop, cancel) })
	if req.Stdin != nil && *req.Stdin {
		// A read of a terminal cannot be taken back: this one ends with the process.
		go s.input()
	}
	code, err := s.output(started)
	if cause := context.Cause(ctx); cause != nil && err != nil {
		return 0, exit.With(exit.Interrupted, nil)
	}
	return code, err
}

// input sends what is typed or piped.
func (s *session) input() {
	buf := make([]byte, chunk)
	for {
		n, err := s.c.In.Read(buf)
		if n > 0 {
			if s.send(&sandbox.ExecInput{Stdin: append([]byte(nil), buf[:n]...)}) != nil {
				return // the call has ended; output says why
			}
		}
		if err != nil {
			yes := true
			_ = s.send(&sandbox.ExecInput{CloseStdin: &yes}) // likewise
			return
		}
	}
}

// signals forwards signals and the size of the terminal.
func (s *session) signals(ch <-chan os.Signal, stop <-chan struct{}, cancel context.CancelCauseFunc) {
	interrupts := 0
	for {
		select {
		case sig := <-ch:
			if sig == syscall.SIGWINCH {
				cols, rows := size(s.c)
				_ = s.send(&sandbox.ExecInput{Resize: &sandbox.TerminalSize{Rows: rows, Cols: cols}}) // output says if it ended
				continue
			}
			if sig == os.Interrupt {
				if interrupts++; interrupts == giveUp {
					cancel(errs.New(errs.Canceled, "interrupted %d times", giveUp))
					return
				}
			}
			if n, ok := sig.(syscall.Signal); ok {
				number := int64(n)
				_ = s.send(&sandbox.ExecInput{Signal: &number}) // likewise
			}
		case <-stop:
			return
		}
	}
}

// output writes what the process writes until it has ended.
func (s *session) output(started func(id.Sandbox)) (int, error) {
	for {
		m, err := s.stream.Recv()
		if errors.Is(err, io.EOF) {
			return 0, errs.New(errs.Unavailable, "the server ended the call without an exit code")
		}
		if err != nil {
			return 0, err
		}
		if m.Started != "" && started != nil {
			started(m.Started)
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
		if m.ExitCode != nil {
			return int(*m.ExitCode), nil
		}
	}
}

// raw lets the remote terminal see every key.
func raw(c *console.Console) (restore func(), err error) {
	f, ok := c.In.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return func() {}, nil
	}
	old, err := term.MakeRaw(int(f.Fd()))
	if err != nil {
		return nil, errs.New(errs.FailedPrecondition, "set the terminal up: %w", err)
	}
	return func() { _ = term.Restore(int(f.Fd()), old) }, nil // there is nothing else to try
}

// size of the terminal, the usual one if there is none.
func size(c *console.Console) (cols, rows int64) {
	w, h := c.Width(), c.Height()
	if w <= 0 || h <= 0 {
		return 80, 24
	}
	return int64(w), int64(h)
}

// Code makes the exit code of a remote process that of this one.
func Code(code int, err error) error {
	if err != nil || code == 0 {
		return err
	}
	return exit.With(code, nil)
}
