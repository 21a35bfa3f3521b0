package quicsocket

import (
	"bytes"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
	"golang.org/x/net/ipv4"
)

// Handover has the parts with which a process takes a socket over.
type Handover struct {
	Generation byte     // of the predecessor
	Secret     Secret   // of the predecessor
	Link       *os.File // to the predecessor; New closes it
}

// Socket is a UDP socket with QUIC. Its methods may be called at the same time.
type Socket struct {
	*net.UDPConn
	batch     *ipv4.PacketConn
	gen       *generator
	keys      keys
	secret    Secret
	forwarded func(taken bool)
	buf       []byte // for packets that are forwarded; used by ReadBatch

	down  *link         // to the predecessor; nil: there is none
	ready chan struct{} // closed when the predecessor does not read the socket
	ask   sync.Once     // the predecessor was asked for it
	gone  atomic.Bool   // the predecessor is gone

	waiting chan packet   // that the successor sent
	closed  chan struct{} // closed by Close
	readers sync.WaitGroup

	mu        sync.Mutex
	started   bool
	stopped   bool          // the transport stopped reading
	reader    *link         // the successor that reads the socket; nil: this process does
	further   bool          // the successor gave the socket to the next one
	changed   chan struct{} // closed when one of these changes
	idle      chan struct{} // closed when ReadBatch has left the socket; nil: it need not
	inBatch   bool          // ReadBatch reads the socket
	successor map[*link]struct{}
}

// New returns the socket of a process. It is not read before Start. from is that of the
// predecessor; nil: there is none. forwarded is called for each packet that is sent to the
// predecessor, and hears whether it was lost; nil: not needed.
func New(conn *net.UDPConn, secret Secret, from *Handover, forwarded func(taken bool)) (*Socket, error) {
	if forwarded == nil {
		forwarded = func(bool) {}
	}
	s := &Socket{UDPConn: conn, batch: ipv4.NewPacketConn(conn), forwarded: forwarded, buf: make([]byte, 0, maxMessage), ready: make(chan struct{}), waiting: make(chan packet, maxWaiting),
		closed: make(chan struct{}), changed: make(chan struct{}), successor: map[*link]struct{}{}}
	// After a process that was killed, the generation should be another.
	s.gen = &generator{generation: NewSecret()[0]}
	if from != nil {
		secret, s.gen.generation = from.Secret, from.Generation+1
	}
	var err error
	if s.keys, err = secret.keys(); err != nil {
		return nil, err
	}
	s.gen.key, s.secret = s.keys.id, secret
	if from == nil {
		s.gone.Store(true)
		close(s.ready)
		return s, nil
	}
	if s.down, err = newLink(from.Link); err != nil {
		return nil, err
	}
	s.readers.Go(s.followPredecessor)
	return s, nil
}

// Transport returns a transport for the socket. Its owner closes it before the socket.
func (s *Socket) Transport() *quic.Transport {
	return &quic.Transport{Conn: s, ConnectionIDGenerator: s.gen, StatelessResetKey: &s.keys.reset, TokenGeneratorKey: &s.keys.token}
}

// HandOver returns the Handover for a successor, which also gets the socket. The caller closes the
// link when the successor has it.
func (s *Socket) HandOver() (*Handover, error) {
	l, other, err := newPair()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.closed:
		l.conn.Close()
		other.Close()
		return nil, net.ErrClosed
	default:
	}
	s.successor[l] = struct{}{}
	s.readers.Go(func() { s.followSuccessor(l) })
	return &Handover{s.gen.generation, s.secret, other}, nil
}

// HandedOver reports whether a successor reads the socket, so that no new connections
// come here.
func (s *Socket) HandedOver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reader != nil
}

// HasSuccessor reports whether another process has the socket, and may read it.
func (s *Socket) HasSuccessor() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.successor) > 0
}

// Start has this process read the socket. The predecessor stops before.
func (s *Socket) Start() {
	s.askPredecessor()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.started = true
	s.change()
}

// Close ends the links and this process's use of the socket.
func (s *Socket) Close() error {
	s.mu.Lock()
	select {
	case <-s.closed:
	default:
		close(s.closed)
	}
	for l := range s.successor {
		l.conn.Close()
	}
	s.mu.Unlock()
	if s.down != nil {
		s.down.conn.Close()
	}
	err := s.UDPConn.Close()
	s.readers.Wait()
	return err
}

// change wakes those that wait for a change. s.mu is held.
func (s *Socket) change() {
	close(s.changed)
	s.changed = make(chan struct{})
	s.deadline()
}

// deadline ends or permits reads of the socket. s.mu is held.
func (s *Socket) deadline() {
	var at time.Time
	if !s.reads() {
		at = time.Unix(1, 0)
	}
	_ = s.UDPConn.SetReadDeadline(at)
}

// reads reports whether this process reads the socket. s.mu is held.
func (s *Socket) reads() bool { return s.started && s.reader == nil && !s.stopped }

// SetReadDeadline has ReadBatch end, which is what a transport uses it for. t is zero or
// past.
func (s *Socket) SetReadDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = !t.IsZero()
	s.change()
	return nil
}

// ReadBatch returns packets of this process's connections, and those that begin new ones.
// A message of length 0 is to be ignored. Only the transport calls it.
func (s *Socket) ReadBatch(ms []ipv4.Message, flags int) (int, error) {
	for {
		s.mu.Lock()
		stopped, reads, changed := s.stopped, s.reads(), s.changed
		s.inBatch = reads
		if !reads && s.idle != nil {
			close(s.idle)
			s.idle = nil
		}
		s.mu.Unlock()
		if stopped {
			return 0, os.ErrDeadlineExceeded
		}
		if reads {
			n, err := s.batch.ReadBatch(ms, flags)
			if n > 0 {
				s.sort(ms[:n])
				return n, nil
			}
			if err != nil && !os.IsTimeout(err) {
				return 0, err
			}
			continue
		}
		select {
		case p := <-s.waiting:
			p.fill(&ms[0])
			return 1, nil
		case <-changed:
		case <-s.closed:
			return 0, net.ErrClosed
		}
	}
}

// sort sends packets of others to the predecessor, and empties them here.
func (s *Socket) sort(ms []ipv4.Message) {
	if s.gone.Load() {
		return
	}
	for i := range ms {
		if m := &ms[i]; s.gen.foreign(m.Buffers[0][:m.N]) && !s.gone.Load() {
			s.forwarded(s.down.forward(m, s.buf))
			m.N, m.NN = 0, 0
		}
	}
}

// askPredecessor waits until the predecessor does not read the socket, for at most
// linkTimeout.
func (s *Socket) askPredecessor() {
	if s.down == nil {
		return
	}
	s.ask.Do(func() { s.down.say(kindServe) })
	select {
	case <-s.ready:
	case <-s.closed:
	case <-time.After(linkTimeout):
	}
}

// followPredecessor reads the messages of the predecessor until it is gone.
func (s *Socket) followPredecessor() {
	ready := sync.OnceFunc(func() { close(s.ready) })
	defer ready()
	defer s.gone.Store(true)
	defer s.down.conn.Close()
	buf := make([]byte, maxMessage)
	for {
		n, err := s.down.conn.Read(buf)
		if err != nil {
			return
		}
		if n > 0 && buf[0] == kindReady {
			ready()
		}
	}
}

// followSuccessor handles the messages of a successor until it is gone.
func (s *Socket) followSuccessor(l *link) {
	defer s.release(l)
	buf := make([]byte, maxMessage)
	for {
		n, err := l.conn.Read(buf)
		if err != nil {
			return
		}
		if n == 0 {
			continue
		}
		switch buf[0] {
		case kindServe:
			s.yield(l)
			l.say(kindReady)
		case kindNext:
			s.mu.Lock()
			s.further = true
			s.mu.Unlock()
		case kindPacket:
			s.take(buf[:n])
		}
	}
}

// take handles a packet that a successor sent.
func (s *Socket) take(message []byte) {
	p, err := parsePacket(message)
	if err != nil {
		return
	}
	if !s.gone.Load() && s.gen.foreign(p.data) {
		m := ipv4.Message{Addr: p.from, OOB: p.control, NN: len(p.control), Buffers: [][]byte{p.data}, N: len(p.data)}
		s.forwarded(s.down.forward(&m, make([]byte, 0, maxMessage)))
		return
	}
	p.control, p.data = bytes.Clone(p.control), bytes.Clone(p.data)
	select {
	case s.waiting <- p:
	default: // lost, as in the network
	}
}

// yield has a successor read the socket, and returns when this process does not.
func (s *Socket) yield(l *link) {
	s.askPredecessor() // which reads it if this process has not begun to
	s.mu.Lock()
	s.reader = l
	var idle chan struct{}
	if s.inBatch {
		if s.idle == nil {
			s.idle = make(chan struct{})
		}
		idle = s.idle
	}
	s.change()
	s.mu.Unlock()
	if s.down != nil {
		s.down.say(kindNext)
	}
	if idle == nil {
		return
	}
	select {
	case <-idle:
	case <-s.closed:
	case <-time.After(linkTimeout):
	}
}

// release forgets a successor that is gone. This process reads the socket again, if that one did
// and has given it to no other.
func (s *Socket) release(l *link) {
	l.conn.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.successor, l)
	if s.reader == l && !s.further {
		s.reader = nil
		s.change()
	}
}
