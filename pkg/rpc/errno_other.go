//go:build !windows

package rpc

import "syscall"

const (
	connRefused = syscall.ECONNREFUSED
	connReset   = syscall.ECONNRESET
)
