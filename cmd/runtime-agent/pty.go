package main

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/agentproto"
)

// openPTY returns a new terminal. The master is for the poller.
func openPTY(size agentproto.Size) (master *os.File, slave int, name string, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, "", &os.PathError{Op: "open", Path: "/dev/ptmx", Err: err}
	}
	master = os.NewFile(uintptr(fd), "terminal")
	defer func() {
		if err != nil {
			master.Close()
		}
	}()
	n, err := unix.IoctlGetUint32(fd, unix.TIOCGPTN)
	if err != nil {
		return nil, 0, "", os.NewSyscallError("TIOCGPTN", err)
	}
	if err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, 0, "", os.NewSyscallError("TIOCSPTLCK", err)
	}
	if size.Rows > 0 && size.Cols > 0 {
		if err = setSize(master, size); err != nil {
			return nil, 0, "", err
		}
	}
	name = "/dev/pts/" + strconv.FormatUint(uint64(n), 10)
	// Not with os.OpenFile, which would make it non-blocking, for the child too.
	sfd, err := unix.Open(name, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, 0, "", &os.PathError{Op: "open", Path: name, Err: err}
	}
	return master, sfd, name, nil
}

func setSize(master *os.File, size agentproto.Size) error {
	rc, err := master.SyscallConn()
	if err != nil {
		return err
	}
	err2 := rc.Control(func(fd uintptr) {
		err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Cols})
	})
	if err2 != nil {
		return err2
	}
	return os.NewSyscallError("TIOCSWINSZ", err)
}
