package main

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/agentproto"
)

// generation tells programs whether they continue from a snapshot, by the file agentproto.GuestGeneration. The file is
// absent from before a snapshot until the sandbox that continues from it is identified.
type generation struct {
	mu     sync.Mutex
	dir    int // descriptor of the file's directory, -1: there is none
	number uint64
	id     string
}

// begin makes the file of a new sandbox. It changes nothing outside a sandbox, and where there is no /dev.
func (g *generation) begin() {
	g.dir = -1
	if os.Getpid() != 1 {
		return
	}
	dir := filepath.Dir(agentproto.GuestGeneration)
	if err := unix.Mkdir(dir, 0o755); err != nil {
		return
	}
	if fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err == nil {
		g.dir = fd
		g.next()
	}
}

// next begins a new generation: its number and its id differ from those of the snapshot.
func (g *generation) next() {
	g.mu.Lock()
	g.number++
	g.id = fmt.Sprintf("%016x%016x", randomID(), randomID()) // of the host: the forks of a snapshot differ
	g.mu.Unlock()
	g.show()
}

// show writes the file. A guest that has removed its directory goes without.
func (g *generation) show() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dir < 0 {
		return
	}
	name := filepath.Base(agentproto.GuestGeneration)
	tmp := "." + name
	fd, err := unix.Openat(g.dir, tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return
	}
	_, err = unix.Write(fd, fmt.Appendf(nil, "%d %s\n", g.number, g.id))
	unix.Close(fd)
	if err == nil {
		_ = unix.Renameat(g.dir, tmp, g.dir, name)
	}
}

// hide removes the file: a program that finds none waits for it.
func (g *generation) hide() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dir >= 0 {
		_ = unix.Unlinkat(g.dir, filepath.Base(agentproto.GuestGeneration), 0)
	}
}
