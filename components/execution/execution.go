// Package execution is the boundary between the controllers and whatever runs
// sandboxes on a node. The first driver is components/runsc (containerd with
// gVisor); executiontest is the conformance suite.
//
// Every external resource that a driver makes carries the sandbox's id and can
// be found by List, also after a restart of the server or the machine.
package execution

import (
	"context"
	"io"
	"time"
)

// Network says how a sandbox is connected.
type Network string

// Networks.
const (
	NetworkBridge Network = "bridge"
	NetworkNone   Network = "none"
)

// Spec describes a sandbox completely: the driver looks nothing up.
type Spec struct {
	ID           string            // id of the sandbox entity; 1-63 bytes of [a-z0-9-]
	Labels       map[string]string // for people who look at containerd; not interpreted
	Image        string            // reference in the instance's image store, with digest
	Command      []string          // empty: the image's entrypoint and command
	Idle         bool              // no main process: it lives until Stop
	WorkDir      string            // empty: the image's
	User         string            // empty: the image's
	Env          []string          // NAME=value; added to the image's
	Hostname     string            // empty: ID
	Network      Network
	CPUMillis    int64
	MemoryBytes  int64
	PIDs         int64
	DiskBytes    int64 // 0: the driver's default
	ReadOnlyRoot bool
	StopTimeout  time.Duration
}

// Phase of an instance.
type Phase string

// Phases.
const (
	Creating Phase = "creating" // the set-up is not complete
	Running  Phase = "running"  // the agent answers and the main process was started
	Exited   Phase = "exited"   // ended; see Exit. Resources may exist until Delete.
	Unknown  Phase = "unknown"  // from List only: the state could not be read; see Err
)

// Cause says what ended an instance.
type Cause string

// Causes.
const (
	CauseExit  Cause = "exit"  // the main process ended
	CauseOOM   Cause = "oom"   // the memory limit was hit
	CauseCrash Cause = "crash" // sentry, shim or container vanished
)

// Exit is how an instance ended.
type Exit struct {
	Cause Cause
	Code  int // 128+n for signal n
	At    time.Time
	// Message has further details: the signal, the limit, ...
	Message string
}

// Instance is the state of one sandbox.
type Instance struct {
	ID        string
	Phase     Phase
	Address   string // IPv4 without prefix; empty for NetworkNone
	StartedAt time.Time
	Exit      *Exit
	Err       error // for Unknown only
}

// Stats is one reading of a sandbox's resource use.
type Stats struct {
	At          time.Time
	CPU         time.Duration // used since start
	MemoryBytes int64
	PIDs        int64
}

// ExecSpec is one process to run beside the main one.
type ExecSpec struct {
	Command []string
	Env     []string
	WorkDir string
	User    string
	TTY     bool
	Rows    uint16
	Cols    uint16
}

// Process is a running exec. Stdout carries everything when there is a TTY.
type Process interface {
	Stdin() io.WriteCloser
	Stdout() io.Reader
	Stderr() io.Reader
	Resize(ctx context.Context, rows, cols uint16) error
	Signal(ctx context.Context, signal int) error
	// Wait blocks until the process has ended and its output was read or
	// discarded. It returns the exit code (128+n for signal n).
	Wait(ctx context.Context) (int, error)
	// Close abandons the process: its streams are closed and it is killed.
	Close() error
}

// LogLine is one line of a sandbox's main process.
type LogLine struct {
	Offset int64 // position after this line in the sandbox's log; resume from here
	At     time.Time
	Stream string // "stdout" or "stderr"
	Text   string // without the newline; lines over 64 KiB are split
	// Missed is how many bytes of the log right before this line the query
	// selects but the log, which keeps its end only, no longer has.
	Missed int64
}

// LogQuery selects log lines of a sandbox.
type LogQuery struct {
	Offset int64 // lines after this position
	Tail   int   // if > 0: only the last Tail of the existing lines
	Follow bool  // continue until the sandbox has ended and every line was sent
}

// Driver runs sandboxes on this machine. It is safe for concurrent use; calls
// for one id are serialised by the driver.
type Driver interface {
	// Ensure makes the sandbox exist and run. It is idempotent: it does not
	// repeat completed steps, adopts a running sandbox, and returns one that
	// has exited with its Exit, without starting it again. On an error it
	// removes everything that it made.
	Ensure(ctx context.Context, s Spec) (Instance, error)
	// Get returns NotFound if no part of the sandbox is on the machine.
	Get(ctx context.Context, id string) (Instance, error)
	// List returns every sandbox of this installation of which any part is on
	// the machine. A sandbox whose state cannot be read is Unknown; the error
	// is for failures that hide all of them.
	List(ctx context.Context) ([]Instance, error)
	// Stop sends SIGTERM to the main process, SIGKILL after grace, and returns
	// when the sandbox has exited.
	Stop(ctx context.Context, id string, grace time.Duration) (Instance, error)
	// Delete removes everything of the sandbox except its logs, killing it if
	// necessary. It is safe in any state; it returns nil when no part exists.
	Delete(ctx context.Context, id string) error
	// Watch sends the id of every sandbox whose state may have changed. The
	// channel is closed when ctx ends. Ids are coalesced, never dropped.
	Watch(ctx context.Context) (<-chan string, error)

	Exec(ctx context.Context, id string, e ExecSpec) (Process, error)
	// Logs calls line for each selected line; it works on ended and deleted
	// sandboxes too as long as their logs are kept.
	Logs(ctx context.Context, id string, q LogQuery, line func(LogLine) error) error
	// DeleteLogs deletes the logs of a deleted sandbox.
	DeleteLogs(ctx context.Context, id string) error
	Stats(ctx context.Context, id string) (Stats, error)
	// Listening returns the TCP ports on which processes in the sandbox listen.
	Listening(ctx context.Context, id string) ([]int, error)
}
