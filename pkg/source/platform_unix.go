//go:build unix

package source

import "syscall"

// openFlags keep the walk from following a link, and from waiting for a pipe,
// that has taken the place of a file.
const openFlags = syscall.O_NOFOLLOW | syscall.O_NONBLOCK

// modeBits reports that files have permission bits for execution.
const modeBits = true
