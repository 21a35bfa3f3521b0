package rpc

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// socketPair returns two connected sockets.
func socketPair() (a, b net.Conn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	var conns [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "rpc")
		conns[i], err = net.FileConn(f) // with a descriptor of its own
		_ = f.Close()
		if err != nil {
			for _, c := range conns[:i] {
				_ = c.Close()
			}
			for _, fd := range fds[i+1:] {
				_ = unix.Close(fd)
			}
			return nil, nil, err
		}
	}
	return conns[0], conns[1], nil
}
