package main

import (
	"os"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/agentproto"
)

// files are those of an exec: what the child gets as 0, 1 and 2, and our ends.
type files struct {
	child []*os.File
	in    *os.File   // with a terminal the same as out[0]
	out   []*os.File // stdout and stderr, or the terminal
	name  string     // of the terminal
}

func openFiles(tty bool, size agentproto.Size) (files, error) {
	if tty {
		master, slave, name, err := openPTY(size)
		if err != nil {
			return files{}, err
		}
		return files{child: []*os.File{slave, slave, slave}, in: master, out: []*os.File{master}, name: name}, nil
	}
	var p files
	for fd := range 3 {
		ours := 0 // of the pipe's ends
		if fd == 0 {
			ours = 1
		}
		var ends [2]int
		if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
			p.closeChild()
			p.closeOurs()
			return files{}, os.NewSyscallError("pipe", err)
		}
		_ = unix.SetNonblock(ends[ours], true) // cannot fail on a pipe
		our := os.NewFile(uintptr(ends[ours]), "pipe")
		p.child = append(p.child, os.NewFile(uintptr(ends[1-ours]), "pipe"))
		if fd == 0 {
			p.in = our
		} else {
			p.out = append(p.out, our)
		}
	}
	return p, nil
}

// closeChild closes what the child has its own of now.
func (p *files) closeChild() {
	for _, f := range p.child {
		f.Close() // the terminal more than once, which is fine
	}
}

func (p *files) closeOurs() {
	for _, f := range append([]*os.File{p.in}, p.out...) {
		f.Close()
	}
}
