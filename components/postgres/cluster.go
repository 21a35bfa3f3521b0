package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/proc"
)

// makeDirs makes the directories and checks that the owner can reach them.
func (s *Server) makeDirs() error {
	for _, d := range []string{filepath.Dir(s.cfg.LogFile), filepath.Dir(s.cfg.RecordFile)} {
		if err := os.MkdirAll(d, 0o711); err != nil {
			return errs.New(errs.FailedPrecondition, "make directory: %w", err)
		}
	}
	for _, d := range []string{s.cfg.Dir, s.cfg.SocketDir} {
		if err := os.MkdirAll(d, 0o711); err != nil {
			return errs.New(errs.FailedPrecondition, "make directory: %w", err)
		}
		if err := s.owner.CanEnter(filepath.Dir(d)); err != nil {
			return errs.Wrap(err, "PostgreSQL")
		}
	}
	if s.owner.Other() {
		if err := os.Chown(s.cfg.SocketDir, s.owner.UID, s.owner.GID); err != nil {
			return errs.New(errs.FailedPrecondition, "give socket directory to %s: %w", s.owner.Name, err)
		}
	}
	return nil
}

// initialise makes the cluster if there is none, and restarts an interrupted
// initialisation: data appears only when it is complete and on disk.
func (s *Server) initialise(ctx context.Context, bin string) error {
	data := s.cfg.data()
	if _, err := os.Stat(data); err == nil || !errors.Is(err, os.ErrNotExist) {
		if err != nil {
			return errs.New(errs.Unavailable, "look for the cluster: %w", err)
		}
		return nil
	}
	tmp := data + ".init"
	// A child of an interrupted initialisation may still be writing.
	if err := endOrphans(ctx, tmp, s.cfg.Logger); err != nil {
		return err
	}
	if err := os.RemoveAll(tmp); err != nil {
		return errs.New(errs.Unavailable, "remove interrupted initialisation: %w", err)
	}
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return errs.New(errs.FailedPrecondition, "make cluster directory: %w", err)
	}
	if s.owner.Other() {
		if err := os.Chown(tmp, s.owner.UID, s.owner.GID); err != nil {
			return errs.New(errs.FailedPrecondition, "give cluster directory to %s: %w", s.owner.Name, err)
		}
	}
	args := []string{"-D", tmp, "-U", role, "--auth=reject", "--encoding=UTF8", "--locale=C", "--data-checksums"}
	if s.cfg.NoSync {
		args = append(args, "--no-sync")
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), args...)
	cmd.Env = []string{"PATH=" + bin + ":/usr/bin:/bin", "LC_ALL=C", "TZ=UTC"}
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.owner.Credential(), Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	began := time.Now()
	if err := cmd.Run(); err != nil {
		return errs.New(errs.Unavailable, "initialise PostgreSQL: %w: %s", err, lastLines(out.String(), 5))
	}
	rename := atomicfile.Rename // initdb has synced the files in it
	if s.cfg.NoSync {
		rename = os.Rename // atomicfile without its syncs
	}
	if err := rename(tmp, data); err != nil {
		return errs.New(errs.Unavailable, "put the cluster in place: %w", err)
	}
	s.cfg.Logger.Info("initialised postgres", "dir", data, "took", time.Since(began).Round(time.Millisecond))
	return nil
}

func lastLines(s string, n int) string {
	l := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(l[max(0, len(l)-n):], "\n")
}

// settings are the settings that differ from PostgreSQL's defaults. One writer
// commits in batches and a few connections read, so it stays small.
var settings = []struct{ name, value string }{
	{"listen_addresses", "''"},
	{"unix_socket_permissions", "0700"},
	{"max_connections", "50"},
	{"shared_buffers", "64MB"},
	{"dynamic_shared_memory_type", "mmap"}, // in the data directory: in /dev/shm nothing says whose it is after a kill
	{"huge_pages", "off"},
	{"work_mem", "8MB"},
	{"maintenance_work_mem", "32MB"},
	{"jit", "off"},
	{"max_worker_processes", "2"},
	{"max_parallel_workers", "0"},
	{"max_parallel_workers_per_gather", "0"},
	{"max_parallel_maintenance_workers", "0"},
	{"max_logical_replication_workers", "0"},
	{"autovacuum_max_workers", "2"},
	{"autovacuum_naptime", "20s"},
	{"autovacuum_vacuum_cost_limit", "1000"},
	{"wal_level", "replica"}, // so that base backups work
	{"max_wal_senders", "2"},
	{"wal_buffers", "8MB"},
	{"max_wal_size", "512MB"},
	{"min_wal_size", "96MB"},
	{"checkpoint_timeout", "10min"},
	{"synchronous_commit", "on"},
	{"client_connection_check_interval", "2s"},
	{"idle_in_transaction_session_timeout", "60s"},
	{"log_line_prefix", "'%m [%p] '"},
	{"log_min_messages", "warning"},
	{"log_checkpoints", "off"},
	{"timezone", "'UTC'"},
	{"log_timezone", "'UTC'"},
}

func (s *Server) writeConfig() error {
	var conf strings.Builder
	conf.WriteString("# Written by runtime at every start. Do not edit.\n")
	set := func(name, value string) { fmt.Fprintf(&conf, "%s = %s\n", name, value) }
	for _, o := range settings {
		set(o.name, o.value)
	}
	set("hba_file", quote(filepath.Join(s.cfg.Dir, "pg_hba.conf")))
	set("ident_file", quote(filepath.Join(s.cfg.Dir, "pg_ident.conf")))
	set("unix_socket_directories", quote(`"`+s.cfg.SocketDir+`"`))
	if s.cfg.Name != "" {
		set("cluster_name", quote(s.cfg.Name))
	}
	if s.cfg.NoSync {
		set("fsync", "off")
	}
	// Peer authentication asks the kernel for the user of the peer: root, the
	// cluster's own user and the user of this server may connect; others may
	// not.
	hba := "local all all peer map=runtime\n"
	ident := fmt.Sprintf("runtime root %s\nruntime %s %s\n", role, s.owner.Name, role)
	for name, content := range map[string]string{"postgresql.conf": conf.String(), "pg_hba.conf": hba, "pg_ident.conf": ident} {
		path := filepath.Join(s.cfg.Dir, name)
		// The files are written before every start.
		if err := atomicfile.Write(path, []byte(content), 0o644, atomicfile.Volatile); err != nil {
			return errs.New(errs.FailedPrecondition, "write configuration of postgres: %w", err)
		}
	}
	return nil
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// removeStalePID removes the lock file of a dead postmaster. PostgreSQL would
// refuse to start if a process of the same user, such as another instance's
// cluster, had the pid in it. endOrphans has made sure that no process uses the
// directory.
func removeStalePID(data string) error {
	if err := os.Remove(filepath.Join(data, "postmaster.pid")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return errs.New(errs.Unavailable, "remove stale lock file: %w", err)
	}
	return nil
}

// endOrphans ends every process that works in dir: fast shutdown for an
// unrecorded postmaster, then SIGQUIT, then SIGKILL.
func endOrphans(ctx context.Context, dir string, log *slog.Logger) error {
	steps := []struct {
		sig  syscall.Signal
		wait time.Duration
	}{{0, 200 * time.Millisecond}, {syscall.SIGINT, 10 * time.Second}, {syscall.SIGQUIT, 5 * time.Second}, {syscall.SIGKILL, 10 * time.Second}}
	for _, st := range steps {
		found, err := workingIn(dir)
		if err != nil {
			return errs.New(errs.Unavailable, "look for processes in %s: %w", dir, err)
		}
		for _, r := range found {
			if st.sig != 0 && r.Alive() {
				log.Warn("ending orphaned postgres process", "pid", r.PID, "signal", st.sig.String())
				_ = syscall.Kill(r.PID, st.sig)
			}
		}
		for deadline := time.Now().Add(st.wait); len(found) > 0 && time.Now().Before(deadline); {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(5 * time.Millisecond):
			}
			if found, err = workingIn(dir); err != nil {
				return errs.New(errs.Unavailable, "look for processes in %s: %w", dir, err)
			}
		}
		if len(found) == 0 {
			return nil
		}
	}
	return errs.New(errs.Unavailable, "processes in %s do not end after SIGKILL", dir)
}

// workingIn returns the postgres processes whose working directory is dir.
func workingIn(dir string) ([]proc.Record, error) {
	// The kernel reports the resolved path.
	real, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var found []proc.Record
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		cwd, err := os.Readlink(filepath.Join("/proc", p.Name(), "cwd"))
		if err != nil || cwd != real {
			continue
		}
		// A person's shell may have this working directory too: only
		// PostgreSQL's processes are ours.
		if exe, err := os.Readlink(filepath.Join("/proc", p.Name(), "exe")); err != nil || !strings.HasPrefix(filepath.Base(exe), "postgres") {
			continue
		}
		if r, err := proc.Identify(pid); err == nil {
			found = append(found, r)
		}
	}
	return found, nil
}
