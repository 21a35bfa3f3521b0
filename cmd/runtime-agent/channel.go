package main

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"miren.dev/runtime/pkg/agentproto"
)

// channel is one piece of work for the node, with streams in both directions.
// It outlives the connection on which it was opened, if its lifetime says so.
type channel struct {
	id     uint64
	agent  *agent
	life   agentproto.Lifetime
	linger time.Duration
	out    *stream
	err    *stream
	in     *input
	work   worker // set before the channel is in the table
	quiet  bool   // it is the node's own, and no use of the sandbox

	// sendMu keeps output in order, and Done behind it.
	sendMu sync.Mutex

	mu       sync.Mutex
	link     *link // the connection to which it is attached
	greeted  *link // the connection on which Opened was sent
	told     *link // the connection on which Done was sent
	opened   bool
	info     []byte      // of Opened
	late     *time.Timer // sends Opened when no output comes
	done     *agentproto.Done
	endedAt  time.Time
	closed   bool        // the node and the sandbox have ended it
	lingerer *time.Timer // closes it when the node does not attach
}

// worker is the work of a channel, which ends by calling channel.finish.
type worker interface {
	// control takes a message of the node. It must not block.
	control(n uint8, payload []byte) error
	// stop ends the work. It is called at most once, and must not block.
	stop()
}

// openAfter is how long Opened may wait for output to be sent with.
const openAfter = 10 * time.Millisecond

// Bounds of detached channels that have ended.
const (
	keepEnded = 64
	keepFor   = time.Hour
)

// open handles a request of the node. The connection's reader calls it, so it
// does not wait.
func (a *agent) open(l *link, id uint64, m agentproto.Open) error {
	c := &channel{id: id, agent: a, life: m.Lifetime, linger: agentproto.Linger, link: l, out: newStream(agentproto.Stdout), err: newStream(agentproto.Stderr)}
	if m.Linger > 0 {
		c.linger = time.Duration(m.Linger)
	}
	c.in = newInput(c)
	c.out.lossy, c.err.lossy = c.life == agentproto.LifeDetached, c.life == agentproto.LifeDetached
	c.out.attach(l, agentproto.Position{})
	c.err.attach(l, agentproto.Position{})
	begin, err := a.begin(c, m)
	if err != nil {
		return err
	}
	f := agentproto.Failure{Kind: agentproto.Unsupported, Message: fmt.Sprintf("channels of kind %d are not known here", m.Kind)}
	if begin != nil {
		f = a.channels.add(c)
	}
	if f.Kind != agentproto.OK {
		return l.w.Queue(message(agentproto.TDone, 0, id, agentproto.Done{Failure: f}))
	}
	c.used()
	begin()
	return nil
}

// used records a use of the sandbox.
func (c *channel) used() {
	if !c.quiet {
		c.agent.lastUsed.Store(int64(time.Since(c.agent.began)))
	}
}

// begin prepares the work of a channel and returns what begins it; nil for a
// kind that is not known. An error is for a malformed message.
func (a *agent) begin(c *channel, m agentproto.Open) (func(), error) {
	switch m.Kind {
	case agentproto.KindProcess:
		p, err := agentproto.DecodeProcess(m.Params)
		if err != nil {
			return nil, err
		}
		return newProcess(c, p).begin, nil
	case agentproto.KindDial:
		d, err := agentproto.DecodeDial(m.Params)
		if err != nil {
			return nil, err
		}
		p := &port{c: c, m: d}
		c.work, c.out.announced = p, true
		c.err.end()
		return p.begin, nil
	case agentproto.KindRead:
		r, err := agentproto.DecodeFileRead(m.Params)
		r.Path = a.absolute(r.Path)
		c.work = fileWork{c}
		c.err.end()
		return func() { go a.readFile(c, r) }, err
	case agentproto.KindWrite:
		w, err := agentproto.DecodeFileWrite(m.Params)
		w.Path = a.absolute(w.Path)
		c.work = fileWork{c}
		c.out.end()
		c.err.end()
		return func() { go a.writeFile(c, w) }, err
	case agentproto.KindArchive, agentproto.KindExtract:
		o, err := a.decodeFileOp(m.Params)
		c.work = fileWork{c}
		c.err.end()
		if m.Kind == agentproto.KindArchive {
			return func() { go a.archive(c, o) }, err
		}
		c.out.end()
		return func() { go a.extract(c, o) }, err
	case agentproto.KindWatch:
		o, err := a.decodeFileOp(m.Params)
		if err != nil {
			return nil, err
		}
		c.err.end()
		w, err := newWatch(a, c, o)
		if err != nil {
			c.work = fileWork{c}
			return func() { c.fail(failed(o.Path, err)) }, nil
		}
		c.work = w
		return func() { go w.run() }, nil
	case agentproto.KindFile:
		o, err := a.decodeFileOp(m.Params)
		o.Value = slices.Clone(o.Value) // of the connection's buffer
		return c.answer(func() (d agentproto.Done) {
			f := a.asUser(o.View, func() agentproto.Failure { d = fileOp(c, o); return agentproto.Failure{} })
			if f.Kind != agentproto.OK {
				d.Failure = f
			}
			return d
		}), err
	case agentproto.KindActivity:
		c.quiet = true
		return c.answer(func() agentproto.Done { return agentproto.Done{Result: a.activity().Append(nil)} }), nil
	case agentproto.KindWarm:
		c.quiet = true
		return newWarmUp(c), nil
	case agentproto.KindProcesses:
		c.quiet = true
		return c.answer(func() agentproto.Done { return agentproto.Done{Result: a.processes().Append(nil)} }), nil
	}
	return nil, nil
}

// answer makes c a channel without streams, which only has a result.
func (c *channel) answer(compute func() agentproto.Done) func() {
	c.work = noWork{}
	c.out.end()
	c.err.end()
	return func() { go func() { c.finish(compute()) }() }
}

// noWork is work that is short.
type noWork struct{}

func (noWork) control(uint8, []byte) error { return nil }
func (noWork) stop()                       {}

// handle takes a frame for this channel.
func (c *channel) handle(f agentproto.Frame) error {
	switch f.Type {
	case agentproto.TData:
		c.used()
		at, b, err := f.Data()
		if err != nil || !c.in.add(at, b) {
			return agentproto.ErrMalformed
		}
		return nil
	case agentproto.TControl:
		return c.work.control(f.Stream, f.Payload)
	case agentproto.TClose:
		c.close()
		return nil
	}
	n, err := agentproto.DecodeNumber(f.Payload)
	if err != nil {
		return err
	}
	if f.Type == agentproto.TEnd {
		c.in.end(n)
		return nil
	}
	s := c.out
	if f.Stream == agentproto.Stderr {
		s = c.err
	}
	if s.ack(n) {
		go c.flush()
	}
	return nil
}

// ready records that the work has begun. With wait the node hears of it
// together with the first output.
func (c *channel) ready(info []byte, wait bool) {
	c.mu.Lock()
	c.opened, c.info = true, info
	if wait && c.link != nil {
		c.late = time.AfterFunc(openAfter, c.flush)
	}
	c.mu.Unlock()
	if !wait {
		c.flush()
	}
}

// flush sends what the node does not have yet: that the channel is open, its
// output, its end. One write has all pending frames.
func (c *channel) flush() {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	for {
		c.mu.Lock()
		l, done := c.link, c.done
		greet := l != nil && c.greeted != l && c.opened
		if l == nil || !greet && c.greeted != l && done == nil {
			c.mu.Unlock()
			return
		}
		if greet {
			c.greeted = l
			if c.late != nil {
				c.late.Stop()
				c.late = nil
			}
		}
		o, told := agentproto.Opened{Info: c.info}, c.told == l
		c.mu.Unlock()
		if greet {
			o.In, o.InAck = c.in.position()
		}
		out, outAt, outEnd := c.out.next(l)
		errs, errAt, errEnd := c.err.next(l)
		tell := done != nil && outEnd && errEnd && !told
		announce := outEnd && c.out.announce(l)
		if !greet && !tell && !announce && len(out) == 0 && len(errs) == 0 {
			return
		}
		if len(out)+len(errs) > 0 {
			c.used()
		}
		if tell {
			c.mu.Lock()
			c.told = l
			c.mu.Unlock()
		}
		err := l.w.Send(func(p []byte) []byte {
			if greet {
				p = message(agentproto.TOpened, 0, c.id, o)(p)
			}
			p = appendChunks(p, agentproto.Stdout, c.id, outAt, out)
			p = appendChunks(p, agentproto.Stderr, c.id, errAt, errs)
			if announce {
				p = message(agentproto.TEnd, agentproto.Stdout, c.id, agentproto.Number(c.out.size()))(p)
			}
			if tell {
				d := *done
				d.Out, d.Err = c.out.size(), c.err.size()
				p = message(agentproto.TDone, 0, c.id, d)(p)
			}
			return p
		})
		if err != nil {
			return // it is sent again on the next connection
		}
		if tell && c.life == agentproto.LifeOnce {
			c.forget()
			return
		}
	}
}

// appendChunks appends the frames of b.
func appendChunks(p []byte, stream uint8, id uint64, at int64, b []byte) []byte {
	for part := range slices.Chunk(b, agentproto.Chunk) {
		p = agentproto.AppendData(p, agentproto.TData, stream, id, at, part)
		at += int64(len(part))
	}
	return p
}

// finish ends the channel. The node hears of it after all output.
func (c *channel) finish(d agentproto.Done) {
	c.in.drop()
	c.mu.Lock()
	if c.done != nil {
		c.mu.Unlock()
		return
	}
	c.done, c.endedAt = &d, time.Now()
	closed := c.closed
	c.mu.Unlock()
	c.used()
	if closed {
		c.forget()
		return
	}
	if c.life == agentproto.LifeDetached {
		time.AfterFunc(keepFor, c.close)
		c.agent.channels.prune(keepEnded)
	}
	c.flush()
}

// fail ends a channel that could not begin.
func (c *channel) fail(f agentproto.Failure) {
	c.out.end()
	c.err.end()
	c.finish(agentproto.Done{Failure: f})
}

// attach continues the channel on l.
func (c *channel) attach(l *link, m agentproto.Resume) {
	// Nothing is sent on l before the streams are attached to it, and they
	// not before the answer is on its way.
	c.sendMu.Lock()
	c.mu.Lock()
	c.link, c.greeted, c.told = l, l, nil
	if c.lingerer != nil {
		c.lingerer.Stop()
		c.lingerer = nil
	}
	o := agentproto.Opened{Waiting: !c.opened && c.done == nil, Info: c.info}
	if o.Waiting {
		c.greeted = nil
	}
	c.mu.Unlock()
	o.In, o.InAck = c.in.position()
	o.Out, o.Err = c.out.attach(l, m.Out), c.err.attach(l, m.Err)
	_ = l.w.Queue(message(agentproto.TOpened, 0, c.id, o)) // sent again on the next connection
	c.sendMu.Unlock()
	go c.flush()
}

// connectionLost handles the loss of the connection l.
func (c *channel) connectionLost(l *link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link != l {
		return
	}
	c.link = nil
	switch c.life {
	case agentproto.LifeOnce:
		go c.close()
	case agentproto.LifeLinger:
		c.startLinger()
	}
}

// startLinger closes the channel unless the node attaches to it within the
// linger time. It is called with mu held.
func (c *channel) startLinger() {
	if c.link != nil || c.lingerer != nil || c.life != agentproto.LifeLinger {
		return
	}
	c.lingerer = time.AfterFunc(c.linger, func() {
		c.mu.Lock()
		alone := c.link == nil
		c.mu.Unlock()
		if alone {
			c.close()
		}
	})
}

// close ends the work, and forgets the channel when that has ended.
func (c *channel) close() {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.closed = true
	done := c.done != nil
	c.mu.Unlock()
	if done {
		c.forget()
	} else {
		c.work.stop()
	}
}

// forget frees the channel.
func (c *channel) forget() {
	c.drop()
	c.agent.channels.remove(c)
}

// drop discards what is in the streams, and what follows.
func (c *channel) drop() {
	c.out.drop()
	c.err.drop()
	c.in.drop()
}

// isClosed reports whether the channel is closed.
func (c *channel) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}
