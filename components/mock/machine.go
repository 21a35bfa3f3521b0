package mock

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
)

// Hook is called before a call of the driver has an effect and, with after set,
// when the call is done. An error makes the call fail.
type Hook func(op, id string, after bool) error

// Config configures a Machine.
type Config struct {
	// Program returns what a process executes: one beside the main one, or the main
	// one. An error says why it cannot be run; ExitCode is the code that a shell has
	// for that.
	Program func(*Guest) (Program, error)
	// Dir is the directory of the files of the sandboxes; "": they have no files.
	Dir string
	// Dial connects to a port of a sandbox on which no program listens; nil: there is
	// none. FailedPrecondition if nothing answers there.
	Dial func(ctx context.Context, id string, port int) (execution.Conn, error)
}

// CannotRun returns the error for a program that cannot be run, with the exit code
// that a shell has for it.
func CannotRun(command string, code int) error {
	return errs.New(errs.InvalidArgument, "%s cannot be run", command).With(detailExitCode, strconv.Itoa(code))
}

// ExitCode returns the exit code of an error of Config.Program.
func ExitCode(err error) int {
	if code, perr := strconv.Atoi(errs.Detail(err, detailExitCode)); perr == nil {
		return code
	}
	return 126
}

const detailExitCode = "exit_code"

// Machine is a machine with sandboxes.
type Machine struct {
	cfg       Config
	mu        sync.Mutex
	boxes     map[string]*box
	snapshots map[string]execution.SnapshotInfo
	logs      map[string]*log
	watchers  map[*watcher]struct{}
	hook      Hook
	last      int // last address given out
}

// NewMachine returns an empty one.
func NewMachine(cfg Config) *Machine {
	return &Machine{
		cfg:   cfg,
		boxes: map[string]*box{}, snapshots: map[string]execution.SnapshotInfo{},
		logs: map[string]*log{}, watchers: map[*watcher]struct{}{},
	}
}

// SetHook makes every call of a driver call h; nil removes the hook.
func (m *Machine) SetHook(h Hook) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hook = h
}

// Crash ends a sandbox as a dying sentry does.
func (m *Machine) Crash(id string) {
	if b := m.box(id); b != nil {
		b.end(execution.Exit{Cause: execution.CauseCrash, Code: 137, At: time.Now(), Message: "the sandbox's kernel died"})
	}
}

// Exit ends the main process of a sandbox with a code.
func (m *Machine) Exit(id string, code int) {
	if b := m.box(id); b != nil {
		b.end(execution.Exit{Cause: execution.CauseExit, Code: code, At: time.Now()})
	}
}

// Vanish removes every trace of a sandbox but its logs, and reports nothing.
func (m *Machine) Vanish(id string) {
	m.mu.Lock()
	b := m.boxes[id]
	delete(m.boxes, id)
	m.mu.Unlock()
	if b != nil {
		b.kill(137)
	}
}

// Print adds a line to the output of a sandbox's main process.
func (m *Machine) Print(id, line string) { m.log(id).add("stdout", line) }

// IDs returns the ids of the existing sandboxes.
func (m *Machine) IDs() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return keys(m.boxes)
}

// Spec returns the spec that a sandbox was created with.
func (m *Machine) Spec(id string) (execution.Spec, bool) {
	b := m.box(id)
	if b == nil {
		return execution.Spec{}, false
	}
	return *b.spec(), true
}

// Processes returns how many processes run in a sandbox beside the main one.
func (m *Machine) Processes(id string) int {
	b := m.box(id)
	if b == nil {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.execs)
}

func (m *Machine) box(id string) *box {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.boxes[id]
}

// log returns the log of a sandbox, and creates it if necessary.
func (m *Machine) log(id string) *log {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.logs[id]
	if l == nil {
		l = &log{changed: make(chan struct{})}
		m.logs[id] = l
	}
	return l
}

func (m *Machine) notify(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for w := range m.watchers {
		w.pending[id] = true
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// Driver returns a driver of the machine.
func (m *Machine) Driver() *Driver { return &Driver{m: m} }

// String names the machine in messages of tests.
func (m *Machine) String() string { return fmt.Sprintf("machine with %v", m.IDs()) }

func keys[K cmp.Ordered, V any](m map[K]V) []K {
	out := make([]K, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
