package rpc

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"miren.dev/runtime/pkg/errs"
)

// stream is one call on a connection, of either side, with or without streams.
type stream struct {
	c   *conn
	id  uint64
	off int64 // position of its CALL frame in the bytes written to the connection

	notify chan struct{} // wakes the consumer of q, and the caller that waits for the reply
	q      queue

	// For calls made here; guarded by q.mu.
	replied    bool
	reply      *buffer
	replyFlags uint8

	// Guarded by c.mu.
	credit    int64 // bytes that may be sent
	grown     int64 // bytes taken from c.growth
	ended     bool  // the call is over: nothing more is sent
	starving  bool  // waits for credit
	inBulk    bool  // in c.bulk
	sendReady chan struct{}
	sentEnd   bool

	sendMu sync.Mutex // held while one message is sent
	read   []byte     // rest of the frame that Read is returning
	serve  *serverCall
}

// failLocked ends the call because of its connection. c.mu is held.
func (st *stream) failLocked(err error) {
	st.ended = true
	wake(st.sendReady)
	if st.serve != nil {
		st.serve.cancel(context.Canceled, err)
		st.q.finish(err, true)
	} else {
		st.q.finish(err, false)
	}
	wake(st.notify)
}

// window adds credit. c.mu is held.
func (st *stream) windowLocked(n int64) error {
	if st.credit += n; st.credit > 1<<40 {
		return protocolError("a send window overflowed")
	}
	if st.starving {
		st.starving = false
		wake(st.sendReady)
	}
	return nil
}

// sendFrame sends one DATA frame of prefix and as much of p as fits, waiting
// for windows and for room. all says that p must not be split (it fits).
func (st *stream) sendFrame(flags uint8, prefix, p []byte) (int, error) {
	c := st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	waited := false
	for {
		if st.ended || st.sentEnd {
			if !st.leaveBulkLocked() && waited {
				c.wakeBulkLocked(1) // pass the turn to the next stream
			}
			return 0, io.EOF
		}
		least := int64(headerLen + len(prefix) + min(len(p), minChunk))
		switch {
		case st.credit < least:
			st.starving = true
			if waited {
				c.wakeBulkLocked(1)
			}
		case c.sendCredit < least:
			c.starved = append(c.starved, st)
			if waited {
				c.wakeBulkLocked(1)
			}
		case len(c.wbuf) >= bulkHigh || (!waited && len(c.bulk) > 0 && len(p) > 0):
			if !st.inBulk {
				st.inBulk = true
				c.bulk = append(c.bulk, st)
			}
		default:
			st.leaveBulkLocked()
			room := min(int64(chunkLen), st.credit, c.sendCredit) - int64(headerLen+len(prefix))
			if n := int64(len(p)); n > room {
				p = p[:room]
			} else {
				flags &^= flagMore
			}
			h := header{typ: frameData, flags: flags, length: len(prefix) + len(p), id: st.id}
			cost := int64(headerLen + h.length)
			st.credit -= cost
			c.sendCredit -= cost
			c.appendLocked(h, prefix, p)
			if flags&flagEnd != 0 {
				st.sentEnd = true
			}
			c.leaveLocked()
			return len(p), nil
		}
		c.mu.Unlock()
		<-st.sendReady
		c.mu.Lock()
		waited = true
	}
}

// leaveBulkLocked takes st out of the line; false if it was not in it.
func (st *stream) leaveBulkLocked() bool {
	if !st.inBulk {
		return false
	}
	st.inBulk = false
	st.c.bulk = slices.DeleteFunc(st.c.bulk, func(o *stream) bool { return o == st })
	return true
}

// sendMessage sends p as one message.
func (st *stream) sendMessage(p []byte) error {
	if int64(len(p)) > st.c.peer.maxMessage {
		return errs.New(errs.ResourceExhausted, "a message of %d bytes is larger than the peer's limit of %d", len(p), st.c.peer.maxMessage)
	}
	st.sendMu.Lock()
	defer st.sendMu.Unlock()
	var prefix [4]byte
	flags, pre := uint8(flagMore), []byte(nil)
	if len(p)+headerLen > minChunk {
		// The message may be split, by size or by a small window.
		binary.BigEndian.PutUint32(prefix[:], uint32(len(p)))
		flags, pre = flagMore|flagLarge, prefix[:]
	}
	for {
		n, err := st.sendFrame(flags, pre, p)
		if err != nil {
			return err
		}
		if p = p[n:]; len(p) == 0 {
			return nil
		}
		flags, pre = flagMore, nil
	}
}

// next returns the next frame, valid until the next call of next.
func (st *stream) next() (flags uint8, p []byte, err error) {
	for {
		st.refill()
		var ok bool
		if flags, p, ok, err = st.q.take(); err != nil {
			st.c.giveBack(st.q.settle())
			return 0, nil, err
		} else if ok {
			return flags, p, nil
		}
		<-st.notify
	}
}

// refill gives windows back when the consumer has read enough.
func (st *stream) refill() {
	credit, back := st.q.refill(int64(st.c.lim.MaxStreamWindow), time.Duration(st.c.rtt.Load()), st.growWindow)
	if credit == 0 {
		return
	}
	c := st.c
	c.mu.Lock()
	if !st.ended {
		c.windowLocked(st.id, credit)
		c.leaveLocked()
	}
	c.giveBackLocked(back)
	c.mu.Unlock()
}

// message receives a whole message and calls f with it; f must not keep it.
func (st *stream) message(ctx context.Context, f func(p []byte) error) error {
	flags, p, err := st.next()
	if err != nil {
		return err
	}
	if flags&flagEnd != 0 && len(p) == 0 {
		return st.endOfStream()
	}
	if flags&flagLarge == 0 {
		return f(p)
	}
	if len(p) < 4 {
		return protocolError("a large message without its length")
	}
	total := int(binary.BigEndian.Uint32(p))
	p = p[4:]
	if flags&flagMore == 0 {
		if len(p) != total {
			return protocolError("a message of another length than announced")
		}
		return f(p)
	}
	if err := st.c.acquireAssembly(ctx, total); err != nil {
		return err
	}
	defer st.c.assembly.Release(int64(total))
	// Allocate by the bytes that arrive, not by the announced length.
	b := append(make([]byte, 0, min(total, 2*chunkLen)), p...)
	for more := true; more; {
		if flags, p, err = st.next(); err != nil {
			return unexpectedEnd(err)
		}
		if len(b)+len(p) > total {
			return protocolError("a message longer than announced")
		}
		b = append(b, p...)
		more = flags&flagMore != 0
	}
	if len(b) != total {
		return protocolError("a message shorter than announced")
	}
	return f(b)
}

func unexpectedEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return errs.New(errs.Unavailable, "the stream ended within a message: %w", io.ErrUnexpectedEOF)
	}
	return err
}

// endOfStream returns why the stream ended after its END frame was read.
func (st *stream) endOfStream() error {
	_, _, err := st.next()
	if err == nil {
		return protocolError("data after the end of a stream")
	}
	return err
}

// receive receives a message into m.
func (st *stream) receive(ctx context.Context, m any) error {
	if b, ok := m.(*Bytes); ok {
		return st.recvBytes(b)
	}
	return st.message(ctx, func(p []byte) error { return decode(p, m) })
}

func (st *stream) recvBytes(b *Bytes) error {
	p, err := st.bytes()
	if err != nil {
		return err
	}
	*b = append((*b)[:0], p...)
	return nil
}

// bytes returns the next raw bytes, valid until the next call.
func (st *stream) bytes() ([]byte, error) {
	for {
		flags, p, err := st.next()
		if err != nil {
			return nil, err
		}
		if len(p) > 0 {
			return p, nil
		}
		if flags&flagEnd != 0 {
			return nil, st.endOfStream()
		}
	}
}

// Read implements Stream.
func (st *stream) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if len(st.read) == 0 {
		b, err := st.bytes()
		if err != nil {
			return 0, err
		}
		st.read = b
	}
	n := copy(p, st.read)
	st.read = st.read[n:]
	return n, nil
}

// SendMsg implements Stream.
func (st *stream) SendMsg(m any) error {
	if b, ok := m.(*Bytes); ok {
		_, err := st.Write(*b)
		return err
	}
	b := getBuffer()
	defer putBuffer(b)
	if err := b.encode(m); err != nil {
		return err
	}
	return st.sendMessage(b.b)
}

// Write implements Stream.
func (st *stream) Write(p []byte) (int, error) {
	st.sendMu.Lock()
	defer st.sendMu.Unlock()
	sent := 0
	for sent < len(p) {
		n, err := st.sendFrame(0, nil, p[sent:])
		sent += n
		if err != nil {
			return sent, err
		}
	}
	return sent, nil
}

// endSend sends END.
func (st *stream) endSend() error {
	st.sendMu.Lock()
	defer st.sendMu.Unlock()
	if _, err := st.sendFrame(flagEnd, nil, nil); err != nil && err != io.EOF {
		return err
	}
	return nil
}
