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
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
)

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

// OOMKills implements execution.Driver.
func (d *Driver) OOMKills(_ context.Context, id string) (n int64, err error) {
	err = d.call("OOMKills", id, func() error {
		b := d.m.box(id)
		if b == nil {
			return gone(id)
		}
		n = b.oomKills.Load()
		return nil
	})
	return n, err
}

// Listening implements execution.Driver.
func (d *Driver) Listening(_ context.Context, id string) (ports []execution.Listener, err error) {
	err = d.call("Listening", id, func() error {
		b := d.m.box(id)
		if b == nil {
			return gone(id)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, port := range keys(b.ports) {
			ports = append(ports, execution.Listener{Port: port, Loopback: b.local[port]})
		}
		return nil
	})
	return ports, err
}
