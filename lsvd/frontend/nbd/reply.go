package nbd

import (
	"encoding/binary"
	"sync"
)

// copyPayload is the size up to which data of a reply is copied behind its
// header; larger data is written from where it is.
const copyPayload = 8 << 10

// keepReplies bounds the memory for replies that a connection keeps.
const keepReplies = 256 << 10

// replies writes the replies of a connection. A goroutine that adds one while none
// writes becomes the writer, and writes also what others add meanwhile, with
// one call. After an error the connection is useless and gets closed, so that
// its client does not wait for what will never come.
type replies struct {
	c      stream
	budget *budget

	mu      sync.Mutex
	writing bool
	failed  bool
	next    batch
	spare   batch // of the writer
	vec     [][]byte
}

// batch is a run of replies.
type batch struct {
	text  []byte // headers and small payloads
	large []large
	count int
	bytes int64
}

// large is data to be written after text[:at].
type large struct {
	at  int
	buf *buffer
}

// add sends the reply head and data, whose buffer it frees. What the request
// took of the budget is given back once the reply is written.
func (w *replies) add(q *request, head []byte, data *buffer) {
	w.put(q, head, data)
	w.send()
}

// put is add without sending; the next send writes the reply.
func (w *replies) put(q *request, head []byte, data *buffer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := &w.next
	b.text = append(b.text, head...)
	b.count++
	b.bytes += q.busy
	if data == nil {
		return
	}
	if len(data.b) <= copyPayload {
		b.text = append(b.text, data.b...)
		data.free()
	} else {
		b.large = append(b.large, large{len(b.text), data})
	}
}

// send writes the replies that put has added, unless another goroutine is writing.
func (w *replies) send() {
	if w.claim() {
		w.flush()
	}
}

// sendBy is send for a caller that must not wait: start has another goroutine call
// flush.
func (w *replies) sendBy(start func(flush func())) {
	if w.claim() {
		start(w.flush)
	}
}

// claim makes the caller the writer if replies wait and no other goroutine is the
// writer. The caller then calls flush.
func (w *replies) claim() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.writing || w.next.count == 0 {
		return false
	}
	w.writing = true
	return true
}

// flush writes replies until none waits.
func (w *replies) flush() {
	w.mu.Lock()
	for w.next.count > 0 {
		w.next, w.spare = w.spare, w.next
		failed := w.failed
		w.mu.Unlock()
		if !failed {
			failed = w.write(&w.spare) != nil
		}
		w.budget.give(w.spare.count, w.spare.bytes)
		w.spare.reset()
		w.mu.Lock()
		if failed && !w.failed {
			w.failed = true
			w.c.Close()
		}
	}
	w.writing = false
	w.mu.Unlock()
}

func (w *replies) write(b *batch) error {
	vec, at := w.vec[:0], 0
	for _, l := range b.large {
		if l.at > at {
			vec = append(vec, b.text[at:l.at])
		}
		vec, at = append(vec, l.buf.b), l.at
	}
	if len(b.text) > at {
		vec = append(vec, b.text[at:])
	}
	w.vec = vec
	err := w.c.Writev(vec)
	clear(vec)
	return err
}

func (b *batch) reset() {
	for _, l := range b.large {
		l.buf.free()
	}
	clear(b.large)
	text := b.text[:0]
	if cap(text) > keepReplies {
		text = nil
	}
	*b = batch{text: text, large: b.large[:0]}
}

// appendSimple appends a simple reply.
func appendSimple(b []byte, q *request, code uint32) []byte {
	b = binary.BigEndian.AppendUint32(b, magicSimple)
	b = binary.BigEndian.AppendUint32(b, code)
	return binary.BigEndian.AppendUint64(b, q.cookie)
}

// appendChunk appends the header of the only chunk of a reply, with n bytes.
func appendChunk(b []byte, q *request, typ uint16, n int) []byte {
	b = binary.BigEndian.AppendUint32(b, magicChunk)
	b = binary.BigEndian.AppendUint16(b, chunkDone)
	b = binary.BigEndian.AppendUint16(b, typ)
	b = binary.BigEndian.AppendUint64(b, q.cookie)
	return binary.BigEndian.AppendUint32(b, uint32(n))
}

// budget bounds the unanswered requests of a connection.
type budget struct {
	mu       sync.Mutex
	freed    sync.Cond
	requests int
	bytes    int64
}

func newBudget() *budget {
	b := &budget{}
	b.freed.L = &b.mu
	return b
}

// take waits until the budget has room for a request with so many bytes of data. The wait
// ends: every request returns its share once its reply is written or has failed.
func (b *budget) take(bytes int64) (alone bool) {
	b.mu.Lock()
	for b.full(bytes) {
		b.freed.Wait()
	}
	b.requests++
	b.bytes += bytes
	alone = b.requests == 1
	b.mu.Unlock()
	return alone
}

// full reports whether such a request has to wait. The caller holds mu.
func (b *budget) full(bytes int64) bool {
	return b.requests >= maxInFlight || b.requests > 0 && b.bytes+bytes > maxBusyBytes
}

// room reports whether take would not wait. Only a caller of take makes it less.
func (b *budget) room(bytes int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.full(bytes)
}

func (b *budget) give(requests int, bytes int64) {
	b.mu.Lock()
	b.requests -= requests
	b.bytes -= bytes
	b.mu.Unlock()
	b.freed.Signal()
}
