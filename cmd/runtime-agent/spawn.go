package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/agentproto"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// command is a process to start.
type command struct {
	argv, env []string
	dir, user string
	files     []uintptr // 0, 1, 2
	tty       bool      // file 0 becomes the controlling terminal
	term      string    // name of the terminal to give to the user
}

func cannotStart(format string, args ...any) agentproto.Failure {
	return agentproto.Failure{Kind: agentproto.NotStarted, ExitCode: agentproto.ExitCannotExecute, Message: fmt.Sprintf(format, args...)}
}

func notFound(format string, args ...any) agentproto.Failure {
	f := cannotStart(format, args...)
	f.ExitCode = agentproto.ExitNotFound
	return f
}

// spawner forks children on one thread that has dropped the privileges that
// children must not have.
type spawner struct {
	kids *reaper
	jobs chan func()
	err  error // error of dropping them; set before the first job runs

	limit *pidLimit // nil without a limit

	cpus       int64         // that children see, at most; 0: all
	caps       uint64        // that children of root have
	null       int           // /dev/null of before any other process, or noInput
	restricted chan struct{} // closed when the thread has dropped its privileges
}

func newSpawner(kids *reaper, limit *pidLimit) *spawner {
	s := &spawner{kids: kids, limit: limit, restricted: make(chan struct{}), jobs: make(chan func(), agentproto.MaxChannels)}
	var err error
	if s.null, err = unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		s.null = noInput // a pipe is as good
	}
	return s
}

func (s *spawner) run() {
	runtime.LockOSThread() // for good: the thread is not fit for anything else
	s.err = restrictThread(s.caps)
	seeCPUs(s.cpus)
	close(s.restricted)
	dropHandlers()
	for job := range s.jobs {
		job()
	}
}

// seeCPUs makes the children of this thread see at most n CPUs, which gVisor
// takes for no more than that: the host's limit is what holds.
func seeCPUs(n int64) {
	var set unix.CPUSet
	if n <= 0 || unix.SchedGetaffinity(0, &set) != nil {
		return
	}
	for cpu := range len(set) * 64 {
		if !set.IsSet(cpu) {
			continue
		}
		if n--; n < 0 {
			set.Clear(cpu)
		}
	}
	_ = unix.SchedSetaffinity(0, &set) // they then see more
}

// dropRest drops from all threads the capabilities that only a claim and restrictThread need.
func (a *agent) dropRest() {
	<-a.forks.restricted
	if a.forks.err != nil {
		return
	}
	a.users.whileIdle(func() { _ = changeCapabilities(onlyForChildren(a.forks.caps)) }) // the agent serves on
}

// start starts c and returns its pid. ended is called once, and must not block.
func (s *spawner) start(c command, ended func(syscall.WaitStatus)) (pid int, f agentproto.Failure) {
	done := make(chan struct{})
	s.jobs <- func() {
		defer close(done)
		pid, f = s.fork(c, ended)
	}
	<-done
	return pid, f
}

// fork runs on the spawner's thread.
func (s *spawner) fork(c command, ended func(syscall.WaitStatus)) (int, agentproto.Failure) {
	if s.err != nil {
		return 0, cannotStart("drop privileges: %v", s.err)
	}
	if len(c.argv) == 0 || c.argv[0] == "" {
		return 0, notFound("no command given")
	}
	u, err := lookupUser(c.user)
	if err != nil {
		return 0, cannotStart("%v", err)
	}
	env := withDefaults(c.env, u.home)
	dir := c.dir
	if dir == "" {
		dir = "/"
	}
	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		return 0, cannotStart("working directory %s: %s", dir, reason(err, "not a directory"))
	}
	path, f := lookPath(c.argv[0], dir, envValue(env, "PATH"))
	if f.Kind != agentproto.OK {
		return 0, f
	}
	if c.term != "" && u.uid != 0 {
		// Programs open it by name.
		if err := os.Chown(c.term, int(u.uid), -1); err != nil {
			return 0, cannotStart("terminal: %v", err)
		}
	}
	attr := &syscall.ProcAttr{Dir: dir, Env: env, Files: c.files, Sys: &syscall.SysProcAttr{
		Setsid: true, Setctty: c.tty, Credential: u.credential(),
	}}
	if s.limit != nil {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, s.limit.group
	}
	pid, err := s.kids.fork(func() (int, error) { return syscall.ForkExec(path, c.argv, attr) }, ended)
	switch {
	case err == nil:
		return pid, agentproto.Failure{}
	case errors.Is(err, syscall.ENOENT):
		return 0, notFound("%s: its interpreter is missing", path)
	case errors.Is(err, syscall.ENOEXEC):
		return 0, cannotStart("%s: not a program of this machine, and not a script with #!", path)
	case errors.Is(err, syscall.EAGAIN):
		return 0, cannotStart("%s: the limit of processes is reached", path)
	default:
		return 0, cannotStart("%s: %v", path, err)
	}
}

// reason is the message of err without the path, or other if err is nil.
func reason(err error, other string) string {
	var pe *os.PathError
	switch {
	case err == nil:
		return other
	case errors.As(err, &pe):
		return pe.Err.Error()
	}
	return err.Error()
}

// lookPath finds a program as a shell would.
func lookPath(name, dir, path string) (string, agentproto.Failure) {
	if strings.Contains(name, "/") {
		full := name
		if !filepath.IsAbs(full) {
			full = filepath.Join(dir, name)
		}
		st, err := os.Stat(full)
		switch {
		case err != nil && (errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR)):
			return "", notFound("%s: no such file", name)
		case err != nil:
			return "", cannotStart("%s: %s", name, reason(err, ""))
		case st.IsDir():
			return "", cannotStart("%s: is a directory", name)
		case st.Mode()&0o111 == 0:
			return "", cannotStart("%s: not executable", name)
		}
		return full, agentproto.Failure{}
	}
	found := ""
	for _, d := range filepath.SplitList(path) {
		if !filepath.IsAbs(d) {
			d = filepath.Join(dir, d)
		}
		full := filepath.Join(d, name)
		if st, err := os.Stat(full); err == nil && !st.IsDir() {
			if st.Mode()&0o111 != 0 {
				return full, agentproto.Failure{}
			}
			found = full
		}
	}
	if found != "" {
		return "", cannotStart("%s: not executable", found)
	}
	return "", notFound("%s: command not found", name)
}

// withDefaults keeps the last value of each name and adds the variables that
// every process needs.
func withDefaults(env []string, home string) []string {
	at := make(map[string]int, len(env)+2)
	out := make([]string, 0, len(env)+2)
	for _, e := range env {
		name, _, ok := strings.Cut(e, "=")
		if !ok || name == "" || strings.IndexByte(e, 0) >= 0 {
			continue
		}
		if i, ok := at[name]; ok {
			out[i] = e
			continue
		}
		at[name] = len(out)
		out = append(out, e)
	}
	if _, ok := at["PATH"]; !ok {
		out = append(out, "PATH="+defaultPath)
	}
	if _, ok := at["HOME"]; !ok {
		out = append(out, "HOME="+home)
	}
	return out
}

func envValue(env []string, name string) string {
	for _, e := range env {
		if n, v, _ := strings.Cut(e, "="); n == name {
			return v
		}
	}
	return ""
}
