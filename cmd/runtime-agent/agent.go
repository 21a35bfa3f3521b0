package main

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"miren.dev/runtime/pkg/agentproto"
)

// Limits of the steps of the end.
const (
	lastLook   = 5 * time.Millisecond   // for the reaper to find that main was the last
	termGrace  = 500 * time.Millisecond // from SIGTERM to SIGKILL for processes that main left behind
	killGrace  = time.Second            // for the kernel to end the killed processes
	flushGrace = 500 * time.Millisecond // for the node to read the last frames
)

// past is a deadline that has passed.
var past = time.Unix(1, 0)

// agent is the state of the process.
type agent struct {
	dir      string
	config   agentproto.Config
	boot     uint64
	spool    *spool
	kids     *reaper
	forks    *spawner
	channels *table
	users    *fileUsers

	start chan func(agentproto.Failure) // requests to start the main process, each with its reply
	kill  chan syscall.Signal           // signals for the main process
	ended chan agentproto.Exit          // end of the main process, once its output is spooled

	claims   claims
	gen      generation
	began    time.Time
	lastUsed atomic.Int64 // nanoseconds from began

	mu    sync.Mutex
	main  agentproto.Main
	link  *link  // the connection, if there is one
	token string // of the last connection
	// suspended is the token of the sandbox in which the agent was suspended for a snapshot; empty: it is not.
	suspended   string
	suspendedAt time.Time
}

func newAgent(dir string, c agentproto.Config, sp *spool, limit *pidLimit) *agent {
	a := &agent{
		dir: dir, config: c, began: time.Now(), boot: randomID(), spool: sp, kids: newReaper(), channels: newTable(), users: newFileUsers(),
		start: make(chan func(agentproto.Failure)), kill: make(chan syscall.Signal), ended: make(chan agentproto.Exit, 1),
	}
	a.forks = newSpawner(a.kids, limit)
	a.forks.cpus, a.forks.caps = c.CPUs, c.Capabilities
	a.claims.base = base{env: c.Env, dir: c.WorkDir, user: c.User}
	if len(c.Command) > 0 {
		a.main.State = agentproto.MainPending
	}
	return a
}

// run returns when the main process has ended, or is never going to start.
func (a *agent) run(signals <-chan os.Signal) {
	a.gen.begin()
	go a.kids.run()
	go a.forks.run()
	if a.config.Start == agentproto.StartAtOnce {
		a.startMain()
	}
	go a.dialLoop()
	for {
		select {
		case reply := <-a.start:
			reply(a.startMain()) // before the end, if it could not be started
		case sig := <-a.kill:
			// A start request that is pending comes first: the node wants that
			// order.
			if !a.signalMain(sig) && a.mainState().State == agentproto.MainNone && a.endsBy(sig) {
				return
			}
		case s := <-signals:
			sig, _ := s.(syscall.Signal)
			if !a.signalMain(sig) && a.endsBy(sig) {
				return
			}
		case e := <-a.ended:
			a.setMain(func(m *agentproto.Main) { m.State, m.Exit = agentproto.MainExited, e })
			return
		}
	}
}

// endsBy reports whether sig ends an agent without a main process that could
// handle it, and records that end.
func (a *agent) endsBy(sig syscall.Signal) bool {
	if sig != syscall.SIGTERM && sig != syscall.SIGINT && sig != syscall.SIGKILL {
		return false
	}
	a.setMain(func(m *agentproto.Main) {
		if m.State != agentproto.MainExited {
			m.State = agentproto.MainExited
			m.Exit = signalExit(sig)
		}
	})
	return true
}

func signalExit(sig syscall.Signal) agentproto.Exit {
	return agentproto.Exit{Code: 128 + int64(sig), Signal: int64(sig), At: time.Now().UnixNano()}
}

// setMain changes the state of the main process. report sends it to the node.
func (a *agent) setMain(change func(*agentproto.Main)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change(&a.main)
}

func (a *agent) mainState() agentproto.Main {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.main
}

// report sends the node the state of the main process.
func (a *agent) report() {
	a.mu.Lock()
	l, m := a.link, a.main
	a.mu.Unlock()
	if l != nil {
		_ = l.w.Send(message(agentproto.TMain, 0, 0, m)) // a lost connection begins with the state anyway
	}
}

// startMain starts the main process if it has not started yet. Only run calls
// it.
func (a *agent) startMain() agentproto.Failure {
	switch m := a.mainState(); m.State {
	case agentproto.MainNone:
		return agentproto.Failure{Kind: agentproto.Wrong, Message: "the sandbox has no main process"}
	case agentproto.MainRunning:
		return agentproto.Failure{}
	case agentproto.MainExited:
		return agentproto.Failure{Kind: agentproto.Wrong, Message: "the main process has ended", ExitCode: m.Exit.Code}
	}
	pid, f := a.forkMain()
	if f.Kind != agentproto.OK {
		a.ended <- agentproto.Exit{Code: f.ExitCode, At: time.Now().UnixNano(), Message: f.Message}
		return f
	}
	a.setMain(func(m *agentproto.Main) {
		m.State, m.PID, m.StartedAt = agentproto.MainRunning, int64(pid), time.Now().UnixNano()
	})
	a.report()
	return agentproto.Failure{}
}

// forkMain starts the main process with its output going to the spool.
func (a *agent) forkMain() (int, agentproto.Failure) {
	b := a.claims.current()
	cmd := command{argv: a.config.Command, env: b.env, dir: b.dir, user: b.user}
	p, err := openFiles(false, a.forks.null, agentproto.Size{})
	if err != nil {
		return 0, cannotStart("%v", err)
	}
	defer p.closeChild()
	for _, c := range p.child {
		cmd.files = append(cmd.files, uintptr(c))
	}
	outR, errR := p.out[0], p.out[1]
	exited := make(chan agentproto.Exit, 1)
	pid, f := a.forks.start(cmd, func(ws syscall.WaitStatus) { exited <- exitOf(ws) })
	if f.Kind != agentproto.OK {
		p.closeOurs()
		return 0, f
	}
	gone := make(chan struct{})
	var pumps sync.WaitGroup
	pumps.Go(func() { a.spool.pump(outR, agentproto.Stdout, gone) })
	pumps.Go(func() { a.spool.pump(errR, agentproto.Stderr, gone) })
	go func() {
		e := <-exited
		close(gone)
		deadline := time.Now().Add(outputGrace)
		_ = outR.SetReadDeadline(deadline) // fails for a closed file, which no read waits for
		_ = errR.SetReadDeadline(deadline)
		pumps.Wait()
		a.ended <- e
	}()
	return pid, agentproto.Failure{}
}

// signalMain reports whether there was a main process to signal.
func (a *agent) signalMain(sig syscall.Signal) bool {
	m := a.mainState()
	if m.State != agentproto.MainRunning {
		return false
	}
	a.kids.signal(int(m.PID), sig)
	return true
}

// finish records the end, ends the remaining processes, and returns the exit
// code.
func (a *agent) finish(logDir string) int {
	m := a.mainState()
	if err := a.spool.whenOpen(func() error { return writeExit(logDir, m.Exit) }); err != nil {
		fmt.Fprintln(os.Stderr, "runtime-agent: exit record:", err)
	}
	a.report()
	a.channels.stop()
	self := os.Getpid()
	if !a.kids.waitNone(lastLook) {
		killTree(self, false, syscall.SIGTERM)
		if !a.kids.waitNone(termGrace) {
			for range 10 {
				killTree(self, false, syscall.SIGKILL)
				if a.kids.waitNone(killGrace / 10) {
					break
				}
			}
		}
	}
	a.channels.drain(flushGrace)
	a.mu.Lock()
	l := a.link
	a.mu.Unlock()
	if l != nil {
		_ = l.flush(flushGrace) // best effort: the exit record is there
	}
	return int(m.Exit.Code)
}

// writeExit makes the exit record appear complete. It does not use atomicfile: the host knows this temporary name, and
// spares it when it bounds the spool.
func writeExit(dir string, e agentproto.Exit) error {
	tmp := filepath.Join(dir, agentproto.ExitName+".tmp")
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(agentproto.AppendExitFile(nil, e))
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp, filepath.Join(dir, agentproto.ExitName))
	}
	return err
}
