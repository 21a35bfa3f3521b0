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
// # Channels
//
// All work for the node that is more than a request goes through channels of
// some Kind: processes, files, ports. The node chooses the id and sends Open.
// The agent answers with Opened when the work has begun, and with Done when it
// has ended or failed; short work has Done alone. A kind that the agent does not
// know is Done at once, with a failure.
//
// The bytes of each stream of a channel are numbered. A side that sends keeps
// what the other has not acknowledged (Ack), at most a window per stream, and
// waits when that is full. Hence a channel continues on another connection:
// Resume carries the node's position, and Opened the agent's. What becomes of a
// channel without a connection, its Lifetime says.
//
// The output of a detached channel never waits: new output takes the place of
// the oldest, which is skipped. So its offsets may jump.
//
// Nothing here trusts the peer: each frame has a bound, chosen by the reader,
// and decoders reject malformed messages.
package agentproto

import "time"

// Versions of the protocol that this package speaks.
const (
	MinVersion = 2
	MaxVersion = 2
)

// Bounds.
const (
	// MaxFromNode bounds a frame that the agent reads, in bytes: the largest opens
	// a process with its arguments and environment.
	MaxFromNode = 1 << 20
	// MaxFromAgent bounds a frame that the node reads, in bytes.
	MaxFromAgent = 128 << 10
	// Chunk is the most data in one frame, in bytes.
	Chunk = 32 << 10
	// OutWindow is how much output of a stream may be unacknowledged, in bytes.
	OutWindow = 256 << 10
	// InWindow is how much input may be unacknowledged, in bytes.
	InWindow = 256 << 10
	// MaxChannels is how many channels, working or ended and not closed, there can be.
	MaxChannels = 1024
	// MaxLine is the longest line of a log, in bytes; a longer one is split.
	MaxLine = 64 << 10
	// DefaultLogBytes bounds a log whose configuration sets no bound.
	DefaultLogBytes = 64 << 20
	// MaxSegment bounds a segment of a log, in bytes: an agent begins the next one long before.
	MaxSegment = DefaultLogBytes
)

// Paths in the guest.
const (
	GuestDir    = "/run/runtime/agent"
	GuestBinary = "/run/runtime/bin/agent"
	GuestLog    = "/run/runtime/log"
	GuestVolume = "/run/runtime/volumes" // has volumes 0, 1, ... of a claim
	ConfigName  = "config"               // in GuestDir
	SocketName  = "agent.sock"           // in GuestDir
	ExitName    = "exit"                 // in GuestLog

	// GuestGeneration says to programs whether they continue from a snapshot: a number, a space, 32 hexadecimal digits
	// and a line feed. Both differ after each restore. It is absent while a snapshot is taken and until a restored
	// sandbox has its identity.
	GuestGeneration = "/dev/runtime/generation"
)

// HostnameFlag is the first of two arguments of an agent that only sets the host name.
const HostnameFlag = "-hostname"

// ListenFlag is the first of two arguments of an agent that listens on a TCP port
// of the loopback address, the second one, for a client outside; 0 is any port.
// Such a process is started in the sandbox like any other, and has the rights of
// its user. Its first line of output has the port and a second one, the relay. For
// each connection follows a line with a token, ListenToken characters long, and the
// port of the peer. A connection to the relay that begins with the token is that
// to the peer: what follows the token goes to the peer; what the peer sends comes
// in frames of a length, 4 bytes in big endian, and as many bytes, at most Chunk.
// Length 0 is the end of what the peer sends, after which it may still receive. A
// line of input with the token closes a connection that was not claimed. The
// process ends with its input.
const ListenFlag = "-listen"

// ListenToken is the length of a token of a listener, in bytes.
const ListenToken = 32

// VaultUID is the user and group of the agent, which own GuestDir and
// GuestLog. No other process may run as it, so that only the agent gets in.
const VaultUID = 2147483000

// Heartbeat is how often each side pings unless the node says otherwise.
const Heartbeat = 5 * time.Second

// HeartbeatMisses is after how many heartbeats without any frame a side ends
// the connection.
const HeartbeatMisses = 3

// Linger is how long a channel outlives the loss of its connection by default.
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
