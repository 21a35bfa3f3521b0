package main

import (
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/agentproto"
)

// files are the files of an exec: the child's 0, 1 and 2, and the agent's ends.
type files struct {
	child []int
	in    *os.File   // with a terminal the same as out[0]; nil without input
	null  int        // the child's 0 that is not its own, or noInput
	out   []*os.File // stdout and stderr, or the terminal
	name  string     // master of the terminal
}

// noInput is no descriptor.
const noInput = -1

// openFiles opens the files of a process. With null, a descriptor of /dev/null,
// it has no input.
func openFiles(tty bool, null int, size agentproto.Size) (files, error) {
	if tty {
		master, slave, name, err := openPTY(size)
		if err != nil {
			return files{}, err
		}
		return files{child: []int{slave, slave, slave}, in: master, out: []*os.File{master}, name: name, null: noInput}, nil
	}
	p := files{null: null}
	for fd := range 3 {
		if fd == 0 && null != noInput {
			p.child = append(p.child, null)
			continue
		}
		ours := 0 // the pipes' ends
		if fd == 0 {
			ours = 1
		}
		var ends [2]int
		if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
			p.closeChild()
			p.closeOurs()
			return files{}, os.NewSyscallError("pipe", err)
		}
		_, _ = unix.FcntlInt(uintptr(ends[ours]), unix.F_SETFL, unix.O_NONBLOCK) // cannot fail on a pipe
		our := os.NewFile(uintptr(ends[ours]), "pipe")
		p.child = append(p.child, ends[1-ours])
		if fd == 0 {
			p.in = our
		} else {
			p.out = append(p.out, our)
		}
	}
	return p, nil
}

// readFile reads a whole file of at most limit bytes. Package os would register it with its poller, which cannot wait
// for files and costs several system calls. Opening a pipe or device, which may block, does not wait.
func readFile(path string, limit int) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	b := make([]byte, 0, 4096)
	for {
		n, err := readFD(fd, b[len(b):cap(b)])
		if err != nil {
			return nil, &os.PathError{Op: "read", Path: path, Err: err}
		}
		if n <= 0 {
			return b, nil
		}
		if b = b[:len(b)+n]; len(b) > limit {
			return nil, &os.PathError{Op: "read", Path: path, Err: unix.EFBIG}
		}
		if len(b) == cap(b) {
			b = slices.Grow(b, len(b))
		}
	}
}

// closeChild closes the files that the child has copies of now.
func (p *files) closeChild() {
	for i, fd := range p.child {
		if fd != p.null && (i == 0 || fd != p.child[0]) { // with a terminal the same file is there three times
			unix.Close(fd)
		}
	}
	p.child = nil
}

func (p *files) closeOurs() {
	if p.in != nil {
		p.in.Close()
	}
	for _, f := range p.out {
		f.Close()
	}
}
