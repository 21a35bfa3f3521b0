package fake

import (
	"cmp"
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

	mu      sync.Mutex
	exit    *execution.Exit
	paused  string // the snapshot, of a Paused sandbox
	execs   map[*process]bool
	listed  map[*process]bool // those that run, and detached ones
	lastID  int               // last id given to an exec
	last    time.Time         // last use
	pid     int
	cpu     time.Duration
	written int64             // memory limit in MiB
	ports   map[int]io.Closer // ports on which the sandbox listens
	claimed execution.Identity
}

func newBox(m *Machine, s execution.Spec) *box {
	b := &box{m: m, started: time.Now(), last: time.Now(), done: make(chan struct{}), execs: map[*process]bool{}, listed: map[*process]bool{}, ports: map[int]io.Closer{}, cpu: time.Millisecond}
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
	command := b.spec().Command
	if len(command) == 0 {
		command = []string{"/bin/guest", "sleep"}
	}
	p := newProcess(b, command, b.spec().WorkDir, b.spec().User, nil)
	p.in.close(io.EOF)
	p.stdout, p.stderr = &lineWriter{log: b.out, stream: "stdout"}, &lineWriter{log: b.out, stream: "stderr"}
	b.main = p
	run, code := p.program()
	if b.spec().Idle {
		run = idle
	}
	if run == nil {
		b.end(execution.Exit{Cause: execution.CauseExit, Code: code, At: time.Now(), Message: "cannot be run"})
		return
	}
	go func() {
		code := p.run(run)
		b.end(p.exit(code))
	}()
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

// processes is the limit of processes.
func (b *box) processes() int { return int(cmp.Or(b.claim().PIDs, b.spec().PIDs)) }

// memory is the limit of memory, in bytes.
func (b *box) memory() int64 { return cmp.Or(b.claim().MemoryBytes, b.spec().MemoryBytes) }

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
	run, code := p.program()
	if run == nil {
		return nil, errs.New(errs.InvalidArgument, "%s cannot be run", e.Command[0]).With("exit_code", fmt.Sprint(code))
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
	p.id, p.number64 = fmt.Sprintf("%x", b.lastID), b.lastID+1
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
