package rpc

import (
	"context"
	"io"
)

// Bytes is the message type of streams of raw bytes: the boundaries between
// messages have no meaning.
type Bytes []byte

// None is the message type of a direction without messages, and of requests and
// responses without content.
type None struct{}

// ServerStream is a handler's side of a stream: it receives In and sends Out.
// One goroutine may send while another receives.
type ServerStream[In, Out any] interface {
	Context() context.Context
	// Send waits while the caller is slow.
	Send(m *Out) error
	// Recv returns io.EOF after the caller's last message.
	Recv() (*In, error)
	// Reader and Writer are for streams of Bytes.
	Reader() io.Reader
	Writer() io.Writer
}

// ClientStream is a caller's side of a stream: it sends In and receives Out.
// It must be closed, or its context ended.
type ClientStream[In, Out any] interface {
	Context() context.Context
	// Send waits while the server is slow. It returns io.EOF when the call has
	// ended; Recv returns the reason.
	Send(m *In) error
	// CloseSend says that nothing more is sent.
	CloseSend() error
	// Recv returns io.EOF when the handler has returned without an error.
	Recv() (*Out, error)
	// Close ends the call if it has not ended.
	Close() error
	// Reader and Writer are for streams of Bytes.
	Reader() io.Reader
	Writer() io.Writer
}

type serverTyped[In, Out any] struct{ Stream }

// NewServerStream gives types to s; generated code calls it.
func NewServerStream[In, Out any](s Stream) ServerStream[In, Out] { return serverTyped[In, Out]{s} }

func (t serverTyped[In, Out]) Send(m *Out) error { return t.SendMsg(m) }
func (t serverTyped[In, Out]) Recv() (*In, error) {
	m := new(In)
	if err := t.RecvMsg(m); err != nil {
		return nil, err
	}
	if v, ok := any(m).(interface{ Validate() error }); ok {
		if err := v.Validate(); err != nil {
			return nil, err
		}
	}
	return m, nil
}
func (t serverTyped[In, Out]) Reader() io.Reader { return t.Stream }
func (t serverTyped[In, Out]) Writer() io.Writer { return t.Stream }

type clientTyped[In, Out any] struct{ Stream }

// NewClientStream gives types to s; generated code calls it.
func NewClientStream[In, Out any](s Stream) ClientStream[In, Out] { return clientTyped[In, Out]{s} }

func (t clientTyped[In, Out]) Send(m *In) error { return t.SendMsg(m) }
func (t clientTyped[In, Out]) Recv() (*Out, error) {
	m := new(Out)
	if err := t.RecvMsg(m); err != nil {
		return nil, err
	}
	return m, nil
}
func (t clientTyped[In, Out]) Reader() io.Reader { return t.Stream }
func (t clientTyped[In, Out]) Writer() io.Writer { return t.Stream }
