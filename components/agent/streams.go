package agent

import (
	"io"
	"os"
	"sync"
	"time"

	"miren.dev/runtime/pkg/agentproto"
)

// output is one stream of a channel, between the connection and its reader.
type output struct {
	ch     *channel
	number uint8

	mu    sync.Mutex
	more  sync.Cond       // buf or err changed
	buf   agentproto.Ring // bytes that arrived and were not read
	acked int64           // offset that was acknowledged to the agent
	err   error           // what follows buf
	limit deadline        // of Read
}

func newOutput(ch *channel, number uint8, offset int64) *output {
	o := &output{ch: ch, number: number, buf: agentproto.NewRing(offset, agentproto.OutWindow), acked: offset}
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
	if o.buf.End() < offset {
		o.jump(offset)
		o.acked = offset
	}
}

// offset returns the offset of the next byte that is read.
func (o *output) offset() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Base()
}

// jump leaves out the bytes before offset, which the agent no longer has, and
// those before them that were not read, so that the rest has no gap. It is
// called with mu held.
func (o *output) jump(offset int64) {
	o.buf.Free()
	o.buf.Skip(offset)
}

// take adds bytes that arrived. An agent that sends more than the window, or
// out of order, is not ours.
func (o *output) take(offset int64, b []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ch.life == agentproto.LifeDetached && offset > o.buf.End() {
		o.jump(offset)
	}
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
	for o.buf.Len() == 0 && o.err == nil && !o.limit.passed {
		o.more.Wait()
	}
	if o.buf.Len() == 0 && o.err == nil {
		defer o.mu.Unlock()
		return 0, os.ErrDeadlineExceeded
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
		o.ch.send(frame(agentproto.TAck, o.number, o.ch.id, agentproto.Number(ack)))
	}
	return n, nil
}

// setDeadline ends reads that wait at t; the zero time is none.
func (o *output) setDeadline(t time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.limit.reset(t, &o.mu, o.more.Broadcast)
}
