package agent

import (
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"miren.dev/runtime/pkg/agentproto"
)

// input is the stream of a channel to the agent. It keeps the bytes that the
// agent has not used, since another connection may have to send them again.
type input struct {
	ch *channel

	mu      sync.Mutex
	room    sync.Cond       // buf has room, or closed or over was set
	buf     agentproto.Ring // bytes that the agent has not used
	unknown bool            // the agent says where the input stands
	closed  bool            // closed by its writer
	over    bool            // the agent reads no more
	limit   deadline        // of Write
}

func newInput(ch *channel) *input {
	in := &input{ch: ch, buf: agentproto.NewRing(0, agentproto.InWindow)}
	in.room.L = &in.mu
	return in
}

// Write sends b; it waits while the agent does not read.
func (in *input) Write(b []byte) (int, error) {
	n := 0
	for n < len(b) {
		in.mu.Lock()
		for !in.over && !in.closed && !in.limit.passed && in.buf.Room() == 0 {
			in.room.Wait()
		}
		if in.limit.passed {
			in.mu.Unlock()
			return n, os.ErrDeadlineExceeded
		}
		if in.over || in.closed {
			in.mu.Unlock()
			return n, io.ErrClosedPipe
		}
		at := in.buf.End()
		part := b[n:min(len(b), n+in.buf.Room())]
		in.buf.Add(part)
		n += len(part)
		// Sent under mu, to keep the order; resume does the same for repeated
		// bytes. One write has all frames.
		in.ch.send(func(f []byte) []byte {
			for data := range slices.Chunk(part, agentproto.Chunk) {
				f = agentproto.AppendData(f, agentproto.TData, agentproto.Stdin, in.ch.id, at, data)
				at += int64(len(data))
			}
			return f
		})
		in.mu.Unlock()
	}
	return n, nil
}

// Close ends the input.
func (in *input) Close() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed || in.over {
		return nil
	}
	in.closed = true
	in.room.Broadcast()
	in.ch.send(frame(agentproto.TEnd, 0, in.ch.id, agentproto.Number(in.buf.End())))
	return nil
}

// setDeadline ends writes at t; the zero time is none.
func (in *input) setDeadline(t time.Time) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.limit.reset(t, &in.mu, in.room.Broadcast)
}

// ack drops the bytes that the agent has used.
func (in *input) ack(used int64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.acknowledge(used)
}

// acknowledge is called with mu held.
func (in *input) acknowledge(used int64) {
	if !in.buf.Drop(used) {
		return
	}
	if in.buf.Len() == 0 {
		in.buf.Free()
	}
	in.room.Broadcast()
}

// resume repeats the bytes that the agent does not have.
func (in *input) resume(s *connection, have, used int64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.unknown {
		in.unknown = false
		in.buf.Skip(have)
		return
	}
	in.acknowledge(used)
	at := max(have, in.buf.Base())
	for part := in.buf.At(at, agentproto.Chunk); len(part) > 0; part = in.buf.At(at, agentproto.Chunk) {
		err := s.w.Queue(func(f []byte) []byte {
			return agentproto.AppendData(f, agentproto.TData, agentproto.Stdin, in.ch.id, at, part)
		})
		if err != nil {
			return
		}
		at += int64(len(part))
	}
	if in.closed {
		_ = s.w.Queue(frame(agentproto.TEnd, 0, in.ch.id, agentproto.Number(in.buf.End()))) // resumed again
	}
}

// fail makes writers stop.
func (in *input) fail() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.over = true
	in.buf.Free()
	in.room.Broadcast()
}
