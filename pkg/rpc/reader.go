package rpc

import (
	"encoding/binary"
	"io"

	"miren.dev/runtime/pkg/errs"
)

// read handles frames until the connection ends.
func (c *conn) read() error {
	for {
		h, p, err := c.rd.next()
		if err != nil {
			return err
		}
		c.heard.Store(true)
		switch h.typ {
		case frameCall:
			err = c.readCall(h, p)
		case frameReply:
			err = c.readReply(h, p)
		case frameData:
			err = c.readData(h, p)
		case frameCancel:
			err = c.readCancel(h)
		case frameWindow:
			err = c.readWindow(h, p)
		case framePing:
			err = c.readPing(h, p)
		case frameGoAway:
			err = c.readGoAway(h)
		default:
			if h.flags&flagOptional == 0 {
				err = protocolError("frame of unknown type %d", h.typ)
			}
		}
		if err != nil {
			return err
		}
	}
}

// unknownID checks the id of a frame for a call that is not open: such a call
// must have existed. c.mu is held.
func (c *conn) unknownIDLocked(id uint64) error {
	if id%2 == 0 || id > c.lastID {
		return protocolError("a frame for call %d, which was never made", id)
	}
	return nil
}

func (c *conn) readData(h header, p []byte) error {
	cost := int64(headerLen + len(p))
	c.mu.Lock()
	if c.recvAvail -= cost; c.recvAvail < 0 {
		c.mu.Unlock()
		return protocolError("the peer sent more than the window of the connection")
	}
	st := c.streams[h.id]
	if st == nil {
		err := c.unknownIDLocked(h.id)
		c.giveBackLocked(cost)
		c.mu.Unlock()
		return err
	}
	c.mu.Unlock()
	awake, dropped, err := st.q.push(h.flags, p)
	if err != nil {
		return err
	}
	if dropped {
		c.giveBack(cost)
	}
	if awake || c.dialed {
		wake(st.notify)
	}
	return nil
}

func (c *conn) readWindow(h header, p []byte) error {
	if len(p) != 4 {
		return protocolError("malformed WINDOW")
	}
	n := int64(binary.BigEndian.Uint32(p))
	c.mu.Lock()
	defer c.mu.Unlock()
	if h.id != 0 {
		if st := c.streams[h.id]; st != nil {
			return st.windowLocked(n)
		}
		return c.unknownIDLocked(h.id)
	}
	if c.sendCredit += n; c.sendCredit > 1<<40 {
		return protocolError("the send window of the connection overflowed")
	}
	for _, st := range c.starved {
		wake(st.sendReady)
	}
	c.starved = nil
	return nil
}

func (c *conn) readPing(h header, p []byte) error {
	if len(p) != 8 {
		return protocolError("malformed PING")
	}
	if h.flags&flagAck != 0 {
		c.pong(p)
	} else {
		c.control(header{typ: framePing, flags: flagAck, length: 8}, p)
	}
	return nil
}

// readReply ends a call made here.
func (c *conn) readReply(h header, p []byte) error {
	if !c.dialed {
		return protocolError("REPLY from a caller")
	}
	c.mu.Lock()
	st := c.streams[h.id]
	if st == nil {
		err := c.unknownIDLocked(h.id)
		c.mu.Unlock()
		return err
	}
	c.removeLocked(st)
	wake(st.sendReady)
	c.hangUpLocked()
	c.mu.Unlock()

	end, reply := error(io.EOF), (*buffer)(nil)
	switch {
	case h.flags&flagError != 0:
		end = parseError(p)
	case h.flags&flagBody == 0:
		reply = getBuffer()
		reply.b = append(reply.b, p...)
	}
	st.q.mu.Lock()
	st.replied, st.reply, st.replyFlags = true, reply, h.flags
	if st.q.end == nil || st.q.end == io.EOF {
		st.q.end = end
	}
	st.q.waiting = false
	wake(st.notify)
	st.q.mu.Unlock() // from here on the caller may use st for another call
	return nil
}

func (c *conn) readGoAway(h header) error {
	if !c.dialed {
		return protocolError("GOAWAY from a caller")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.draining = true
	c.wakeSlotsLocked()
	defer c.hangUpLocked()
	for id, st := range c.streams {
		if id > h.id {
			c.removeLocked(st)
			st.failLocked(withOutcome(errShutdown, NotStarted))
		}
	}
	return nil
}

// hangUpLocked ends a connection to a server that is shutting down, once no
// call is under way.
func (c *conn) hangUpLocked() {
	if c.draining && len(c.streams) == 0 {
		c.failLocked(errShutdown)
	}
}

func (c *conn) readCancel(h header) error {
	if c.dialed {
		return protocolError("CANCEL from the server")
	}
	c.mu.Lock()
	st := c.streams[h.id]
	if st == nil {
		err := c.unknownIDLocked(h.id)
		c.mu.Unlock()
		return err
	}
	st.failLocked(errs.New(errs.Canceled, "the caller gave up"))
	c.mu.Unlock()
	c.giveBack(st.q.drop())
	return nil
}

// readCall accepts a call.
func (c *conn) readCall(h header, p []byte) error {
	if c.dialed {
		return protocolError("CALL from the server")
	}
	head, body, ok := parseCallHeader(p)
	if !ok {
		return protocolError("malformed CALL")
	}
	if h.flags&flagBody != 0 && len(body) > 0 {
		return protocolError("CALL with two bodies")
	}
	st := &stream{c: c, id: h.id, notify: make(chan struct{}, 1), sendReady: make(chan struct{}, 1)}
	st.q.reset(int64(c.lim.StreamWindow))
	c.mu.Lock()
	if h.id%2 == 0 || h.id <= c.lastID {
		c.mu.Unlock()
		return protocolError("CALL with id %d after %d", h.id, c.lastID)
	}
	var refused error
	switch {
	case c.draining:
		refused = errShutdown
	case len(c.streams) >= c.lim.MaxCalls:
		refused = errs.New(errs.ResourceExhausted, "more than %d calls on one connection", c.lim.MaxCalls).
			WithHint("wait for the earlier ones").With(detailRefused, "calls")
	}
	c.lastID = h.id
	if refused != nil {
		b := getBuffer()
		appendError(b, refused, NotStarted)
		c.appendLocked(header{typ: frameReply, flags: flagError, length: len(b.b), id: h.id}, b.b, nil)
		c.leaveLocked()
		putBuffer(b)
		c.mu.Unlock()
		return nil
	}
	st.credit = c.peer.streamWindow
	c.streams[h.id] = st
	c.mu.Unlock()
	c.onCall(st, head, h.flags, body)
	return nil
}
