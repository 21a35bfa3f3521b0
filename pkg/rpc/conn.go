package rpc

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"miren.dev/runtime/pkg/errs"
)

const (
	// bulkHigh is how many bytes may wait in the write buffer before DATA
	// waits. Calls, replies and control frames do not wait, and so overtake it.
	bulkHigh = 128 << 10
	// keepBuffer is the largest write buffer that is kept for reuse, in bytes.
	keepBuffer = 256 << 10
	// minChunk is the smallest DATA frame of a larger message that is worth
	// sending, in bytes.
	minChunk = 1 << 10
	// flushRounds is how many times a caller writes on behalf of others before
	// the flusher takes over.
	flushRounds = 2
)

var errClosed = errs.New(errs.Canceled, "the stream was closed")

// conn is one connection, of either side.
type conn struct {
	nc     net.Conn
	dialed bool
	lim    Limits
	rd     *frameReader
	peer   hello
	// onCall starts a call; set on the accepting side.
	onCall func(st *stream, h rawCallHeader, flags uint8, body []byte)

	kick   chan struct{} // tells the flusher to write
	closed chan struct{}
	heard  atomic.Bool // a frame arrived since the last tick
	began  time.Time
	// lastCall is when the peer last began a call, in nanoseconds after began.
	lastCall atomic.Int64
	rtt      atomic.Int64 // shortest round trip of a PING, ns; 0: not known
	missed   int          // ticks without a frame; of the flusher
	flushed  time.Time    // when the write deadline was last set; of the goroutine that flushes

	assembly *semaphore.Weighted

	mu         sync.Mutex
	wbuf       []byte
	spare      []byte
	flushing   bool
	appended   int64 // bytes ever appended to wbuf
	handed     int64 // bytes of them passed to nc.Write, less those that the kernel did not take
	sendCredit int64
	bulk       []*stream // wait for room in wbuf, in order
	starved    []*stream // wait for sendCredit
	streams    map[uint64]*stream
	lastID     uint64 // newest id: of the last call made here if dialed, else of the last call received
	slots      []chan struct{}
	draining   bool          // GOAWAY was sent or received
	drained    chan struct{} // closed when draining and no call is left; nil until someone waits
	quiet      chan struct{} // closed when everything is written; nil until someone waits
	err        error
	refused    error // the peer lost its access; ends every call

	recvAvail int64 // bytes that the peer may send
	recvDebt  int64 // bytes read and not given back to the peer's window
	growth    int64
}

func newConn(nc net.Conn, dialed bool, lim Limits) *conn {
	h := lim.hello()
	first := uint64(0)
	if dialed {
		first = 1 // so that the first call is 3: odd
	}
	return &conn{
		lastID: first, began: time.Now(), nc: nc, dialed: dialed, lim: lim, rd: newFrameReader(nc),
		kick: make(chan struct{}, 1), closed: make(chan struct{}), assembly: semaphore.NewWeighted(int64(lim.Assembly)),
		streams: map[uint64]*stream{}, recvAvail: h.connWindow, growth: int64(lim.Growth),
	}
}

// handshake exchanges HELLO frames.
func (c *conn) handshake(timeout time.Duration) error {
	if err := c.nc.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	if _, err := c.nc.Write(appendHello(nil, c.lim.hello())); err != nil {
		return err
	}
	h, p, err := c.rd.next()
	if err != nil {
		return err
	}
	if c.peer, err = parseHello(h, p); err != nil {
		return err
	}
	c.sendCredit = c.peer.connWindow
	return c.nc.SetDeadline(time.Time{})
}

// run reads frames until the connection ends and returns why. It owns the
// flusher.
func (c *conn) run() error {
	done := make(chan struct{})
	c.ping()
	go func() {
		defer close(done)
		c.flusher()
	}()
	err := c.read()
	if errors.Is(err, io.EOF) {
		err = errs.New(errs.Unavailable, "the peer closed the connection")
	}
	c.fail(err)
	_ = c.nc.Close()
	<-done
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// flusher writes what callers leave to it, and keeps the connection alive.
func (c *conn) flusher() {
	tick := time.NewTicker(c.lim.KeepAlive)
	defer tick.Stop()
	for {
		select {
		case <-c.closed:
			return
		case <-c.kick:
			c.mu.Lock()
			c.flushLocked(math.MaxInt)
			c.mu.Unlock()
		case <-tick.C:
			c.keepAlive()
		}
	}
}

func (c *conn) keepAlive() {
	if c.heard.Swap(false) {
		c.missed = 0
		return
	}
	if c.missed++; c.missed >= 3 {
		c.fail(errs.New(errs.Unavailable, "the peer did not answer for %s", 3*c.lim.KeepAlive))
		return
	}
	c.ping()
	c.mu.Lock()
	c.spare = nil // no call is under way
	c.mu.Unlock()
}

// ping asks the peer for a PING with ACK, and measures the round trip.
func (c *conn) ping() {
	var p [8]byte
	binary.BigEndian.PutUint64(p[:], uint64(time.Since(c.began)))
	c.control(header{typ: framePing, length: 8}, p[:])
}

// pong handles the answer to a ping. A false answer harms only the peer: its
// windows grow sooner or later.
func (c *conn) pong(p []byte) {
	took := int64(time.Since(c.began)) - int64(binary.BigEndian.Uint64(p))
	if old := c.rtt.Load(); took > 0 && (old == 0 || took < old) {
		c.rtt.Store(took)
	}
}

// control sends a small frame that waits for nothing.
func (c *conn) control(h header, p []byte) {
	c.mu.Lock()
	c.appendLocked(h, p, nil)
	c.leaveLocked()
	c.mu.Unlock()
}

// appendLocked puts a frame of two parts into the write buffer.
func (c *conn) appendLocked(h header, p1, p2 []byte) {
	if c.err != nil {
		return
	}
	if len(c.wbuf) > c.lim.Backlog {
		c.failLocked(errs.New(errs.Unavailable, "the peer does not read its answers"))
		return
	}
	n := len(c.wbuf)
	c.wbuf = append(append(appendHeader(c.wbuf, h), p1...), p2...)
	c.appended += int64(len(c.wbuf) - n)
}

// leaveLocked leaves writing to the flusher.
func (c *conn) leaveLocked() {
	if !c.flushing && len(c.wbuf) > 0 {
		c.flushing = true
		c.kickFlusher()
	}
}

func (c *conn) kickFlusher() {
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// pushLocked writes at once, after letting other goroutines add their frames.
func (c *conn) pushLocked() {
	if c.flushing || len(c.wbuf) == 0 {
		return
	}
	c.flushing = true
	c.mu.Unlock()
	runtime.Gosched()
	c.mu.Lock()
	c.flushLocked(flushRounds)
}

// flushLocked writes until nothing is left or rounds are used up; then the
// flusher continues. c.flushing is set; c.mu is released while writing.
func (c *conn) flushLocked(rounds int) {
	for len(c.wbuf) > 0 && c.err == nil {
		if rounds == 0 {
			c.kickFlusher()
			return
		}
		rounds--
		b := c.wbuf
		c.wbuf, c.spare = c.spare[:0], nil
		c.handed += int64(len(b))
		c.wakeBulkLocked(bulkHigh / chunkLen)
		c.mu.Unlock()
		n, err := c.write(b)
		c.mu.Lock()
		c.handed -= int64(len(b) - n) // the peer did not get the bytes that the kernel did not take
		if cap(b) <= keepBuffer {
			c.spare = b
		}
		if err != nil {
			c.failLocked(errs.New(errs.Unavailable, "write: %w", err))
		}
	}
	c.flushing = false
	if c.quiet != nil {
		close(c.quiet)
		c.quiet = nil
	}
}

// write is called by one goroutine at a time, the one that set flushing. On an
// error it returns how much of b may have reached the peer.
func (c *conn) write(b []byte) (int, error) {
	if now := time.Now(); now.Sub(c.flushed) > c.lim.WriteTimeout/4 {
		c.flushed = now
		if err := c.nc.SetWriteDeadline(now.Add(c.lim.WriteTimeout)); err != nil {
			return 0, err
		}
	}
	n, err := c.nc.Write(b)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return n, errs.New(errs.Unavailable, "the peer took nothing for %s", c.lim.WriteTimeout)
	}
	return n, err
}

func (c *conn) wakeBulkLocked(n int) {
	for ; n > 0 && len(c.bulk) > 0; n-- {
		st := c.bulk[0]
		c.bulk = c.bulk[1:]
		st.inBulk = false
		wake(st.sendReady)
	}
	if len(c.bulk) == 0 {
		c.bulk = nil
	}
}

// wake puts a token into a channel of capacity one.
func wake(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// fail ends the connection and every call on it.
func (c *conn) fail(err error) {
	c.mu.Lock()
	c.failLocked(err)
	c.mu.Unlock()
}

func (c *conn) failLocked(err error) {
	if c.err != nil {
		return
	}
	if errs.ClassOf(err) == errs.Internal {
		err = errs.New(errs.Unavailable, "connection lost: %w", err)
	}
	c.err = err
	close(c.closed)
	streams := c.streams
	c.streams = map[uint64]*stream{}
	c.bulk, c.starved, c.wbuf = nil, nil, nil
	c.wakeSlotsLocked()
	c.checkDrainedLocked()
	_ = c.nc.SetReadDeadline(time.Unix(1, 0)) // run closes: that may write, and wait
	for _, st := range streams {
		outcome := Unknown
		if st.off >= c.handed {
			outcome = NotStarted
		}
		st.failLocked(withOutcome(err, outcome))
	}
}

// removeLocked forgets a call.
func (c *conn) removeLocked(st *stream) {
	delete(c.streams, st.id)
	st.ended = true
	c.growth += st.grown
	st.grown = 0
	if len(c.slots) > 0 {
		close(c.slots[0])
		c.slots = c.slots[1:]
	}
	c.checkDrainedLocked()
}

func (c *conn) wakeSlotsLocked() {
	for _, ch := range c.slots {
		close(ch)
	}
	c.slots = nil
}

func (c *conn) checkDrainedLocked() {
	if c.drained != nil && len(c.streams) == 0 {
		close(c.drained)
		c.drained = nil
	}
}

// whenIdle returns a channel that is closed once no call is left.
func (c *conn) whenIdle() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.streams) == 0 {
		return closedChan
	}
	if c.drained == nil {
		c.drained = make(chan struct{})
	}
	return c.drained
}

// usable reports whether new calls can be made.
func (c *conn) usable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err == nil && !c.draining
}

// giveBack returns n bytes to the connection's receive window.
func (c *conn) giveBack(n int64) {
	if n == 0 {
		return
	}
	c.mu.Lock()
	c.giveBackLocked(n)
	c.mu.Unlock()
}

func (c *conn) giveBackLocked(n int64) {
	c.recvDebt += n
	if c.recvDebt < int64(c.lim.StreamWindow)/2 {
		return
	}
	n, c.recvDebt = c.recvDebt, 0
	c.recvAvail += n
	c.windowLocked(0, n)
	c.leaveLocked()
}

func (c *conn) windowLocked(id uint64, n int64) {
	var p [4]byte
	binary.BigEndian.PutUint32(p[:], uint32(n))
	c.appendLocked(header{typ: frameWindow, length: 4, id: id}, p[:], nil)
}

// growWindow takes up to n bytes from the budget for st, until it ends.
func (st *stream) growWindow(n int64) int64 {
	c := st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if st.ended {
		return 0
	}
	n = min(n, c.growth)
	c.growth -= n
	st.grown += n
	return n
}

func (c *conn) goAway() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.draining || c.err != nil {
		return
	}
	c.draining = true
	c.appendLocked(header{typ: frameGoAway, id: c.lastID}, nil, nil)
	c.leaveLocked()
}

// close writes the waiting frames, within a short time limit, and ends the
// connection.
func (c *conn) close(err error) {
	c.mu.Lock()
	c.leaveLocked()
	quiet := closedChan
	if c.flushing && c.err == nil {
		if c.quiet == nil {
			c.quiet = make(chan struct{})
		}
		quiet = c.quiet
	}
	c.mu.Unlock()
	timer := time.NewTimer(lingerTimeout)
	defer timer.Stop()
	select {
	case <-quiet:
	case <-timer.C:
	case <-c.closed:
	}
	c.fail(err)
}

// acquireAssembly reserves room for a message of n bytes.
func (c *conn) acquireAssembly(ctx context.Context, n int) error {
	if n > c.lim.MaxMessage {
		return errs.New(errs.ResourceExhausted, "a message of %d bytes is larger than the limit of %d", n, c.lim.MaxMessage)
	}
	return c.assembly.Acquire(ctx, int64(n))
}
