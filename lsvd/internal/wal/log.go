package wal

import (
	"fmt"
	"slices"
	"sync"

	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/pkg/errs"
)

// File is one file of the log.
type File struct {
	f      vfs.File
	name   string
	header Header
	last   uint64 // seq of the last extent in it; 0: none
}

// Config says what log to write.
type Config struct {
	FS        vfs.FS
	Volume    name.Volume
	Epoch     uint64
	PrevEpoch uint64
	PrevSeq   uint64 // the log continues after this sequence number
	FileSize  int64
}

// Log writes the log of one epoch. Append is for one caller at a time; Sync
// and Release may be called beside it.
//
// Lock order: sync before mu.
type Log struct {
	cfg Config

	sync sync.Mutex // held while files are synced

	mu     sync.Mutex
	cur    *File
	off    int64
	gen    uint64
	seq    uint64  // of the last extent written
	synced uint64  // of the last extent known to be durable
	dirty  []*File // written since the last sync, oldest first
	full   []*File // in use, oldest first, without cur
	free   []*File
	later  []*File // free once the epochs before this one are in the store
	used   map[string]bool
	buf    []byte
	failed error
}

// Start begins the epoch of cfg on top of the files found. It makes what was
// recovered durable first, and the first header of the epoch last.
func Start(cfg Config, found *Found) (*Log, error) {
	l := &Log{cfg: cfg, seq: cfg.PrevSeq, synced: cfg.PrevSeq, used: found.used, free: found.other}
	for _, f := range found.files {
		l.gen = max(l.gen, f.header.Generation)
		if f.last == 0 {
			l.later = append(l.later, f) // its header may be a link of the history
			continue
		}
		if err := f.f.Sync(); err != nil {
			return nil, errs.Wrap(err, "sync recovered log")
		}
		l.full = append(l.full, f)
	}
	if err := l.rotate(); err != nil {
		return nil, err
	}
	if err := l.Sync(); err != nil {
		return nil, err
	}
	return l, nil
}

// rotate goes on to an empty file. The caller holds mu or is alone.
func (l *Log) rotate() error {
	var f *File
	if n := len(l.free); n > 0 {
		f, l.free = l.free[n-1], l.free[:n-1]
	} else {
		var err error
		if f, err = l.create(); err != nil {
			return err
		}
	}
	if size, err := f.f.Size(); err != nil {
		return err
	} else if size != l.cfg.FileSize {
		if err := prewrite(f.f, l.cfg.FileSize); err != nil {
			return errs.Wrap(err, "prepare log file")
		}
	}
	l.gen++
	f.last = 0
	f.header = Header{Volume: l.cfg.Volume, Epoch: l.cfg.Epoch, Generation: l.gen, First: l.seq + 1, PrevEpoch: l.cfg.PrevEpoch, PrevSeq: l.cfg.PrevSeq}
	if _, err := f.f.WriteAt(EncodeHeader(f.header), 0); err != nil {
		return errs.Wrap(err, "write log file header")
	}
	// Without it a power loss could take the headers of all files of the epoch,
	// after the older ones were recycled, and the log would seem to be lost.
	if err := f.f.Sync(); err != nil {
		return errs.Wrap(err, "sync log file header")
	}
	if l.cur != nil {
		l.full = append(l.full, l.cur)
	}
	l.cur, l.off = f, headerSize
	l.dirty = append(l.dirty, f)
	return nil
}

// create makes a file of full size, so that later syncs move data only.
func (l *Log) create() (*File, error) {
	for i := 0; ; i++ {
		n := fmt.Sprintf("%s%04d", filePrefix, i)
		if l.used[n] {
			continue
		}
		f, err := l.cfg.FS.Open(n, true)
		if err != nil {
			return nil, err
		}
		if err = prewrite(f, l.cfg.FileSize); err == nil {
			err = l.cfg.FS.SyncDir()
		}
		if err != nil {
			f.Close()
			return nil, errs.Wrap(err, "make log file")
		}
		l.used[n] = true
		return &File{f: f, name: n}, nil
	}
}

func prewrite(f vfs.File, size int64) error {
	zero := make([]byte, min(size, 1<<20))
	for off := int64(0); off < size; off += int64(len(zero)) {
		if _, err := f.WriteAt(zero[:min(int64(len(zero)), size-off)], off); err != nil {
			return err
		}
	}
	return f.Sync()
}

// Append writes extents as one record. They survive the process when it
// returns, and a power loss after Sync. After an error the log is failed.
func (l *Log) Append(extents []Extent) ([]*Chunk, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed != nil {
		return nil, l.failed
	}
	total, head, _ := recordSize(extents)
	if l.off+int64(total) > l.cfg.FileSize {
		if err := l.rotate(); err != nil {
			return nil, l.fail(err)
		}
	}
	if !slices.Contains(l.dirty, l.cur) {
		l.dirty = append(l.dirty, l.cur)
	}
	var crcs [][]uint32
	l.buf, crcs = appendRecord(l.buf[:0], l.cur.header, l.seq+1, l.synced, extents)
	if _, err := l.cur.f.WriteAt(l.buf, l.off); err != nil {
		return nil, l.fail(errs.Wrap(err, "write log"))
	}
	at := l.off + int64(roundUp(head))
	chunks := make([]*Chunk, len(extents))
	for i, e := range extents {
		l.seq++
		chunks[i] = &Chunk{Seq: l.seq, Kind: e.Kind, LBA: e.LBA, Blocks: e.Blocks, file: l.cur, off: at, crcs: crcs[i]}
		at += int64(len(e.Data))
	}
	l.cur.last = l.seq
	l.off += int64(total)
	return chunks, nil
}

// Sync makes everything appended before it durable. A log that failed to sync
// stays failed: the kernel may have dropped the pages it could not write.
func (l *Log) Sync() error {
	l.sync.Lock()
	defer l.sync.Unlock()
	l.mu.Lock()
	if l.failed != nil {
		defer l.mu.Unlock()
		return l.failed
	}
	dirty, seq := l.dirty, l.seq
	l.dirty = nil
	l.mu.Unlock()
	for _, f := range dirty {
		if err := f.f.Sync(); err != nil {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.fail(errs.Wrap(err, "sync log"))
		}
	}
	l.mu.Lock()
	l.synced = seq
	l.mu.Unlock()
	return nil
}

func (l *Log) fail(err error) error {
	if l.failed == nil {
		l.failed = err
	}
	return l.failed
}

// Release recycles the files whose content up to seq is in the store. Nobody
// may read chunks up to seq any more.
func (l *Log) Release(seq uint64) {
	l.sync.Lock() // so that no file is synced for its old content
	defer l.sync.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.full) > 0 && l.full[0].last <= seq {
		f := l.full[0]
		l.full = l.full[1:]
		l.dirty = slices.DeleteFunc(l.dirty, func(d *File) bool { return d == f })
		l.free = append(l.free, f)
	}
	if seq >= l.cfg.PrevSeq {
		l.free = append(l.free, l.later...)
		l.later = nil
	}
}

// Held is the space of the files in use.
func (l *Log) Held() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int64(len(l.full)+1) * l.cfg.FileSize
}

// Close closes the files; it does not sync.
func (l *Log) Close() {
	l.sync.Lock()
	defer l.sync.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fail(errs.New(errs.FailedPrecondition, "log is closed"))
	for _, f := range slices.Concat(l.full, l.free, l.later) {
		f.f.Close()
	}
	if l.cur != nil {
		l.cur.f.Close()
	}
}
