package main

import (
	"os"
	"sync"

	"miren.dev/runtime/pkg/agentproto"
)

// input is the stdin of an exec.
type input struct {
	e *execProcess

	mu      sync.Mutex
	more    sync.Cond // buf, eof or dropped changed
	f       *os.File  // nil before the process was started
	buf     []byte
	given   int64 // position written to the process
	granted int64 // position granted to the node
	eof     bool
	running bool // a goroutine writes
	dropped bool // the process does not read: accept and discard the input
}

func newInput(e *execProcess) *input {
	in := &input{e: e, granted: agentproto.InWindow}
	in.more.L = &in.mu
	return in
}

// open sets the file from which the process reads.
func (in *input) open(f *os.File) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.f = f
	if in.dropped {
		in.closeFile()
		return
	}
	in.wake()
}

// add accepts data at offset. It skips bytes that it has, and ignores data
// after a gap: after a new connection the node sends it again. It reports
// whether the node kept to its grant.
func (in *input) add(offset int64, b []byte) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if offset+int64(len(b)) > in.granted {
		return false
	}
	skip := in.given + int64(len(in.buf)) - offset
	if skip < 0 || skip >= int64(len(b)) || in.eof {
		return true
	}
	b = b[skip:]
	if in.dropped {
		in.given += int64(len(b))
		in.grant()
		return true
	}
	in.buf = append(in.buf, b...)
	in.wake()
	return true
}

// end closes the process's stdin when everything before offset was written.
func (in *input) end(offset int64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if offset != in.given+int64(len(in.buf)) {
		return // a gap, as in add
	}
	in.eof = true
	in.wake()
}

// position returns how much has arrived and how far the node may send.
func (in *input) position() (have, granted int64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.granted = in.given + agentproto.InWindow
	return in.given + int64(len(in.buf)), in.granted
}

// drop records that the process reads no more.
func (in *input) drop() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.dropped {
		return
	}
	in.dropped = true
	in.given += int64(len(in.buf))
	in.buf = nil
	in.grant()
	in.closeFile()
	in.more.Signal()
}

// closeFile is called with mu held. The terminal stays open for its output.
func (in *input) closeFile() {
	if in.f != nil && !in.e.tty {
		in.f.Close()
	}
}

// wake is called with mu held. The writing goroutine exists only once there is
// something to write.
func (in *input) wake() {
	switch {
	case in.f == nil || in.dropped || len(in.buf) == 0 && !in.eof:
	case in.running:
		in.more.Signal()
	case len(in.buf) == 0 && !in.e.tty:
		in.closeFile()
	default:
		in.running = true
		go in.run()
	}
}

// endOfText is the character that a terminal takes for the end of input.
var endOfText = []byte{4}

func (in *input) run() {
	in.mu.Lock()
	defer in.mu.Unlock()
	for !in.dropped {
		switch {
		case len(in.buf) > 0:
			b := in.buf[:min(len(in.buf), agentproto.Chunk)]
			in.mu.Unlock()
			n, err := in.f.Write(b)
			in.mu.Lock()
			if in.dropped {
				return
			}
			if err != nil { // the process has closed its stdin
				n = len(in.buf)
				in.dropped = true
				in.closeFile()
			}
			in.given += int64(n)
			in.buf = in.buf[n:]
			in.grant()
		case in.eof:
			if in.e.tty {
				in.mu.Unlock()
				_, _ = in.f.Write(endOfText) // it may have ended
				in.mu.Lock()
			} else {
				in.closeFile()
			}
			in.dropped = true
		default:
			in.more.Wait()
		}
	}
}

// grant is called with mu held. It lets the node send more when the increase is
// worth a frame.
func (in *input) grant() {
	limit := in.given + agentproto.InWindow
	if limit-in.granted < agentproto.InWindow/4 {
		return
	}
	in.granted = limit
	in.e.mu.Lock()
	l := in.e.link
	in.e.mu.Unlock()
	if l != nil {
		_ = l.w.Queue(message(agentproto.TGrant, 0, in.e.id, agentproto.Number(limit))) // Started carries the grant again
	}
}
