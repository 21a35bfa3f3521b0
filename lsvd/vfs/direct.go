package vfs

import (
	"errors"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd/internal/aio"
)

// sector is what direct I/O must be aligned to.
const sector = 512

// WriteDirect implements [File].
func (f *osFile) WriteDirect(parts [][]byte, off int64) error {
	fd := f.directFD()
	want := 0
	for _, p := range parts {
		if uintptr(unsafe.Pointer(unsafe.SliceData(p)))%sector != 0 || len(p)%sector != 0 {
			fd = -1
		}
		want += len(p)
	}
	if fd < 0 || off%sector != 0 || len(parts) > maxVec {
		return f.WriteVec(parts, off)
	}
	n, err := unix.Pwritev(fd, parts, off)
	switch {
	case err == nil && n == want:
		return nil
	case err == nil, errors.Is(err, unix.EINTR), errors.Is(err, unix.EINVAL): // EINVAL: the disk wants larger sectors
		return f.WriteVec(parts, off)
	}
	return err
}

// ReadDirect implements [File]. Whatever goes wrong, ReadAt says why.
func (f *osFile) ReadDirect(p []byte, off int64) (int, error) {
	if !aio.Aligned(p, off) || aio.Cached(int(f.Fd()), off, len(p)) {
		return f.ReadAt(p, off)
	}
	if fd := f.directFD(); fd >= 0 {
		if n, err := unix.Pread(fd, p, off); err == nil && n == len(p) {
			return n, nil
		}
	}
	return f.ReadAt(p, off)
}

// ReadCached implements [File].
func (f *osFile) ReadCached(p []byte, off int64) bool {
	n, err := unix.Preadv2(int(f.Fd()), [][]byte{p}, off, unix.RWF_NOWAIT)
	return err == nil && n == len(p)
}

// directFD is the descriptor for direct I/O, made when it is first needed, or
// -1 if the file system has none.
func (f *osFile) directFD() int {
	if fd := f.direct.Load(); fd != 0 {
		return int(fd)
	}
	f.opening.Lock()
	defer f.opening.Unlock()
	if fd := f.direct.Load(); fd != 0 {
		return int(fd)
	}
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(int(f.Fd())), unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		fd = -1
	}
	f.direct.Store(int32(fd))
	return fd
}

// Close implements [File].
func (f *osFile) Close() error {
	if fd := f.direct.Swap(-1); fd > 0 {
		unix.Close(int(fd))
	}
	return f.File.Close()
}
