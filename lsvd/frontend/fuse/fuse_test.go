package fuse_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/frontend/fuse"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/proc"
	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/wait"
)

// testMount begins the name of a mount; the process follows, and the test.
const testMount = "lsvd:test:"

// TestMain first takes away the mounts of processes that were killed. With
// requests of its own under way such a process does not end before that: the
// kernel waits for their answers, and has its file of the mount open meanwhile.
func TestMain(m *testing.M) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		panic(err)
	}
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		name, ours := strings.CutPrefix(f[0], testMount)
		if !ours || f[2] != fuse.Type {
			continue
		}
		id, _, _ := strings.Cut(name, ":")
		pid, err := strconv.Atoi(id)
		if err == nil {
			_, err = proc.Identify(pid)
		}
		if err != nil {
			if err := fuse.Unmount(f[1]); err != nil {
				panic(err)
			}
		}
	}
	os.Exit(m.Run())
}

// memory is a disk that notes what it was asked for.
type memory struct {
	mu      sync.Mutex
	b       []byte
	flushes int
	trims   int
	zeros   int
	broken  error
	gate    chan struct{} // writes wait for it, unless it is nil
}

// Status says that there are no holes; FUSE does not ask.
func (m *memory) Status(off, n int64, f func(off, n int64, hole bool) bool) error {
	f(off, n, false)
	return nil
}

func (m *memory) Size() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return int64(len(m.b))
}

func (m *memory) do(f func()) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken == nil {
		f()
	}
	return m.broken
}

func (m *memory) ReadAt(_ context.Context, p []byte, off int64) error {
	return m.do(func() { copy(p, m.b[off:]) })
}

func (m *memory) WriteAt(ctx context.Context, p []byte, off int64, _ lsvd.Flags) error {
	if m.gate != nil {
		select {
		case <-m.gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return m.do(func() { copy(m.b[off:], p) })
}

func (m *memory) Zero(_ context.Context, off, n int64, _ lsvd.Flags) error {
	return m.do(func() { clear(m.b[off : off+n]); m.zeros++ })
}

func (m *memory) Trim(_ context.Context, off, n int64, _ lsvd.Flags) error {
	return m.do(func() { clear(m.b[off : off+n]); m.trims++ })
}

func (m *memory) Flush(context.Context) error { return m.do(func() { m.flushes++ }) }

func (m *memory) counts() (trims, zeros, flushes int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.trims, m.zeros, m.flushes
}

func needFUSE(t *testing.T) {
	t.Helper()
	need.Root(t)
	if _, err := os.Stat("/dev/fuse"); err != nil {
		need.Missing(t, "no /dev/fuse")
	}
}

func logger(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), nil))
}

// mount mounts and returns the connection; it goes away with the test.
func mount(t *testing.T) *fuse.Conn {
	t.Helper()
	needFUSE(t)
	c, err := fuse.Mount(t.TempDir(), fmt.Sprintf("%s%d:%s", testMount, os.Getpid(), filepath.Base(t.Name())), fuse.Options{Logger: logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Unmount(); err != nil {
			t.Error(err)
		}
		c.Close()
	})
	return c
}

// serve serves until the returned function is called.
func serve(t *testing.T, c *fuse.Conn, d lsvd.Disk) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Serve(ctx, d) }()
	return func() {
		cancel()
		if err := wait.Receive(t, "the end of serving", done); err != nil {
			t.Error(err)
		}
	}
}

// volume makes a disk in st, and returns what opens it.
func volume(t *testing.T, st store.Store, size int64, o lsvd.Options) (open func() *lsvd.Device) {
	t.Helper()
	log, err := vfs.OpenDir(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	id := lsvd.NewID()
	if err := lsvd.Create(t.Context(), st, id, size, nil); err != nil {
		t.Fatal(err)
	}
	return func() *lsvd.Device {
		t.Helper()
		d, _, err := lsvd.Open(t.Context(), st, log, id, o)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
}

// open opens the file past Go's poller: the kernel would ask this process
// whether the file can be polled, while its scheduler waits for the answer.
func open(t *testing.T, c *fuse.Conn) *os.File {
	t.Helper()
	fd, err := unix.Open(c.Path(), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), c.Path())
	t.Cleanup(func() { f.Close() })
	return f
}

func TestFileReadsAndWritesDisk(t *testing.T) {
	c := mount(t)
	disk := &memory{b: make([]byte, 8<<20)}
	stop := serve(t, c, disk)
	defer stop()
	f := open(t, c)
	if info, err := f.Stat(); err != nil || info.Size() != 8<<20 || info.Mode().Perm() != 0o600 {
		t.Fatalf("file: %v, %v", info, err)
	}
	entries, err := os.ReadDir(c.Dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != c.Name {
		t.Fatalf("directory: %v, %v", entries, err)
	}
	if info, err := os.Stat(c.Dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Fatalf("directory: %v, %v", info, err)
	}
	// Larger than a request, and of no alignment.
	data := make([]byte, 3<<20+777)
	for i := range data {
		data[i] = byte(i * 7 >> 3)
	}
	if _, err := f.WriteAt(data, 12345); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(data))
	if _, err := f.ReadAt(got, 12345); err != nil || !bytes.Equal(got, data) {
		t.Fatalf("read back: %v", err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if _, _, flushes := disk.counts(); flushes != 1 {
		t.Fatalf("%d flushes", flushes)
	}
	if n, err := f.ReadAt(got[:4096], 8<<20-100); n != 100 || err == nil {
		t.Fatalf("read over the end: %d, %v", n, err)
	}
	if _, err := f.WriteAt(data[:4096], 8<<20-100); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("write over the end: %v", err)
	}
	if err := f.Truncate(1 << 20); !errors.Is(err, unix.EPERM) {
		t.Fatalf("truncate: %v", err)
	}
	if _, err := unix.Open(c.Dir+"/other", unix.O_CREAT|unix.O_RDWR, 0o600); err == nil {
		t.Fatal("another file was made")
	}
}

func TestFallocatePunchesHoles(t *testing.T) {
	c := mount(t)
	disk := &memory{b: bytes.Repeat([]byte{1}, 1<<20)}
	stop := serve(t, c, disk)
	defer stop()
	f := open(t, c)
	const punch, zero = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE
	for _, x := range []struct {
		mode        uint32
		off, n      int64
		trims, zero int
		err         error
	}{
		{punch, 4096, 8192, 1, 0, nil},
		{punch, 100, 8192, 0, 1, nil}, // the kernel relies on zeros
		{zero, 16384, 4096, 0, 1, nil},
		{punch, 1<<20 - 4096, 1 << 20, 1, 0, nil},
		{0, 0, 4096, 0, 0, unix.EOPNOTSUPP},
	} {
		disk.do(func() {
			disk.b = bytes.Repeat([]byte{1}, 1<<20)
			disk.trims, disk.zeros = 0, 0
		})
		err := unix.Fallocate(int(f.Fd()), x.mode, x.off, x.n)
		if trims, zeros, _ := disk.counts(); !errors.Is(err, x.err) || trims != x.trims || zeros != x.zero {
			t.Fatalf("mode %#x of %d+%d: %v, %d trims, %d zeros", x.mode, x.off, x.n, err, trims, zeros)
		}
		want := bytes.Repeat([]byte{1}, 1<<20)
		if x.err == nil {
			clear(want[x.off:min(x.off+x.n, 1<<20)])
		}
		got := make([]byte, len(want))
		if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("mode %#x of %d+%d: %v, other content", x.mode, x.off, x.n, err)
		}
	}
}

func TestDiskErrorsAreEIO(t *testing.T) {
	c := mount(t)
	disk := &memory{b: make([]byte, 1<<20), broken: errs.Wrap(unix.ENOSPC, "log")}
	stop := serve(t, c, disk)
	defer stop()
	f := open(t, c)
	b := make([]byte, 4096)
	_, err := f.ReadAt(b, 0)
	if !errors.Is(err, unix.EIO) {
		t.Errorf("read: %v", err)
	}
	if _, err := f.WriteAt(b, 0); !errors.Is(err, unix.EIO) {
		t.Errorf("write: %v", err)
	}
	if err := f.Sync(); !errors.Is(err, unix.EIO) {
		t.Errorf("sync: %v", err)
	}
}

// TestSecondServerAnswersWhatFirstLeft has a second server, which has only a duplicate of the file,
// answer what the first has begun and not answered, and what came later.
func TestSecondServerAnswersWhatFirstLeft(t *testing.T) {
	c := mount(t)
	if !c.Resend {
		t.Skip("this kernel cannot send requests again")
	}
	disk := &memory{b: make([]byte, 8<<20), gate: make(chan struct{})}
	stop := serve(t, c, disk)
	f := open(t, c)
	const writers = 200 // more than are carried out at a time
	var wg sync.WaitGroup
	begun := make(chan struct{}, writers)
	for i := range writers {
		wg.Go(func() {
			begun <- struct{}{}
			if _, err := f.WriteAt(bytes.Repeat([]byte{byte(i + 1)}, 4096), int64(i)*4096); err != nil {
				t.Error(err)
			}
		})
	}
	for range writers {
		<-begun
	}
	stop()
	fd, err := unix.FcntlInt(c.File().Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	disk = &memory{b: disk.b, gate: make(chan struct{})}
	next := fuse.Resume(os.NewFile(uintptr(fd), "fuse"), c.State, fuse.Options{Logger: logger(t)})
	stop = serve(t, next, disk)
	defer func() {
		stop()
		next.Close()
	}()
	wait.For(t, "enough workers of the resumed connection", func() bool { _, n := next.Count(); return n > writers/2 }) // at a time
	close(disk.gate)
	wg.Wait()
	disk.do(func() {
		for i := range writers {
			if disk.b[i*4096] != byte(i+1) || disk.b[i*4096+4095] != byte(i+1) {
				t.Errorf("write %d is missing", i)
			}
		}
	})
}

// TestUnmountEndsUsersAndServer finds that users get errors, and the server its end, when the mount goes.
func TestUnmountEndsUsersAndServer(t *testing.T) {
	c := mount(t)
	disk := &memory{b: make([]byte, 1<<20), gate: make(chan struct{})}
	done := make(chan error, 1)
	go func() { done <- c.Serve(t.Context(), disk) }()
	f := open(t, c)
	failed := make(chan error, 1)
	go func() {
		_, err := f.WriteAt(make([]byte, 4096), 0)
		failed <- err
	}()
	disk.gate <- struct{}{} // it waits
	go func() {
		_, err := f.WriteAt(make([]byte, 4096), 4096)
		failed <- err
	}()
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	if err := c.Unmount(); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; err == nil {
		t.Fatal("a write to what is gone succeeded")
	}
	close(disk.gate)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestWorkersFollowRequests has a worker for each request, and few buffers again later.
func TestWorkersFollowRequests(t *testing.T) {
	defer fuse.SetTrimInterval(time.Millisecond)()
	c := mount(t)
	disk := &memory{b: make([]byte, 1<<20), gate: make(chan struct{})}
	stop := serve(t, c, disk)
	defer stop()
	f := open(t, c)
	for range 5 {
		const writers = 20
		var wg sync.WaitGroup
		for i := range writers {
			wg.Go(func() {
				if _, err := f.WriteAt(make([]byte, 4096), int64(i)*4096); err != nil {
					t.Error(err)
				}
			})
		}
		wait.For(t, "a buffer for each write", func() bool { _, n := c.Count(); return n > writers })
		for range writers {
			disk.gate <- struct{}{}
		}
		wg.Wait()
		wait.For(t, "few again", func() bool { waiting, n := c.Count(); return waiting <= 2 && n <= 2 })
	}
}
