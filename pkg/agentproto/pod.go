package agentproto

import (
	"encoding/binary"
	"io"
)

// In a pod of Kubernetes the node's socket cannot be mounted. The agent then has
// PodFlag, and prepares the container before it becomes VaultUID. The node
// executes a relay in the container (PodRelayFlag), which listens on the socket
// that the agent dials:
//
//	input   a PodFrame with the configuration, then what the agent reads
//	output  what the agent writes
//	errors  PodFrames: the log and the exit record, or why the relay ended
//
// The node ends the input once it has the exit record. The agent waits for that
// before it ends, for a while, because its log is lost with it.
const (
	// PodFlag is the first argument of the agent of a pod. PodNoNetwork may follow.
	PodFlag = "-pod"
	// PodNoNetwork removes every address but loopback before anything else runs.
	PodNoNetwork = "no-network"
	// PodRelayFlag is the first of two arguments of a relay; the second is the offset
	// in the log from which it is sent.
	PodRelayFlag = "-pod-relay"
	// PodInstallFlag is the first of two arguments of an agent that copies its program
	// into a directory, and makes the directories of GuestDir and GuestLog there.
	PodInstallFlag = "-pod-install"
	// PodRoot has GuestBinary, GuestDir and GuestLog. It is a volume of the pod.
	PodRoot = "/run/runtime"
	// ReadyName, in GuestDir, is a pipe: the agent starts when the relay has opened it.
	ReadyName = "ready"
	// ShippedName, in GuestLog, says that the node has the exit record.
	ShippedName = "shipped"
)

// Types of PodFrames.
const (
	PodConfig  = 'C' // a Config, to the relay
	PodSegment = 'S' // a segment of the log begins at Offset
	PodLog     = 'L' // records of the log at Offset
	PodExit    = 'X' // the exit record: nothing follows
	PodError   = 'E' // why the relay ended
)

// MaxPodFrame bounds the payload of a frame of the relay, in bytes.
const MaxPodFrame = 64 << 10

// PodFrame is a frame between the node and a relay:
//
//	type u8 | offset u64 | length u32 | payload      (little endian)
type PodFrame struct {
	Type    byte
	Offset  int64
	Payload []byte
}

// Append appends the frame to b.
func (f PodFrame) Append(b []byte) []byte {
	b = append(b, f.Type)
	b = binary.LittleEndian.AppendUint64(b, uint64(f.Offset))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(f.Payload)))
	return append(b, f.Payload...)
}

// ReadPodFrame reads a frame whose payload has at most limit bytes.
func ReadPodFrame(r io.Reader, limit int) (PodFrame, error) {
	var head [13]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return PodFrame{}, err
	}
	offset, n := binary.LittleEndian.Uint64(head[1:]), binary.LittleEndian.Uint32(head[9:])
	if offset > 1<<62 || uint64(n) > uint64(limit) {
		return PodFrame{}, ErrMalformed
	}
	f := PodFrame{Type: head[0], Offset: int64(offset), Payload: make([]byte, n)}
	if _, err := io.ReadFull(r, f.Payload); err != nil {
		return PodFrame{}, io.ErrUnexpectedEOF
	}
	return f, nil
}
