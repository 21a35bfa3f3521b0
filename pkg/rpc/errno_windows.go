package rpc

import "syscall"

// Errors of Windows sockets. The values of package syscall with the Unix names
// do not match them.
const (
	connRefused = syscall.Errno(10061) // WSAECONNREFUSED
	connReset   = syscall.WSAECONNRESET
)
