package wal

// A caller that flushes after every write waits for two things in a row: the
// write and the flush of the disk. A frontend needs as long to ask for the flush
// as the disk needs for the write. So the log looks for a rhythm: the same number
// of records between syncs. When the rhythm says that a sync is likely, it is
// begun early, and the caller finds it under way. If no caller asks for it, the
// rhythm is over, and it was one sync too many.

// Sync makes everything appended before it durable. A log that failed to sync
// stays failed: the kernel may have dropped the pages it could not write.
// Callers that wait while one syncs share the next sync.
func (l *Log) Sync() error {
	l.mu.Lock()
	want := l.seq
	l.asked.sync()
	l.mu.Unlock()
	return l.SyncTo(want)
}

// SyncTo syncs unless everything up to want is durable. It does not count for the
// rhythm: the disk needs it, not a caller.
func (l *Log) SyncTo(want uint64) error {
	l.sync.Lock()
	l.mu.Lock()
	if l.failed != nil || l.synced >= want {
		defer l.sync.Unlock()
		defer l.mu.Unlock()
		return l.failed
	}
	err := l.syncFiles(l.dirty, l.seq)
	l.done(err)
	return err
}

// SyncEarly syncs, unless a sync is under way, before a sync is asked for. It
// returns only errors that it has met itself.
func (l *Log) SyncEarly() error {
	if !l.sync.TryLock() {
		return nil
	}
	l.mu.Lock()
	if l.failed != nil || l.synced >= l.seq {
		defer l.sync.Unlock()
		defer l.mu.Unlock()
		return nil
	}
	err := l.syncFiles(l.dirty, l.seq)
	l.done(err)
	return err
}

// SyncLikely reports whether a sync will probably be asked for before anything else
// is appended. It does not wait: while a record is written there is something
// else.
func (l *Log) SyncLikely() bool {
	if !l.mu.TryLock() {
		return false
	}
	defer l.mu.Unlock()
	return l.asked.due && l.synced < l.seq
}

// Join is Sync without waiting: the goroutine whose sync is under way calls f when
// that has ended, and holds no lock then. Join reports false if no sync is under
// way, or if it does not cover all that was appended.
func (l *Log) Join(f func(error)) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed != nil || l.syncing == 0 || l.syncing < l.seq {
		return false
	}
	l.asked.sync()
	l.joined = append(l.joined, f)
	return true
}

// done ends a sync after syncFiles, and calls the functions of Join.
func (l *Log) done(err error) {
	joined := l.joined // sync is held: no call of Join adds to it any more
	l.joined = nil
	l.sync.Unlock()
	for _, f := range joined {
		f(err)
	}
}

// rhythm says when syncs are asked for: after how many records each.
type rhythm struct {
	records int    // since the last sync
	counts  [2]int // before the last one and the one before it
	held    int    // how often in a row a count was that of the one before the last
	due     bool   // it was so, and now is the time again
}

const (
	// rhythmHeld is how often a rhythm has held before it counts as one.
	rhythmHeld = 3
	// rhythmMost is how many records may come between syncs in a rhythm.
	rhythmMost = 4
)

// record notes a record, and reports whether to begin to write it to the disk:
// if it is the first, and the last sync came after one or two.
func (r *rhythm) record() bool {
	r.records++
	r.due = r.held >= rhythmHeld && r.records == r.counts[1] && r.records <= rhythmMost
	return r.records == 1 && r.counts[0] > 0 && r.counts[0] <= 2
}

// sync notes that a sync is asked for.
func (r *rhythm) sync() {
	r.due = false
	if r.records == 0 {
		return
	}
	if r.records == r.counts[1] {
		r.held++
	} else {
		r.held = 0
	}
	r.counts = [2]int{r.records, r.counts[0]}
	r.records = 0
}
