package agentproto

import (
	"errors"
	"io"
	"sync"
)

// ErrClosed is returned by a Writer after Close.
var ErrClosed = errors.New("agentproto: connection closed")

// Writer coalesces frames of many goroutines into few writes. The first
// goroutine to arrive writes the frames of the others too, so that a lone frame
// costs no hand-over to another goroutine. It is safe for concurrent use.
type Writer struct {
	w io.WriteCloser

	mu      sync.Mutex
	change  sync.Cond // pending shrank, or err was set
	pending []byte
	spare   []byte
	writing bool
	err     error
}

// sendLimit is how many bytes may be pending before Send waits, queueLimit
// before Queue gives the connection up. The protocol's windows keep a correct
// peer far below the second.
const (
	sendLimit  = 256 << 10
	queueLimit = 16 << 20
)

// NewWriter returns a writer to w, which is closed after the first error.
func NewWriter(w io.WriteCloser) *Writer {
	wr := &Writer{w: w}
	wr.change.L = &wr.mu
	return wr
}

// Send writes a frame; it waits while too much is pending. What add appends to
// its argument must be whole frames.
func (w *Writer) Send(add func(b []byte) []byte) error {
	w.mu.Lock()
	for w.err == nil && len(w.pending) > sendLimit {
		w.change.Wait()
	}
	if w.err != nil {
		w.mu.Unlock()
		return w.err
	}
	w.pending = add(w.pending)
	if w.writing {
		w.mu.Unlock()
		return nil
	}
	w.writing = true
	return w.write()
}

// Queue is Send for callers that must not wait, such as the readers of a
// connection: two peers that wait for each other's reader would deadlock.
func (w *Writer) Queue(add func(b []byte) []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	if len(w.pending) > queueLimit {
		w.fail(errors.New("agentproto: the peer does not read"))
		return w.err
	}
	w.pending = add(w.pending)
	if !w.writing {
		w.writing = true
		go func() {
			w.mu.Lock()
			_ = w.write() // kept in w.err
		}()
	}
	return nil
}

// write writes until nothing is pending. It is called with mu and writing
// held and gives both back.
func (w *Writer) write() error {
	for w.err == nil && len(w.pending) > 0 {
		b := w.pending
		w.pending = w.spare[:0]
		w.spare = nil
		w.change.Broadcast()
		w.mu.Unlock()
		_, err := w.w.Write(b)
		w.mu.Lock()
		if cap(b) <= 2*sendLimit {
			w.spare = b
		}
		if err != nil {
			w.fail(err)
		}
	}
	w.writing = false
	w.change.Broadcast()
	err := w.err
	w.mu.Unlock()
	return err
}

// fail is called with mu held.
func (w *Writer) fail(err error) {
	if w.err != nil {
		return
	}
	w.err = err
	w.pending = nil
	w.change.Broadcast()
	go w.w.Close() // not under mu: it may wait for a write that is under way
}

// Flush waits until everything is written.
func (w *Writer) Flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.err == nil && (w.writing || len(w.pending) > 0) {
		w.change.Wait()
	}
	return w.err
}

// Close makes all further calls fail and closes the connection.
func (w *Writer) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail(ErrClosed)
}
