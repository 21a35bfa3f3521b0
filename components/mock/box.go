package mock

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
)

// box is a sandbox.
type box struct {
	m       *Machine
	made    atomic.Pointer[execution.Spec] // never changed, only replaced
	address string
	started time.Time
	out     *log
	main    *process
	done    chan struct{} // closed at the end
	files   string        // directory of its files; "": it has none

	mu       sync.Mutex
	exit     *execution.Exit
	paused   string // the snapshot, of a Paused sandbox
	execs    map[*process]bool
	listed   map[*process]bool // those that run, and detached ones
	lastID   int               // last id given to an exec
	last     time.Time         // last use
	cpu      time.Duration
	written  int64             // bytes that programs reserved
	ports    map[int]io.Closer // ports on which the sandbox listens
	local    map[int]bool      // of those, the ports of its loopback address
	oomKills atomic.Int64      // programs that ended because the memory limit was reached
	uploads  int               // files that were written
	xattrs   map[string]map[string][]byte
	watches  map[*fileWatch]bool
	claimed  execution.Identity
}

func newBox(m *Machine, s execution.Spec) *box {
	b := &box{m: m, started: time.Now(), last: time.Now(), done: make(chan struct{}), execs: map[*process]bool{}, listed: map[*process]bool{}, ports: map[int]io.Closer{}, local: map[int]bool{}, xattrs: map[string]map[string][]byte{}, watches: map[*fileWatch]bool{}, cpu: time.Millisecond}
	b.made.Store(&s)
	return b
}

// spec returns the specification as it is now.
func (b *box) spec() *execution.Spec { return b.made.Load() }

func (b *box) instance() execution.Instance {
	b.mu.Lock()
	defer b.mu.Unlock()
	in := execution.Instance{ID: b.spec().ID, Phase: execution.Running, Address: b.address, StartedAt: b.started}
	switch {
	case b.exit != nil:
		e := *b.exit
		in.Phase, in.Exit = execution.Exited, &e
	case b.paused != "":
		in.Phase, in.Snapshot = execution.Paused, b.paused
	}
	return in
}

// start runs the main process.
func (b *box) start() {
	p := newProcess(b, b.spec().Command, b.spec().WorkDir, b.spec().User, nil)
	p.in.close(io.EOF)
	p.stdout, p.stderr = &lineWriter{log: b.out, stream: "stdout"}, &lineWriter{log: b.out, stream: "stderr"}
	b.main = p
	run, err := Program(idle), error(nil)
	if !b.spec().Idle {
		run, err = b.m.cfg.Program(p.guest())
	}
	if err != nil {
		b.end(execution.Exit{Cause: execution.CauseExit, Code: ExitCode(err), At: time.Now(), Message: "cannot be run"})
		return
	}
	go func() {
		code := p.run(run)
		b.end(p.exit(code))
	}()
}

// idle is a sandbox without a main process.
func idle(g *Guest) int {
	select {
	case <-g.Terminated():
		return 143
	case <-g.Killed():
		return g.Dies()
	}
}

// exit ends the sandbox because its main process exited.
func (p *process) exit(code int) execution.Exit {
	e := execution.Exit{Cause: execution.CauseExit, Code: code, At: time.Now()}
	if p.oom {
		e.Cause, e.Message = execution.CauseOOM, "used more memory than its limit"
	}
	return e
}

// end records the first end and ends every process in the sandbox.
func (b *box) end(e execution.Exit) {
	b.mu.Lock()
	if b.exit != nil {
		b.mu.Unlock()
		return
	}
	b.exit = &e
	close(b.done)
	all := []*process{b.main}
	for p := range b.execs {
		all = append(all, p)
	}
	for port, c := range b.ports {
		c.Close()
		delete(b.ports, port)
	}
	for w := range b.watches {
		w.stop(io.EOF)
	}
	b.mu.Unlock()
	for _, p := range all {
		p.signal(9)
	}
	b.out.end()
	b.m.notify(b.spec().ID)
}

func (b *box) used() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last = time.Now()
}

func (b *box) claim() execution.Identity {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.claimed
}

func (b *box) kill(code int) {
	b.end(execution.Exit{Cause: execution.CauseExit, Code: code, At: time.Now(), Message: "killed"})
}

func (b *box) stats() execution.Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	return execution.Stats{At: time.Now(), CPU: b.cpu, MemoryBytes: 1 << 20, PIDs: int64(1 + len(b.execs))}
}

// exec runs a process beside the main one.
func (b *box) exec(e execution.ExecSpec) (execution.Process, error) {
	if len(e.Command) == 0 {
		return nil, errs.New(errs.InvalidArgument, "there is no command to execute")
	}
	p := newProcess(b, e.Command, e.WorkDir, e.User, e.Env)
	run, err := b.m.cfg.Program(p.guest())
	if err != nil {
		return nil, err
	}
	p.tag, p.tty, p.started = e.Tag, e.TTY, time.Now()
	if e.Detached {
		p.outHistory, p.errHistory = newHistory(), newHistory()
		p.stdout, p.stderr = p.outHistory, p.errHistory
	} else {
		p.out, p.err = newPipe(), newPipe()
		p.stdout, p.stderr = p.out, p.err
	}
	if e.TTY {
		p.stdout = &terminal{p.stdout}
		p.stderr = p.stdout
	}
	if e.NoInput {
		p.in.close(io.EOF)
	}
	b.mu.Lock()
	b.last = time.Now()
	b.lastID++
	p.id, p.number = fmt.Sprintf("%x", b.lastID), b.lastID+1
	b.execs[p], b.listed[p] = true, true
	b.mu.Unlock()
	go func() {
		code := p.run(run)
		b.mu.Lock()
		delete(b.execs, p)
		b.last = time.Now()
		if !e.Detached {
			delete(b.listed, p)
		}
		b.mu.Unlock()
		if p.oom {
			b.end(p.exit(code))
		}
		p.finish(code)
	}()
	if e.Detached {
		return p.attach(0, 0), nil
	}
	return p, nil
}
