package agent

import (
	"context"
	"crypto/subtle"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"miren.dev/runtime/pkg/agentproto"
	"miren.dev/runtime/pkg/errs"
)

// handshakeWithin bounds the time from accept to Hello.
const handshakeWithin = 10 * time.Second

// maxHandshakes is how many connections may be in the handshake at a time.
const maxHandshakes = 4

// connection is one connection of an agent.
type connection struct {
	c     *Conn
	boot  uint64
	conn  net.Conn
	w     *agentproto.Writer
	r     *agentproto.Reader
	heard atomic.Int64 // when the last frame came, unix nanoseconds
	done  chan struct{}

	mu    sync.Mutex
	last  uint64 // by id of the request
	calls map[uint64]chan agentproto.Reply
	over  bool
}

// timedConn fails a write of which its peer reads nothing for some time. An agent can send heartbeats and read nothing;
// without the bound every caller would wait for it, whatever the caller's context says.
type timedConn struct {
	net.Conn
	limit time.Duration
}

// writePart is how much of a write the peer must read within the limit, in bytes.
const writePart = 64 << 10

func (c timedConn) Write(b []byte) (n int, err error) {
	for part := range slices.Chunk(b, writePart) {
		if err := c.SetWriteDeadline(time.Now().Add(c.limit)); err != nil {
			return n, err
		}
		m, err := c.Conn.Write(part)
		if n += m; err != nil {
			return n, err
		}
	}
	return n, nil
}

// greet performs the handshake; it returns the connection and the state of the
// main process.
func greet(c *Conn, nc net.Conn) (*connection, agentproto.Main, error) {
	_ = nc.SetDeadline(time.Now().Add(handshakeWithin)) // if this fails, so does the next read
	s := &connection{
		c: c, conn: nc, w: agentproto.NewWriter(timedConn{nc, c.hub.c.Heartbeat * agentproto.HeartbeatMisses}), r: agentproto.NewReader(nc, agentproto.MaxFromAgent),
		done: make(chan struct{}), calls: map[uint64]chan agentproto.Reply{},
	}
	f, err := s.r.Read()
	if err != nil {
		return nil, agentproto.Main{}, err
	}
	hello, err := agentproto.DecodeHello(f.Payload)
	if err != nil || f.Type != agentproto.THello {
		return nil, agentproto.Main{}, agentproto.ErrMalformed
	}
	welcome := agentproto.Welcome{Time: time.Now().UnixNano(), Heartbeat: int64(c.hub.c.Heartbeat)}
	welcome.Version = min(hello.MaxVersion, agentproto.MaxVersion)
	switch {
	case subtle.ConstantTimeCompare([]byte(hello.Token), []byte(c.token)) != 1:
		welcome.Refused = "wrong token"
	case welcome.Version < max(hello.MinVersion, agentproto.MinVersion):
		welcome.Refused = fmt.Sprintf("the node speaks versions %d to %d", agentproto.MinVersion, agentproto.MaxVersion)
	}
	if err := s.w.Send(frame(agentproto.TWelcome, 0, 0, welcome)); err != nil {
		return nil, agentproto.Main{}, err
	}
	if welcome.Refused != "" {
		return nil, agentproto.Main{}, errs.New(errs.Unauthenticated, "refused an agent: %s", welcome.Refused)
	}
	_ = nc.SetDeadline(time.Time{})
	s.boot = hello.Boot
	s.heard.Store(time.Now().UnixNano())
	return s, hello.Main, nil
}

// serve reads frames until the connection is lost. It must not block: see
// agentproto.Writer.
func (s *connection) serve() error {
	stop := make(chan struct{})
	var beat sync.WaitGroup
	beat.Go(func() { s.heartbeat(stop) })
	defer beat.Wait()
	defer close(stop)
	defer s.close()
	for {
		f, err := s.r.Read()
		if err != nil {
			return err
		}
		s.heard.Store(time.Now().UnixNano())
		if err := s.handle(f); err != nil {
			return fmt.Errorf("frame of type %d: %w", f.Type, err)
		}
	}
}

func (s *connection) handle(f agentproto.Frame) error {
	switch f.Type {
	case agentproto.TPing:
		return s.w.Queue(frame(agentproto.TPong, 0, f.ID, agentproto.Number(time.Now().UnixNano())))
	case agentproto.TMain:
		m, err := agentproto.DecodeMain(f.Payload)
		if err != nil {
			return err
		}
		s.c.setMain(m)
	case agentproto.TReply:
		m, err := agentproto.DecodeReply(f.Payload)
		if err != nil {
			return err
		}
		s.answer(f.ID, m)
	case agentproto.TRefused:
		m, err := agentproto.DecodeFailure(f.Payload)
		if err != nil {
			return err
		}
		if m.Kind == agentproto.OK { // never a success, whatever the agent sent
			m.Kind = agentproto.Unsupported
		}
		if ch := s.c.channel(f.ID); ch != nil {
			s.c.forget(ch)
			ch.fail(failure(m))
			return nil
		}
		s.answer(f.ID, agentproto.Reply{Failure: m})
	case agentproto.TPong:
	case agentproto.TOpened, agentproto.TData, agentproto.TAck, agentproto.TEnd, agentproto.TDone:
		if ch := s.c.channel(f.ID); ch != nil { // otherwise it was closed
			return ch.handle(s, f)
		}
	default:
		return s.w.Queue(frame(agentproto.TRefused, 0, f.ID, agentproto.Refuse(f.Type)))
	}
	return nil
}

// answer passes the reply of a request to its caller, unless the caller gave
// up.
func (s *connection) answer(id uint64, m agentproto.Reply) {
	s.mu.Lock()
	reply := s.calls[id]
	delete(s.calls, id)
	s.mu.Unlock()
	if reply != nil {
		reply <- m
	}
}

// call sends a request and waits for the reply.
func (s *connection) call(ctx context.Context, t agentproto.Type, m appender) (agentproto.Reply, error) {
	reply := make(chan agentproto.Reply, 1)
	s.mu.Lock()
	s.last++
	id := s.last
	s.calls[id] = reply
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.calls, id)
		s.mu.Unlock()
	}()
	if err := s.w.Send(frame(t, 0, id, m)); err != nil {
		return agentproto.Reply{}, errs.New(errs.Unavailable, "the agent of %s was lost: %w", s.c.id, err)
	}
	select {
	case r := <-reply:
		return r, nil
	case <-s.done:
		select {
		case r := <-reply: // its last report
			return r, nil
		default:
		}
		return agentproto.Reply{}, errs.New(errs.Unavailable, "the agent of %s was lost", s.c.id)
	case <-ctx.Done():
		return agentproto.Reply{}, errs.Wrap(ctx.Err(), "wait for the agent of %s", s.c.id)
	}
}

// heartbeat pings, and ends a connection whose agent is silent.
func (s *connection) heartbeat(stop <-chan struct{}) {
	every := s.c.hub.c.Heartbeat
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-stop:
			return
		case <-t.C:
		}
		now := time.Now().UnixNano()
		if now-s.heard.Load() > int64(every)*agentproto.HeartbeatMisses {
			s.c.hub.c.Logger.Warn("agent is silent", "sandbox", s.c.id)
			s.close()
			return
		}
		if s.w.Queue(frame(agentproto.TPing, 0, 0, agentproto.Number(now))) != nil {
			return
		}
	}
}

func (s *connection) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.over = true
		close(s.done)
		s.w.Close()
	}
}

type appender interface{ Append([]byte) []byte }

// frame returns the arguments with which a Writer sends m, or an empty frame
// for nil.
func frame(t agentproto.Type, stream uint8, id uint64, m appender) func([]byte) []byte {
	var p []byte
	if m != nil {
		p = m.Append(nil)
	}
	return func(b []byte) []byte {
		return agentproto.AppendFrame(b, agentproto.Frame{Type: t, Stream: stream, ID: id, Payload: p})
	}
}
