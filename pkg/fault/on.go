//go:build faultpoints

package fault

import (
	"os"
	"strings"
	"syscall"
)

// trace is the content of the file that has points listed.
const trace = "trace"

// Point kills the process if this point is armed.
func Point(area, name, when string) {
	file := os.Getenv(Env)
	if file == "" {
		return
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return // not armed
	}
	point := area + "/" + name + "/" + when
	switch strings.TrimSpace(string(b)) {
	case trace:
		// One write: lines of several processes do not mix.
		if f, err := os.OpenFile(file+".seen", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644); err == nil {
			_, _ = f.WriteString(point + "\n")
			_ = f.Close()
		}
	case point:
		if os.Rename(file, file+".hit") != nil { // the claim of one process alone; atomicfile would replace the file
			return // another process was first
		}
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // wait for the signal
	}
}
