package fuse_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/store"
	dirstore "miren.dev/runtime/lsvd/store/dir"
	"miren.dev/runtime/testsupport/wait"
)

// bound is how long a request may take that waits for nothing but a reader:
// far more than it does, and far less than forever.
const bound = 2 * time.Second

// slow is a disk whose queued writes wait for the gate of memory, and whose
// reads of its second half wait for reading.
type slow struct {
	memory
	reading chan struct{}
	waiting atomic.Int32 // reads and writes at a gate

	mu     sync.Mutex
	queued []func()
	busy   bool
}

func (s *slow) ReadAt(ctx context.Context, p []byte, off int64) error {
	if off >= s.Size()/2 {
		s.waiting.Add(1)
		<-s.reading
	}
	return s.memory.ReadAt(ctx, p, off)
}

func (s *slow) Queue(p []byte, off int64, w lsvd.Completion) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queued = append(s.queued, func() {
		s.waiting.Add(1)
		w.Done(s.WriteAt(context.Background(), p, off, 0), false)
		w.BatchDone()
	})
	return true
}

func (s *slow) Commit() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy {
		return
	}
	for s.busy = true; len(s.queued) > 0; {
		f := s.queued[0]
		s.queued = s.queued[1:]
		s.mu.Unlock()
		f()
		s.mu.Lock()
	}
	s.busy = false
}

// TestStalledRequestsDelayNoOthers finds that requests are answered while a write and reads stall,
// whichever of them came first.
func TestStalledRequestsDelayNoOthers(t *testing.T) {
	for name, writeFirst := range map[string]bool{"write first": true, "read first": false} {
		t.Run(name, func(t *testing.T) {
			c := mount(t)
			disk := &slow{memory: memory{b: make([]byte, 1<<20), gate: make(chan struct{})}, reading: make(chan struct{})}
			stop := serve(t, c, disk)
			defer stop()
			f := open(t, c)
			writes, block := newAIO(t, c, 1), pages(t, 4096)
			for range 20 {
				var wg sync.WaitGroup
				write := func() { writes.write(block, 0) }
				read := func() {
					wg.Go(func() {
						if _, err := f.ReadAt(make([]byte, 4096), 1<<19); err != nil {
							t.Error(err)
						}
					})
				}
				begin := []func(){write, read, read, read}
				if !writeFirst {
					begin = []func(){read, write, read, read}
				}
				disk.waiting.Store(0)
				for i, f := range begin {
					f()
					wait.For(t, "all requests at the disk", func() bool { return disk.waiting.Load() == int32(i+1) })
				}
				for range 3 {
					within(t, "a read", func() error { _, err := f.ReadAt(make([]byte, 4096), 4096); return err })
					within(t, "a flush", f.Sync)
				}
				disk.gate <- struct{}{}
				for range 3 {
					disk.reading <- struct{}{}
				}
				writes.wait(1)
				wg.Wait()
			}
		})
	}
}

// within has f end in time, and without an error.
func within(t *testing.T, what string, f func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	if err := wait.Receive(t, what+" that waits for no other", done, wait.Within(bound)); err != nil {
		t.Fatal(err)
	}
}

// away is a store that does not answer while it is away.
type away struct {
	store.Store
	mu   sync.Mutex
	back chan struct{}
}

func (a *away) wait(ctx context.Context) error {
	a.mu.Lock()
	back := a.back
	a.mu.Unlock()
	select {
	case <-back:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (a *away) GetRange(ctx context.Context, key string, off, n int64) ([]byte, error) {
	if err := a.wait(ctx); err != nil {
		return nil, err
	}
	return a.Store.GetRange(ctx, key, off, n)
}

func (a *away) Create(ctx context.Context, key string, data []byte) (store.Version, error) {
	if err := a.wait(ctx); err != nil {
		return "", err
	}
	return a.Store.Create(ctx, key, data)
}

// TestStoreAway finds what is cached read, and flushes answered, while the
// store is away, writes wait since too much is unsent, and reads wait for it.
func TestStoreAway(t *testing.T) {
	const size, cached = 64 << 20, 1 << 20
	dir, err := dirstore.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	there := make(chan struct{})
	close(there)
	st := &away{Store: dir, back: there}
	disk := volume(t, st, size, lsvd.Options{LogFile: 4 << 20, CutBytes: 1 << 20, MaxUnsent: 8 << 20, CutAge: 50 * time.Millisecond, CacheBytes: 8 << 20})
	d := disk()
	data := pages(t, 1<<20)
	for i := range data {
		data[i] = byte(i * i >> 3)
	}
	for off := int64(0); off < size; off += 1 << 20 {
		if err := d.WriteAt(t.Context(), data, off, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	d = disk()
	defer d.Close(context.Background())
	c := mount(t)
	stop := serve(t, c, d)
	defer stop()
	f := open(t, c)
	read := func(off int64) error {
		_, err := f.ReadAt(make([]byte, 4096), off)
		return err
	}
	if err := read(cached); err != nil {
		t.Fatal(err)
	}

	back := make(chan struct{})
	comesBack := sync.OnceFunc(func() { close(back) })
	defer comesBack()
	st.mu.Lock()
	st.back = back
	st.mu.Unlock()
	const writers = 120 // nearly as many as a loop device has under way
	var wg sync.WaitGroup
	writes := newAIO(t, c, writers)
	for i := int64(32 << 20); d.Stats().UnsentBytes < 8<<20; i += 256 << 10 {
		writes.write(data[:256<<10], i)
		writes.wait(1)
	}
	for i := range int64(writers) {
		writes.write(data[:256<<10], 32<<20+i<<18)
	}
	for i := range 4 {
		wg.Go(func() {
			if err := read(int64(8+4*i) << 20); err != nil {
				t.Error(err)
			}
		})
	}
	for range 50 {
		within(t, "a read", func() error { return read(cached) })
		within(t, "a flush", f.Sync)
	}
	comesBack()
	writes.wait(writers)
	wg.Wait()
}

// ahead is a disk that flushes before it is asked to.
type ahead struct {
	slow
	begun chan struct{} // is told when it does
	ended chan error    // what becomes of it

	mu     sync.Mutex
	joined []lsvd.Completion
	under  bool
}

func (a *ahead) FlushLikely() bool { return true }

func (a *ahead) FlushEarly() {
	a.mu.Lock()
	a.under = true
	a.mu.Unlock()
	a.begun <- struct{}{}
	err := <-a.ended
	a.mu.Lock()
	joined := a.joined
	a.joined, a.under = nil, false
	a.mu.Unlock()
	for _, w := range joined {
		w.Done(err, false)
		w.BatchDone()
	}
}

func (a *ahead) Join(w lsvd.Completion) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.under {
		a.joined = append(a.joined, w)
	}
	return a.under
}

// TestFlushEarly answers a flush when the one that was begun before it ends,
// and other requests meanwhile.
func TestFlushEarly(t *testing.T) {
	c := mount(t)
	disk := &ahead{slow: slow{memory: memory{b: make([]byte, 1<<20)}}, begun: make(chan struct{}), ended: make(chan error)}
	stop := serve(t, c, disk)
	defer stop()
	f := open(t, c)
	writes, block := newAIO(t, c, 1), pages(t, 4096)
	waiting := func() bool {
		disk.mu.Lock()
		defer disk.mu.Unlock()
		return len(disk.joined) == 1
	}
	for i := range 200 {
		writes.write(block, 0)
		writes.wait(1)
		<-disk.begun
		flushed := make(chan error, 1)
		go func() { flushed <- f.Sync() }()
		wait.For(t, "the flush joins", waiting)
		within(t, "a read", func() error { _, err := f.ReadAt(make([]byte, 4096), 4096); return err })
		select {
		case <-flushed:
			t.Fatal("answered too early")
		default:
		}
		var broken error
		if i%50 == 49 {
			broken = errors.New("broken")
		}
		disk.ended <- broken
		if err := <-flushed; (err != nil) != (broken != nil) {
			t.Fatalf("flush %d: %v", i, err)
		}
	}
	if disk.flushes != 0 {
		t.Errorf("%d flushes more", disk.flushes)
	}
}
