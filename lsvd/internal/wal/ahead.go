package wal

import (
	"context"
	"sync"
	"time"

	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/pkg/errs"
)

const (
	// aheadFiles is the number of empty files that Ahead keeps ready, so that
	// no append waits for a new file.
	aheadFiles = 2
	// writeback begins at this many appended bytes: later flushes then have little to write.
	writeback = 2 << 20
	// lagFiles is the number of files, the current one included, that may be
	// written and not durable. Beyond it Advance syncs the oldest without a caller
	// of Sync: Open then checks fewer blocks, since it trusts what the log promises.
	lagFiles = 2
)

// Ahead runs until ctx ends. It makes files before Append needs them, removes free
// files that were not needed, begins the writeback of appended data, and syncs older
// files. Without Ahead, Append makes the files itself.
func (l *Log) Ahead(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { l.keepUp(ctx) })
	defer wg.Wait()
	tick := time.NewTicker(trimInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.share.refused():
			l.Trim(aheadFiles)
			continue
		case <-tick.C:
			l.trimUnneeded()
			continue
		case <-l.kick:
		}
		l.mu.Lock()
		f, off, n := l.cur, l.begun, (l.off-l.begun)&^4095
		if n >= writeback && f.dirty {
			l.begun += n
		} else {
			n = 0
		}
		l.mu.Unlock()
		if n > 0 {
			f.f.Writeback(off, n)
		}
		l.mu.Lock()
		early := l.off <= l.cfg.FileSize/2
		l.mu.Unlock()
		if early {
			continue
		}
		if err := l.Fill(); err != nil && !errs.Is(err, errs.ResourceExhausted) {
			return // Append meets the same error and returns it
		}
	}
}

// keepUp calls Advance whenever a file has been filled, until ctx ends.
func (l *Log) keepUp(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.filled:
		}
		for more := true; more && ctx.Err() == nil; {
			var err error
			if more, err = l.Advance(); err != nil {
				return // Append returns the error
			}
		}
	}
}

// Advance syncs the oldest file if more than lagFiles are not durable, and
// reports whether it did.
func (l *Log) Advance() (bool, error) {
	l.sync.Lock()
	l.mu.Lock()
	if l.failed != nil || len(l.dirty) <= lagFiles {
		defer l.sync.Unlock()
		defer l.mu.Unlock()
		return false, l.failed
	}
	f := l.dirty[0] // not the current one, which is the newest
	err := l.syncFiles(l.dirty[:1:1], f.last)
	l.done(err)
	return true, err
}

func (l *Log) wake() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// Fill makes files until there are enough, as Ahead does.
func (l *Log) Fill() error {
	for {
		l.mu.Lock()
		enough := len(l.free) >= aheadFiles || l.failed != nil
		var name string
		if !enough {
			name = l.unused()
			l.used[name] = true
		}
		l.mu.Unlock()
		if enough {
			return nil
		}
		f, err := l.make(name)
		l.mu.Lock()
		if err != nil {
			delete(l.used, name) // the next attempt completes the partial file
			l.mu.Unlock()
			return noRoom(err)
		}
		if l.failed != nil { // closed meanwhile
			f.f.Close()
		} else {
			l.free = append(l.free, f)
		}
		l.mu.Unlock()
	}
}

// make makes a file of full size, so that later syncs move data only.
func (l *Log) make(n string) (*File, error) {
	if err := l.share.take(l.cfg.FileSize, false); err != nil {
		return nil, err
	}
	f, err := l.cfg.FS.Open(n, true)
	if err != nil {
		l.share.give(l.cfg.FileSize)
		return nil, err
	}
	if err = prewrite(f, l.cfg.FileSize); err == nil {
		err = l.cfg.FS.SyncDir()
	}
	if err != nil {
		f.Close()
		l.share.give(l.cfg.FileSize)
		return nil, errs.Wrap(err, "make log file")
	}
	return &File{f: f, name: n}, nil
}

// zeros are aligned, being large.
var zeros = make([]byte, 1<<20)

// prewrite fills a file with zeros. The writes bypass the page cache, since no caller
// reads the zeros.
func prewrite(f vfs.File, size int64) error {
	for off := int64(0); off < size; off += int64(len(zeros)) {
		if err := f.WriteDirect([][]byte{zeros[:min(int64(len(zeros)), size-off)]}, off); err != nil {
			return err
		}
	}
	return f.Sync()
}
