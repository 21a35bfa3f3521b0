package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/agentproto"
)

// base has the defaults of processes.
type base struct {
	env       []string // not changed once it is here
	dir, user string
}

// claims is what the sandbox's claim changed. It is in memory only, so it lives
// as long as the sandbox.
type claims struct {
	one sync.Mutex // held while a claim is carried out
	// files is held while a claim changes files, for which the answer does not
	// wait, but the next process does.
	files sync.Mutex

	mu sync.Mutex
	id string // of the claim; empty before
	// mounts: volumes are to be mounted, for which the agent keeps SYS_ADMIN. Under one.
	mounts bool
	base   base
	// renamed is the host name before and since the claim, in the files of /etc too.
	renamed struct{ from, to string }
}

func (c *claims) current() base {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.base
}

// replace sets the configuration of a restored sandbox, in place of the snapshot's and of its claim.
func (c *claims) replace(b base) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.base = b
}

// configure carries out a claim, once.
func (a *agent) configure(m agentproto.Configure) agentproto.Failure {
	c := &a.claims
	c.one.Lock()
	defer c.one.Unlock()
	wrong := func(text string) agentproto.Failure { return agentproto.Failure{Kind: agentproto.Wrong, Message: text} }
	switch {
	case m.Claim != "" && c.id == m.Claim:
		return agentproto.Failure{} // repeated, since the node did not get the answer
	case m.Claim == "" || !a.config.Claimable:
		return wrong("the sandbox was not made to be claimed")
	case c.id != "":
		return wrong("the sandbox is claimed already")
	}
	if m.PIDs > 0 {
		if err := a.forks.limit.set(m.PIDs); err != nil {
			return wrong(fmt.Sprintf("limit processes: %v", err))
		}
	}
	if m.CPUs > 0 {
		a.forks.jobs <- func() { seeCPUs(m.CPUs) } // before the next process
	}
	if m.Hostname != "" {
		if err := c.setHostname(m.Hostname); err != nil {
			return wrong(fmt.Sprintf("set the host name: %v", err))
		}
	}
	c.mu.Lock()
	c.id = m.Claim
	c.base.env = slices.Concat(c.base.env, m.Env)
	if m.WorkDir != "" {
		c.base.dir = m.WorkDir
	}
	if m.User != "" {
		c.base.user = m.User
	}
	c.mu.Unlock()
	c.mounts = m.Mounts
	if os.Getpid() == 1 && !m.Mounts {
		go a.dropRest() // a system call of each thread: the claim does not wait for it
	}
	return agentproto.Failure{}
}

// identify returns the host name and the files of a restored sandbox's identity. Those of the sandbox that was claimed
// have the claim's name, as the lines to remove have in any sandbox.
func (c *claims) identify(m agentproto.Identity) (hostname string, files []agentproto.IdentityFile) {
	c.wait() // they may have been under way when the snapshot was taken
	c.mu.Lock()
	defer c.mu.Unlock()
	from, to := c.renamed.from, c.renamed.to
	if from == to {
		return m.Hostname, m.Files
	}
	same := m.Hostname == from
	hostname = m.Hostname
	if same {
		hostname = to
	} else {
		c.renamed.from, c.renamed.to = "", "" // no later identity has it
	}
	for _, f := range m.Files {
		f.Old = renameLines(f.Old, from, to)
		if same {
			f.New = renameLines(f.New, from, to)
		}
		files = append(files, f)
	}
	return hostname, files
}

// renameLines replaces a name in lines of /etc/hostname or /etc/hosts.
func renameLines(lines, from, to string) string {
	if lines == from+"\n" {
		return to + "\n"
	}
	return string(renameHost([]byte(lines), from, to))
}

// wait waits for the files of a claim.
func (c *claims) wait() {
	c.files.Lock()
	defer c.files.Unlock()
}

// setHostname changes the name of the sandbox, also in its files if it has them
// and may write them.
func (c *claims) setHostname(name string) error {
	if os.Getpid() != 1 { // in tests it would be the machine's
		return errors.New("not in a sandbox")
	}
	old, err := os.Hostname()
	if err != nil {
		return err
	}
	if err := withAdmin(func() error { return unix.Sethostname([]byte(name)) }); err != nil {
		return err
	}
	c.mu.Lock()
	c.renamed.from, c.renamed.to = old, name
	c.mu.Unlock()
	c.files.Lock()
	go func() {
		defer c.files.Unlock()
		replaceFile(hostnameFile, func([]byte) []byte { return []byte(name + "\n") })
		replaceFile(hostsFile, func(b []byte) []byte { return renameHost(b, old, name) })
	}()
	return nil
}

// Files that a claim changes.
const (
	hostnameFile = "/etc/hostname"
	hostsFile    = "/etc/hosts"
)

// maxHosts bounds the files that setHostname reads, in bytes.
const maxHosts = 64 << 10

// replaceFile changes the content of a file, if it is an ordinary one of guest
// root: an image may have none, or a root filesystem that is read-only.
func replaceFile(path string, change func([]byte) []byte) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Uid != 0 || st.Nlink != 1 || st.Size > maxHosts {
		return
	}
	old := make([]byte, st.Size)
	n, err := unix.Pread(fd, old, 0)
	if err != nil || n < 0 {
		return
	}
	changed := change(old[:n])
	if n, err = unix.Pwrite(fd, changed, 0); err == nil && n == len(changed) {
		_ = unix.Ftruncate(fd, int64(n)) // the name of the kernel counts
	}
}

// renameHost replaces a name in a hosts file.
func renameHost(hosts []byte, old, name string) []byte {
	var out []byte
	for line := range bytes.Lines(hosts) {
		address, names, ok := bytes.Cut(line, []byte{'\t'})
		if ok && string(bytes.TrimSpace(names)) == old {
			line = fmt.Appendf(nil, "%s\t%s\n", address, name)
		}
		out = append(out, line...)
	}
	return out
}

// mount shows the volumes of the claim, once. What it mounted before an error stays: the node discards the sandbox.
func (a *agent) mount(m agentproto.Mount) agentproto.Failure {
	c := &a.claims
	c.one.Lock()
	defer c.one.Unlock()
	if m.Claim == "" || c.id != m.Claim {
		return agentproto.Failure{Kind: agentproto.Wrong, Message: "the sandbox is not of this claim"}
	}
	if !c.mounts { // repeated, since the node did not get the answer
		return agentproto.Failure{}
	}
	for n, target := range m.Targets {
		err := makeMountPoint(target)
		if err == nil {
			source := filepath.Join(agentproto.GuestVolume, strconv.Itoa(n))
			err = withAdmin(func() error { return unix.Mount(source, target, "", unix.MS_BIND, "") })
		}
		if err != nil {
			return agentproto.Failure{Kind: agentproto.Wrong, Message: fmt.Sprintf("mount a volume on %s: %v", target, err)}
		}
	}
	c.mounts = false
	if os.Getpid() == 1 {
		go a.dropRest()
	}
	return agentproto.Failure{}
}

// makeMountPoint makes a directory and those above it, which are root's.
func makeMountPoint(path string) error {
	if !filepath.IsAbs(path) {
		return unix.EINVAL
	}
	err := unix.Mkdir(path, 0o755)
	if err == unix.ENOENT {
		if err = makeMountPoint(filepath.Dir(path)); err == nil {
			err = unix.Mkdir(path, 0o755)
		}
	}
	if err == unix.EEXIST {
		return nil
	}
	if err != nil {
		return err
	}
	if err := unix.Chmod(path, 0o755); err != nil { // whatever the umask is; the agent owns it still
		return err
	}
	return unix.Lchown(path, 0, 0)
}

// withAdmin calls f with the capability SYS_ADMIN, which the agent is permitted until a claim (keepAdmin).
func withAdmin(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	hdr, data, err := capabilities()
	if err != nil {
		return err
	}
	with := data
	with[0].Effective |= 1 << unix.CAP_SYS_ADMIN
	if err := unix.Capset(&hdr, &with[0]); err != nil {
		return err
	}
	err = f()
	if cerr := unix.Capset(&hdr, &data[0]); err == nil {
		err = cerr
	}
	return err
}
