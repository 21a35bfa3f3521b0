package main

import (
	"slices"
	"sync"

	"miren.dev/runtime/pkg/agentproto"
)

// stream is the output of a channel that the node has not acknowledged, or, if
// it is lossy, the end of all of its output.
type stream struct {
	number uint8
	lossy  bool // new output takes the place of the oldest, so that it never waits
	// announced: the node hears of the end of the stream before that of the
	// channel.
	announced bool

	mu      sync.Mutex
	room    sync.Cond // there is room, or dropped was set
	buf     agentproto.Ring
	acked   int64 // the node has used the bytes before
	sent    int64 // offset after what was sent on link
	link    *link
	ended   bool  // no data follows buf
	dropped bool  // its reader has gone
	told    *link // the connection on which the end was announced
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
		if missing := len(b) - s.buf.Room(); s.lossy && missing > 0 {
			s.buf.Drop(s.buf.Base() + int64(missing))
		}
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
	for !s.dropped && !s.lossy && s.buf.Room() < agentproto.Chunk {
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

// isDropped reports that output is discarded.
func (s *stream) isDropped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dropped
}

// ack says that the node has used the output before offset. It reports whether
// there may be more to send.
func (s *stream) ack(offset int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acked = max(s.acked, min(offset, s.sent))
	if s.lossy {
		return true
	}
	if s.buf.Drop(s.acked) {
		s.room.Signal()
	}
	return false
}

// attach makes l the connection to send on, and returns the offset at which
// sending begins.
func (s *stream) attach(l *link, p agentproto.Position) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dropped {
		return s.buf.End()
	}
	if !s.lossy && s.buf.Drop(p.Ack) {
		s.room.Signal()
	}
	s.link, s.told = l, nil
	s.sent = min(max(p.From, s.buf.Base()), s.buf.End())
	s.acked = min(p.Ack, s.sent)
	if s.sent != p.From { // the node begins there too
		s.acked = s.sent
	}
	return s.sent
}

// batch is how much of a stream is sent in one write, in bytes: few system
// calls for much data.
const batch = 4 * agentproto.Chunk

// next returns the data to send on l, at most a batch, and counts it as sent.
// The data stays unchanged until it is acknowledged. end reports that no data
// follows it.
func (s *stream) next(l *link) (b []byte, offset int64, end bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link != l || s.dropped {
		return nil, 0, false
	}
	offset = s.sent
	if s.buf.Base() > s.sent { // output was lost: begin anew when the node has used almost everything
		if s.acked <= s.sent-agentproto.OutWindow/4 {
			return nil, 0, false
		}
		offset = s.buf.Base()
		s.acked = offset
	}
	if room := s.acked + agentproto.OutWindow - offset; room > 0 {
		b = s.buf.At(offset, int(min(room, batch)))
	}
	if s.lossy {
		b = slices.Clone(b) // it may make room for new output meanwhile
	}
	if len(b) > 0 {
		s.sent = offset + int64(len(b))
	}
	return b, offset, s.ended && s.sent == s.buf.End()
}

// announce reports that the end is to be announced on l, once.
func (s *stream) announce(l *link) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.announced || s.told == l {
		return false
	}
	s.told = l
	return true
}

// size returns how many bytes the output had.
func (s *stream) size() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.End()
}
