package wal

import (
	"sync"
	"time"

	"miren.dev/runtime/pkg/errs"
)

// minFiles is how many files a log may always have, whatever others have: the
// current one, one on its way to the store, and one that is left free.
const minFiles = 3

// trimInterval is how long a free file is kept that was not needed; tests
// shorten it.
var trimInterval = 30 * time.Second

// Space is a budget of bytes that the files of several logs share. A log has
// the room of minFiles for itself, so that none starves. The logs that ask first get
// the rest. Many logs can exceed the budget by these minima. A log takes its bytes
// before it makes a file, and returns them when it removes one.
type Space struct {
	limit int64 // bytes

	mu     sync.Mutex // held for nothing else; the last in the lock order
	shares map[*share]bool
}

// NewSpace returns a budget of limit bytes.
func NewSpace(limit int64) *Space { return &Space{limit: limit, shares: map[*share]bool{}} }

// Limit is the budget in bytes.
func (s *Space) Limit() int64 { return s.limit }

// Used is how many bytes the files of all logs have.
func (s *Space) Used() (n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for x := range s.shares {
		n += x.held
	}
	return n
}

// share is what one log has of a budget. That of a log without a budget is nil.
type share struct {
	space  *Space
	least  int64         // bytes that the log may always have
	held   int64         // bytes of its files; under Space.mu
	wanted chan struct{} // receives when another log was refused
}

// join gives a log its share, with held bytes of files that it has already.
func (s *Space) join(least, held int64) *share {
	if s == nil {
		return nil
	}
	x := &share{space: s, least: least, held: held, wanted: make(chan struct{}, 1)}
	s.mu.Lock()
	s.shares[x] = true
	s.mu.Unlock()
	return x
}

// leave ends the share: the log is closed.
func (x *share) leave() {
	if x == nil {
		return
	}
	x.space.mu.Lock()
	defer x.space.mu.Unlock()
	delete(x.space.shares, x)
}

// take adds n bytes to the share. If the budget is used up, take returns
// ResourceExhausted and asks the other logs to remove files that they do not need. A
// forced take never fails.
func (x *share) take(n int64, force bool) error {
	if x == nil {
		return nil
	}
	s := x.space
	s.mu.Lock()
	defer s.mu.Unlock()
	x.held += n
	if force || x.held <= x.least {
		return nil
	}
	total := int64(0)
	for o := range s.shares {
		total += max(o.held, o.least)
	}
	if total <= s.limit {
		return nil
	}
	x.held -= n
	for o := range s.shares {
		if o != x && o.held > o.least {
			select {
			case o.wanted <- struct{}{}:
			default:
			}
		}
	}
	return errs.New(errs.ResourceExhausted, "the space for logs of this machine (%d bytes) is used up", s.limit)
}

// give returns n bytes to the budget.
func (x *share) give(n int64) {
	if x == nil {
		return
	}
	x.space.mu.Lock()
	defer x.space.mu.Unlock()
	x.held -= n
}

// refused receives when another log was refused space.
func (x *share) refused() <-chan struct{} {
	if x == nil {
		return nil
	}
	return x.wanted
}

// trimUnneeded removes the free files that were not needed since its last call.
func (l *Log) trimUnneeded() {
	l.mu.Lock()
	keep := len(l.free) - max(l.leastFree-aheadFiles, 0)
	l.leastFree = len(l.free)
	l.mu.Unlock()
	l.Trim(keep)
}

// Trim removes free files until keep of them are left. The store has all data of a
// free file, so a power loss that undoes a removal only restores a free file. A
// file that the file system cannot remove stays free.
func (l *Log) Trim(keep int) {
	for {
		l.mu.Lock()
		if l.failed != nil || len(l.free) <= keep {
			l.mu.Unlock()
			return
		}
		f := l.free[0]
		l.free = l.free[1:]
		l.leastFree = min(l.leastFree, len(l.free))
		l.mu.Unlock()
		err := l.cfg.FS.Remove(f.name)
		if err == nil {
			f.f.Close()
			l.share.give(l.cfg.FileSize)
		}
		l.mu.Lock()
		switch {
		case err == nil:
			delete(l.used, f.name)
		case l.failed != nil: // closed meanwhile
			f.f.Close()
		default:
			l.free = append(l.free, f)
		}
		l.mu.Unlock()
		if err != nil {
			return // tried again at the next time
		}
	}
}
