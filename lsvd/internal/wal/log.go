package wal

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/pkg/errs"
)

// File is one file of the log.
type File struct {
	f       vfs.File
	name    string
	header  Header
	last    uint64 // seq of the last extent in it; 0: none
	dirty   bool   // written since the last sync
	durable bool   // its header survives a power loss

	indexed atomic.Bool // it has an index, see distrust
	hurt    atomic.Bool // a block of it is damaged
}

// Config says what log to write.
type Config struct {
	FS        vfs.FS
	Volume    name.Volume
	Epoch     uint64
	PrevEpoch uint64
	PrevSeq   uint64 // the log continues after this sequence number
	FileSize  int64
	Space     *Space // bounds the files of several logs; nil: no bound
}

// Log writes the log of one epoch. Append is for one caller at a time; Sync,
// SyncEarly, Advance, Release, Trim and Ahead may be called beside it.
//
// Lock order: sync before mu.
type Log struct {
	cfg   Config
	share *share // of cfg.Space

	sync sync.Mutex // held while files are synced

	mu      sync.Mutex
	cur     *File
	off     int64
	begun   int64 // up to where writeback of cur has begun
	gen     uint64
	seq     uint64  // of the last extent written
	synced  uint64  // of the last extent known to be durable
	dirty   []*File // written since the last sync, oldest first
	full    []*File // in use, oldest first, without cur
	free    []*File
	later   []*File // free once the epochs before this one are in the store
	used    map[string]bool
	unnamed bool    // names were made since the directory was synced
	index   indexer // of cur
	head    []byte  // begins with what the last page of cur has, see page.go
	pad     []byte
	parts   [][]byte
	failed  error
	asked   rhythm
	syncing uint64        // the sync under way makes durable up to this; 0: none is
	joined  []func(error) // called when it ends; read by the holder of sync

	leastFree int // the fewest free files since trimUnneeded was called last

	early, earlyAt int64 // what Begin begins, of cur; for the caller of Append only

	kick   chan struct{} // for Ahead; has room for one
	filled chan struct{} // the same, when a file is full
}

// Start begins the epoch of cfg on top of the files found, of which Replay was
// called. It makes what was recovered durable first, if that is not promised,
// and the first header of the epoch last.
func Start(cfg Config, found *Found) (*Log, error) {
	l := &Log{cfg: cfg, seq: cfg.PrevSeq, synced: cfg.PrevSeq, used: found.used, free: found.other, kick: make(chan struct{}, 1), filled: make(chan struct{}, 1)}
	for _, f := range found.files {
		l.gen = max(l.gen, f.header.Generation)
		f.durable = false // as a link of this epoch it counts for nothing
		if f.last == 0 {
			l.later = append(l.later, f) // its header may be a link of the history
			continue
		}
		if f.last > found.promised {
			if err := f.f.Sync(); err != nil {
				return nil, errs.Wrap(err, "sync recovered log")
			}
			l.unnamed = true // maybe
		}
		l.full = append(l.full, f)
	}
	l.head, l.pad = pages()
	l.share = cfg.Space.join(minFiles*cfg.FileSize, int64(len(l.full)+len(l.later)+len(l.free))*cfg.FileSize)
	err := l.rotate()
	if err == nil {
		err = l.SyncTo(l.seq + 1)
	}
	if err != nil {
		l.share.leave()
		return nil, err
	}
	return l, nil
}

// rotate goes on to an empty file. Its header becomes durable with the next
// sync: until then Release keeps an older one of the epoch, since a power loss
// that took all of them would make the log seem lost. The caller holds mu or
// is alone.
//
// ResourceExhausted means that the file system or cfg.Space has no room for another
// file, and that nothing has changed: it may be tried again.
func (l *Log) rotate() error {
	f, err := l.next()
	if err != nil {
		return err
	}
	if l.cur != nil {
		if err := l.cur.seal(l.index.finish(&l.cur.header, l.seq, l.off), l.cfg.FileSize); err != nil {
			return errs.Wrap(err, "write log file index")
		}
		l.touch(l.cur)
	}
	l.gen++
	f.last, f.durable = 0, false
	f.indexed.Store(false)
	f.hurt.Store(false)
	f.header = Header{Volume: l.cfg.Volume, Epoch: l.cfg.Epoch, Generation: l.gen, First: l.seq + 1, PrevEpoch: l.cfg.PrevEpoch, PrevSeq: l.cfg.PrevSeq}
	if _, err := f.f.WriteAt(EncodeHeader(f.header), 0); err != nil {
		return errs.Wrap(err, "write log file header")
	}
	if l.cur != nil {
		l.full = append(l.full, l.cur)
	}
	l.cur, l.off, l.begun = f, headerSize, headerSize
	l.head, l.early = l.head[:0], 0
	l.touch(f)
	if len(l.dirty) > lagFiles {
		select {
		case l.filled <- struct{}{}:
		default:
		}
	}
	return nil
}

// next returns an empty file of full size, a free one or a new one, with the errors of
// rotate. One more is left free: the next opening of the log needs a file for its epoch,
// also on a file system that is full.
func (l *Log) next() (*File, error) {
	var ready []*File
	for _, f := range l.free {
		size, err := f.f.Size()
		if err != nil {
			return nil, errs.Wrap(err, "size of log file")
		}
		if size == l.cfg.FileSize {
			ready = append(ready, f)
		}
	}
	var full error
	for len(ready) < 2 && full == nil {
		f, err := l.more()
		if full = noRoom(err); err == nil {
			ready = append(ready, f)
		} else if !errs.Is(full, errs.ResourceExhausted) {
			return nil, err
		}
	}
	// The first file of an epoch may be the last that there is.
	if len(ready) == 0 || len(ready) == 1 && l.cur != nil {
		return nil, full
	}
	f := ready[len(ready)-1]
	l.free = slices.DeleteFunc(l.free, func(x *File) bool { return x == f })
	l.leastFree = min(l.leastFree, len(l.free))
	return f, nil
}

// more gives one more free file its full size, or makes one.
func (l *Log) more() (*File, error) {
	for _, f := range l.free {
		if size, err := f.f.Size(); err != nil || size != l.cfg.FileSize {
			return f, l.whole(f)
		}
	}
	f, err := l.create()
	if err == nil {
		l.free = append(l.free, f)
	}
	return f, err
}

// noRoom gives the error of a full file system or quota its class.
func noRoom(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return errs.New(errs.ResourceExhausted, "%w", err)
	}
	return err
}

// touch notes that f must be synced. The caller holds mu.
func (l *Log) touch(f *File) {
	if !f.dirty {
		f.dirty = true
		l.dirty = append(l.dirty, f)
	}
}

// whole makes f have its full size.
func (l *Log) whole(f *File) error {
	size, err := f.f.Size()
	if err == nil && size != l.cfg.FileSize {
		err = prewrite(f.f, l.cfg.FileSize)
	}
	return errs.Wrap(err, "prepare log file")
}

// unused returns a name that no file has. The caller holds mu or is alone.
func (l *Log) unused() string {
	for i := 0; ; i++ {
		if n := fmt.Sprintf("%s%04d", filePrefix, i); !l.used[n] {
			return n
		}
	}
}

// create makes a file for an append that waits. The file has its size, but no block
// of it is written yet, and its name becomes durable with the next sync. The caller
// holds mu or is alone.
func (l *Log) create() (*File, error) {
	// A log that was left with full files only needs one to be opened.
	if err := l.share.take(l.cfg.FileSize, l.cur == nil && len(l.free) == 0); err != nil {
		return nil, err
	}
	n := l.unused()
	f, err := l.cfg.FS.Open(n, true)
	if err == nil {
		if err = f.Allocate(l.cfg.FileSize); err != nil {
			f.Close()
		}
	}
	if err != nil {
		l.share.give(l.cfg.FileSize)
		return nil, errs.Wrap(err, "make log file")
	}
	l.used[n], l.unnamed = true, true
	return &File{f: f, name: n}, nil
}

// Append writes extents, whose CRCs are set, as one record, and appends their
// chunks to out. They survive the process when it returns, and a power loss
// after Sync. ResourceExhausted means that the file system is full or cfg.Space used
// up: nothing was written, and it works again when Release has freed a file or others
// have freed space. After any other error the log is failed.
func (l *Log) Append(extents []Extent, out []Chunk) ([]Chunk, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed != nil {
		return out, l.failed
	}
	total, head, _ := recordSize(extents)
	if l.off+int64(total)+l.index.room(indexSize(extents)) > l.cfg.FileSize {
		switch err := l.rotate(); {
		case errs.Is(err, errs.ResourceExhausted):
			return out, err
		case err != nil:
			return out, l.fail(err)
		}
	}
	l.touch(l.cur)
	start := l.off - int64(len(l.head)) // of the page that the log ends in
	l.head = appendHead(l.head, &l.cur.header, l.seq+1, l.synced, extents)
	first, synced := l.seq+1, l.synced
	l.parts = append(l.parts[:0], l.head)
	at := l.off + int64(roundUp(head))
	for i := range extents {
		e := &extents[i]
		l.seq++
		out = append(out, Chunk{Seq: l.seq, Kind: e.Kind, LBA: e.LBA, Blocks: e.Blocks, file: l.cur, off: at, crcs: e.CRCs})
		at += int64(len(e.Data))
		if len(e.Data) > 0 {
			l.parts = append(l.parts, e.Data)
		}
	}
	if rest := int(-at & (page - 1)); rest > 0 {
		l.parts = append(l.parts, l.pad[:rest])
	}
	err := l.write(start, at-start)
	if err != nil {
		return out, l.fail(errs.Wrap(err, "write log"))
	}
	l.index.add(first, synced, len(extents), l.head[len(l.head)-roundUp(head):][recordHead:head])
	l.lead(extents, int(at&(page-1)))
	clear(l.parts)
	l.cur.last = l.seq
	l.off += int64(total)
	if l.off-l.begun >= writeback || len(l.free) < aheadFiles && l.off > l.cfg.FileSize/2 {
		l.wake()
	}
	return out, nil
}

// syncFiles syncs the oldest of the dirty files, after which everything up to
// seq is durable. The caller holds sync, which it gives back by done, and mu,
// which is released.
func (l *Log) syncFiles(files []*File, seq uint64) error {
	unnamed := l.unnamed
	l.dirty, l.unnamed, l.syncing = l.dirty[len(files):], false, seq
	for _, f := range files {
		f.dirty = false
	}
	l.mu.Unlock()
	var err error
	for _, f := range files {
		if err = f.f.Sync(); err != nil {
			break
		}
	}
	if err == nil && unnamed {
		err = l.cfg.FS.SyncDir()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.syncing = 0
	if err != nil {
		return l.fail(errs.Wrap(err, "sync log"))
	}
	l.synced = max(l.synced, seq)
	for _, f := range files {
		f.durable = true
	}
	return nil
}

func (l *Log) fail(err error) error {
	if l.failed == nil {
		l.failed = err
	}
	return l.failed
}

// Release recycles the files whose content up to seq is in the store. No caller
// may read chunks up to seq afterwards.
func (l *Log) Release(seq uint64) {
	l.mu.Lock()
	now, stuck := l.seq, len(l.full) > 0 && l.full[0].last <= seq && !l.cur.durable
	l.mu.Unlock()
	if stuck {
		l.SyncTo(now) // on an error the log has failed, and Append returns it
	}
	l.sync.Lock() // so that no file is synced for its old content
	defer l.sync.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	newest := 0 // the newest file with a durable header stays
	for i, f := range l.full {
		if f.durable {
			newest = i
		}
	}
	if l.cur.durable {
		newest = len(l.full)
	}
	n := 0
	for n < newest && l.full[n].last <= seq {
		f := l.full[n]
		n++
		if f.dirty {
			f.dirty = false
			l.dirty = slices.DeleteFunc(l.dirty, func(d *File) bool { return d == f })
		}
		l.free = append(l.free, f)
	}
	l.full = l.full[n:]
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
	l.share.leave()
	for _, f := range slices.Concat(l.full, l.free, l.later) {
		f.f.Close()
	}
	if l.cur != nil {
		l.cur.f.Close()
	}
}
