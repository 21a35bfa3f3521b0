package rpc

import "syscall"

// What sockets of Windows return, which the values of package syscall with the
// names of Unix do not match.
const (
	connRefused = syscall.Errno(10061) // WSAECONNREFUSED
	connReset   = syscall.WSAECONNRESET
)
