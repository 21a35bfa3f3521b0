// Package proc runs the server's children (PostgreSQL, containerd, BuildKit,
// ingress): each in a session of its own so that it outlives the server, with
// its identity on disk so that the next server adopts it instead of starting a
// second one.
//
// The record file holds pid, start time in clock ticks since boot, and boot
// id; a recycled pid is never mistaken for the child.
package proc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
)

// pollInterval is the time between two checks of an adopted process, which is
// no child of ours, and between two readiness checks.
const pollInterval = 10 * time.Millisecond

// Spec says what to run.
type Spec struct {
	Name       string   // for messages: "containerd"
	Path       string   // absolute path of the executable
	Args       []string // without argv[0]
	Env        []string // complete environment; nil: the server's
	Dir        string   // working directory; empty: /
	LogFile    string   // standard output and error are appended here
	RecordFile string   // file that keeps its identity
	Credential *syscall.Credential
	// Ready is polled until it returns nil; it should return soon.
	Ready func(ctx context.Context) error
	// ReadyTimeout bounds the wait for Ready; 0: 30 s.
	ReadyTimeout time.Duration
	// Shared: others wait for the process too, so it keeps running when ctx ends
	// before it is ready.
	Shared bool
}

// Record identifies a process across restarts of the server.
type Record struct {
	PID       int    `json:"pid"`
	StartTime uint64 `json:"start_time"` // clock ticks since boot (/proc/<pid>/stat field 22)
	BootID    string `json:"boot_id"`
	Path      string `json:"path"`
}

// Process is a running or ended child, or an adopted one.
type Process struct {
	spec    Spec
	record  Record
	Adopted bool // the process ran already: Ensure adopted it
	done    chan struct{}
	err     error // why the process ended, if known; set before done is closed
}

// Ensure adopts the process that RecordFile names if it runs and is ready.
// Otherwise it starts one and waits until it is ready. On an error no process
// that Ensure started is left, unless it is shared and ctx ended. An adopted process that does not become ready
// keeps running and is reported, since stopping it could lose its work.
func Ensure(ctx context.Context, s Spec) (*Process, error) {
	if s.ReadyTimeout == 0 {
		s.ReadyTimeout = 30 * time.Second
	}
	rec, err := readRecord(s.RecordFile)
	if err != nil {
		return nil, err
	}
	if rec != nil && rec.Alive() {
		p := &Process{spec: s, record: *rec, Adopted: true, done: make(chan struct{})}
		go p.watch()
		if err := p.awaitReady(ctx); err != nil {
			return nil, errs.Wrap(err, "adopt running %s (pid %d)", s.Name, rec.PID)
		}
		return p, nil
	}
	p, err := start(s)
	if err != nil {
		return nil, errs.New(errs.Unavailable, "start %s: %w", s.Name, err)
	}
	if err := p.awaitReady(ctx); err != nil {
		if s.Shared && ctx.Err() != nil {
			return nil, err
		}
		p.Stop(context.WithoutCancel(ctx), syscall.SIGKILL, 0)
		e := errs.New(errs.ClassOf(err), "start %s: %w", s.Name, err)
		return nil, e.WithHint("its log is %s; last lines:\n%s", s.LogFile, tail(s.LogFile, 2048))
	}
	return p, nil
}

func start(s Spec) (*Process, error) {
	for _, f := range []string{s.LogFile, s.RecordFile} {
		if err := os.MkdirAll(filepath.Dir(f), 0o755); err != nil {
			return nil, err
		}
	}
	log, err := os.OpenFile(s.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(s.Path, s.Args...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = s.Env, s.Dir, log, log
	if cmd.Dir == "" {
		cmd.Dir = "/"
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: s.Credential}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &Process{spec: s, done: make(chan struct{})}
	p.record, err = identify(cmd.Process.Pid, true) // the process may have ended at once; awaitReady then returns the error
	if err == nil {
		p.record.Path = s.Path
		err = writeRecord(s.RecordFile, p.record)
	}
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, err
	}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

func (p *Process) watch() {
	defer close(p.done)
	// A process that cannot be watched counts as ended; Keep then adopts it again.
	_ = p.record.Wait(context.Background())
}

func (p *Process) awaitReady(ctx context.Context) error {
	if p.spec.Ready == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, p.spec.ReadyTimeout)
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		err := p.spec.Ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return errs.New(errs.Unavailable, "it ended before it was ready: %v", p.err)
		case <-ctx.Done():
			return errs.New(errs.ClassOf(ctx.Err()), "not ready after %s: %w", p.spec.ReadyTimeout, err)
		case <-tick.C:
		}
	}
}

// PID returns the process id.
func (p *Process) PID() int { return p.record.PID }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Stop sends sig, then SIGKILL after grace, and waits until the process has
// ended. It removes the record. It is safe to call on an ended process.
func (p *Process) Stop(ctx context.Context, sig syscall.Signal, grace time.Duration) error {
	if p.record.Alive() {
		_ = syscall.Kill(p.record.PID, sig)
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	for killed := false; ; {
		select {
		case <-p.done:
			return p.removeRecord()
		case <-timer.C:
			if killed {
				return errs.New(errs.Unavailable, "%s (pid %d) does not end after SIGKILL", p.spec.Name, p.record.PID)
			}
			killed = true
			if p.record.Alive() {
				_ = syscall.Kill(p.record.PID, syscall.SIGKILL)
			}
			timer.Reset(10 * time.Second)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// removeRecord removes the record, unless it names another process by now.
func (p *Process) removeRecord() error {
	rec, err := readRecord(p.spec.RecordFile)
	if err == nil && rec != nil && (rec.PID != p.record.PID || rec.StartTime != p.record.StartTime) {
		return nil
	}
	if err := os.Remove(p.spec.RecordFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Find returns the running process that recordFile names, or nil.
func Find(recordFile string) (*Process, error) {
	rec, err := readRecord(recordFile)
	if err != nil || rec == nil || !rec.Alive() {
		return nil, err
	}
	p := &Process{spec: Spec{Name: filepath.Base(rec.Path), RecordFile: recordFile}, record: *rec, Adopted: true, done: make(chan struct{})}
	go p.watch()
	return p, nil
}

// Identify returns the record of a running process.
func Identify(pid int) (Record, error) { return identify(pid, false) }

func identify(pid int, zombie bool) (Record, error) {
	st, err := startTime(pid, zombie)
	if err != nil {
		return Record{}, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Record{}, err
	}
	return Record{PID: pid, StartTime: st, BootID: strings.TrimSpace(string(boot))}, nil
}

// Alive reports whether the process that r names still runs. A zombie does not
// run; a later process with the same pid is another.
func (r Record) Alive() bool {
	now, err := Identify(r.PID)
	return err == nil && now.StartTime == r.StartTime && now.BootID == r.BootID
}

// startTime returns field 22 of /proc/<pid>/stat; the command in field 2 may hold spaces and parentheses. A zombie
// counts as not existing unless the caller includes zombies.
func startTime(pid int, zombie bool) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return 0, fmt.Errorf("/proc/%d/stat: no command", pid)
	}
	f := strings.Fields(string(b[i+1:]))
	if len(f) < 20 {
		return 0, fmt.Errorf("/proc/%d/stat: %d fields", pid, len(f))
	}
	if (f[0] == "Z" || f[0] == "X") && !zombie {
		return 0, os.ErrNotExist
	}
	return strconv.ParseUint(f[19], 10, 64)
}

func readRecord(path string) (*Record, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, errs.New(errs.Unavailable, "read process record: %w", err)
	}
	if len(b) == 0 {
		return nil, nil // a power loss came before the contents reached the disk; no process of that time still runs
	}
	var r Record
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, errs.New(errs.Corrupt, "process record %s: %w", path, err)
	}
	return &r, nil
}

// writeRecord replaces the record. It is not synced: no process outlives a crash
// of the machine.
func writeRecord(path string, r Record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, b, 0o644, atomicfile.Volatile)
}

func tail(path string, n int64) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.Size() > n {
		_, _ = f.Seek(-n, 2)
	}
	b := make([]byte, n)
	k, _ := f.Read(b)
	return strings.TrimSpace(string(b[:k]))
}
