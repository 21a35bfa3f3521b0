package fuse_test

import (
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd/frontend/fuse"
)

// aio writes as a loop device does: nobody waits for a write, and none holds
// the file's lock, for which a flush would wait in the kernel.
type aio struct {
	t   *testing.T
	ctx uintptr
	fd  uint32
}

// iocb is the kernel's.
type iocb struct {
	_   [2]uint64 // data, key, flags
	op  uint16
	_   int16 // priority
	fd  uint32
	buf *byte
	n   uint64
	off int64
	_   [2]uint64
}

const aioWrite = 1

func newAIO(t *testing.T, c *fuse.Conn, depth int) *aio {
	t.Helper()
	fd, err := unix.Open(c.Path(), unix.O_RDWR|unix.O_CLOEXEC|unix.O_DIRECT, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	a := &aio{t: t, fd: uint32(fd)}
	if _, _, errno := unix.Syscall(unix.SYS_IO_SETUP, uintptr(depth), uintptr(unsafe.Pointer(&a.ctx)), 0); errno != 0 {
		t.Fatal(errno)
	}
	t.Cleanup(func() {
		if t.Failed() {
			c.Unmount() // else the kernel waits for what was not answered
		}
		unix.Syscall(unix.SYS_IO_DESTROY, a.ctx, 0, 0)
	})
	return a
}

// write begins writes of p, which stays as it is until wait returns, at once.
func (a *aio) write(p []byte, offs ...int64) {
	a.t.Helper()
	var list []*iocb
	for _, off := range offs {
		list = append(list, &iocb{op: aioWrite, fd: a.fd, buf: &p[0], n: uint64(len(p)), off: off})
	}
	if n, _, errno := unix.Syscall(unix.SYS_IO_SUBMIT, a.ctx, uintptr(len(list)), uintptr(unsafe.Pointer(&list[0]))); int(n) != len(list) {
		a.t.Fatal(errno)
	}
	runtime.KeepAlive(list)
}

// wait waits for the n writes that were begun.
func (a *aio) wait(n int) {
	a.t.Helper()
	for n > 0 {
		var events [32]struct {
			data, obj uint64
			res, res2 int64
		}
		got, _, errno := unix.Syscall6(unix.SYS_IO_GETEVENTS, a.ctx, 1, uintptr(min(n, len(events))), uintptr(unsafe.Pointer(&events)), 0, 0)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			a.t.Fatal(errno)
		}
		for _, e := range events[:got] {
			if e.res <= 0 {
				a.t.Errorf("write: %d", e.res)
			}
		}
		n -= int(got)
	}
}

// pages returns memory for direct I/O.
func pages(t *testing.T, n int) []byte {
	t.Helper()
	p, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(p) })
	return p
}
