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
	"net"
	"strings"
	"time"

	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
)

// Network says how a sandbox is connected.
type Network string

// Networks.
const (
	NetworkBridge Network = "bridge"
	NetworkNone   Network = "none"
)

// Capabilities names a set of capabilities for programs that run as root in a
// sandbox. Other users have none, and no program gains any by set-id bits.
type Capabilities string

// Sets of capabilities.
const (
	CapabilitiesNone    Capabilities = ""
	CapabilitiesDefault Capabilities = "default"
)

// Names returns the capabilities of the set. The default one is what official
// images expect: their programs start as root, make directories their own and
// become another user. Raw sockets and device files are not part of it.
// InvalidArgument for an unknown set.
func (c Capabilities) Names() ([]string, error) {
	switch c {
	case CapabilitiesNone:
		return nil, nil
	case CapabilitiesDefault:
		return []string{
			"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_NET_BIND_SERVICE",
			"CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
		}, nil
	}
	return nil, errs.New(errs.InvalidArgument, "there is no set of capabilities %q", string(c))
}

// Spec describes a sandbox completely: the driver looks nothing up.
type Spec struct {
	ID           string            // id of the sandbox entity; 1-63 bytes of [a-z0-9-]
	Labels       map[string]string // for people who look at containerd; not interpreted
	Image        string            // reference in the instance's image store, with digest
	Command      []string          // empty: the image's entrypoint and command
	Idle         bool              // no main process: it lives until Stop
	Warm         bool              // nobody waits for it: Ensure takes longer, and what follows is quicker for the first time
	WorkDir      string            // empty: the image's
	User         string            // empty: the image's
	Env          []string          // NAME=value; added to the image's
	Hostname     string            // empty: ID
	Network      Network
	Egress       *egress.Policy // what it may reach by NetworkBridge; nil: that of the snapshot, without one egress.Open
	CPUMillis    int64
	MemoryBytes  int64
	PIDs         int64
	DiskBytes    int64 // 0: the driver's default
	DiskFiles    int64 // files made on the root file system; 0: the memory alone bounds them
	OpenFiles    int64 // of one process; 0: the driver's default
	FileBytes    int64 // of one file; 0: the disk alone bounds it
	Bandwidth    int64 // bytes per second by NetworkBridge, each way; 0: no limit
	ReadOnlyRoot bool
	Capabilities Capabilities
	StopTimeout  time.Duration
	// Restore is the id of a snapshot from which the sandbox is made; empty: it is made from Image. Image, Command,
	// Idle, WorkDir, User, PIDs, DiskBytes, DiskFiles, OpenFiles, FileBytes, ReadOnlyRoot and Capabilities
	// are then the snapshot's: here they are empty or the same.
	// Mounts have the same targets, from any sources.
	Restore string
	Mounts  []Mount // directories of the host
}

// Mount shows a directory of the host in a sandbox. It must stay as it is until
// the sandbox is deleted: a sandbox sees the file system that was mounted there
// when it started.
type Mount struct {
	Source   string // directory of the host, absolute
	Target   string // path in the sandbox, absolute
	ReadOnly bool
}

// Identity is the configuration that a claim gives to a sandbox made with Spec.Idle
// before anybody needed it.
type Identity struct {
	Claim    string   // names the claim; 1-63 bytes
	Hostname string   // 1-63 bytes of [a-zA-Z0-9-]; empty: unchanged. A read-only root keeps its files of /etc.
	Env      []string // NAME=value; added to the configured ones for processes that are started later
	WorkDir  string   // of processes that are started later; empty: unchanged
	User     string   // of processes that are started later; empty: unchanged
	// Limits, at most what the sandbox was made with; 0: unchanged. What the sandbox uses
	// already is not taken from it: ResourceExhausted.
	CPUMillis   int64
	MemoryBytes int64
	PIDs        int64
	// Mounts are made in the running sandbox, which Spec.Idle and no Spec.Mounts prepare for that. Each repetition
	// for the same claim has the same ones.
	Mounts []Mount
}

// Check returns InvalidArgument for an identity that no sandbox can get.
func (i Identity) Check() error {
	switch {
	case i.Claim == "" || len(i.Claim) > 63:
		return errs.New(errs.InvalidArgument, "the name of a claim has 1 to 63 bytes, not %d", len(i.Claim))
	case len(i.Hostname) > 63 || strings.ContainsFunc(i.Hostname, notInHostname):
		return errs.New(errs.InvalidArgument, "host name %q is not 1 to 63 of a-z, A-Z, 0-9 and -", i.Hostname)
	case i.CPUMillis < 0 || i.MemoryBytes < 0 || i.PIDs < 0:
		return errs.New(errs.InvalidArgument, "a limit is negative")
	case i.WorkDir != "" && !strings.HasPrefix(i.WorkDir, "/"):
		return errs.New(errs.InvalidArgument, "working directory %q is not absolute", i.WorkDir)
	}
	for n, e := range i.Env {
		if name, _, ok := strings.Cut(e, "="); !ok || name == "" || strings.IndexByte(e, 0) >= 0 {
			// Not the text, which may be a secret.
			return errs.New(errs.InvalidArgument, "variable %d is not NAME=value", n+1)
		}
	}
	return nil
}

func notInHostname(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-'
}

// CheckLimits returns InvalidArgument if the identity asks for more than a
// sandbox was made with.
func (i Identity) CheckLimits(s Spec) error {
	for _, l := range []struct {
		name      string
		want, has int64
	}{{"CPU", i.CPUMillis, s.CPUMillis}, {"memory", i.MemoryBytes, s.MemoryBytes}, {"processes", i.PIDs, s.PIDs}} {
		if l.want > 0 && l.has > 0 && l.want > l.has {
			return errs.New(errs.InvalidArgument, "sandbox %s was made with a limit of %s of %d, which is less than %d", s.ID, l.name, l.has, l.want)
		}
	}
	return nil
}

// Phase of an instance.
type Phase string

// Phases.
const (
	Creating Phase = "creating" // the set-up is not complete
	Running  Phase = "running"  // the agent answers and the main process was started
	Exited   Phase = "exited"   // ended; see Exit. Resources may exist until Delete.
	Paused   Phase = "paused"   // no process and no address: it is in Snapshot, and Ensure with Restore continues it
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
	Snapshot  string // id of the snapshot of a Paused sandbox
	Err       error  // for Unknown only
}

// Stats is one reading of a sandbox's resource use.
type Stats struct {
	At          time.Time
	CPU         time.Duration // used since start
	MemoryBytes int64
	PIDs        int64
	Network     *Traffic // nil: not measured
}

// Traffic is what a sandbox exchanged over its network since it was connected, in bytes.
type Traffic struct{ Received, Sent int64 }

// ExecSpec is one process to run beside the main one.
type ExecSpec struct {
	Command []string
	Env     []string
	WorkDir string
	User    string
	TTY     bool
	Rows    uint16
	Cols    uint16
	// NoInput: its input is /dev/null, which starts it faster; not with TTY.
	NoInput bool
	// Detached: it runs on when the caller or the server is gone, until it ends
	// or is closed. Its output never makes it wait: the last 256 KiB of each stream
	// are kept, and for an hour after its end, with its exit code.
	Detached bool
	Tag      string // for Driver.Processes; at most 64 bytes
}

// ProcessInfo describes a process beside the main one.
type ProcessInfo struct {
	ID        string
	PID       int      // in the sandbox
	Command   []string // the first 512 bytes
	Tag       string
	StartedAt time.Time
	TTY       bool
	Detached  bool
	Exit      *Exit // of a detached process that has ended
}

// Process is a running exec. Stdout carries everything when there is a TTY.
type Process interface {
	// ID names the process within its sandbox.
	ID() string
	// PID is its number in the sandbox.
	PID() int
	Stdin() io.WriteCloser
	Stdout() io.Reader
	Stderr() io.Reader
	// Offsets returns how many bytes of each stream came before the next one that
	// is read. They jump where output of a detached process was not kept.
	Offsets() (stdout, stderr int64)
	Resize(ctx context.Context, rows, cols uint16) error
	// Signal sends a signal to the process and its process group.
	Signal(ctx context.Context, signal int) error
	// Wait blocks until the process has ended and its output was read or
	// discarded. It returns the exit code (128+n for signal n).
	Wait(ctx context.Context) (int, error)
	// Close abandons the process: its streams are closed and it is killed.
	Close() error
	// Detach leaves the process running, for Driver.Attach. One that is not detached
	// is killed if nobody continues it within a minute after this driver ends.
	Detach()
}

// Conn is a connection to a port of a sandbox.
type Conn interface {
	net.Conn
	// CloseWrite ends what is sent, as shutdown does.
	CloseWrite() error
}

// Activity says how much a sandbox is used. Processes that the main process or
// other ones started, and what the driver does on its own, are not counted.
type Activity struct {
	Idle        time.Duration // since a user opened, used or ended one of the following
	Processes   int           // running ones of Exec
	Connections int           // of Dial, and files that are read or written
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

// Listener is a TCP port on which a process of a sandbox listens.
type Listener struct {
	Port     int
	Loopback bool // only processes of the sandbox reach it: no socket of the port has another address
}

// Driver runs sandboxes on this machine. It is safe for concurrent use; calls
// for one id are serialised by the driver.
type Driver interface {
	// Ensure makes the sandbox exist and run. It is idempotent: it does not
	// repeat completed steps, adopts a running sandbox, and returns one that
	// has exited with its Exit, without starting it again. It returns a Paused
	// one as it is unless Restore is set, which continues it. On an error it
	// removes everything that it made: a Paused sandbox is Paused again.
	//
	// NotFound: there is no such image or snapshot. FailedPrecondition: the
	// snapshot is of another version of runsc, or of a CPU with features that
	// this one lacks, or its agent is gone.
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
	// SetEgress changes what a sandbox may reach, while it runs. The policy holds
	// from the return on, for open connections too. FailedPrecondition with NetworkNone,
	// and while the sandbox is paused.
	SetEgress(ctx context.Context, id string, p egress.Policy) error
	// EgressLog returns the last names that a sandbox asked for and its last connections, the oldest
	// first, while its policy is Filtered. A restart of the server empties it.
	EgressLog(ctx context.Context, id string) ([]egress.Record, error)
	// Watch sends the id of every sandbox whose state may have changed. The
	// channel is closed when ctx ends. Ids are coalesced, never dropped.
	Watch(ctx context.Context) (<-chan string, error)

	// Configure gives a running sandbox that was made with Spec.Idle to its user.
	// It may be repeated for the same claim, to which a repetition changes
	// nothing; it also holds after a restart of the server. FailedPrecondition if
	// the sandbox has another claim or a main process; Unimplemented if its agent
	// is of an earlier version.
	Configure(ctx context.Context, id string, i Identity) error

	Exec(ctx context.Context, id string, e ExecSpec) (Process, error)
	// Processes returns the processes beside the main one that run, and detached
	// ones that have ended, the latest first, at most 128.
	Processes(ctx context.Context, id string) ([]ProcessInfo, error)
	// Attach continues a detached process, or one that another driver left; a caller
	// that has it loses it. Output begins at the given offsets, or where it is still
	// kept. NotFound if the sandbox does not know the process (any more).
	Attach(ctx context.Context, id, process string, stdout, stderr int64) (Process, error)
	// Logs calls line for each selected line; it works on ended and deleted
	// sandboxes too as long as their logs are kept.
	Logs(ctx context.Context, id string, q LogQuery, line func(LogLine) error) error
	// DeleteLogs deletes the logs of a deleted sandbox.
	DeleteLogs(ctx context.Context, id string) error
	Stats(ctx context.Context, id string) (Stats, error)
	// OOMKills returns how many processes of the sandbox the kernel has ended
	// because the memory limit was reached; 0 where the driver cannot tell.
	OOMKills(ctx context.Context, id string) (int64, error)
	// Listening returns the TCP ports on which processes in the sandbox listen,
	// in order.
	Listening(ctx context.Context, id string) ([]Listener, error)
	// Dial connects to a TCP port inside the sandbox, on whatever address a
	// process listens, loopback included. FailedPrecondition if none does.
	Dial(ctx context.Context, id string, port int) (Conn, error)
	// Activity says how much the sandbox is used; to ask is no use.
	Activity(ctx context.Context, id string) (Activity, error)

	Snapshots
}
