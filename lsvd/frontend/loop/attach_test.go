package loop_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/frontend/holder"
	"miren.dev/runtime/lsvd/frontend/loop"
	dirstore "miren.dev/runtime/lsvd/store/dir"
	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/attachtest"
)

const testSize = 512 << 20

func logger(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), nil))
}

// command runs a program and returns what it prints.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// openDisk opens the volume in dir, which it makes first if it is not there.
func openDisk(ctx context.Context, dir string, logger *slog.Logger) (*lsvd.Device, error) {
	st, err := dirstore.Open(filepath.Join(dir, "store"))
	if err != nil {
		return nil, err
	}
	logs, err := vfs.OpenDir(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	id := lsvd.ID{1}
	if err := lsvd.Create(ctx, st, id, testSize, nil); err != nil && !errs.Is(err, errs.AlreadyExists) {
		return nil, err
	}
	d, _, err := lsvd.Open(ctx, st, logs, id, lsvd.Options{Logger: logger, LogFile: 4 << 20})
	return d, err
}

// counted counts what reaches a disk.
type counted struct {
	lsvd.Disk
	flushes, trims atomic.Int64
	size           atomic.Int64
}

func (c *counted) Size() int64 {
	if n := c.size.Load(); n != 0 {
		return n
	}
	return c.Disk.Size()
}

func (c *counted) Flush(ctx context.Context) error {
	c.flushes.Add(1)
	return c.Disk.Flush(ctx)
}

func (c *counted) Trim(ctx context.Context, off, n int64, flags lsvd.Flags) error {
	c.trims.Add(1)
	return c.Disk.Trim(ctx, off, n, flags)
}

// owner returns a name for the attachments of this test, and a directory for mounts.
func owner(t *testing.T) (name, dir string) {
	dir = t.TempDir() // removed after the attachments
	return attachtest.Owner(t), dir
}

func mount(t *testing.T, device string, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	command(t, "mount", append(args, device, dir)...)
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			t.Error(err)
		}
	})
	return dir
}

// unmount unmounts the file system of device and waits until no namespace has it:
// another process may just have started with a copy of this one's mounts.
func unmount(t *testing.T, dir, device string) {
	t.Helper()
	command(t, "umount", dir)
	unused(t, device)
}

func TestAttachedDeviceIsUsable(t *testing.T) {
	attachtest.Need(t, "mkfs.ext4", "mount", "blkdiscard")
	name, run := owner(t)
	dev, err := openDisk(t.Context(), t.TempDir(), logger(t))
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close(context.Background())
	disk := &counted{Disk: dev}
	disk.size.Store(testSize / 2)
	a, err := loop.Attach(t.Context(), disk, loop.Options{Owner: name, Volume: "v", Dir: run, Logger: logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	entries, err := loop.List(name)
	if err != nil || len(entries) != 1 || entries[0].Device != a.Path() || entries[0].Volume != "v" || !strings.HasPrefix(entries[0].Mount, run) {
		t.Fatalf("listed %v, %v", entries, err)
	}
	sys := "/sys/block/" + filepath.Base(a.Path())
	for file, want := range map[string]string{
		"loop/dio": "1", "queue/logical_block_size": "4096", "queue/write_cache": "write back", "queue/discard_granularity": "4096",
		"loop/partscan": "0", "loop/autoclear": "0", "size": fmt.Sprint(testSize / 2 / 512),
	} {
		if b, err := os.ReadFile(filepath.Join(sys, file)); err != nil || strings.TrimSpace(string(b)) != want {
			t.Errorf("%s is %q, %v, want %s", file, b, err, want)
		}
	}

	// One fsync of the device is one flush of the disk.
	f, err := os.OpenFile(a.Path(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(bytes.Repeat([]byte{7}, 8192), 4096); err != nil {
		t.Fatal(err)
	}
	before := disk.flushes.Load()
	if err := f.Sync(); err != nil || disk.flushes.Load() != before+1 {
		t.Fatalf("%d flushes, %v", disk.flushes.Load()-before, err)
	}
	f.Close()
	got := make([]byte, 8192)
	if err := dev.ReadAt(t.Context(), got, 4096); err != nil || !bytes.Equal(got, bytes.Repeat([]byte{7}, 8192)) {
		t.Fatalf("the disk does not have what was written: %v", err)
	}
	command(t, "blkdiscard", a.Path())
	if err := dev.ReadAt(t.Context(), got, 4096); err != nil || !bytes.Equal(got, make([]byte, 8192)) || disk.trims.Load() == 0 {
		t.Fatalf("discarded blocks are not zero: %v, %d trims", err, disk.trims.Load())
	}

	command(t, "mkfs.ext4", "-q", "-F", a.Path())
	mnt := mount(t, a.Path())
	if err := os.WriteFile(filepath.Join(mnt, "hello"), []byte("world"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := a.Detach(t.Context()); !errs.Is(err, errs.FailedPrecondition) {
		t.Fatalf("detach of what is mounted: %v", err)
	}
	unmount(t, mnt, a.Path())
	disk.size.Store(0)
	if err := a.Resize(t.Context()); err != nil {
		t.Fatal(err)
	}
	command(t, "e2fsck", "-fy", a.Path())
	command(t, "resize2fs", a.Path())
	mnt = mount(t, a.Path())
	var st unix.Statfs_t
	if err := unix.Statfs(mnt, &st); err != nil || st.Blocks*uint64(st.Bsize) < testSize*3/4 {
		t.Fatalf("file system has %d blocks after resize, %v", st.Blocks, err)
	}
	if b, err := os.ReadFile(filepath.Join(mnt, "hello")); string(b) != "world" {
		t.Fatalf("file has %q, %v", b, err)
	}
	unmount(t, mnt, a.Path())
	command(t, "e2fsck", "-fn", a.Path())
	if err := a.Detach(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := a.Detach(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-a.Done()
	if err := a.Err(); err != nil {
		t.Fatal(err)
	}
	if left, err := loop.List(name); err != nil || len(left) != 0 {
		t.Fatalf("left: %v, %v", left, err)
	}
	if _, err := os.Stat(sys + "/loop"); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("%s is still a loop device: %v", a.Path(), err)
	}
}

// attached makes a disk and attaches it.
func attached(t *testing.T) (owned string, a *loop.Attachment) {
	t.Helper()
	name, run := owner(t)
	dev, err := openDisk(t.Context(), t.TempDir(), logger(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close(context.Background()) })
	if a, err = loop.Attach(t.Context(), dev, loop.Options{Owner: name, Volume: "v", Dir: run, Logger: logger(t)}); err != nil {
		t.Fatal(err)
	}
	return name, a
}

func TestAbandonEndsIO(t *testing.T) {
	attachtest.Need(t)
	name, a := attached(t)
	f, err := os.OpenFile(a.Path(), os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Abandon(t.Context()); err != nil {
		t.Fatal(err)
	}
	b, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(b)
	if _, err := f.ReadAt(b, 0); !errors.Is(err, unix.EIO) {
		t.Fatalf("read of an abandoned device: %v", err)
	}
	f.Close()
	if left, err := loop.List(name); err != nil || len(left) != 0 {
		t.Fatalf("left: %v, %v", left, err)
	}
}

func TestBadNamesAreRefused(t *testing.T) {
	for _, o := range []loop.Options{{Owner: "a:b", Volume: "v"}, {Owner: "a"}, {Owner: "a", Volume: "../v"}, {Owner: "", Volume: "v"}} {
		if _, err := loop.Attach(t.Context(), nil, o); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("%q, %q: %v", o.Owner, o.Volume, err)
		}
	}
}

// TestHolderKeepsDisk gives an attached disk to a holder, and to the next one when that
// has ended.
func TestHolderKeepsDisk(t *testing.T) {
	attachtest.Need(t)
	_, a := attached(t)
	for range 2 {
		ctx, stop := context.WithCancel(t.Context())
		socket := filepath.Join(t.TempDir(), "s")
		done := make(chan error, 1)
		go func() { done <- holder.Run(ctx, socket, holder.Options{Logger: logger(t)}) }()
		var client *holder.Client
		var err error
		for deadline := time.Now().Add(10 * time.Second); client == nil; {
			if client, err = holder.Dial(t.Context(), socket); err != nil && time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
		if err := a.Hold(t.Context(), client); errs.Is(err, errs.Unimplemented) {
			t.Skip(err)
		} else if err != nil {
			t.Fatal(err)
		}
		entries, err := client.List(t.Context())
		if err != nil || len(entries) != 1 || entries[0].Files != 1 || !entries[0].Owned {
			t.Fatalf("held: %v, %v", entries, err)
		}
		stop()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		<-client.Done()
		f, err := os.Open(a.Path())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.ReadAt(make([]byte, 4096), 0); err != nil {
			t.Fatalf("without its holder: %v", err)
		}
		f.Close()
	}
	if err := a.Detach(t.Context()); err != nil {
		t.Fatal(err)
	}
}
