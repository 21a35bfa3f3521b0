package main

import (
	"errors"
	"io"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"miren.dev/runtime/pkg/agentproto"
)

// process is the work of a channel of KindProcess.
type process struct {
	c    *channel
	spec agentproto.Process

	mu      sync.Mutex
	pid     int // 0 before it was started
	started int64
	pty     *os.File   // master side of its terminal
	files   []*os.File // files from which its output is read
	exit    *agentproto.Exit
	gone    chan struct{}
}

func newProcess(c *channel, m agentproto.Process) *process {
	p := &process{c: c, spec: m, gone: make(chan struct{})}
	c.work = p
	return p
}

// begin has the process started.
func (p *process) begin() {
	a := p.c.agent
	b := a.claims.current()
	m := p.spec
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
		if f := p.fork(cmd, m.Size); f.Kind != agentproto.OK {
			p.c.fail(f)
		}
	}
	p.spec.Env = nil // it may be large, and is not needed any more
}

// fork runs on the spawner's thread.
func (p *process) fork(cmd command, size agentproto.Size) agentproto.Failure {
	if p.c.isClosed() {
		return agentproto.Failure{Kind: agentproto.NotFound, Message: "closed before it was started"}
	}
	null := noInput
	if p.spec.NoInput {
		null = p.c.agent.forks.null
	}
	f, err := openFiles(cmd.tty, null, size)
	if err != nil {
		return cannotStart("%v", err)
	}
	defer f.closeChild()
	for _, c := range f.child {
		cmd.files = append(cmd.files, uintptr(c))
	}
	cmd.term = f.name
	p.mu.Lock()
	p.files = f.out
	p.mu.Unlock()
	pid, failure := p.c.agent.forks.fork(cmd, func(ws syscall.WaitStatus) {
		exit := exitOf(ws)
		go p.ended(exit)
	})
	if failure.Kind != agentproto.OK {
		f.closeOurs()
		return failure
	}
	p.mu.Lock()
	p.pid, p.started = pid, time.Now().UnixNano()
	if cmd.tty {
		p.pty = f.in
	}
	p.mu.Unlock()
	go p.pump(p.c.out, f.out[0])
	if cmd.tty {
		p.c.err.end()
	} else {
		go p.pump(p.c.err, f.out[1])
	}
	if f.in == nil {
		p.c.in.drop()
	} else {
		p.c.in.serve(func() { p.feed(f.in) }, func() {
			if !cmd.tty { // the terminal stays open for its output
				f.in.Close()
			}
		}, !cmd.tty)
	}
	p.c.ready(p.info().Append(nil), f.in == nil)
	if p.c.isClosed() {
		go p.kill()
	}
	return failure
}

// endOfText is the character that a terminal takes for the end of input.
var endOfText = []byte{4}

// feed moves input to the process until either ends.
func (p *process) feed(f *os.File) {
	buf := chunks.Get().(*[agentproto.Chunk]byte)
	defer chunks.Put(buf)
	defer p.c.in.drop()
	for {
		n, err := p.c.in.Read(buf[:])
		if err == io.EOF && p.spec.TTY {
			_, _ = f.Write(endOfText) // it may have ended
		}
		if err != nil {
			return
		}
		if _, err := f.Write(buf[:n]); err != nil {
			return // the process has closed its input
		}
	}
}

// pump moves the process's output into s until the output ends. After the
// process has ended, a passed deadline counts as the end too.
func (p *process) pump(s *stream, f *os.File) {
	add := func(b []byte) { s.add(b); p.c.flush() }
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
			p.c.flush()
			discard(f)
			return
		}
		s.end()
		p.c.flush()
		if p.spec.TTY {
			// The process has closed the terminal, perhaps in order to exit. A
			// hang-up now would kill it.
			<-p.gone
		}
		f.Close()
		return
	}
}

// ended is called once, when the process was reaped.
func (p *process) ended(exit agentproto.Exit) {
	p.mu.Lock()
	p.exit = &exit
	files := p.files
	p.mu.Unlock()
	close(p.gone)
	deadline := time.Now().Add(outputGrace)
	for _, f := range files {
		_ = f.SetReadDeadline(deadline) // closed: its output has ended
	}
	p.c.finish(agentproto.Done{Result: exit.Append(nil)})
}

// stop kills the process, if it was started.
func (p *process) stop() {
	p.mu.Lock()
	pid := p.pid
	p.mu.Unlock()
	if pid != 0 {
		go p.kill()
	}
}

// kill kills the process's session and all its descendants. New descendants may
// appear meanwhile, so it repeats.
func (p *process) kill() {
	p.mu.Lock()
	pid := p.pid
	p.mu.Unlock()
	for range 100 {
		n := killTree(pid, true, syscall.SIGKILL)
		p.c.drop() // not before: a process that ends by itself leaves its descendants without a parent
		if n == 0 {
			return
		}
		select {
		case <-p.gone:
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// control takes a message for the process.
func (p *process) control(n uint8, payload []byte) error {
	p.mu.Lock()
	pid, pty := p.pid, p.pty
	p.mu.Unlock()
	switch n {
	case agentproto.ControlResize:
		size, err := agentproto.DecodeSize(payload)
		if err == nil && pty != nil {
			_ = setSize(pty, size) // it may be closed already
		}
		return err
	case agentproto.ControlSignal:
		sig, err := agentproto.DecodeNumber(payload)
		if err != nil || sig > 64 {
			return agentproto.ErrMalformed
		}
		if pid != 0 {
			p.c.agent.kids.signalGroup(pid, syscall.Signal(sig))
		}
	}
	return nil
}

// info describes the process.
func (p *process) info() agentproto.ProcessInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := agentproto.ProcessInfo{
		ID: p.c.id, PID: int64(p.pid), StartedAt: p.started, TTY: p.spec.TTY,
		Detached: p.c.life == agentproto.LifeDetached, Tag: p.spec.Tag,
	}
	if p.exit != nil {
		i.Ended, i.Exit = true, *p.exit
	}
	room := agentproto.MaxListed
	for _, arg := range p.spec.Command {
		if len(arg) > room {
			arg = arg[:room]
		}
		i.Command = append(i.Command, arg)
		if room -= len(arg) + 2; room <= 0 {
			break
		}
	}
	return i
}

// activity says how much the sandbox is used.
func (a *agent) activity() agentproto.Activity {
	m := agentproto.Activity{Idle: int64(time.Since(a.began)) - a.lastUsed.Load()}
	for _, c := range a.channels.all() {
		c.mu.Lock()
		over := c.done != nil || c.closed
		c.mu.Unlock()
		switch _, isProcess := c.work.(*process); {
		case over || c.quiet:
		case isProcess:
			m.Processes++
		default:
			m.Others++
		}
	}
	return m
}

// processes lists the processes that the node started for somebody.
func (a *agent) processes() agentproto.Processes {
	var list agentproto.Processes
	for _, c := range a.channels.all() {
		if p, ok := c.work.(*process); ok && !c.quiet && !c.isClosed() {
			list = append(list, p.info())
		}
	}
	slices.SortFunc(list, func(a, b agentproto.ProcessInfo) int { return int(min(max(b.StartedAt-a.StartedAt, -1), 1)) })
	return list
}
