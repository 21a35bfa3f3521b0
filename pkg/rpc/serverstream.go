package rpc

import "context"

// serverStream is the handler's side of a call with streams.
type serverStream struct {
	*stream
	sc *serverCall
}

// Context implements Stream.
func (s *serverStream) Context() context.Context { return s.sc.traced }

// RecvMsg implements Stream.
func (s *serverStream) RecvMsg(m any) error {
	return s.receive(&s.sc.ctx, m)
}

// SendMsg implements Stream. On this side the end of the call is an error, not
// io.EOF.
func (s *serverStream) SendMsg(m any) error { return s.sendError(s.stream.SendMsg(m)) }

// Write implements Stream.
func (s *serverStream) Write(p []byte) (int, error) {
	n, err := s.stream.Write(p)
	return n, s.sendError(err)
}

func (s *serverStream) sendError(err error) error {
	if err != nil && s.sc.ctx.Err() != nil {
		return ctxError(&s.sc.ctx)
	}
	return err
}

// CloseSend implements Stream; the end of the handler is the end of the stream.
func (s *serverStream) CloseSend() error { return nil }

// Close implements Stream.
func (s *serverStream) Close() error { return nil }
