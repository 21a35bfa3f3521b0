package rpc

import (
	"context"
	"io"
	"sync"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/trace"
)

type ctxKey uint8

const (
	keyRequestID ctxKey = iota
	keyTrace
	keyIdempotent
	keyCall
)

// WithRequestID gives the calls made with ctx a request id (at most 255
// bytes). Without it each gets one of its own.
func WithRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, keyRequestID, cut(id, 252))
}

// WithTrace gives the calls made with ctx a trace context (W3C traceparent).
// The context of a handler carries the trace context of its caller.
func WithTrace(ctx context.Context, traceparent string) context.Context {
	return context.WithValue(ctx, keyTrace, cut(traceparent, 252))
}

// WithIdempotent marks the calls made with ctx as safe to repeat, even if the
// interface does not mark the method.
func WithIdempotent(ctx context.Context) context.Context {
	return context.WithValue(ctx, keyIdempotent, true)
}

// RequestID returns the request id of ctx; in a handler, the id of its call.
func RequestID(ctx context.Context) string {
	s, _ := ctx.Value(keyRequestID).(string)
	return s
}

// Trace returns the trace context of ctx: that of its span, or the one given by
// WithTrace or received from the caller.
func Trace(ctx context.Context) string {
	if parent := trace.Parent(ctx); parent != "" {
		return parent
	}
	s, _ := ctx.Value(keyTrace).(string)
	return s
}

// unaryStreams holds streams of calls that ended with a REPLY, for reuse. Only
// the caller and the reader held them, and the reader no longer uses them.
var unaryStreams = sync.Pool{New: func() any {
	return &stream{notify: make(chan struct{}, 1), sendReady: make(chan struct{}, 1)}
}}

// maxInline is the largest body that travels inside CALL or REPLY, in bytes.
const maxInline = chunkLen

// start begins a call: it sends CALL with as much of the request as fits.
func (c *conn) start(ctx context.Context, st *stream, m *MethodInfo, requestID string, b *buffer) error {
	h := callHeader{method: m.Full}
	if d, ok := ctx.Deadline(); ok {
		if h.timeout = time.Until(d).Microseconds(); h.timeout <= 0 {
			return withOutcome(errs.New(errs.DeadlineExceeded, "the deadline passed: %w", context.DeadlineExceeded), NotStarted)
		}
	}
	h.requestID, h.trace = requestID, Trace(ctx)
	var hb [maxCallHeader]byte
	head := appendCallHeader(hb[:0], &h)
	f := header{typ: frameCall, length: len(head) + len(b.b)}
	body := b.b
	if len(body) > maxInline {
		if int64(len(body)) > c.peer.maxMessage {
			return withOutcome(errs.New(errs.ResourceExhausted, "the request of %d bytes is larger than the server's limit of %d", len(body), c.peer.maxMessage), NotStarted)
		}
		f.flags, f.length, body = flagBody, len(head), nil
	}
	st.c = c
	st.q.reset(int64(c.lim.StreamWindow))
	c.mu.Lock()
	for c.err == nil && !c.draining && int64(len(c.streams)) >= c.peer.maxCalls {
		slot := make(chan struct{})
		c.slots = append(c.slots, slot)
		c.mu.Unlock()
		select {
		case <-slot:
		case <-ctx.Done():
			c.mu.Lock()
			if !removeSlot(c, slot) && len(c.slots) > 0 { // pass the turn to the next call
				close(c.slots[0])
				c.slots = c.slots[1:]
			}
			c.mu.Unlock()
			return withOutcome(ctxError(ctx), NotStarted)
		}
		c.mu.Lock()
	}
	defer c.mu.Unlock()
	if c.err != nil {
		return withOutcome(c.err, NotStarted)
	}
	if c.draining {
		return withOutcome(errShutdown, NotStarted)
	}
	st.credit, st.off = c.peer.streamWindow, c.appended
	c.lastID += 2
	st.id, f.id = c.lastID, c.lastID
	c.streams[st.id] = st
	c.appendLocked(f, head, body)
	if m.Stream == StreamNone && f.flags&flagBody == 0 {
		c.pushLocked()
	} else {
		c.leaveLocked()
	}
	return nil
}

func removeSlot(c *conn, slot chan struct{}) bool {
	for i, s := range c.slots {
		if s == slot {
			c.slots = append(c.slots[:i], c.slots[i+1:]...)
			return true
		}
	}
	return false
}

// call makes a call without streams.
func (c *conn) call(ctx context.Context, m *MethodInfo, requestID string, req, resp any) error {
	b := getBuffer()
	defer putBuffer(b)
	if err := b.encode(req); err != nil {
		return withOutcome(err, NotStarted)
	}
	st := unaryStreams.Get().(*stream)
	st.clear()
	if err := c.start(ctx, st, m, requestID, b); err != nil {
		return err
	}
	reuse := len(b.b) <= maxInline
	if !reuse {
		stop := context.AfterFunc(ctx, func() { st.cancel(ctx) })
		err := st.sendMessage(b.b)
		stop()
		if err != nil && err != io.EOF {
			st.cancelWith(withOutcome(err, Unknown))
		}
	}
	if done := ctx.Done(); done == nil {
		<-st.notify
	} else {
		select {
		case <-st.notify:
		case <-done:
			reuse = false
			st.cancel(ctx)
			<-st.notify // of the cancellation, or of a reply that came before it
		}
	}
	reply, flags, replied, end := st.outcome()
	switch {
	case replied && flags&(flagError|flagBody) == 0:
		if reuse {
			unaryStreams.Put(st)
		}
		err := decode(reply.b, resp)
		putBuffer(reply)
		return withOutcome(err, Failed)
	case end != nil && end != io.EOF:
		return end
	}
	return withOutcome(st.longReply(ctx, resp), Unknown)
}

// longReply receives a reply that comes in DATA frames.
func (st *stream) longReply(ctx context.Context, resp any) error {
	stop := context.AfterFunc(ctx, func() { st.cancel(ctx) })
	defer stop()
	err := st.message(ctx, func(p []byte) error { return decode(p, resp) })
	if err == nil {
		if _, _, err = st.next(); err == io.EOF {
			return nil
		}
	}
	if err == nil || err == io.EOF {
		err = protocolError("a reply that is not one message")
	}
	st.cancelWith(withOutcome(err, Unknown))
	st.c.giveBack(st.q.drop())
	return err
}

func (st *stream) outcome() (reply *buffer, flags uint8, replied bool, end error) {
	st.q.mu.Lock()
	defer st.q.mu.Unlock()
	reply, st.reply = st.reply, nil
	return reply, st.replyFlags, st.replied, st.q.end
}

// clear prepares a pooled stream for reuse.
func (st *stream) clear() {
	st.replied, st.reply, st.replyFlags = false, nil, 0
	st.ended, st.starving, st.inBulk, st.sentEnd, st.read = false, false, false, false, nil
	drain(st.notify)
	drain(st.sendReady)
}

func drain(ch chan struct{}) {
	select {
	case <-ch:
	default:
	}
}

// cancel ends the call from the caller's side because ctx ended.
func (st *stream) cancel(ctx context.Context) {
	st.cancelWith(withOutcome(ctxError(ctx), Unknown))
}

// cancelWith ends the call from the caller's side, unless it has ended.
func (st *stream) cancelWith(err error) {
	c := st.c
	c.mu.Lock()
	open := c.streams[st.id] == st
	if open {
		c.removeLocked(st)
		c.appendLocked(header{typ: frameCancel, id: st.id}, nil, nil)
		c.leaveLocked()
		c.hangUpLocked()
	}
	wake(st.sendReady)
	c.mu.Unlock()
	if open {
		st.q.finish(err, true)
		wake(st.notify)
		c.giveBack(st.q.drop())
	}
}

// clientStream is a stream that this side opened.
type clientStream struct {
	*stream
	ctx  context.Context
	stop func() bool
}

// open makes a call with streams.
func (c *conn) open(ctx context.Context, m *MethodInfo, requestID string, req any) (Stream, error) {
	b := getBuffer()
	defer putBuffer(b)
	if err := b.encode(req); err != nil {
		return nil, withOutcome(err, NotStarted)
	}
	st := &stream{notify: make(chan struct{}, 1), sendReady: make(chan struct{}, 1)}
	if err := c.start(ctx, st, m, requestID, b); err != nil {
		return nil, err
	}
	cs := &clientStream{stream: st, ctx: ctx}
	cs.stop = context.AfterFunc(ctx, func() { st.cancel(ctx) })
	if len(b.b) > maxInline {
		if err := st.sendMessage(b.b); err != nil && err != io.EOF {
			_ = cs.Close()
			return nil, withOutcome(err, Unknown)
		}
	}
	return cs, nil
}

// Context implements Stream.
func (s *clientStream) Context() context.Context { return s.ctx }

// RecvMsg implements Stream.
func (s *clientStream) RecvMsg(m any) error {
	return s.receive(s.ctx, m)
}

// CloseSend implements Stream.
func (s *clientStream) CloseSend() error { return s.endSend() }

// Close implements Stream.
func (s *clientStream) Close() error {
	s.stop()
	s.cancelWith(withOutcome(errClosed, Unknown))
	s.c.giveBack(s.q.drop())
	return nil
}
