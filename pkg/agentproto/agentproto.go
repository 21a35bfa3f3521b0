// Package agentproto is what the node and the agent in a sandbox say to each
// other, and the formats of the files that they share. It is linked into the
// agent, so it needs nothing but the standard library's small packages.
//
// # Connection
//
// The agent dials the node's unix socket and sends Hello; the node answers
// Welcome, with the version to speak or the reason for a refusal. After that frames go
// both ways:
//
//	length u32 | type u8 | stream u8 | id u64 | payload      (little endian)
//
// length is the payload's. A message grows by fields at its end: a decoder
// ignores unknown fields and reads missing ones as zero. A frame of a
// type that is unknown, or not for this side, is answered with Refused and
// the frame's id, and the connection continues: a newer peer learns at once that
// the request is not supported. Version 1 ignored such frames.
//
// # Execs
//
// The node chooses the id of an exec. Output is numbered by byte; the agent
// keeps the output that the node has not acknowledged (Ack), at most OutWindow per stream,
// and stops reading from the process when that is full. Stdin is numbered
// likewise and the agent grants how far the node may send (Grant). Hence an
// exec continues on another connection: Attach carries the node's position, and
// Started the agent's. The agent kills an exec that the node does not attach
// again within its linger time.
//
// Nothing here trusts the peer: each frame has a bound, chosen by the reader,
// and decoders reject malformed messages.
package agentproto

import "time"

// Versions of the protocol that this package speaks.
const (
	MinVersion = 1
	MaxVersion = 2 // refuses unknown frames
)

// Bounds.
const (
	// MaxFromNode bounds a frame that the agent reads, in bytes: the largest is
	// an exec with its arguments and environment.
	MaxFromNode = 1 << 20
	// MaxFromAgent bounds a frame that the node reads, in bytes.
	MaxFromAgent = 128 << 10
	// Chunk is the most data in one frame, in bytes.
	Chunk = 32 << 10
	// OutWindow is how much output of a stream may be unacknowledged, in bytes.
	OutWindow = 256 << 10
	// InWindow is how much input may be under way to a process, in bytes.
	InWindow = 64 << 10
	// MaxExecs is how many execs, running or ended and not closed, there can be.
	MaxExecs = 1024
	// MaxLine is the longest line of a log, in bytes; a longer one is split.
	MaxLine = 64 << 10
	// DefaultLogBytes bounds a log whose configuration sets no bound.
	DefaultLogBytes = 64 << 20
)

// Paths in the guest.
const (
	GuestDir    = "/run/runtime/agent"
	GuestBinary = "/run/runtime/bin/agent"
	GuestLog    = "/run/runtime/log"
	ConfigName  = "config"     // in GuestDir
	SocketName  = "agent.sock" // in GuestDir
	ExitName    = "exit"       // in GuestLog
)

// VaultUID is the user and group of the agent, which own GuestDir and
// GuestLog. No other process may run as it, so that only the agent gets in.
const VaultUID = 2147483000

// Heartbeat is how often each side pings unless the node says otherwise.
const Heartbeat = 5 * time.Second

// HeartbeatMisses is after how many heartbeats without any frame a side ends
// the connection.
const HeartbeatMisses = 3

// Linger is how long an exec outlives the loss of its connection by default.
const Linger = time.Minute

// StartMode says when the main process is started.
type StartMode uint8

// Start modes.
const (
	StartAtOnce    StartMode = iota // when the agent starts
	StartOnRequest                  // by StartMain
)

// Exit codes of a process that could not be started.
const (
	ExitCannotExecute = 126
	ExitNotFound      = 127
)
