package loop

import (
	"errors"
	"log/slog"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/errs"
)

// minProcs is how many threads run Go code at least. Many of them are in
// system calls that are short but not short enough: with two on a machine of
// two cores, half the time a request waits for one.
const minProcs = 8

// oomScore makes the kernel choose others first when memory runs out.
const oomScore = "-900"

// Prepare readies a process that serves attached disks. It is called first in
// main, before anything is open: it may replace the process by itself with the
// same arguments, once. With that all threads are I/O flushers: memory that
// they allocate never waits for the very disk they serve. Without the right to
// be that, the process has no huge pages, which wait most. What the process is
// not allowed to do is logged and left.
func Prepare(logger *slog.Logger) error {
	if runtime.GOMAXPROCS(0) < minProcs && os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(minProcs)
	}
	limitMemory(logger)
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(oomScore), 0); err != nil {
		logger.Info("the kernel may kill this process when memory runs out", "error", err)
	}
	// The state is a thread's, and inherited by those it starts.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	on, err := unix.PrctlRetInt(unix.PR_GET_IO_FLUSHER, 0, 0, 0, 0)
	if err == nil && on == 1 {
		return nil
	}
	if err == nil {
		err = unix.Prctl(unix.PR_SET_IO_FLUSHER, 1, 0, 0, 0)
	}
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) { // no CAP_SYS_RESOURCE; before Linux 5.6
		logger.Info("memory reclaim may wait for disks of this process: it may not be an I/O flusher", "error", err)
		// For a huge page the kernel moves pages, and waits for their I/O: maybe that of a request which
		// waits for this memory.
		if err := unix.Prctl(unix.PR_SET_THP_DISABLE, 1, 0, 0, 0); err != nil {
			logger.Warn("a huge page of this process may wait for its own disks", "error", err)
		}
		return nil
	}
	if err != nil {
		return errs.Wrap(err, "become an I/O flusher")
	}
	exe, err := os.Executable()
	if err != nil {
		return errs.Wrap(err, "become an I/O flusher")
	}
	return errs.Wrap(unix.Exec(exe, os.Args, os.Environ()), "become an I/O flusher")
}
