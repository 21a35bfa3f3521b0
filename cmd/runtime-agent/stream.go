package main

import (
	"sync"

	"miren.dev/runtime/pkg/agentproto"
)

// stream is the output of an exec that the node has not acknowledged.
type stream struct {
	number uint8

	mu      sync.Mutex
	room    sync.Cond // there is room, or dropped was set
	buf     agentproto.Ring
	sent    int64 // part of buf sent on link
	link    *link
	ended   bool // no data follows buf
	dropped bool // no reader is left
}

func newStream(number uint8) *stream {
	s := &stream{number: number, buf: agentproto.NewRing(0, agentproto.OutWindow)}
	s.room.L = &s.mu
	return s
}

// add appends output; it waits while the window is full.
func (s *stream) add(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(b) > 0 {
		for !s.dropped && s.buf.Room() == 0 {
			s.room.Wait()
		}
		if s.dropped {
			return
		}
		b = b[s.buf.Add(b):]
	}
}

// hasRoom waits until a whole chunk can be added without waiting.
func (s *stream) hasRoom() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.dropped && s.buf.Room() < agentproto.Chunk {
		s.room.Wait()
	}
}

func (s *stream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
}

// drop discards the output, also later output.
func (s *stream) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropped = true
	s.buf.Free()
	s.room.Broadcast()
}

// ack discards the output before offset.
func (s *stream) ack(offset int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.buf.Drop(min(offset, s.sent)) {
		s.room.Signal()
	}
}

// attach makes l the connection to send on, and returns the offset at which
// sending begins.
func (s *stream) attach(l *link, p agentproto.Position) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dropped {
		return s.buf.End()
	}
	if s.buf.Drop(p.Ack) {
		s.room.Signal()
	}
	s.link = l
	s.sent = min(max(p.From, s.buf.Base()), s.buf.End())
	return s.sent
}

// next returns the data to send on l, at most a chunk, and counts it as sent.
// The data stays unchanged until it is acknowledged. done reports that
// everything was sent and no data follows.
func (s *stream) next(l *link) (b []byte, offset int64, done bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link != l || s.dropped {
		return nil, 0, false
	}
	b, offset = s.buf.At(s.sent, agentproto.Chunk), s.sent
	s.sent += int64(len(b))
	return b, offset, len(b) == 0 && s.ended
}

// size returns how many bytes the output had.
func (s *stream) size() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.End()
}
