package loop_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/testsupport/wait"
)

// load writes files and reads them back, all the time.
type load struct {
	t     *testing.T
	dir   string
	quit  chan struct{}
	wg    sync.WaitGroup
	mu    sync.Mutex
	count int64
	bad   bool
	model [loadFiles][loadBlocks]uint64 // stamp of each block
}

const (
	loadFiles  = 4
	loadBlocks = 512
	loadBlock  = 8192
)

func (l *load) path(i int) string { return filepath.Join(l.dir, fmt.Sprint("file", i)) }

func stamp(b []byte, n uint64) {
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], n+uint64(i))
	}
}

func write(t *testing.T, dir string) *load {
	l := &load{t: t, dir: dir, quit: make(chan struct{})}
	for i := range loadFiles {
		l.wg.Go(func() {
			if err := l.run(i); err != nil {
				t.Errorf("file %d: %v", i, err)
				l.mu.Lock()
				l.bad = true
				l.mu.Unlock()
			}
		})
	}
	t.Cleanup(l.stop)
	return l
}

func (l *load) stop() {
	l.mu.Lock()
	select {
	case <-l.quit:
	default:
		close(l.quit)
	}
	l.mu.Unlock()
	l.wg.Wait()
}

func (l *load) failed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bad
}

func (l *load) ops() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

// until waits for n more operations.
func (l *load) until(t *testing.T, n int64) {
	t.Helper()
	end := l.ops() + n
	wait.For(t, fmt.Sprintf("%d operations of the file system", n), func() bool { return l.ops() >= end || l.failed() },
		wait.State(func() any { return fmt.Sprint("uninterruptible: ", uninterruptible(t)) }))
}

// run works on one file: half of the files past the page cache.
func (l *load) run(i int) error {
	flags := os.O_CREATE | os.O_RDWR
	if i%2 == 1 {
		flags |= unix.O_DIRECT
	}
	f, err := os.OpenFile(l.path(i), flags, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := unix.Mmap(-1, 0, 2*loadBlock, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	defer unix.Munmap(b)
	p, want := b[:loadBlock], b[loadBlock:]
	rng := rand.New(rand.NewPCG(uint64(i), 2))
	for n := uint64(1); ; n++ {
		select {
		case <-l.quit:
			return f.Sync()
		default:
		}
		at := rng.IntN(loadBlocks)
		if old := l.model[i][at]; old != 0 {
			if _, err := f.ReadAt(p, int64(at)*loadBlock); err != nil {
				return err
			}
			if stamp(want, old); !bytes.Equal(p, want) {
				return fmt.Errorf("block %d has %d, want %d", at, binary.LittleEndian.Uint64(p), old)
			}
		}
		l.model[i][at] = n<<20 | uint64(at)
		stamp(p, l.model[i][at])
		if _, err := f.WriteAt(p, int64(at)*loadBlock); err != nil {
			return err
		}
		if n%4 == 0 {
			if err := f.Sync(); err != nil {
				return err
			}
		}
		if n%50 == 0 { // metadata
			other := l.path(i) + ".tmp"
			if err := os.WriteFile(other, p, 0o600); err != nil {
				return err
			}
			if err := os.Remove(other); err != nil {
				return err
			}
		}
		l.mu.Lock()
		l.count++
		l.mu.Unlock()
	}
}

// verify reads all files after the writers have stopped.
func (l *load) verify(t *testing.T) {
	t.Helper()
	want := make([]byte, loadBlock)
	for i := range loadFiles {
		b, err := os.ReadFile(l.path(i))
		if err != nil {
			t.Fatal(err)
		}
		for at, n := range l.model[i] {
			if n == 0 {
				continue
			}
			if stamp(want, n); !bytes.Equal(b[at*loadBlock:(at+1)*loadBlock], want) {
				t.Fatalf("file %d block %d has other content", i, at)
			}
		}
	}
}
