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

// Spec is everything that makes a sandbox. It is complete: the driver looks
// nothing up.
type Spec struct {
	ID           string            // of the sandbox entity; 1-63 bytes of [a-z0-9-]
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
	Creating Phase = "creating" // some steps are done
	Running  Phase = "running"  // the agent answers and the main process was started
	Exited   Phase = "exited"   // ended; Exit says how. Resources may still be there until Delete.
	Unknown  Phase = "unknown"  // of List only: Err says why the state could not be read
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
	// Message has what is known besides: the signal, the limit, ...
	Message string
}

// Instance is what the driver knows of one sandbox.
type Instance struct {
	ID        string
	Phase     Phase
	Address   string // IPv4 without prefix; empty for NetworkNone
	StartedAt time.Time
	Exit      *Exit
	Err       error // with Unknown only
}

// Stats is one reading of what a sandbox uses.
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
	// Wait blocks until the process ended and its output was read or dropped.
	// It returns the exit code (128+n for signal n).
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
	// Missed are the bytes of the log right before this line that were asked for and
	// are gone, as the log keeps its end only.
	Missed int64
}

// LogQuery selects log lines of a sandbox.
type LogQuery struct {
	Offset int64 // lines after this position
	Tail   int   // if > 0: only the last Tail lines of what is there
	Follow bool  // go on until the sandbox has ended and everything was sent
}

// Driver runs sandboxes on this machine. It is safe for concurrent use; calls
// for one id are serialised by the driver.
type Driver interface {
	// Ensure makes the sandbox exist and run. It is idempotent: steps that are
	// done are not done again, a running one is adopted, one that has exited is
	// returned with its Exit and not started again. On an error everything it
	// made is taken down again.
	Ensure(ctx context.Context, s Spec) (Instance, error)
	// Get returns NotFound if nothing at all of the sandbox is on the machine.
	Get(ctx context.Context, id string) (Instance, error)
	// List returns every sandbox of this installation that has anything left on
	// the machine, however little. One whose state cannot be read is Unknown; the
	// error is for what hides them all.
	List(ctx context.Context) ([]Instance, error)
	// Stop sends SIGTERM to the main process, SIGKILL after grace, and returns
	// when the sandbox has exited.
	Stop(ctx context.Context, id string, grace time.Duration) (Instance, error)
	// Delete removes everything of the sandbox except its logs; killing it if
	// need be. It is safe whatever is there; no error when nothing is.
	Delete(ctx context.Context, id string) error
	// Watch sends the id of every sandbox whose state may have changed. The
	// channel is closed when ctx ends. Ids are coalesced, never dropped.
	Watch(ctx context.Context) (<-chan string, error)

	Exec(ctx context.Context, id string, e ExecSpec) (Process, error)
	// Logs calls line for each selected line; it works on ended and deleted
	// sandboxes too as long as their logs are kept.
	Logs(ctx context.Context, id string, q LogQuery, line func(LogLine) error) error
	// DeleteLogs drops the logs of a deleted sandbox.
	DeleteLogs(ctx context.Context, id string) error
	Stats(ctx context.Context, id string) (Stats, error)
	// Listening returns the TCP ports that something in the sandbox listens on.
	Listening(ctx context.Context, id string) ([]int, error)
}
