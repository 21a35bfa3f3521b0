package rpcserver

import (
	"sync"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/rpc"
)

// Bounds of a batch, which also bound the lines that wait for a slow caller.
// One line has at most 64 KiB.
const (
	batchLines = 512
	batchBytes = 256 << 10
)

// logSender sends lines that several goroutines add. Lines that are added while a
// message is being sent go into the next one together; add waits while they would
// not fit.
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

// newLogSender starts the goroutine that sends; close ends it.
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

// close sends the remaining lines. No line may be added after it.
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
