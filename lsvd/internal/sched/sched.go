// Package sched tells the operating system's scheduler what it cannot know.
package sched

import "golang.org/x/sys/unix"

// Yield gives the processor to other threads that want it now. Work in the
// background does so every few dozen microseconds: the kernel would let it go on
// for some milliseconds (its slice) while a caller waits for a write that takes
// a tenth of that. It costs half a microsecond if no thread waits for the
// processor, and may take long if one does.
func Yield() { unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
