package agent

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"io"
	"sync"

	"miren.dev/runtime/pkg/agentproto"
	"miren.dev/runtime/pkg/errs"
)

// channel is one piece of work of the agent, with streams in both directions.
type channel struct {
	c    *Conn
	id   uint64
	life agentproto.Lifetime
	out  *output
	err  *output
	in   *input

	mu     sync.Mutex
	opened chan struct{} // closed when the agent has answered, or over is set
	ended  chan struct{} // closed when over is set
	begun  bool          // opened is closed
	stale  bool          // frames are for the caller before, until the agent has answered
	over   bool          // ended is closed
	info   []byte        // of the answer
	result []byte        // if it ended without failure
	failed error
}

func newChannel(c *Conn, id uint64, life agentproto.Lifetime, stdout, stderr int64) *channel {
	ch := &channel{c: c, id: id, life: life, opened: make(chan struct{}), ended: make(chan struct{})}
	ch.out = newOutput(ch, agentproto.Stdout, stdout)
	ch.err = newOutput(ch, agentproto.Stderr, stderr)
	ch.in = newInput(ch)
	return ch
}

// open opens a channel and waits until the agent has begun the work, or for its
// end.
func (c *Conn) open(ctx context.Context, m agentproto.Open) (*channel, error) {
	payload := m.Append(nil)
	if len(payload) > agentproto.MaxFromNode {
		return nil, errs.New(errs.InvalidArgument, "the request has %d bytes, which is more than %d", len(payload), agentproto.MaxFromNode)
	}
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	ch := newChannel(c, binary.LittleEndian.Uint64(id[:]), m.Lifetime, 0, 0)
	ctx, span := c.span(ctx, "agent open")
	err := ch.begin(ctx, agentproto.TOpen, raw(payload))
	span.End(err)
	if err != nil {
		return nil, err
	}
	return ch, nil
}

// attach continues a channel of an earlier hub, or takes it from its present
// caller. Output is read from the given offsets, or from where the agent still has
// it. NotFound if the agent does not know the channel (any more).
func (c *Conn) attach(ctx context.Context, id uint64, stdout, stderr int64) (*channel, error) {
	if stdout < 0 || stderr < 0 {
		return nil, errs.New(errs.InvalidArgument, "negative offset")
	}
	if old := c.channel(id); old != nil {
		c.forget(old)
		old.fail(errs.New(errs.Canceled, "another caller continues the process"))
	}
	ch := newChannel(c, id, agentproto.LifeDetached, stdout, stderr)
	ch.in.unknown, ch.stale = true, true
	if err := ch.begin(ctx, agentproto.TResume, ch.where()); err != nil {
		return nil, err
	}
	return ch, nil
}

// request opens a channel whose work is short, and returns its result.
func (c *Conn) request(ctx context.Context, kind agentproto.Kind, params appender) ([]byte, error) {
	m := agentproto.Open{Kind: kind}
	if params != nil {
		m.Params = params.Append(nil)
	}
	ch, err := c.open(ctx, m)
	if err != nil {
		return nil, err
	}
	return ch.wait(ctx)
}

// wait waits for the end of the channel and returns its result. It closes the
// channel when ctx ends before.
func (ch *channel) wait(ctx context.Context) ([]byte, error) {
	select {
	case <-ch.ended:
	case <-ctx.Done():
		ch.close()
		return nil, errs.Wrap(ctx.Err(), "wait for the agent of %s", ch.c.id)
	}
	return ch.outcome()
}

// outcome returns the result of a channel that has ended.
func (ch *channel) outcome() ([]byte, error) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	return ch.result, ch.failed
}

type raw []byte

func (r raw) Append(b []byte) []byte { return append(b, r...) }

// begin sends the first frame and waits for the answer.
func (ch *channel) begin(ctx context.Context, t agentproto.Type, m appender) error {
	c := ch.c
	c.mu.Lock()
	s := c.connection
	if s == nil {
		c.mu.Unlock()
		return errs.New(errs.Unavailable, "the agent of sandbox %s is not connected", c.id)
	}
	c.channels[ch.id] = ch
	c.mu.Unlock()
	_ = s.w.Send(frame(t, 0, ch.id, m)) // if the connection is lost, the next one asks for it
	select {
	case <-ch.opened:
	case <-ctx.Done():
		ch.close()
		return errs.Wrap(ctx.Err(), "wait for the agent of %s", c.id)
	}
	ch.mu.Lock()
	defer ch.mu.Unlock()
	return ch.failed
}

// where returns the offsets up to which output has been read and has arrived.
func (ch *channel) where() agentproto.Resume {
	return agentproto.Resume{Out: ch.out.where(), Err: ch.err.where()}
}

// resume continues the channel on a new connection.
func (ch *channel) resume(s *connection) {
	_ = s.w.Send(frame(agentproto.TResume, 0, ch.id, ch.where())) // the next connection repeats it
}

// send sends a frame on the present connection, if there is one.
func (ch *channel) send(add func([]byte) []byte) {
	if s, err := ch.c.current(); err == nil {
		_ = s.w.Send(add) // resume repeats the frames that matter
	}
}

// handle handles a frame of the agent; an error ends the connection.
func (ch *channel) handle(s *connection, f agentproto.Frame) error {
	ch.mu.Lock()
	stale := ch.stale
	ch.mu.Unlock()
	if stale && f.Type != agentproto.TOpened && f.Type != agentproto.TDone {
		return nil
	}
	switch f.Type {
	case agentproto.TData:
		at, b, err := f.Data()
		if err != nil {
			return err
		}
		return ch.stream(f.Stream).take(at, b)
	case agentproto.TAck:
		n, err := agentproto.DecodeNumber(f.Payload)
		if err != nil {
			return err
		}
		ch.in.ack(n)
	case agentproto.TEnd:
		n, err := agentproto.DecodeNumber(f.Payload)
		if err != nil || !ch.stream(f.Stream).end(n) {
			return agentproto.ErrMalformed
		}
		ch.stream(f.Stream).fail(io.EOF)
	case agentproto.TOpened:
		m, err := agentproto.DecodeOpened(f.Payload)
		if err != nil {
			return err
		}
		ch.hasOpened(s, m)
	case agentproto.TDone:
		m, err := agentproto.DecodeDone(f.Payload)
		if err != nil {
			return err
		}
		if stale && m.Kind != agentproto.Lost {
			return nil
		}
		return ch.hasEnded(s, m)
	}
	return nil
}

func (ch *channel) stream(n uint8) *output {
	if n == agentproto.Stderr {
		return ch.err
	}
	return ch.out
}

func (ch *channel) hasOpened(s *connection, m agentproto.Opened) {
	if m.Waiting {
		return // another follows
	}
	ch.out.begin(m.Out)
	ch.err.begin(m.Err)
	ch.in.resume(s, m.In, m.InAck) // before the caller may write
	ch.mu.Lock()
	first := !ch.begun
	ch.stale = false
	if first {
		ch.begun, ch.info = true, append([]byte(nil), m.Info...)
		close(ch.opened)
	}
	ch.mu.Unlock()
}

func (ch *channel) hasEnded(s *connection, m agentproto.Done) error {
	err := failure(m.Failure)
	ch.mu.Lock()
	begun := ch.begun
	ch.mu.Unlock()
	if begun && m.Kind == agentproto.Lost {
		err = errs.New(errs.Unavailable, "sandbox %s has lost the work", ch.c.id)
	} else if err == nil && (!ch.out.end(m.Out) || !ch.err.end(m.Err)) {
		return agentproto.ErrMalformed
	}
	ch.finish(err, append([]byte(nil), m.Result...))
	if ch.life == agentproto.LifeDetached && err == nil {
		return nil // until close
	}
	ch.c.forget(ch)
	if ch.life != agentproto.LifeLinger {
		return nil // the agent has forgotten it
	}
	return s.w.Queue(frame(agentproto.TClose, 0, ch.id, nil))
}

// fail ends the channel for its users.
func (ch *channel) fail(err error) { ch.finish(err, nil) }

func (ch *channel) finish(err error, result []byte) {
	ch.mu.Lock()
	if ch.over {
		ch.mu.Unlock()
		return
	}
	ch.over, ch.failed, ch.result = true, err, result
	if !ch.begun {
		ch.begun = true
		close(ch.opened)
	}
	close(ch.ended)
	ch.mu.Unlock()
	if err == nil {
		err = io.EOF
	}
	ch.out.fail(err)
	ch.err.fail(err)
	ch.in.fail()
}

// close ends the work and forgets the channel.
func (ch *channel) close() {
	if ch.c.channel(ch.id) == ch {
		ch.c.forget(ch)
		ch.send(frame(agentproto.TClose, 0, ch.id, nil)) // otherwise the agent ends it some time later
	}
	ch.fail(errs.New(errs.Canceled, "it was closed"))
}

// detach leaves the work as it is and forgets the channel here.
func (ch *channel) detach() {
	ch.c.forget(ch)
	ch.fail(errs.New(errs.Canceled, "it was detached"))
}
