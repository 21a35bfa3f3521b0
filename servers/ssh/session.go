package sshserver

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
)

// chunk bounds the input of one message, in bytes.
const chunk = 32 << 10

// failed is the exit status of a session that the gateway could not carry out,
// as ssh itself uses it.
const failed = 255

// maxEnv bounds the environment variables of a session.
const maxEnv = 64

// shell starts bash, or sh where there is none, as a login shell.
var shell = []string{"/bin/sh", "-c", `if command -v bash >/dev/null 2>&1; then exec bash -l; else exec sh -l; fi`}

// signals are the signals of RFC 4254, and the two that editors send.
var signals = map[string]int64{
	"HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "ABRT": 6, "FPE": 8, "KILL": 9, "USR1": 10, "SEGV": 11, "USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": 15,
}

// mayEnter reports whether a client may set an environment variable. Such a
// client runs what it likes in its sandbox; the list keeps the surprises of its own
// configuration out.
func mayEnter(name string) bool {
	switch name {
	case "LANG", "LANGUAGE", "TZ", "COLORTERM", "NO_COLOR", "EDITOR", "VISUAL", "PAGER":
		return true
	}
	return strings.HasPrefix(name, "LC_") || strings.HasPrefix(name, "GIT_AUTHOR_") || strings.HasPrefix(name, "GIT_COMMITTER_")
}

// Payloads of requests (RFC 4254, section 6).
type (
	envRequest struct{ Name, Value string }
	ptyRequest struct {
		Term                      string
		Cols, Rows, Width, Height uint32
		Modes                     string
	}
	windowChange  struct{ Cols, Rows, Width, Height uint32 }
	commandOrName struct{ Value string }
	exitStatus    struct{ Code uint32 }
)

// session is one channel of type session.
type session struct {
	c   *conn
	ch  ssh.Channel
	env map[string]string
	tty bool
	// rows and cols are the size of the terminal.
	rows, cols int64

	mu      sync.Mutex // guards Send
	process rpc.ClientStream[sandbox.ExecInput, sandbox.ExecOutput]
	started bool
	begin   func() // begins to copy, once the client knows that the command was started; may be nil
	wg      sync.WaitGroup
}

// session serves a channel until it ends.
func (c *conn) session(ctx context.Context, nc ssh.NewChannel) {
	ch, requests, err := nc.Accept()
	if err != nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &session{c: c, ch: ch, env: map[string]string{}}
	defer s.wg.Wait()
	defer ch.Close()
	defer cancel()
	for req := range requests {
		ok := s.handle(ctx, req)
		if req.WantReply {
			_ = req.Reply(ok, nil) // a connection that is lost ends the loop
		}
		if s.begin != nil {
			s.begin()
			s.begin = nil
		}
	}
}

// handle carries out one request, and reports whether it succeeded.
func (s *session) handle(ctx context.Context, req *ssh.Request) bool {
	switch req.Type {
	case "env":
		var r envRequest
		if ssh.Unmarshal(req.Payload, &r) != nil || s.started || !mayEnter(r.Name) || len(s.env) >= maxEnv {
			return false
		}
		s.env[r.Name] = r.Value
		return true
	case "pty-req":
		var r ptyRequest
		if ssh.Unmarshal(req.Payload, &r) != nil || s.started || s.tty {
			return false
		}
		s.tty, s.rows, s.cols = true, size(r.Rows), size(r.Cols)
		if r.Term != "" {
			s.env["TERM"] = r.Term
		}
		return true
	case "window-change":
		var r windowChange
		if ssh.Unmarshal(req.Payload, &r) != nil || !s.tty {
			return false
		}
		s.rows, s.cols = size(r.Rows), size(r.Cols)
		return s.send(&sandbox.ExecInput{Resize: &sandbox.TerminalSize{Rows: s.rows, Cols: s.cols}})
	case "signal":
		var r commandOrName
		if ssh.Unmarshal(req.Payload, &r) != nil || signals[r.Value] == 0 {
			return false
		}
		n := signals[r.Value]
		return s.send(&sandbox.ExecInput{Signal: &n})
	case "shell":
		return s.start(ctx, shell)
	case "exec":
		var r commandOrName
		if ssh.Unmarshal(req.Payload, &r) != nil {
			return false
		}
		if s.c.ssh.User() == GitUser {
			return s.startPush(ctx, r.Value)
		}
		return s.start(ctx, []string{"/bin/sh", "-c", r.Value})
	case "subsystem":
		var r commandOrName
		return ssh.Unmarshal(req.Payload, &r) == nil && r.Value == "sftp" && s.startSFTP(ctx)
	}
	return false // auth-agent-req@openssh.com and x11-req among them
}

// size returns a size of a terminal that RPC accepts.
func size(n uint32) int64 { return int64(min(n, 65535)) }

// send sends input to the process, and reports whether there is one.
func (s *session) send(m *sandbox.ExecInput) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process != nil && s.process.Send(m) == nil
}

// start runs a command. It reports false for a second one. Failures show in the
// session, as those of a shell do.
func (s *session) start(ctx context.Context, command []string) bool {
	if s.started {
		return false
	}
	s.started = true
	if s.c.refused != nil {
		s.begin = func() { s.fail(s.c.refused) }
		return true
	}
	yes := true
	req := &sandbox.ExecRequest{Sandbox: s.c.sandbox, Command: command, Env: s.env, Stdin: &yes}
	if s.tty {
		req.TTY, req.Rows, req.Cols = &yes, &s.rows, &s.cols
	}
	st, err := sandbox.NewSandboxesClient(s.c.rpc).Exec(ctx, req)
	if err != nil {
		s.begin = func() { s.fail(err) }
		return true
	}
	s.mu.Lock()
	s.process = st
	s.mu.Unlock()
	s.begin = func() {
		s.wg.Go(s.input)
		s.wg.Go(s.output)
	}
	return true
}

// startSFTP serves files. It reports false for a second start.
func (s *session) startSFTP(ctx context.Context) bool {
	if s.started || s.tty {
		return false
	}
	s.started = true
	s.begin = func() { s.wg.Go(func() { s.sftp(ctx) }) }
	if s.c.refused != nil {
		s.begin = func() { s.fail(s.c.refused) }
	}
	return true
}

// input passes what the client sends to the process.
func (s *session) input() {
	buf := make([]byte, chunk)
	for {
		n, err := s.ch.Read(buf)
		if n > 0 && !s.send(&sandbox.ExecInput{Stdin: buf[:n]}) {
			return
		}
		if err != nil {
			yes := true
			s.send(&sandbox.ExecInput{CloseStdin: &yes}) // one that has ended needs no input
			return
		}
	}
}

// output passes the output of the process to the client until it has ended.
func (s *session) output() {
	defer s.process.Close()
	for {
		m, err := s.process.Recv()
		if err != nil {
			s.fail(err)
			return
		}
		switch {
		case m.ExitCode != nil:
			s.exit(uint32(*m.ExitCode))
			return
		case len(m.Stdout) > 0:
			_, err = s.ch.Write(m.Stdout)
		case len(m.Stderr) > 0:
			_, err = s.ch.Stderr().Write(m.Stderr)
		case m.Note != "":
			err = s.note(m.Note)
		}
		if err != nil {
			return // the client has gone
		}
	}
}

// note writes a message of the gateway for the user.
func (s *session) note(text string) error {
	_, err := io.WriteString(s.ch.Stderr(), "runtime: "+strings.ReplaceAll(text, "\n", " ")+"\r\n")
	return err
}

// fail ends the session with a reason of the gateway, and what to do about it.
func (s *session) fail(err error) {
	text := err.Error()
	if e := new(errs.Error); errors.As(err, &e) {
		text = e.Message
	}
	if hint := errs.HintOf(err); hint != "" {
		text += " (" + hint + ")"
	}
	_ = s.note(text) // a client that has gone needs no reason
	s.exit(failed)
}

// exit ends the session.
func (s *session) exit(code uint32) {
	_ = s.ch.CloseWrite()
	_, _ = s.ch.SendRequest("exit-status", false, ssh.Marshal(exitStatus{code}))
	_ = s.ch.Close()
}
