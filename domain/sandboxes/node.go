package sandboxes

import (
	"context"
	"io"
	"time"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/sandboxfs"
)

// Node is the interface of operations to the machine that runs a sandbox.
// Methods return NotFound if the machine has nothing of the sandbox, and
// Unavailable if the machine could not be asked.
type Node interface {
	// Exec starts a process. The error for a command that cannot be run has the
	// detail DetailExitCode.
	Exec(ctx context.Context, sid id.Sandbox, spec ExecSpec) (Process, error)
	// Configure gives a warm sandbox to its claim. It may be repeated.
	// FailedPrecondition for a sandbox that another claim has.
	Configure(ctx context.Context, sid id.Sandbox, c Identity) error
	// SetEgress changes a sandbox's network policy.
	SetEgress(ctx context.Context, sid id.Sandbox, p egress.Policy) error
	// EgressLog returns a sandbox's last requests and connections, the oldest first.
	EgressLog(ctx context.Context, sid id.Sandbox) ([]EgressRecord, error)
	// Logs calls emit with each line that q selects. It works on sandboxes that
	// have ended or were deleted, while their logs are kept.
	Logs(ctx context.Context, sid id.Sandbox, q LogQuery, emit func(LogLine) error) error
	Stats(ctx context.Context, sid id.Sandbox) (sandbox.Stats, error)
	// Files returns the files of a sandbox; the calls find out whether it runs.
	Files(sid id.Sandbox, v sandboxfs.View) sandboxfs.FS
	// Processes returns the processes beside the main one that run, and detached
	// ones that have ended, the latest first, at most 128.
	Processes(ctx context.Context, sid id.Sandbox) ([]sandbox.Process, error)
	// Attach continues a detached process with the output that is kept; another
	// caller loses it. NotFound if the sandbox does not know the process.
	Attach(ctx context.Context, sid id.Sandbox, process string, stdout, stderr int64) (Process, error)
	// Ports returns the TCP ports on which processes listen, in order.
	Ports(ctx context.Context, sid id.Sandbox) ([]int64, error)
	// Dial connects to a TCP port inside the sandbox, on its loopback too.
	// FailedPrecondition if no process listens on it.
	Dial(ctx context.Context, sid id.Sandbox, port int) (Conn, error)
}

// Conn is a connection to a port of a sandbox.
type Conn interface {
	io.ReadWriteCloser
	// CloseWrite ends what is sent, as shutdown does.
	CloseWrite() error
}

// EgressRecord is a name that a sandbox asked for, or a connection of it. The
// sandbox chose the name.
type EgressRecord = egress.Record

// Identity is what a claim gives a warm sandbox. Limits are at most those that
// it was made with; empty fields change nothing.
type Identity struct {
	Claim       string // names the claim
	Hostname    string
	Env         []string // NAME=value, secrets included, for the processes that are started from now on
	WorkDir     string
	User        string
	CPUMillis   int64
	MemoryBytes int64
	PIDs        int64
	Egress      egress.Policy
	Volumes     []disks.Volume
}

// ExecSpec is a process to run beside the main one. An empty field takes the
// main process's value.
type ExecSpec struct {
	Command []string
	Env     []string // NAME=value; added to the sandbox's
	WorkDir string
	User    string
	TTY     bool
	Rows    uint16 // size of the terminal
	Cols    uint16
	NoInput bool // its input is /dev/null, which starts it faster; not with TTY
	// Detached: it goes on when its caller detaches, or is gone. Its output never
	// makes it wait; the last 256 KiB of each stream are kept.
	Detached bool
	Tag      string // for Processes; at most 64 bytes
}

// Process is a running process. With a terminal, Stdout carries everything.
type Process interface {
	ID() string // names it in its sandbox
	PID() int   // its number in the sandbox
	Stdin() io.WriteCloser
	Stdout() io.Reader
	Stderr() io.Reader
	// Offsets returns how many bytes of each stream came before the next one that
	// is read. They jump where output of a detached process was not kept.
	Offsets() (stdout, stderr int64)
	Resize(ctx context.Context, rows, cols uint16) error
	Signal(ctx context.Context, signal int) error
	// Wait blocks until the process has ended and its output was read or
	// discarded. It returns the exit code (128+n for signal n).
	Wait(ctx context.Context) (int, error)
	// Reason says, after Wait, why the process was ended from outside: oom, or the
	// reason of the end of its sandbox. "": it was not, as far as that is known.
	Reason() sandbox.EndReason
	// Close closes the streams and kills the process.
	Close() error
	// Detach leaves the process running, for Attach. One that is not detached is
	// killed if nobody continues it within a minute after the node's process ended.
	Detach()
}

// LogQuery selects lines of a sandbox's log.
type LogQuery struct {
	Offset int64 // lines after this position
	Tail   int   // above 0: only this many of the existing lines, the last ones
	Follow bool  // continue until the sandbox has ended and all lines were passed on
}

// LogLine is one line of output of a main process.
type LogLine struct {
	Offset int64 // position after the line; a LogQuery continues from here
	At     time.Time
	Stderr bool
	Text   string // without the newline; the node splits lines over 64 KiB
	Missed int64  // bytes of the log right before the line that the query selects but the log no longer has
}
