package wal

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/lsvd/vfs/vfssim"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

const spaceFile = 64 << 10

// spaced begins a log of the first epoch that shares a budget.
func spaced(t *testing.T, fs vfs.FS, s *Space) *Log {
	t.Helper()
	found, err := Find(fs, header.Volume)
	if err != nil {
		t.Fatal(err)
	}
	l, err := Start(Config{FS: fs, Volume: header.Volume, Epoch: 1, FileSize: spaceFile, Space: s}, found)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// add appends a block and returns its sequence number.
func add(l *Log) (uint64, error) {
	chunks, err := l.Append([]Extent{{Kind: Data, LBA: 1, Blocks: 1, Data: block(1), CRCs: Sums(block(1))}}, nil)
	if err != nil {
		return 0, err
	}
	return chunks[0].Seq, nil
}

// fillUp appends until the log has no room, and returns the last sequence number.
func fillUp(t *testing.T, l *Log) (last uint64) {
	t.Helper()
	for range 10000 {
		n, err := add(l)
		if errs.Is(err, errs.ResourceExhausted) {
			return last
		}
		if err != nil {
			t.Fatal(err)
		}
		last = n
	}
	t.Fatal("the log always has room")
	return 0
}

// files checks how many files a log has, in the directory and of the budget.
func files(t *testing.T, fs vfs.FS, l *Log, want int) {
	t.Helper()
	names, err := fs.List()
	if err != nil {
		t.Fatal(err)
	}
	s := l.share.space
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(names) != want || l.share.held != int64(want)*spaceFile {
		t.Errorf("the log has %d files and %d bytes of the budget, not %d files", len(names), l.share.held, want)
	}
}

// TestSpaceIsSharedAndGivenBack fills one log until the budget is used up. Another
// still has its minimum, and gets more when the first has given back.
func TestSpaceIsSharedAndGivenBack(t *testing.T) {
	s := NewSpace(10 * spaceFile)
	one, two := vfssim.New(), vfssim.New()
	a, b := spaced(t, one, s), spaced(t, two, s)
	last := fillUp(t, a)
	files(t, one, a, 7) // all but what is b's
	fillUp(t, b)
	files(t, two, b, minFiles)
	if s.Used() != s.Limit() {
		t.Errorf("%d of %d bytes are used", s.Used(), s.Limit())
	}
	a.Release(last - 1)
	select {
	case <-a.share.refused():
	default:
		t.Fatal("nobody told the first log that another needs space")
	}
	a.Trim(aheadFiles)
	files(t, one, a, minFiles)
	fillUp(t, b)
	files(t, two, b, 7)
	if s.Used() != s.Limit() {
		t.Errorf("%d of %d bytes are used", s.Used(), s.Limit())
	}
	a.Close()
	fillUp(t, b)
	files(t, two, b, 10)
	b.Close()
	if s.Used() != 0 {
		t.Errorf("closed logs have %d bytes", s.Used())
	}
}

// TestMinimaOfManyLogs opens more logs than the budget has room for: each has
// its minimum and no more.
func TestMinimaOfManyLogs(t *testing.T) {
	s := NewSpace(4 * spaceFile)
	var all [3]*Log
	var fs [3]*vfssim.Sim
	for i := range all {
		fs[i] = vfssim.New()
		all[i] = spaced(t, fs[i], s)
	}
	for i, l := range all {
		last := fillUp(t, l)
		l.Release(last)
		fillUp(t, l)
		files(t, fs[i], l, minFiles)
	}
}

// TestFullLogOpensBeyondTheBudget opens a log that a crash has left with more
// files than the budget has: it gets the file that it needs.
func TestFullLogOpensBeyondTheBudget(t *testing.T) {
	fs := vfssim.New()
	l := spaced(t, fs, NewSpace(8*spaceFile))
	last := fillUp(t, l)
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	fs.Kill()
	for _, f := range l.free {
		if err := fs.Remove(f.name); err != nil {
			t.Fatal(err)
		}
	}
	found, err := Find(fs, header.Volume)
	if err != nil {
		t.Fatal(err)
	}
	got, _, err := found.Replay(1, 0, false, func(*Chunk) error { return nil })
	if err != nil || got != last {
		t.Fatalf("replayed up to %d of %d: %v", got, last, err)
	}
	s := NewSpace(2 * spaceFile)
	l, err = Start(Config{FS: fs, Volume: header.Volume, Epoch: 2, PrevEpoch: 1, PrevSeq: last, FileSize: spaceFile, Space: s}, found)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	files(t, fs, l, 8)
	l.Release(last)
	l.Trim(aheadFiles)
	files(t, fs, l, minFiles)
}

// TestUnneededFilesAreRemoved finds that a log gives back by itself what it needed
// for a while, but not what it goes on to need.
func TestUnneededFilesAreRemoved(t *testing.T) {
	was := trimInterval
	trimInterval = 20 * time.Millisecond
	t.Cleanup(func() { trimInterval = was })
	fs := vfssim.New()
	s := NewSpace(10 * spaceFile)
	l := spaced(t, fs, s)
	last := fillUp(t, l)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.Ahead(ctx)
	}()
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	l.Release(last)
	wait.For(t, "the files are removed", func() bool { return s.Used() == minFiles*spaceFile })
	fillUp(t, l)
	stop()
	wait.Receive(t, "the end of Ahead", ended)
	files(t, fs, l, 10)
}

// TestTrimmedLogSurvivesPowerLoss releases, trims and appends at random, and finds
// after a power loss all that was synced and not released.
func TestTrimmedLogSurvivesPowerLoss(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 16))
		fs := vfssim.New()
		var epoch, prev, released, synced uint64
		for range 4 {
			found, err := Find(fs, header.Volume)
			if err != nil {
				t.Fatal(err)
			}
			if epoch > 0 {
				next := released + 1
				last, _, err := found.Replay(epoch, released, false, func(c *Chunk) error {
					if c.Seq != next {
						t.Fatalf("seed %d: sequence %d, not %d", seed, c.Seq, next)
					}
					next++
					return nil
				})
				if err != nil || last < synced {
					t.Fatalf("seed %d: replayed up to %d of %d: %v", seed, last, synced, err)
				}
				prev = last
			}
			l, err := Start(Config{FS: fs, Volume: header.Volume, Epoch: epoch + 1, PrevEpoch: epoch, PrevSeq: prev, FileSize: spaceFile, Space: NewSpace(6 * spaceFile)}, found)
			if err != nil {
				t.Fatal(err)
			}
			epoch++
			last := prev
			synced = prev
			for range rng.IntN(300) {
				switch rng.IntN(20) {
				case 0:
					if err := l.Sync(); err != nil {
						t.Fatal(err)
					}
					synced = last
				case 1, 2:
					released += rng.Uint64N(last - released + 1)
					l.Release(released)
				case 3:
					l.Trim(rng.IntN(minFiles))
				default:
					n, err := add(l)
					switch {
					case errs.Is(err, errs.ResourceExhausted):
						released = last
						l.Release(released)
					case err != nil:
						t.Fatalf("seed %d: %v", seed, err)
					default:
						last = n
					}
				}
			}
			// What was released is in the store, so it is not lost with the log.
			synced = max(synced, released)
			fs.PowerLoss(rng)
		}
	}
}
