package rpc

import (
	"context"
)

// StreamType says in which directions a method streams.
type StreamType string

// Stream types.
const (
	StreamNone   StreamType = "none"
	StreamServer StreamType = "server"
	StreamClient StreamType = "client"
	StreamBidi   StreamType = "bidi"
)

// Public is the permission of methods that need no identity.
const Public = "public"

// MethodInfo describes a method, without its types.
type MethodInfo struct {
	Service    string // "sandbox.Sandboxes"
	Name       string // "Stop"
	Full       string // "sandbox.Sandboxes/Stop", as sent in CALL
	Permission string // "public", "read", ...
	Project    ProjectRule
	Idempotent bool // carrying it out twice has the same effect as once
	Stream     StreamType
	Audit      bool // it changes something: its calls are recorded
}

// Decoder gives a handler its request.
type Decoder interface {
	// Decode fills v, and calls its Validate method if it has one.
	Decode(v any) error
}

// Method is one method with its handler; exactly one of Unary and Streaming is set.
// It is generated.
type Method struct {
	MethodInfo
	// Target finds a request's reference to its project; set with
	// ProjectRequest.
	Target func(req any) Target
	// Subject finds what a request changes; nil if it does not say.
	Subject   func(req any) Subject
	Unary     func(ctx context.Context, impl any, req Decoder) (any, error)
	Streaming func(ctx context.Context, impl any, req Decoder, s Stream) error
}

// Service is a service with its methods. It is generated.
type Service struct {
	Name    string
	Methods []*Method
}

// Conn is the connection through which generated clients call. Client
// implements it.
type Conn interface {
	// Call makes a call without streams. Its errors are of package errs and
	// have an outcome (OutcomeOf).
	Call(ctx context.Context, m *MethodInfo, req, resp any) error
	// Open makes a call with streams. It does not wait for the server. The
	// stream must be closed, or ctx ended.
	Open(ctx context.Context, m *MethodInfo, req any) (Stream, error)
}

// Stream is one side of an open call. One goroutine may send while another
// receives; Close may be called by any.
type Stream interface {
	// Context ends with the call.
	Context() context.Context
	// SendMsg sends a message, waiting while the peer is slow. After the peer
	// has ended the call it returns io.EOF, and RecvMsg returns the reason.
	SendMsg(m any) error
	// RecvMsg waits for a message. It returns io.EOF after the last one.
	RecvMsg(m any) error
	// Write sends, and Read receives, raw bytes. A method that declares bytes in a
	// direction uses these, the others use messages.
	Write(p []byte) (int, error)
	Read(p []byte) (int, error)
	// CloseSend says that nothing more is sent.
	CloseSend() error
	// Close ends the call if it has not ended, telling the peer.
	Close() error
}
