// Package agent is the host's side of the agent that is PID 1 of every
// sandbox (cmd/runtime-agent). A Hub prepares what a sandbox needs, listens
// for its agent, and gives a Conn to it; it also reads the log spool and the
// exit record that the agent leaves, which need no connection.
//
// Per sandbox there are two directories on the host:
//
//	<Dir>/<id>/     config, agent.sock; mounted read-only at /run/runtime/agent
//	<LogDir>/<id>/  ended; and spool/ with <offset>.log ..., exit; spool is
//	                mounted writable at /run/runtime/log
//
// and the agent's program, <AgentDir>/agent-<SHA-256 sum>, mounted read-only.
// What is mounted has mode 0700 and belongs to agentproto.VaultUID, which is
// the agent: it and the host's root can enter, while a process of the sandbox
// cannot, even one of guest root, since it has no capabilities.
//
// The agent dials: after a restart of the server it redials the new hub
// (Attach), and the node continues the detached processes that it still needs
// (Conn.Attach).
//
// The guest is hostile. Whatever comes from it (frames, log files, exit
// record) is bounded and never trusted to name a file or a size. The log
// directory is the only one of the host that is writable from within. Every
// LogCheck the Hub measures its files, and deleted ones that are still open, and
// ends the sandbox if they take more space than its agent may write.
//
// Lock order: Hub.mu, then Conn.mu, then channel.mu, then the locks of
// agentproto.Writer; none is held during IO.
package agent

import (
	"log/slog"
	"net/netip"
	"time"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/agentproto"
)

// HubConfig configures a Hub.
type HubConfig struct {
	Dir       string // directory of sockets and configurations, e.g. <run dir>/agent; created if missing
	LogDir    string // directory of logs and exit records, e.g. <state dir>/logs; created if missing
	AgentPath string // the runtime-agent binary of this version
	AgentDir  string // directory of copies of it that sandboxes use, e.g. <state dir>/agents; created if missing
	Logger    *slog.Logger
	// Pinned, if set, returns the agents of snapshots, which SweepBinaries keeps.
	Pinned func() ([]string, error)
	// Notify, if set, is called with the id of a sandbox whose agent connected
	// or was lost, or whose main process started or ended. It must not block.
	Notify func(id string)

	// Heartbeat is how often each side pings; a side that hears nothing for
	// three of them drops the connection. 0: 5 s.
	Heartbeat time.Duration

	// LogCheck is how often the size of logs is checked. 0: 2 s.
	LogCheck time.Duration
	// PIDs, if set, returns the host's processes of a sandbox; their open files
	// count too.
	PIDs func(id string) ([]int, error)
	// Exceeded, if set, is called with the id of a sandbox whose log takes more
	// space than the agent ever writes. It must end the sandbox; the Hub then
	// cuts the log.
	Exceeded func(id string)
}

// StartMode says when the main process is started.
type StartMode = agentproto.StartMode

// Start modes.
const (
	StartAtOnce    = agentproto.StartAtOnce    // when the agent starts
	StartOnRequest = agentproto.StartOnRequest // by Conn.StartMain
)

// GuestConfig is the configuration of one sandbox's agent. The driver has
// merged the image's configuration into it already.
type GuestConfig struct {
	// Command is the whole command line of the main process, looked up in the
	// guest's PATH. Empty: there is none, and the sandbox lives until stopped.
	Command []string
	// Env is the environment of the main process and the base of every exec's.
	// The agent adds PATH and HOME where missing.
	Env     []string
	WorkDir string // empty: /
	User    string // user[:group], names or numbers of the guest; empty: root
	Start   StartMode
	// PIDs limits the processes and threads of the guest, if > 0. It needs the
	// capability SYS_ADMIN, which Prepare then asks for and the agent drops at
	// once, and runsc's flag in-sandbox-cgroup=v2.
	PIDs int64
	// CPUs is how many CPUs programs see, if > 0 and there are more.
	CPUs int64
	// Claimable: the agent accepts Conn.Configure. It then keeps the capability
	// SYS_ADMIN permitted, not effective, until that, to set the host name.
	Claimable bool
	// LogBytes bounds the log spool, in bytes; the agent deletes the oldest
	// lines first. 0: 64 MiB.
	LogBytes int64
	// Capabilities are those that programs of root have, by their names (CAP_CHOWN); other users have none.
	Capabilities []string
	// Binary is the agent to run, as Hub.Binary returned it for the sandbox of a snapshot; empty: the present one.
	Binary string
}

// Mount is one bind mount into the guest.
type Mount struct {
	Source   string
	Target   string
	ReadOnly bool
}

// Guest is what the driver puts into the container's specification for PID 1:
// it runs as user and group agentproto.VaultUID in directory /, without a
// terminal, with no new privileges, and with exactly these capabilities as each
// of its sets (ambient too, since it is not root). Its children have those of GuestConfig.Capabilities.
type Guest struct {
	Args         []string
	Env          []string
	Mounts       []Mount
	Capabilities []string
}

// MainStatus is the agent's last report about the main process.
type MainStatus struct {
	State     MainState
	PID       int
	StartedAt time.Time
	Exit      *execution.Exit // when State is MainExited
}

// MainState is the state of the main process.
type MainState string

// States of the main process.
const (
	MainNone    MainState = "none"    // there is no command
	MainPending MainState = "pending" // waits for StartMain
	MainRunning MainState = "running"
	MainExited  MainState = "exited" // also if it could not be started: see Exit
)

// Listener is a TCP socket of the guest that accepts connections.
type Listener struct {
	Port int
	Addr netip.Addr // unspecified: every address
}

// Loopback reports that no program outside the sandbox can reach it.
func (l Listener) Loopback() bool { return l.Addr.IsLoopback() }
