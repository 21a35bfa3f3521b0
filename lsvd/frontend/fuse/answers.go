package fuse

import (
	"sync"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd/internal/aio"
)

// Answers of requests that have ended together are given with one call. An answer
// ends a request of the loop device. The kernel leaves that to a thread of its own,
// which wakes the caller. Given one by one, both run before the next answer is
// given, and after each there are four switches between threads. So the thread
// ends all of them at once.

// answers are those that are collected.
type answers struct {
	mu    sync.Mutex
	batch *aio.Batch // nil: none are
	bufs  []*buffer
}

// add gives the answer of b, maybe after further ones, if there are more.
func (a *answers) add(b *buffer, more bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.batch == nil {
		if more {
			a.batch = aio.NewBatch()
		}
		if a.batch == nil {
			b.answer(b.content())
			return
		}
	}
	if p := b.content(); p == nil {
		a.batch.Add(b.c.fd, b.out)
	} else {
		a.batch.AddVec(b.c.fd, b.parts(p))
	}
	a.bufs = append(a.bufs, b)
	if !more || a.batch.Full() {
		a.submit()
	}
}

// flush gives the answers that are collected.
func (a *answers) flush() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.batch != nil {
		a.submit()
	}
}

// submit gives the answers of the batch. The caller holds mu.
func (a *answers) submit() {
	a.batch.Submit(func(i int, errno unix.Errno) { a.bufs[i].answered(errno) })
	clear(a.bufs)
	a.batch, a.bufs = nil, a.bufs[:0]
}
