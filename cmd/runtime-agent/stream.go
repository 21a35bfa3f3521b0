package main

import (
	"sync"

	"miren.dev/runtime/pkg/agentproto"
)

// stream is the output of an exec that the node has not acknowledged.
type stream struct {
	number uint8

	mu   sync.Mutex
	room sync.Cond // there is room, or dropped was set
	// buf begins at base. It is only appended to and cut in front, so that a
	// part of it stays as it is without mu.
	buf     []byte
	base    int64
	sent    int64 // on link
	link    *link
	ended   bool // nothing comes after buf
	dropped bool // nobody wants it
}

func newStream(number uint8) *stream {
	s := &stream{number: number}
	s.room.L = &s.mu
	return s
}

// add appends output; it waits while the window is full.
func (s *stream) add(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(b) > 0 {
		for !s.dropped && len(s.buf) >= agentproto.OutWindow {
			s.room.Wait()
		}
		if s.dropped {
			return
		}
		n := min(len(b), agentproto.OutWindow-len(s.buf))
		s.buf = append(s.buf, b[:n]...)
		b = b[n:]
	}
}

// hasRoom waits until something can be added without waiting.
func (s *stream) hasRoom() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.dropped && len(s.buf) >= agentproto.OutWindow {
		s.room.Wait()
	}
}

func (s *stream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
}

// drop forgets everything, also what is still to come.
func (s *stream) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropped, s.buf = true, nil
	s.room.Broadcast()
}

// ack forgets what is before offset.
func (s *stream) ack(offset int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(offset)
}

func (s *stream) forget(offset int64) {
	n := min(offset-s.base, int64(len(s.buf)))
	if n <= 0 {
		return
	}
	s.base += n
	if s.buf = s.buf[n:]; len(s.buf) == 0 && s.base >= agentproto.OutWindow {
		s.buf = nil // of a long stream: do not keep a large array
	}
	s.room.Signal()
}

// attach makes l the connection to send to, and returns where it begins.
func (s *stream) attach(l *link, p agentproto.Position) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dropped {
		return s.base
	}
	s.forget(p.Ack)
	s.link = l
	s.sent = min(max(p.From, s.base), s.base+int64(len(s.buf)))
	return s.sent
}

// next returns what to send on l, at most a chunk; it counts as sent then.
// Done means that everything was sent and nothing more comes.
func (s *stream) next(l *link) (b []byte, offset int64, done bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link != l || s.dropped {
		return nil, 0, false
	}
	if b = s.buf[s.sent-s.base:]; len(b) == 0 {
		return nil, s.sent, s.ended
	}
	b = b[:min(len(b), agentproto.Chunk)]
	offset = s.sent
	s.sent += int64(len(b))
	return b, offset, false
}

// size is how much output there was.
func (s *stream) size() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.base + int64(len(s.buf))
}
