package wal

import (
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/lsvd/vfs/vfssim"
	"miren.dev/runtime/testsupport/wait"
)

// TestSyncIsLikely says when a sync is due: w is a record, s a sync that is asked
// for, W and S the same when a sync is due after them.
func TestSyncIsLikely(t *testing.T) {
	for name, steps := range map[string]string{
		"one record each":     "ws ws ws ws ws WS WS WS",
		"two, as of journals": "wws wws wws wws wws wWS wWS",
		"one and two":         "ws wws ws wws ws wWS WS wWS",
		"twice":               "ws ws ws ws ws WSs WSs WS",
		"it ends":             "ws ws ws ws ws WS Wwwwwwwwwwwwwws ws ws ws ws ws WS WS",
		"too many":            "wwwwws wwwwws wwwwws wwwwws wwwwws wwwwws wwwwws",
		"no rhythm":           "ws wws wws ws ws wws wws ws ws wws wwws ws wws wwwws ws",
	} {
		var r rhythm
		got := strings.Map(func(c rune) rune {
			upper := func(c rune) rune {
				if r.due {
					c -= 'a' - 'A'
				}
				return c
			}
			switch c {
			case 'w', 'W':
				r.record()
				return upper('w')
			case 's', 'S':
				c = upper('s')
				r.sync()
			}
			return c
		}, steps)
		if got != steps {
			t.Errorf("%s: %s, want %s", name, got, steps)
		}
	}
}

// gated is a directory whose files wait in Sync, or in WriteVec.
type gated struct {
	vfs.FS
	writes bool // what waits
	mu     sync.Mutex
	enter  chan struct{} // is told of a sync or a write; nil: they do not wait
	leave  chan error    // what becomes of it
}

func (g *gated) Open(name string, create bool) (vfs.File, error) {
	f, err := g.FS.Open(name, create)
	return &gatedFile{f, g}, err
}

func (g *gated) set(enter chan struct{}, leave chan error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.enter, g.leave = enter, leave
}

type gatedFile struct {
	vfs.File
	g *gated
}

func (f *gatedFile) Sync() error {
	if err := f.g.pass(false); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *gatedFile) WriteVec(parts [][]byte, off int64) error {
	if err := f.g.pass(true); err != nil {
		return err
	}
	return f.File.WriteVec(parts, off)
}

func (g *gated) pass(write bool) error {
	g.mu.Lock()
	enter, leave := g.enter, g.leave
	g.mu.Unlock()
	if enter == nil || write != g.writes {
		return nil
	}
	enter <- struct{}{}
	return <-leave
}

// TestLikelyDuringWrite: SyncLikely returns while the log writes a record.
func TestLikelyDuringWrite(t *testing.T) {
	fs := &gated{FS: vfssim.New(), writes: true}
	l := begin(t, fs, 1<<20)
	enter, leave := make(chan struct{}), make(chan error)
	fs.set(enter, leave)
	var wg sync.WaitGroup
	wg.Go(func() { appendBlocks(t, l, 1, 1) })
	<-enter
	due := make(chan bool, 1)
	wg.Go(func() { due <- l.SyncLikely() })
	if wait.Receive(t, "an answer in the midst of a write", due) {
		t.Error("a sync is due in the midst of a write")
	}
	leave <- nil
	wg.Wait()
}

// TestSyncEarly joins syncs that were begun ahead: who joins is told when what
// was appended before is durable, and of an error; nobody joins a sync that
// began before the last record.
func TestSyncEarly(t *testing.T) {
	sim := vfssim.New()
	fs := &gated{FS: sim}
	l := begin(t, fs, 1<<20)
	for range 6 {
		if l.SyncLikely() {
			t.Error("a sync is due without a rhythm")
		}
		appendBlocks(t, l, 1, 1)
		if l.Join(func(error) { t.Error("told by nobody") }) {
			t.Error("joined a sync that is not under way")
		}
		if err := l.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	enter, leave := make(chan struct{}), make(chan error)
	fs.set(enter, leave)
	ahead := func() chan error {
		appendBlocks(t, l, 1, 1)
		if !l.SyncLikely() {
			t.Fatal("no sync is due")
		}
		done := make(chan error, 1)
		go func() { done <- l.SyncEarly() }()
		<-enter
		return done
	}
	told := make(chan error, 2)
	tell := func(err error) { told <- err }

	done := ahead()
	for range cap(told) {
		if !l.Join(tell) {
			t.Fatal("did not join")
		}
	}
	if err := l.SyncEarly(); err != nil { // another call syncs already
		t.Fatal(err)
	}
	select {
	case <-told:
		t.Fatal("told before the end")
	default:
	}
	leave <- nil
	if err := errors.Join(<-told, <-told, <-done); err != nil {
		t.Fatal(err)
	}
	if l.SyncLikely() || l.Join(tell) {
		t.Error("a sync is under way that has ended")
	}
	durable := l.seq

	done = ahead()
	appendBlocks(t, l, 1, 1)
	if l.Join(tell) {
		t.Error("joined a sync that began before the record")
	}
	broken := errors.New("broken")
	leave <- broken
	if err := <-done; !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	if err := l.Sync(); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	if err := l.SyncEarly(); err != nil || l.Join(tell) {
		t.Errorf("a log that has failed: %v", err)
	}

	fs.set(nil, nil)
	sim.PowerLoss(rand.New(rand.NewPCG(1, 2)))
	found, err := Find(fs, header.Volume)
	if err != nil {
		t.Fatal(err)
	}
	if last, _, err := found.Replay(1, 0, true, func(*Chunk) error { return nil }); err != nil || last < durable {
		t.Errorf("%d of %d after the power loss: %v", last, durable, err)
	}
}

// TestJoinFails tells who joined of an error.
func TestJoinFails(t *testing.T) {
	fs := &gated{FS: vfssim.New()}
	l := begin(t, fs, 1<<20)
	appendBlocks(t, l, 1, 1)
	enter, leave := make(chan struct{}), make(chan error)
	fs.set(enter, leave)
	done := make(chan error, 1)
	go func() { done <- l.Sync() }()
	<-enter
	told := make(chan error, 1)
	if !l.Join(func(err error) { told <- err }) {
		t.Fatal("did not join")
	}
	broken := errors.New("broken")
	leave <- broken
	if a, b := <-told, <-done; !errors.Is(a, broken) || !errors.Is(b, broken) {
		t.Errorf("%v, %v", a, b)
	}
}
