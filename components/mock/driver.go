// Package mock is an execution.Driver without containers: its sandboxes are
// records, and a Go function stands for each program that they execute. Nothing of
// a sandbox reaches the machine; its files are in a directory of their own.
//
//	Answers  programs whose output a file states: `r dev mock`
//	testsupport/executiontest/fake  programs that do what the conformance suite asks for
//
// Every server must say that it is a mock; none that runs code has this driver in
// its configuration.
//
// A Machine outlives a server: it holds the sandboxes and their output. Any number
// of Drivers work on it, like the drivers of a server that is restarted.
//
// Locks: Machine.mu is never held while a program, a hook or a callback runs.
package mock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
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

// Driver is an execution.Driver.
type Driver struct{ m *Machine }

var _ execution.Driver = (*Driver)(nil)

func (d *Driver) call(op, id string, f func() error) error {
	d.m.mu.Lock()
	hook := d.m.hook
	d.m.mu.Unlock()
	if hook == nil {
		return f()
	}
	if err := hook(op, id, false); err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	return hook(op, id, true)
}

func checkID(id string) error {
	bad := func(c rune) bool { return (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' }
	if id == "" || len(id) > 63 || strings.ContainsFunc(id, bad) {
		return errs.New(errs.InvalidArgument, "sandbox id %q", id)
	}
	return nil
}

// Ensure implements execution.Driver. Images whose reference begins with
// "none" do not exist.
func (d *Driver) Ensure(ctx context.Context, s execution.Spec) (in execution.Instance, err error) {
	err = d.call("Ensure", s.ID, func() error {
		in, err = d.ensure(ctx, s)
		return err
	})
	return in, err
}

func unknownCapabilities(s execution.Spec) error {
	_, err := s.Capabilities.Names()
	return err
}

func (d *Driver) ensure(ctx context.Context, s execution.Spec) (execution.Instance, error) {
	if err := checkID(s.ID); err != nil {
		return execution.Instance{}, err
	}
	switch {
	case s.Network != execution.NetworkBridge && s.Network != execution.NetworkNone:
		return execution.Instance{}, errs.New(errs.InvalidArgument, "network %q", s.Network)
	case s.Egress != nil && s.Egress.Validate() != nil:
		return execution.Instance{}, s.Egress.Validate()
	case unknownCapabilities(s) != nil:
		return execution.Instance{}, unknownCapabilities(s)
	case strings.HasPrefix(s.Image, "none"):
		return execution.Instance{}, errs.New(errs.NotFound, "image %s does not exist", s.Image).WithHint("build it")
	case ctx.Err() != nil:
		return execution.Instance{}, ctx.Err()
	}
	m := d.m
	b, changed, err := m.place(s)
	if err != nil {
		return execution.Instance{}, err
	}
	if changed && b.out == nil {
		b.out = m.log(s.ID)
		b.start()
	}
	if changed {
		m.notify(s.ID)
	}
	return b.instance(), nil
}

// place finds, continues or adds a sandbox, and says whether it did more than find it.
func (m *Machine) place(s execution.Spec) (b *box, changed bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b = m.boxes[s.ID]
	if b != nil && (s.Restore == "" || b.instance().Phase != execution.Paused) {
		return b, false, nil
	}
	if s.Restore != "" {
		if s, err = m.restored(s); err != nil {
			return nil, false, err
		}
	}
	address := ""
	if s.Network == execution.NetworkBridge {
		m.last++
		address = net.IPv4(127, 77, byte(m.last>>8), byte(m.last)).String()
	}
	if b != nil {
		b.resume(s, address)
		return b, true, nil
	}
	b = newBox(m, s)
	b.address = address
	if m.cfg.Dir != "" {
		b.files = filepath.Join(m.cfg.Dir, "sandboxes", s.ID)
		if err := m.fill(b); err != nil {
			return nil, false, errors.Join(errs.New(errs.Unavailable, "files of sandbox %s: %w", s.ID, err), os.RemoveAll(b.files))
		}
	}
	m.boxes[s.ID] = b
	return b, true, nil
}

// fill makes the files of a new sandbox, as they are in its snapshot if it has one.
func (m *Machine) fill(b *box) error {
	if err := os.MkdirAll(b.files, 0o755); err != nil {
		return err
	}
	if of := b.spec().Restore; of != "" {
		if err := os.CopyFS(b.files, os.DirFS(m.saved(of))); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return b.makeFiles()
}

// saved returns the directory of the files of a snapshot.
func (m *Machine) saved(snapshot string) string {
	return filepath.Join(m.cfg.Dir, "snapshots", snapshot)
}

// Get implements execution.Driver.
func (d *Driver) Get(_ context.Context, id string) (in execution.Instance, err error) {
	err = d.call("Get", id, func() error {
		b := d.m.box(id)
		if b == nil {
			return gone(id)
		}
		in = b.instance()
		return nil
	})
	return in, err
}

func pausedError(id string) error {
	return errs.New(errs.FailedPrecondition, "sandbox %s is paused", id).WithHint("resume it first")
}

func gone(id string) error { return errs.New(errs.NotFound, "there is nothing of sandbox %s", id) }

// List implements execution.Driver.
func (d *Driver) List(context.Context) (list []execution.Instance, err error) {
	err = d.call("List", "", func() error {
		for _, id := range d.m.IDs() {
			if b := d.m.box(id); b != nil {
				list = append(list, b.instance())
			}
		}
		return nil
	})
	return list, err
}

// Stop implements execution.Driver.
func (d *Driver) Stop(ctx context.Context, id string, grace time.Duration) (in execution.Instance, err error) {
	err = d.call("Stop", id, func() error {
		b := d.m.box(id)
		if b == nil {
			return gone(id)
		}
		if in := b.instance(); in.Phase == execution.Paused {
			return pausedError(id)
		}
		b.main.signal(15)
		t := time.NewTimer(grace)
		defer t.Stop()
		select {
		case <-b.done:
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
			b.kill(137)
		}
		in = b.instance()
		return nil
	})
	return in, err
}

// Delete implements execution.Driver.
func (d *Driver) Delete(_ context.Context, id string) error {
	return d.call("Delete", id, func() error {
		if err := checkID(id); err != nil {
			return err
		}
		d.m.mu.Lock()
		b := d.m.boxes[id]
		delete(d.m.boxes, id)
		d.m.mu.Unlock()
		d.m.notify(id)
		if b == nil {
			return nil
		}
		b.kill(137)
		if b.files == "" {
			return nil
		}
		return os.RemoveAll(b.files)
	})
}

type watcher struct {
	pending map[string]bool // guarded by Machine.mu
	wake    chan struct{}
}

// Watch implements execution.Driver.
func (d *Driver) Watch(ctx context.Context) (<-chan string, error) {
	if err := d.call("Watch", "", func() error { return nil }); err != nil {
		return nil, err
	}
	w := &watcher{pending: map[string]bool{}, wake: make(chan struct{}, 1)}
	out := make(chan string)
	m := d.m
	m.mu.Lock()
	m.watchers[w] = struct{}{}
	m.mu.Unlock()
	go func() {
		defer close(out)
		defer func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			delete(m.watchers, w)
		}()
		for {
			select {
			case <-ctx.Done():
				return
			case <-w.wake:
			}
			m.mu.Lock()
			ids := keys(w.pending)
			clear(w.pending)
			m.mu.Unlock()
			for _, id := range ids {
				select {
				case <-ctx.Done():
					return
				case out <- id:
				}
			}
		}
	}()
	return out, nil
}

// Dial implements execution.Driver.
func (d *Driver) Dial(ctx context.Context, id string, port int) (c execution.Conn, err error) {
	err = d.call("Dial", id, func() error {
		b := d.m.box(id)
		if b == nil {
			return gone(id)
		}
		b.mu.Lock()
		listens := b.ports[port] != nil && b.address != ""
		b.mu.Unlock()
		b.used()
		if !listens && d.m.cfg.Dial != nil && b.instance().Phase == execution.Running {
			c, err = d.m.cfg.Dial(ctx, id, port)
			return err
		}
		if !listens {
			return errs.New(errs.FailedPrecondition, "nothing listens on port %d of sandbox %s", port, id)
		}
		nc, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(b.address, strconv.Itoa(port)))
		if err != nil {
			return errs.New(errs.FailedPrecondition, "dial: %w", err)
		}
		c = nc.(*net.TCPConn)
		return nil
	})
	return c, err
}

// Activity implements execution.Driver; connections are not counted.
func (d *Driver) Activity(_ context.Context, id string) (a execution.Activity, err error) {
	err = d.call("Activity", id, func() error {
		b := d.m.box(id)
		if b == nil {
			return gone(id)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		a = execution.Activity{Idle: time.Since(b.last), Processes: len(b.execs)}
		return nil
	})
	return a, err
}

// Configure implements execution.Driver.
func (d *Driver) Configure(_ context.Context, id string, i execution.Identity) error {
	return d.call("Configure", id, func() error {
		if err := i.Check(); err != nil {
			return err
		}
		b := d.m.box(id)
		if b == nil {
			return gone(id)
		}
		if err := i.CheckLimits(*b.spec()); err != nil {
			return err
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.exit != nil || !b.spec().Idle || b.claimed.Claim != "" && b.claimed.Claim != i.Claim {
			return errs.New(errs.FailedPrecondition, "sandbox %s cannot be claimed", id)
		}
		b.claimed = i
		return nil
	})
}

// Claim returns the identity that Configure gave a sandbox.
func (m *Machine) Claim(id string) execution.Identity {
	b := m.box(id)
	if b == nil {
		return execution.Identity{}
	}
	return b.claim()
}

// Exec implements execution.Driver.
func (d *Driver) Exec(_ context.Context, id string, e execution.ExecSpec) (p execution.Process, err error) {
	err = d.call("Exec", id, func() error {
		b := d.m.box(id)
		if b == nil {
			return gone(id)
		}
		switch b.instance().Phase {
		case execution.Exited:
			return errs.New(errs.FailedPrecondition, "sandbox %s has ended", id)
		case execution.Paused:
			return pausedError(id)
		}
		x, err := b.exec(e)
		p = x
		return err
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Logs implements execution.Driver.
func (d *Driver) Logs(ctx context.Context, id string, q execution.LogQuery, line func(execution.LogLine) error) error {
	return d.call("Logs", id, func() error {
		d.m.mu.Lock()
		l := d.m.logs[id]
		d.m.mu.Unlock()
		if l == nil {
			return errs.New(errs.NotFound, "sandbox %s has no logs", id)
		}
		return l.read(ctx, q, line)
	})
}

// DeleteLogs implements execution.Driver.
func (d *Driver) DeleteLogs(_ context.Context, id string) error {
	return d.call("DeleteLogs", id, func() error {
		d.m.mu.Lock()
		defer d.m.mu.Unlock()
		delete(d.m.logs, id)
		return nil
	})
}

// LogIDs returns the sandboxes that have logs.
func (d *Driver) LogIDs(context.Context) ([]string, error) {
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	return keys(d.m.logs), nil
}

// Stats implements execution.Driver.
func (d *Driver) Stats(_ context.Context, id string) (st execution.Stats, err error) {
	err = d.call("Stats", id, func() error {
		b := d.m.box(id)
		if b == nil {
			return gone(id)
		}
		st = b.stats()
		return nil
	})
	return st, err
}

// Listening implements execution.Driver.
func (d *Driver) Listening(_ context.Context, id string) (ports []int, err error) {
	err = d.call("Listening", id, func() error {
		b := d.m.box(id)
		if b == nil {
			return gone(id)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		ports = keys(b.ports)
		return nil
	})
	return ports, err
}

func keys[K cmp.Ordered, V any](m map[K]V) []K {
	out := make([]K, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// String names the machine in messages of tests.
func (m *Machine) String() string { return fmt.Sprintf("machine with %v", m.IDs()) }
