package agent

import (
	"io"
	"sync"

	"miren.dev/runtime/pkg/agentproto"
)

// output is one stream of an exec, between the connection and its reader.
type output struct {
	p      *Process
	number uint8

	mu    sync.Mutex
	more  sync.Cond       // buf or err changed
	buf   agentproto.Ring // bytes that arrived and were not read
	acked int64           // offset that was acknowledged to the agent
	err   error           // offset after buf
}

func newOutput(p *Process, number uint8, offset int64) *output {
	o := &output{p: p, number: number, buf: agentproto.NewRing(offset, agentproto.OutWindow), acked: offset}
	o.more.L = &o.mu
	return o
}

func (o *output) where() agentproto.Position {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.acked = o.buf.Base()
	return agentproto.Position{Ack: o.buf.Base(), From: o.buf.End()}
}

// begin sets the offset at which the agent continues: later than requested if
// it no longer has the bytes before.
func (o *output) begin(offset int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.buf.Skip(offset)
	o.acked = max(o.acked, o.buf.Base())
}

// take adds bytes that arrived. An agent that sends more than the window, or
// out of order, is not ours.
func (o *output) take(offset int64, b []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	skip := o.buf.End() - offset
	if skip < 0 || offset+int64(len(b)) > o.buf.End()+int64(o.buf.Room()) {
		return agentproto.ErrMalformed
	}
	if o.err != nil || skip >= int64(len(b)) {
		return nil
	}
	o.buf.Add(b[skip:])
	o.more.Broadcast()
	return nil
}

// end reports whether every byte up to size has arrived.
func (o *output) end(size int64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err != nil || o.buf.End() == size
}

// fail ends the stream: with io.EOF after the bytes that have arrived,
// otherwise at once.
func (o *output) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != io.EOF {
		o.buf.Free()
	}
	if o.err == nil || err != io.EOF {
		o.err = err
	}
	o.more.Broadcast()
}

// Read reads output; io.EOF after the last byte of a process that has ended.
func (o *output) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	o.mu.Lock()
	for o.buf.Len() == 0 && o.err == nil {
		o.more.Wait()
	}
	if o.buf.Len() == 0 {
		defer o.mu.Unlock()
		return 0, o.err
	}
	n := copy(b, o.buf.At(o.buf.Base(), len(b)))
	o.buf.Drop(o.buf.Base() + int64(n))
	ack := int64(0)
	if o.err == nil && o.buf.Base()-o.acked >= agentproto.OutWindow/4 {
		o.acked = o.buf.Base()
		ack = o.acked
	}
	o.mu.Unlock()
	if ack > 0 {
		o.p.send(frame(agentproto.TAck, o.number, o.p.id, agentproto.Number(ack)))
	}
	return n, nil
}

// stdin is the input of an exec. It keeps the bytes that the process has not
// received, since another connection may have to send them again.
type stdin struct {
	p *Process

	mu      sync.Mutex
	room    sync.Cond // granted grew, or over was set
	buf     []byte    // not acknowledged
	base    int64     // offset of buf
	granted int64
	unknown bool // the agent determines base
	closed  bool // closed by its writer
	over    bool // the process reads no more
}

func newStdin(p *Process) *stdin {
	in := &stdin{p: p}
	in.room.L = &in.mu
	return in
}

// Write sends b to the process; it waits while the process does not read.
func (in *stdin) Write(b []byte) (int, error) {
	n := 0
	for n < len(b) {
		in.mu.Lock()
		for !in.over && !in.closed && in.base+int64(len(in.buf)) >= in.granted {
			in.room.Wait()
		}
		if in.over || in.closed {
			in.mu.Unlock()
			return n, io.ErrClosedPipe
		}
		at := in.base + int64(len(in.buf))
		part := b[n:min(len(b), n+agentproto.Chunk, n+int(in.granted-at))]
		in.buf = append(in.buf, part...)
		n += len(part)
		// Sent under mu, to keep the order; resume does the same for repeated
		// bytes.
		in.sendData(at, part)
		in.mu.Unlock()
	}
	return n, nil
}

func (in *stdin) sendData(at int64, b []byte) {
	in.p.send(func(f []byte) []byte {
		return agentproto.AppendData(f, agentproto.TIn, agentproto.Stdin, in.p.id, at, b)
	})
}

// Close ends the input.
func (in *stdin) Close() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed || in.over {
		return nil
	}
	in.closed = true
	in.room.Broadcast()
	in.p.send(frame(agentproto.TInEOF, 0, in.p.id, agentproto.Number(in.base+int64(len(in.buf)))))
	return nil
}

// grant sets the offset up to which the node may send, and so the bytes that
// the process has received.
func (in *stdin) grant(limit int64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.acknowledge(limit)
}

func (in *stdin) acknowledge(limit int64) {
	if limit <= in.granted {
		return
	}
	in.granted = limit
	if n := limit - agentproto.InWindow - in.base; n > 0 {
		n = min(n, int64(len(in.buf)))
		in.base += n
		in.buf = in.buf[n:]
	}
	in.room.Broadcast()
}

// resume repeats the bytes that the agent does not have.
func (in *stdin) resume(s *connection, have, limit int64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.unknown {
		in.unknown, in.base, in.granted = false, have, limit
		in.room.Broadcast()
		return
	}
	in.acknowledge(limit)
	at := max(have, in.base)
	rest := in.buf[min(at-in.base, int64(len(in.buf))):]
	for len(rest) > 0 {
		part := rest[:min(len(rest), agentproto.Chunk)]
		err := s.w.Queue(func(f []byte) []byte {
			return agentproto.AppendData(f, agentproto.TIn, agentproto.Stdin, in.p.id, at, part)
		})
		if err != nil {
			return
		}
		at += int64(len(part))
		rest = rest[len(part):]
	}
	if in.closed {
		_ = s.w.Queue(frame(agentproto.TInEOF, 0, in.p.id, agentproto.Number(in.base+int64(len(in.buf))))) // resumed again
	}
}

// fail makes writers stop.
func (in *stdin) fail() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.over, in.buf = true, nil
	in.room.Broadcast()
}
