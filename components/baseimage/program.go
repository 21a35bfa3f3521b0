package baseimage

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/components/mounts"
	"miren.dev/runtime/pkg/errs"
)

// Groups makes control groups for the programs that make images; *buildkit.Groups is one.
type Groups interface {
	// Create makes a group and returns the files with which a process joins it: it writes 0 to each.
	Create(id string) ([]string, error)
	// Explain adds to an error of a program of a group which limit ended it, if one did.
	Explain(id string, err error) error
	// Delete kills the processes of a group and removes it. It returns nil if there is none.
	Delete(ctx context.Context, id string) error
	// List returns the groups, with those of others.
	List() ([]string, error)
}

const (
	// groupPrefix begins the names of our control groups.
	groupPrefix = "base-"
	// notJoined is the exit code of a program that could not join its control group.
	notJoined = 117
	// joinAttempts bounds how often a program tries to: another process may remove an empty group.
	joinAttempts = 3
)

// joinGroup is a shell script that writes 0 to as many files as its first argument says, and becomes the program after them.
var joinGroup = `n=$1; shift; while [ "$n" -gt 0 ]; do echo 0 >"$1" || exit ` + strconv.Itoa(notJoined) + `; shift; n=$((n-1)); done; exec "$@"`

// groupOf returns the control group of the programs that run under a lock, by the name of the lock's file. An image has
// one, and a refresh.
func groupOf(lock string) string {
	if keyedDir.MatchString(lock) {
		lock = lock[strings.LastIndexByte(lock, '-')+1:]
	}
	return groupPrefix + lock
}

// run runs a program of the machine to its end. The caller holds the lock of that name. set completes the command.
//
// The program has a namespace of processes: with the program, and with this process, everything that it started ends,
// by SIGKILL. Its mounts are in a namespace of their own, and go with it. Its control group has the limits of builds.
func (s *Store) run(ctx context.Context, lock string, set func(*exec.Cmd), tool string, args ...string) error {
	if s.cfg.Groups == nil {
		return s.contained(ctx, set, tool, args...)
	}
	group := groupOf(lock)
	var err error
	for range joinAttempts {
		var files []string
		if files, err = s.cfg.Groups.Create(group); err != nil {
			return err
		}
		argv := slices.Concat([]string{"-c", joinGroup, "sh", strconv.Itoa(len(files))}, files, []string{tool}, args)
		err = s.contained(ctx, set, "sh", argv...)
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != notJoined {
			break
		}
	}
	if err != nil && ctx.Err() == nil {
		err = s.cfg.Groups.Explain(group, err)
	}
	if derr := s.cfg.Groups.Delete(context.WithoutCancel(ctx), group); derr != nil {
		s.cfg.Logger.Warn("control group of a base image stays", "group", group, "error", derr)
	}
	return err
}

// contained is run without a control group.
func (s *Store) contained(ctx context.Context, set func(*exec.Cmd), tool string, args ...string) error {
	cmd := exec.CommandContext(ctx, tool, args...)
	set(cmd)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Cloneflags, cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWPID, syscall.CLONE_NEWNS
	}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	// The death signal is sent when the thread that started the child ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// Sweep removes what processes left that were killed while they made images: their control groups, with the processes in
// them, their mounts and their files. The folders of images that another process makes now stay.
func (s *Store) Sweep(ctx context.Context) error {
	entries, err := os.ReadDir(s.cfg.Dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return errs.New(errs.Unavailable, "list base images: %w", err)
	}
	var locks []string
	for _, e := range entries {
		name, ok := strings.CutPrefix(e.Name(), scratchPrefix)
		if i := strings.LastIndexByte(name, '-'); ok && i > 0 {
			locks = append(locks, name[:i])
		}
	}
	grouped, err := s.locksOfGroups()
	locks = slices.Compact(slices.Sorted(slices.Values(append(locks, grouped...))))
	for _, name := range locks {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		err = errors.Join(err, s.sweep(ctx, name))
	}
	return err
}

// locksOfGroups returns the names of the locks under which the programs of the control groups that are there run or ran.
func (s *Store) locksOfGroups() ([]string, error) {
	if s.cfg.Groups == nil {
		return nil, nil
	}
	groups, err := s.cfg.Groups.List()
	if err != nil || !slices.ContainsFunc(groups, func(g string) bool { return strings.HasPrefix(g, groupPrefix) }) {
		return nil, err
	}
	entries, err := os.ReadDir(filepath.Join(s.cfg.Dir, locksDir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, errs.New(errs.Unavailable, "list locks of base images: %w", err)
	}
	var locks []string
	for _, e := range entries {
		if slices.Contains(groups, groupOf(e.Name())) {
			locks = append(locks, e.Name())
		}
	}
	return locks, nil
}

// sweep is Sweep of what belongs to one lock. It does nothing while another process holds that.
func (s *Store) sweep(ctx context.Context, name string) error {
	if err := os.MkdirAll(filepath.Join(s.cfg.Dir, locksDir), 0o755); err != nil {
		return errs.New(errs.FailedPrecondition, "image cache: %w", err)
	}
	unlock, err := tryLock(filepath.Join(s.cfg.Dir, locksDir, name))
	if err != nil || unlock == nil {
		return err
	}
	defer unlock()
	if s.cfg.Groups != nil {
		if err := s.cfg.Groups.Delete(ctx, groupOf(name)); err != nil {
			return err
		}
	}
	return s.removeScratch(name)
}

// scratchPrefix begins the names of the folders in which images are made; the name of the lock and a random part follow.
const scratchPrefix = ".tmp-"

// scratch makes a folder for the holder of a lock. It first removes those that killed holders left.
func (s *Store) scratch(lock string) (string, error) {
	if err := s.removeScratch(lock); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(s.cfg.Dir, scratchPrefix+lock+"-")
	if err != nil {
		return "", errs.New(errs.FailedPrecondition, "image cache: %w", err)
	}
	return tmp, nil
}

// removeScratch removes the folders of a lock, which is held. It first unmounts what is mounted there: an image was made
// with mounts of the whole machine before programs had a namespace of their own.
func (s *Store) removeScratch(lock string) error {
	dirs, _ := filepath.Glob(filepath.Join(s.cfg.Dir, scratchPrefix+lock+"-*"))
	for _, dir := range dirs {
		real, err := filepath.EvalSymlinks(dir)
		if err == nil {
			err = mounts.UnmountBelow(real)
		}
		if err == nil {
			err = os.RemoveAll(real)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return errs.New(errs.Unavailable, "remove what a killed process left of a base image: %w", err).WithHint("unmount what is below %s", dir)
		}
	}
	return nil
}

// tryLock takes the file lock at path; nil if another process holds it.
func tryLock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, errs.New(errs.FailedPrecondition, "lock image: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return func() { f.Close() }, nil
	}
	f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
		return nil, nil
	}
	return nil, errs.New(errs.Unavailable, "lock image: %w", err)
}
