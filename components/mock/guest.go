package mock

import (
	"cmp"
	"io"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/sandboxfs"
)

// Program stands for a program that a sandbox executes. It returns the exit code.
type Program func(*Guest) int

// Guest is a process as its Program sees it.
type Guest struct {
	Args           []string
	Stdin          io.Reader
	Stdout, Stderr io.Writer

	p *process
}

// guest returns the view of the process's program.
func (p *process) guest() *Guest {
	return &Guest{Args: p.args, Stdin: p.in, Stdout: p.stdout, Stderr: p.stderr, p: p}
}

// PID returns the number of the process in its sandbox; 0: it is the main one.
func (g *Guest) PID() int { return g.p.number }

// Spec returns what the sandbox was made with.
func (g *Guest) Spec() execution.Spec { return *g.p.box.spec() }

// Claim returns the identity that Configure gave the sandbox.
func (g *Guest) Claim() execution.Identity { return g.p.box.claim() }

// Address returns the sandbox's address; "" without a network.
func (g *Guest) Address() string { return g.p.box.instance().Address }

// User returns the user of the process; "": the image's.
func (g *Guest) User() string { return cmp.Or(g.p.user, g.Claim().User, g.Spec().User) }

// WorkDir returns the working directory of the process; "": the image's.
func (g *Guest) WorkDir() string { return cmp.Or(g.p.dir, g.Claim().WorkDir, g.Spec().WorkDir) }

// Env returns the variables of the process; those of an image are not known.
func (g *Guest) Env() map[string]string {
	all := map[string]string{}
	for _, e := range slices.Concat(g.Spec().Env, g.Claim().Env, g.p.env) {
		name, value, _ := strings.Cut(e, "=")
		all[name] = value
	}
	return all
}

// Files returns the files of the sandbox as the process sees them.
func (g *Guest) Files() sandboxfs.FS {
	return &files{b: g.p.box, dir: g.p.dir, v: sandboxfs.View{User: g.User()}}
}

// Terminated is closed by SIGTERM.
func (g *Guest) Terminated() <-chan struct{} { return g.p.term }

// Killed is closed by every other signal; the sandbox does not wait for the
// program then.
func (g *Guest) Killed() <-chan struct{} { return g.p.killed }

// Wait waits, and returns false if a signal ends the process before.
func (g *Guest) Wait(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-g.p.term:
	case <-g.p.killed:
	}
	return false
}

// Dies returns the exit code of a program that a signal ended, since it has no
// handler: SIGTERM unless another signal killed it.
func (g *Guest) Dies() int {
	g.p.mu.Lock()
	defer g.p.mu.Unlock()
	if g.p.sig != 0 {
		return 128 + g.p.sig
	}
	return 143
}

// OutOfMemory ends the sandbox, which has used more memory than its limit, and
// returns the exit code of its processes.
func (g *Guest) OutOfMemory() int {
	g.p.oom = true
	return 137
}

// Memory returns the limit of memory, in bytes.
func (g *Guest) Memory() int64 { return cmp.Or(g.Claim().MemoryBytes, g.Spec().MemoryBytes) }

// Processes returns the limit of processes.
func (g *Guest) Processes() int64 { return cmp.Or(g.Claim().PIDs, g.Spec().PIDs) }

// UseCPU adds to the time that the sandbox has used.
func (g *Guest) UseCPU(d time.Duration) {
	g.p.box.mu.Lock()
	defer g.p.box.mu.Unlock()
	g.p.box.cpu += d
}

// Reserve adds n bytes to the use of the disk. ResourceExhausted if the
// limit does not permit it.
func (g *Guest) Reserve(n int64) error {
	b := g.p.box
	b.mu.Lock()
	defer b.mu.Unlock()
	if limit := b.spec().DiskBytes; limit > 0 && b.written+n > limit {
		return errs.New(errs.ResourceExhausted, "no space left on device")
	}
	b.written += n
	return nil
}

// OOMKill says that the kernel ends the process, and not the sandbox, since its
// memory limit is reached. It returns the exit code.
func (g *Guest) OOMKill() int {
	g.p.box.oomKills.Add(1)
	return 137
}

// Listen says that a process listens on a port of the sandbox, on its address if
// it has one. c is closed when the sandbox ends, at once if it has ended.
func (g *Guest) Listen(port int, c io.Closer) {
	b := g.p.box
	b.mu.Lock()
	over := b.exit != nil
	if !over {
		b.ports[port] = c
	}
	b.mu.Unlock()
	if over {
		_ = c.Close()
	}
}

// ListenLocal says that a process listens on a port of the sandbox's loopback address.
func (g *Guest) ListenLocal(port int) {
	b := g.p.box
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.exit == nil {
		b.ports[port], b.local[port] = io.NopCloser(nil), true
	}
}

// Listens reports whether a process of the sandbox listens on a port.
func (g *Guest) Listens(port int) bool {
	g.p.box.mu.Lock()
	defer g.p.box.mu.Unlock()
	return g.p.box.ports[port] != nil
}
