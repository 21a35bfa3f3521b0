// Package gitrepo receives Git pushes. The git of this machine speaks the protocol; the
// caller decides about each push before anything of it counts.
//
// A [Repo] is a bare repository that is only a cache: it saves clients from sending
// objects again. What a client sees as its branches is what Advertise says.
//
//	refs/namespaces/push/...   what clients see during a push
//	refs/kept/...              commits that were accepted; clients see that their objects are here
//
// git receive-pack puts the objects of a push into a quarantine, and then runs the hook
// pre-receive, which asks the server (hook.sh). A refused push, and one whose server or
// client was killed, leaves nothing: git removes the quarantine, or the next Receive
// does.
//
// git runs as a user of its own, without the configuration of this machine, in an
// environment without variables of this process. No hook, filter or configuration of a
// client is executed, and submodules are not fetched.
package gitrepo

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/sysuser"
)

const (
	// stopTimeout bounds how long git has to remove what it began, in seconds.
	stopTimeout = 5 * time.Second
	// memory bounds the address space of each git process, in KiB.
	memory = 4 << 20
	// maxProblem bounds git's message about a failure, and maxOutput its other output,
	// in bytes.
	maxProblem, maxOutput = 4 << 10, 64 << 10

	namespace = "push"
	kept      = "refs/kept/"
)

//go:embed hook.sh
var hook []byte

// attributes overrides the attributes of a commit. With these two git would write many
// times the bytes that the server counted.
const attributes = "* -ident !working-tree-encoding\n"

// Config configures a directory of repositories.
type Config struct {
	Dir     string       // absolute; the caller owns it
	User    sysuser.User // that git runs as
	MaxPack int64        // most bytes that a push may send; 0: 1 GiB
	// CPU bounds the CPU time of each git process, in whole seconds, since a small pack may
	// have objects without end; 0: 10 minutes.
	CPU time.Duration
}

// Repos are the repositories of a directory. It is safe for concurrent use, but one Repo
// is for one goroutine.
type Repos struct{ cfg Config }

// Repo is one repository.
type Repo struct {
	repos *Repos
	dir   string
	shown string // branch that clients see; "": none
}

// New makes the directory, and the hook in it. FailedPrecondition if git is not
// installed, or its user cannot reach the directory.
func New(cfg Config) (*Repos, error) {
	if _, err := exec.LookPath("git"); err != nil {
		return nil, errs.New(errs.FailedPrecondition, "git is not installed on the server: %w", err).WithHint("install the package git there")
	}
	if cfg.MaxPack == 0 {
		cfg.MaxPack = 1 << 30
	}
	if cfg.CPU == 0 {
		cfg.CPU = 10 * time.Minute
	}
	r := &Repos{cfg: cfg}
	info := filepath.Join(r.template(), "info")
	for _, dir := range []string{cfg.Dir, r.hooks(), r.template(), info} {
		mode := fs.FileMode(0o711)
		if strings.HasPrefix(dir, r.template()) { // git lists it
			mode = 0o755
		}
		err := os.MkdirAll(dir, mode)
		if err == nil {
			err = os.Chmod(dir, mode) // the umask does not count
		}
		if err != nil {
			return nil, errs.New(errs.FailedPrecondition, "folder of pushes: %w", err)
		}
	}
	if err := atomicfile.Write(filepath.Join(info, "attributes"), []byte(attributes), 0o644); err != nil {
		return nil, errs.New(errs.FailedPrecondition, "attributes of pushes: %w", err)
	}
	file := filepath.Join(r.hooks(), "pre-receive")
	if err := atomicfile.Write(file, hook, 0o755); err != nil {
		return nil, errs.New(errs.FailedPrecondition, "hook of pushes: %w", err)
	}
	// git ignores a hook that it may not execute, and would accept every push.
	if err := unix.Access(file, unix.X_OK); err != nil {
		return nil, errs.New(errs.FailedPrecondition, "%s cannot be executed: %w", file, err).WithHint("mount the state directory without noexec")
	}
	return r, cfg.User.CanEnter(cfg.Dir)
}

func (r *Repos) hooks() string { return filepath.Join(r.cfg.Dir, "hooks") }

// template has the files that git copies into each repository.
func (r *Repos) template() string { return filepath.Join(r.cfg.Dir, "template") }

// suffix ends the names of repositories, which sets them apart from other folders.
const suffix = ".git"

// Names returns the names of the repositories that exist.
func (r *Repos) Names() ([]string, error) {
	entries, err := os.ReadDir(r.cfg.Dir)
	if err != nil {
		return nil, errs.New(errs.Unavailable, "list pushed repositories: %w", err)
	}
	var names []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), suffix); ok {
			names = append(names, name)
		}
	}
	return names, nil
}

// Remove removes a repository, if it exists. It must not be in use.
func (r *Repos) Remove(name string) error {
	if err := os.RemoveAll(filepath.Join(r.cfg.Dir, name+suffix)); err != nil {
		return errs.New(errs.Unavailable, "remove the pushed repository %s: %w", name, err)
	}
	return nil
}

// Open opens a repository, and makes it if it does not exist. What a push that was cut
// off has left in it is removed.
func (r *Repos) Open(ctx context.Context, name string) (*Repo, error) {
	if !filepath.IsLocal(name) || strings.ContainsAny(name, "/\x00") {
		return nil, errs.New(errs.InvalidArgument, "%q is no name of a repository", name)
	}
	repo := &Repo{repos: r, dir: filepath.Join(r.cfg.Dir, name+suffix)}
	if err := r.cfg.User.Own(repo.dir); err != nil {
		return nil, err
	}
	if _, err := repo.git(ctx, nil, "init", "--quiet", "--bare", "--template="+r.template(), repo.dir); err != nil { // may be repeated
		return nil, err
	}
	for _, pattern := range []string{"objects/tmp_objdir-incoming-*", "work-*"} {
		left, err := filepath.Glob(filepath.Join(repo.dir, pattern))
		if err != nil {
			return nil, errs.New(errs.Internal, "pushed repository: %w", err)
		}
		for _, dir := range left {
			if err := os.RemoveAll(dir); err != nil {
				return nil, errs.New(errs.Unavailable, "pushed repository: %w", err)
			}
		}
	}
	return repo, nil
}

// Size returns the bytes of the repository's files.
func (r *Repo) Size() (int64, error) {
	var n int64
	err := filepath.WalkDir(r.dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return ignoreGone(err)
		}
		info, err := e.Info()
		if err == nil {
			n += info.Size()
		}
		return ignoreGone(err)
	})
	if err != nil {
		return 0, errs.New(errs.Unavailable, "size of a pushed repository: %w", err)
	}
	return n, nil
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// command makes a command of git with the settings that hold for all of them.
func (r *Repo) command(ctx context.Context, env []string, args ...string) *exec.Cmd {
	// git's own configuration of the machine, of a user, and variables do not count.
	settings := []string{
		"core.hooksPath=" + r.repos.hooks(), "core.bigFileThreshold=32m", "core.fsmonitor=false", "core.untrackedCache=false", "gc.autoDetach=false", "maintenance.autoDetach=false",
		"init.defaultBranch=main", "receive.fsckObjects=true", "receive.shallowUpdate=true", "receive.advertisePushOptions=true",
		fmt.Sprintf("receive.maxInputSize=%d", r.repos.cfg.MaxPack),
		// Old tools wrote such commits and folders; git itself reads them.
		"receive.fsck.zeroPaddedFilemode=warn", "receive.fsck.missingSpaceBeforeDate=warn", "receive.fsck.badTimezone=warn",
	}
	words := []string{"git"}
	for _, s := range settings {
		words = append(words, "-c", s)
	}
	words = append(append(words, "--git-dir", r.dir), args...)
	cmd := exec.CommandContext(ctx, "/bin/sh", append([]string{"-c", fmt.Sprintf(`ulimit -c 0 && ulimit -t %d && ulimit -v %d && exec "$@"`, r.repos.cfg.CPU/time.Second, memory), "sh"}, words...)...)
	cmd.Dir = r.dir
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_ATTR_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0"}, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: r.repos.cfg.User.Credential(), Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) } // git removes its quarantine
	cmd.WaitDelay = stopTimeout
	return cmd
}

// git runs a command to its end and returns its output, at most maxOutput.
func (r *Repo) git(ctx context.Context, env []string, args ...string) (string, error) {
	cmd := r.command(ctx, env, args...)
	out, problems := &head{left: maxOutput}, &head{left: maxProblem}
	cmd.Stdout, cmd.Stderr = out, problems
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		return "", errs.New(errs.FailedPrecondition, "git %s: %w: %s", args[0], err, strings.TrimSpace(problems.String()))
	}
	return out.String(), nil
}

// head keeps the first bytes of an output, and drops the rest.
type head struct {
	kept bytes.Buffer // not embedded: its ReadFrom would keep everything
	left int
}

func (h *head) Write(p []byte) (int, error) {
	n := min(len(p), h.left)
	h.left -= n
	h.kept.Write(p[:n])
	return len(p), nil
}

func (h *head) String() string { return h.kept.String() }
