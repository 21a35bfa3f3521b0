package rpcserver

import (
	"sync"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/rpc"
)

// Bounds of a batch, and so of what waits for a slow caller. One line has 64
// KiB at most.
const (
	batchLines = 512
	batchBytes = 256 << 10
)

// logSender sends lines from several goroutines. What comes while a message is
// on its way goes into the next one together; who brings more than fits waits.
type logSender struct {
	st   rpc.ServerStream[rpc.None, sandbox.LogBatch]
	done chan struct{}

	mu     sync.Mutex
	cond   sync.Cond
	lines  []sandbox.LogLine
	bytes  int
	closed bool
	err    error
}

// newLogSender begins to send; it must be closed.
func newLogSender(st rpc.ServerStream[rpc.None, sandbox.LogBatch]) *logSender {
	o := &logSender{st: st, done: make(chan struct{})}
	o.cond.L = &o.mu
	go o.run()
	return o
}

func (o *logSender) add(l sandbox.LogLine) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.err == nil && (len(o.lines) >= batchLines || o.bytes >= batchBytes) {
		o.cond.Wait()
	}
	if o.err != nil {
		return o.err
	}
	o.lines = append(o.lines, l)
	o.bytes += len(l.Text)
	o.cond.Broadcast()
	return nil
}

// close sends what is left. Nothing may be added any more.
func (o *logSender) close() error {
	o.mu.Lock()
	o.closed = true
	o.cond.Broadcast()
	o.mu.Unlock()
	<-o.done
	return o.err
}

func (o *logSender) run() {
	defer close(o.done)
	var spare []sandbox.LogLine
	for {
		o.mu.Lock()
		for len(o.lines) == 0 && !o.closed {
			o.cond.Wait()
		}
		lines := o.lines
		o.lines, o.bytes = spare[:0], 0
		o.cond.Broadcast()
		o.mu.Unlock()
		if len(lines) == 0 {
			return
		}
		if err := o.st.Send(&sandbox.LogBatch{Lines: lines}); err != nil {
			o.mu.Lock()
			o.err = err
			o.cond.Broadcast()
			o.mu.Unlock()
			return
		}
		spare = lines
	}
}
