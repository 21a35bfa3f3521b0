package main

import (
	"errors"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"miren.dev/runtime/pkg/agentproto"
)

// execProcess is a process that runs for the node.
type execProcess struct {
	id     uint64
	agent  *agent
	linger time.Duration
	tty    bool
	out    *stream
	err    *stream
	in     *input

	// sendMu keeps output in order, and Exited behind it.
	sendMu sync.Mutex

	mu       sync.Mutex
	pid      int        // 0 before it was started
	pty      *os.File   // master side of its terminal
	files    []*os.File // files from which its output is read
	link     *link      // the connection to which it is attached
	told     *link      // the connection on which Exited was sent
	exit     *agentproto.Exit
	closed   bool        // the node closed the exec
	lingerer *time.Timer // kills the process when the node does not attach
	gone     chan struct{}
}

// startExec handles a request of the node. The connection's reader calls it, so
// it does not wait.
func (a *agent) startExec(l *link, id uint64, m agentproto.Exec) {
	e := &execProcess{
		id: id, agent: a, tty: m.TTY, linger: agentproto.Linger, link: l,
		out: newStream(agentproto.Stdout), err: newStream(agentproto.Stderr), gone: make(chan struct{}),
	}
	if m.Linger > 0 {
		e.linger = time.Duration(m.Linger)
	}
	e.in = newInput(e)
	e.out.attach(l, agentproto.Position{})
	e.err.attach(l, agentproto.Position{})
	if f := a.execs.add(e); f.Kind != agentproto.OK {
		_ = l.w.Queue(message(agentproto.TStarted, 0, id, agentproto.Started{Failure: f}))
		return
	}
	b := a.claims.current()
	cmd := command{argv: m.Command, env: slices.Concat(b.env, m.Env), dir: m.WorkDir, user: m.User, tty: m.TTY}
	if m.TTY && envValue(cmd.env, "TERM") == "" {
		cmd.env = append(cmd.env, "TERM=xterm-256color")
	}
	if cmd.dir == "" {
		cmd.dir = b.dir
	}
	if cmd.user == "" {
		cmd.user = b.user
	}
	a.forks.jobs <- func() {
		a.claims.wait()
		if f := e.fork(cmd, m.Size); f.Kind != agentproto.OK {
			a.execs.remove(e)
			_ = l.w.Send(message(agentproto.TStarted, 0, id, agentproto.Started{Failure: f}))
		}
	}
}

// fork runs on the spawner's thread.
func (e *execProcess) fork(cmd command, size agentproto.Size) agentproto.Failure {
	e.mu.Lock()
	closed := e.closed
	e.mu.Unlock()
	if closed {
		return agentproto.Failure{Kind: agentproto.NotFound, Message: "closed before it was started"}
	}
	p, err := openFiles(e.tty, size)
	if err != nil {
		return cannotStart("%v", err)
	}
	defer p.closeChild()
	for _, c := range p.child {
		cmd.files = append(cmd.files, uintptr(c))
	}
	cmd.term = p.name
	e.mu.Lock()
	e.files = p.out
	e.mu.Unlock()
	pid, f := e.agent.forks.fork(cmd, func(ws syscall.WaitStatus) {
		exit := exitOf(ws)
		go e.ended(exit)
	})
	if f.Kind != agentproto.OK {
		p.closeOurs()
		return f
	}
	e.in.open(p.in)
	e.mu.Lock()
	e.pid = pid
	if e.tty {
		e.pty = p.in
	}
	l := e.link
	closed = e.closed
	e.mu.Unlock()
	go e.pump(e.out, p.out[0])
	if e.tty {
		e.err.end()
	} else {
		go e.pump(e.err, p.out[1])
	}
	if l != nil {
		// Output may overtake Started, which is harmless. If the connection is lost, Attach asks again.
		started := agentproto.Started{PID: int64(pid), TTY: e.tty, InGrant: agentproto.InWindow}
		_ = l.w.Send(message(agentproto.TStarted, 0, e.id, started))
	}
	if closed {
		go e.kill()
	}
	return f
}

// pump moves the process's output into s until the output ends. After the
// process has ended, a passed deadline counts as the end too.
func (e *execProcess) pump(s *stream, f *os.File) {
	add := func(b []byte) { s.add(b); e.flush() }
	for {
		s.hasRoom()
		err := readSome(f, add)
		if err == nil {
			continue
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			_ = f.SetReadDeadline(time.Time{})
			drain(f, add)
			s.end()
			e.flush()
			discard(f)
			return
		}
		s.end()
		e.flush()
		if e.tty {
			// The process has closed the terminal, perhaps in order to exit. A
			// hang-up now would kill it.
			<-e.gone
		}
		f.Close()
		return
	}
}

// ended is called once, when the process was reaped.
func (e *execProcess) ended(exit agentproto.Exit) {
	e.in.drop()
	e.mu.Lock()
	e.exit = &exit
	files, closed := e.files, e.closed
	e.mu.Unlock()
	close(e.gone)
	deadline := time.Now().Add(outputGrace)
	for _, f := range files {
		_ = f.SetReadDeadline(deadline) // closed: its output has ended
	}
	if closed {
		e.agent.execs.remove(e)
		return
	}
	e.flush()
}

// flush sends the remaining frames on the present connection.
func (e *execProcess) flush() {
	e.sendMu.Lock()
	defer e.sendMu.Unlock()
	e.mu.Lock()
	l := e.link
	e.mu.Unlock()
	if l == nil {
		return
	}
	done := true
	for _, s := range []*stream{e.out, e.err} {
		for {
			b, at, end := s.next(l)
			if len(b) == 0 {
				done = done && end
				break
			}
			err := l.w.Send(func(p []byte) []byte {
				return agentproto.AppendData(p, agentproto.TOut, s.number, e.id, at, b)
			})
			if err != nil {
				return // it is sent again on the next connection
			}
		}
	}
	if !done {
		return
	}
	e.mu.Lock()
	tell := e.exit != nil && e.link == l && e.told != l
	if tell {
		e.told = l
	}
	exit := e.exit
	e.mu.Unlock()
	if tell {
		m := agentproto.Exited{Exit: *exit, Out: e.out.size(), Err: e.err.size()}
		_ = l.w.Send(message(agentproto.TExited, 0, e.id, m)) // sent again on the next connection
	}
}

// attach continues the exec on l.
func (e *execProcess) attach(l *link, m agentproto.Attach) {
	e.mu.Lock()
	e.link = l
	if e.lingerer != nil {
		e.lingerer.Stop()
		e.lingerer = nil
	}
	started := agentproto.Started{PID: int64(e.pid), TTY: e.tty}
	e.mu.Unlock()
	// Nothing is sent on l before the streams are attached to it, and they
	// not before the answer is on its way.
	e.sendMu.Lock()
	started.In, started.InGrant = e.in.position()
	started.Out, started.Err = e.out.attach(l, m.Out), e.err.attach(l, m.Err)
	_ = l.w.Queue(message(agentproto.TStarted, 0, e.id, started))
	e.sendMu.Unlock()
	go e.flush()
}

// connectionLost handles the loss of the connection l.
func (e *execProcess) connectionLost(l *link) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.link != l {
		return
	}
	e.link = nil
	e.startLinger()
}

// startLinger kills the process unless the node attaches to it within the linger time. It is called with mu held.
func (e *execProcess) startLinger() {
	if e.link != nil || e.lingerer != nil {
		return
	}
	e.lingerer = time.AfterFunc(e.linger, func() {
		e.mu.Lock()
		alone := e.link == nil
		e.mu.Unlock()
		if alone {
			e.close()
		}
	})
}

// close kills the process, if it runs, and forgets it.
func (e *execProcess) close() {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return
	}
	e.closed = true
	pid, exited := e.pid, e.exit != nil
	e.mu.Unlock()
	switch {
	case exited:
		e.drop()
		e.agent.execs.remove(e)
	case pid != 0:
		go e.kill()
	}
}

func (e *execProcess) drop() {
	e.out.drop()
	e.err.drop()
	e.in.drop()
}

// kill kills the process's session and all its descendants. New descendants may
// appear meanwhile, so it repeats.
func (e *execProcess) kill() {
	e.mu.Lock()
	pid := e.pid
	e.mu.Unlock()
	for range 100 {
		n := killTree(pid, true, syscall.SIGKILL)
		e.drop() // not before: a process that ends by itself leaves its descendants without a parent
		if n == 0 {
			return
		}
		select {
		case <-e.gone:
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (e *execProcess) signal(sig syscall.Signal) {
	e.mu.Lock()
	pid := e.pid
	e.mu.Unlock()
	if pid != 0 {
		e.agent.kids.signal(pid, sig)
	}
}

func (e *execProcess) resize(size agentproto.Size) {
	e.mu.Lock()
	pty := e.pty
	e.mu.Unlock()
	if pty != nil {
		_ = setSize(pty, size) // it may be closed already
	}
}
