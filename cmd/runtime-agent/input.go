package main

import (
	"io"
	"sync"

	"miren.dev/runtime/pkg/agentproto"
)

// input is the data that a channel gets from the node.
type input struct {
	c *channel

	mu      sync.Mutex
	more    sync.Cond       // buf, eof or dropped changed
	buf     agentproto.Ring // input that is not read yet
	acked   int64           // how much of that the node knows of
	eof     bool
	dropped bool // its reader has gone: accept and discard input

	reader   func() // reads until an error; nil before there is one
	closer   func() // called once, when the input is dropped
	lazy     bool   // an input without data needs no reader, only the closer
	running  bool   // reader was started
	batch    int    // Read waits for so many bytes, or the end: fewer switches between threads
	finished bool   // closer was called
}

func newInput(c *channel) *input {
	in := &input{c: c, buf: agentproto.NewRing(0, agentproto.InWindow)}
	in.more.L = &in.mu
	return in
}

// serve sets the user of the input. reader is started when there is something to
// read; closer makes it stop. With lazy it is not started for an empty input.
func (in *input) serve(reader, closer func(), lazy bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.reader, in.closer, in.lazy = reader, closer, lazy
	if in.dropped {
		in.finish()
		return
	}
	in.wake()
}

// direct says that a goroutine of the work reads the input already.
// Its reads wait for batch bytes, which are at most half a window.
func (in *input) direct(batch int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.reader, in.running, in.batch = func() {}, true, batch
}

// add accepts data at offset. It skips bytes that it has, and ignores data
// after a gap: after a new connection the node sends it again. It reports
// whether the node kept within the window.
func (in *input) add(offset int64, b []byte) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if offset+int64(len(b)) > in.acked+agentproto.InWindow {
		return false
	}
	skip := in.buf.End() - offset
	if skip < 0 || skip >= int64(len(b)) || in.eof {
		return true
	}
	b = b[skip:]
	if in.dropped {
		in.buf.Skip(in.buf.End() + int64(len(b)))
		in.ack()
		return true
	}
	in.buf.Add(b)
	in.wake()
	return true
}

// end marks the end of the input after the bytes before offset.
func (in *input) end(offset int64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if offset != in.buf.End() {
		return // a gap, as in add
	}
	in.eof = true
	in.wake()
}

// position returns how much has arrived and how much of it was used.
func (in *input) position() (have, used int64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.acked = in.buf.Base()
	return in.buf.End(), in.acked
}

// wake is called with mu held. The reader exists only once there is something
// to read.
func (in *input) wake() {
	switch {
	case in.reader == nil || in.dropped || in.buf.Len() == 0 && !in.eof:
	case in.running:
		if in.buf.Len() >= in.batch || in.eof {
			in.more.Signal()
		}
	case in.buf.Len() == 0 && in.lazy:
		in.dropped = true
		in.finish()
	default:
		in.running = true
		go in.reader()
	}
}

// Read waits for input. io.EOF at its end, io.ErrClosedPipe after drop.
func (in *input) Read(b []byte) (int, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for in.buf.Len() < max(1, in.batch) && !in.eof && !in.dropped {
		in.more.Wait()
	}
	switch {
	case in.dropped:
		return 0, io.ErrClosedPipe
	case in.buf.Len() == 0:
		return 0, io.EOF
	}
	n := copy(b, in.buf.At(in.buf.Base(), len(b)))
	in.buf.Drop(in.buf.Base() + int64(n))
	in.ack()
	return n, nil
}

// drop records that the reader has gone.
func (in *input) drop() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.dropped {
		return
	}
	in.dropped = true
	in.buf.Free()
	in.ack()
	in.finish()
	in.more.Signal()
}

// finish is called with mu held.
func (in *input) finish() {
	if in.closer != nil && !in.finished {
		in.finished = true
		in.closer()
	}
}

// ack is called with mu held. It lets the node send more when the increase is
// worth a frame.
func (in *input) ack() {
	if in.buf.Base()-in.acked < agentproto.InWindow/4 {
		return
	}
	in.acked = in.buf.Base()
	in.c.mu.Lock()
	l := in.c.link
	in.c.mu.Unlock()
	if l != nil {
		_ = l.w.Queue(message(agentproto.TAck, agentproto.Stdin, in.c.id, agentproto.Number(in.acked))) // Opened carries it again
	}
}
