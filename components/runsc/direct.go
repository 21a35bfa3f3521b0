package runsc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/fault"
	"miren.dev/runtime/pkg/launch"
	"miren.dev/runtime/pkg/proc"
)

// directBackend is BackendDirect: the node runs runsc once per sandbox, and runsc ends when
// the sandbox runs. Parts of a sandbox:
//
//	bundle      <run dir>/sandboxes/<id>/bundle; the root filesystem is mounted there for the sandbox only
//	processes   <run dir>/sandboxes/<id>/processes: records of sentry and gofer, for a later server
//	runsc       <run dir>/runsc/direct/
//
// Pidfds report the ends of sentry and gofer. Their parent is init, so their exit status
// is unknown: the agent's record says how the main process ended, and the control group
// whether memory ran out.
type directBackend struct {
	d    *Driver
	ctx  context.Context // of the goroutines that wait for ends
	stop context.CancelFunc
}

func newDirectBackend(d *Driver) *directBackend {
	b := &directBackend{d: d}
	b.ctx, b.stop = context.WithCancel(context.Background())
	return b
}

// processes identify the processes of a sandbox.
type processes struct {
	Sentry proc.Record `json:"sentry"`
	Gofer  proc.Record `json:"gofer"`
}

func (b *directBackend) runscDir() string { return filepath.Join(b.d.runscRoot(), BackendDirect) }

func (b *directBackend) bundle(id string, elem ...string) string {
	return b.d.sandboxDir(append([]string{id, "bundle"}, elem...)...)
}

func (b *directBackend) processesFile(id string) string { return b.d.sandboxDir(id, "processes") }

func (b *directBackend) start(context.Context) error {
	if err := os.MkdirAll(b.runscDir(), 0o711); err != nil {
		return errs.New(errs.FailedPrecondition, "directory of runsc: %w", err)
	}
	ids, err := dirNames(b.d.sandboxDir())
	if err != nil {
		return err
	}
	for _, id := range ids {
		p, err := b.processes(id)
		if err != nil {
			b.d.logger.Warn("what runs of a sandbox is not known", "sandbox", id, "error", err)
		}
		if p != nil {
			b.watch(id, p)
		}
	}
	return nil
}

func (b *directBackend) close() { b.stop() }

// follow has nothing to do: watch reports every end.
func (b *directBackend) follow(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// watch reports the end of a sandbox. It kills a sandbox whose gofer ended: that has lost
// its files.
func (b *directBackend) watch(id string, p *processes) {
	go func() {
		ctx, cancel := context.WithCancel(b.ctx)
		defer cancel()
		go func() {
			if p.Gofer.Wait(ctx) == nil && p.Sentry.Alive() {
				_ = unix.Kill(p.Sentry.PID, unix.SIGKILL)
			}
		}()
		if p.Sentry.Wait(ctx) == nil {
			b.d.Notify(id)
		}
	}()
}

// create writes the bundle and runs runsc, which ends when the agent was started.
func (b *directBackend) create(ctx context.Context, cr *creation) error {
	id := cr.spec.ID
	if err := b.forget(id); err != nil { // of an interrupted attempt
		return err
	}
	if err := os.MkdirAll(b.bundle(id, "rootfs"), 0o711); err != nil {
		return errs.New(errs.FailedPrecondition, "bundle: %w", err)
	}
	spec, err := json.Marshal(cr.ociSpec())
	if err != nil {
		return errs.New(errs.Internal, "encode specification: %w", err)
	}
	if err := os.WriteFile(b.bundle(id, "config.json"), spec, 0o600); err != nil {
		return errs.New(errs.FailedPrecondition, "bundle: %w", err)
	}
	// The caller's end does not interrupt it: the processes are recorded when runsc is done.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), taskTimeout)
	defer cancel()
	if err := b.run(ctx, cr); err != nil {
		return err
	}
	fault.Point("setup", "task-record", fault.Before)
	p, err := b.find(id)
	if err != nil {
		return err
	}
	record, err := json.Marshal(p)
	if err != nil {
		return errs.New(errs.Internal, "encode record of processes: %w", err)
	}
	// No process outlives a crash of the machine.
	if err := atomicfile.Write(b.processesFile(id), record, 0o644, atomicfile.Volatile); err != nil {
		return errs.New(errs.FailedPrecondition, "record processes: %w", err)
	}
	fault.Point("setup", "task-record", fault.After)
	b.watch(id, p)
	return nil
}

// run runs runsc until the sandbox runs. From its first moment runsc is in the sandbox's
// group of helpers, where remove finds and kills it if the server ended meanwhile.
func (b *directBackend) run(ctx context.Context, cr *creation) error {
	id := cr.spec.ID
	log, err := os.OpenFile(b.bundle(id, "runsc.log"), os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return errs.New(errs.FailedPrecondition, "log of runsc: %w", err)
	}
	defer log.Close()
	request, err := json.Marshal(b.request(cr))
	if err != nil {
		return errs.New(errs.Internal, "encode request: %w", err)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(b.d.cfg.BinDir, launch.Binary))
	cmd.Dir = "/"
	cmd.Env = []string{}
	cmd.Stdin = bytes.NewReader(request)
	cmd.Stderr = log // for errors of the launcher: runsc and the sandbox get /dev/null
	cmd.ExtraFiles = []*os.File{log}
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return errs.New(errs.Unavailable, "runsc did not start the sandbox within %s", taskTimeout)
		}
		return errs.New(errs.Internal, "runsc: %w: %s", err, lastMessage(log))
	}
	return nil
}

// request returns what the launcher runs: runsc, in a mount namespace with the root
// filesystem and without the mounts of other programs, which the sandbox would keep in use.
func (b *directBackend) request(cr *creation) launch.Request {
	id := cr.spec.ID
	r := launch.Request{
		Group:  cr.helpers,
		Rootfs: b.bundle(id, "rootfs"),
		Keep:   []string{b.d.cfg.Instance.RunDir, b.d.cfg.Instance.State(), b.d.cfg.BinDir},
		Drop:   []string{b.d.cfg.Instance.DiskMounts(), b.d.cfg.Instance.Socket("lsvd"), b.d.volumesDir()}, // of disks that others use
		Args:   []string{filepath.Join(b.d.cfg.BinDir, "runsc"), "--root=" + b.runscDir(), "--log-fd=3", "--log-format=json"},
		Env:    []string{"PATH=" + os.Getenv("PATH")},
	}
	for _, m := range cr.mounts {
		r.Mounts = append(r.Mounts, launch.Mount{Type: m.Type, Source: m.Source, Options: m.Options})
	}
	for _, m := range cr.ociSpec().Mounts {
		if m.Type == "bind" {
			r.Keep = append(r.Keep, m.Source)
		}
	}
	if cr.takesVolumes() {
		r.Follow = []string{b.d.volumesDir(id)}
	}
	for _, k := range sortedKeys(runscFlags) {
		r.Args = append(r.Args, "--"+k+"="+runscFlags[k])
	}
	command := []string{"run"}
	if cr.snapshot != nil {
		command = []string{"restore", "--image-path=" + b.d.snapshotDir(cr.snapshot.ID)}
	}
	r.Args = slices.Concat(r.Args, command, []string{"--detach", "--bundle=" + b.bundle(id), "--pid-file=" + b.bundle(id, "pid"), taskID(id)})
	return r
}

// lastMessage returns the last message in the log of runsc.
func lastMessage(log *os.File) string {
	const most = 16 << 10
	st, err := log.Stat()
	if err != nil {
		return err.Error()
	}
	text := make([]byte, min(most, st.Size()))
	if _, err := log.ReadAt(text, st.Size()-int64(len(text))); err != nil {
		return err.Error()
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	var line struct{ Msg string }
	last := lines[len(lines)-1]
	if json.Unmarshal(last, &line) != nil || line.Msg == "" {
		return string(last)
	}
	return line.Msg
}

// find identifies the processes that runsc has started.
func (b *directBackend) find(id string) (*processes, error) {
	text, err := os.ReadFile(b.bundle(id, "pid"))
	if err != nil {
		return nil, errs.New(errs.Internal, "runsc wrote no process id: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, errs.New(errs.Internal, "runsc wrote process id %q", text)
	}
	var state struct {
		GoferPID int `json:"goferPid"`
	}
	file := filepath.Join(b.runscDir(), taskID(id)+"_sandbox:"+taskID(id)+".state")
	if text, err = os.ReadFile(file); err == nil {
		err = json.Unmarshal(text, &state)
	}
	if err != nil {
		return nil, errs.New(errs.Internal, "state of runsc: %w", err)
	}
	p := &processes{}
	for _, x := range []struct {
		record *proc.Record
		pid    int
	}{{&p.Sentry, pid}, {&p.Gofer, state.GoferPID}} {
		// The record of a process that has ended already is empty: it is not alive.
		if *x.record, err = proc.Identify(x.pid); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, errs.New(errs.Unavailable, "process %d of the sandbox: %w", x.pid, err)
		}
	}
	return p, nil
}

// processes reads the record of a sandbox's processes, nil if there is none.
func (b *directBackend) processes(id string) (*processes, error) {
	text, err := os.ReadFile(b.processesFile(id))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, errs.New(errs.Unavailable, "processes of sandbox %s: %w", id, err)
	}
	var p processes
	if err := json.Unmarshal(text, &p); err != nil {
		return nil, errs.New(errs.Corrupt, "processes of sandbox %s: %w", id, err)
	}
	return &p, nil
}

func (b *directBackend) state(_ context.Context, id string) (*process, error) {
	p, err := b.processes(id)
	if errs.Is(err, errs.Corrupt) {
		return &process{Status: -1}, nil // nothing can watch it any more: it counts as ended
	}
	if err != nil || p == nil {
		return nil, err
	}
	return &process{Running: p.Sentry.Alive(), Status: -1}, nil
}

func (b *directBackend) ended(ctx context.Context, id string) (<-chan struct{}, error) {
	p, err := b.processes(id)
	if err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		if p == nil || p.Sentry.Wait(ctx) == nil {
			close(ended)
		}
	}()
	return ended, nil
}

func (b *directBackend) canSnapshot() error { return nil }

func (b *directBackend) save(ctx context.Context, id, dir string) error {
	return save(ctx, b.controlSocket(id), dir)
}

func (b *directBackend) freeze(ctx context.Context, id string) error {
	return sentryCall(ctx, b.controlSocket(id), "containerManager.Pause", struct{}{}, nil)
}

func (b *directBackend) thaw(ctx context.Context, id string) error {
	return sentryCall(ctx, b.controlSocket(id), "containerManager.Resume", struct{}{}, nil)
}

func (b *directBackend) setHostname(ctx context.Context, id, name string) error {
	return setHostname(ctx, b.controlSocket(id), taskID(id), name)
}

func (b *directBackend) controlSocket(id string) string {
	return filepath.Join(b.runscDir(), "runsc-"+taskID(id)+".sock")
}

// killTimeout bounds how long killed processes may take to end.
const killTimeout = 10 * time.Second

// remove kills the sandbox, and runsc if it is about to make it, and removes its files.
func (b *directBackend) remove(ctx context.Context, id string) error {
	files, err := b.runscFiles(id)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(b.bundle(id)); errors.Is(err, os.ErrNotExist) && len(files) == 0 {
		return nil // another backend made it, or none
	}
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	for delay := time.Millisecond; ; delay = min(2*delay, 50*time.Millisecond) {
		pids, err := b.d.cgroups.PIDs(id)
		if err != nil {
			return err
		}
		helpers, err := b.d.cgroups.Helpers(id)
		if err != nil {
			return err
		}
		pids = append(pids, helpers...)
		if len(pids) == 0 {
			break
		}
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		select {
		case <-ctx.Done():
			return errs.New(errs.Unavailable, "%d processes of sandbox %s do not end", len(pids), id)
		case <-time.After(delay):
		}
	}
	return b.forget(id)
}

// forget removes the files of a sandbox that does not run.
func (b *directBackend) forget(id string) error {
	// `runsc delete` would do no more, and take the time of a start of runsc.
	found, err := b.runscFiles(id)
	if err != nil {
		return err
	}
	for _, f := range append(found, b.processesFile(id), b.bundle(id)) {
		if err := os.RemoveAll(f); err != nil {
			return errs.New(errs.Unavailable, "remove files of the sandbox: %w", err)
		}
	}
	return nil
}

// runscFiles returns the files that runsc keeps of a sandbox.
func (b *directBackend) runscFiles(id string) ([]string, error) { return runscFiles(b.runscDir(), id) }

func (b *directBackend) list() ([]string, error) {
	entries, err := os.ReadDir(b.runscDir())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, errs.New(errs.Unavailable, "list state of runsc: %w", err)
	}
	var ids []string
	for _, e := range entries {
		name, _, _ := strings.Cut(strings.TrimPrefix(e.Name(), "runsc-"), "_sandbox:")
		if id, ok := sandboxID(strings.TrimSuffix(name, ".sock")); ok {
			ids = append(ids, id)
		}
	}
	return ids, nil
}
