package aio

import (
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MaxBatch is how many writes a batch has room for.
const MaxBatch = 64

const (
	opWrite    = 1
	opWriteVec = 8
)

// Batch is writes that are made with one call, in order. It is for files whose
// writes do not wait, such as devices: it saves calls, and what the writes set
// off has the processor only after the last of them.
type Batch struct {
	ctx    uintptr
	n      int
	cbs    [MaxBatch]iocb
	at     [MaxBatch]*iocb
	events [MaxBatch]event
}

// spares are the unused batches.
var spares struct {
	sync.Mutex
	list []*Batch
	none bool // the kernel has none to give
}

// maxSpares bounds the batches that are kept.
const maxSpares = 4

// NewBatch returns an empty batch, or nil if the kernel has none to give: then
// and when it turns out to fail, writes are to be made one by one.
func NewBatch() *Batch {
	spares.Lock()
	defer spares.Unlock()
	if n := len(spares.list); n > 0 {
		b := spares.list[n-1]
		spares.list = spares.list[:n-1]
		return b
	}
	if spares.none {
		return nil
	}
	b := &Batch{}
	if _, _, errno := unix.RawSyscall(unix.SYS_IO_SETUP, MaxBatch, uintptr(unsafe.Pointer(&b.ctx)), 0); errno != 0 {
		spares.none = true
		return nil
	}
	return b
}

// Full reports that there is no room for more.
func (b *Batch) Full() bool { return b.n == MaxBatch }

// Add adds a write. Until Submit, p must not move, and the caller keep it.
func (b *Batch) Add(fd int, p []byte) {
	b.cbs[b.n] = iocb{data: uint64(b.n), opcode: opWrite, fd: uint32(fd), buf: unsafe.SliceData(p), n: uint64(len(p))}
	b.at[b.n] = &b.cbs[b.n]
	b.n++
}

// AddVec adds a write of parts that are not beside each other. Until Submit
// none of them must move, nor parts itself, and the caller keep them.
func (b *Batch) AddVec(fd int, parts []unix.Iovec) {
	b.cbs[b.n] = iocb{data: uint64(b.n), opcode: opWriteVec, fd: uint32(fd), buf: (*byte)(unsafe.Pointer(unsafe.SliceData(parts))), n: uint64(len(parts))}
	b.at[b.n] = &b.cbs[b.n]
	b.n++
}

// Submit makes the writes and gives the batch back. For each, by its place in
// the batch, it calls done with what came of it: its error, or 0.
func (b *Batch) Submit(done func(i int, errno unix.Errno)) {
	failed := b.submit(done)
	for i := range b.cbs[:b.n] {
		b.cbs[i].buf = nil
	}
	b.n = 0
	spares.Lock()
	keep := !failed && len(spares.list) < maxSpares
	if keep {
		spares.list = append(spares.list, b)
	}
	spares.Unlock()
	if !keep {
		unix.RawSyscall(unix.SYS_IO_DESTROY, b.ctx, 0, 0)
	}
}

func (b *Batch) submit(done func(i int, errno unix.Errno)) (failed bool) {
	made := 0 // handed to the kernel
	for i := 0; i < b.n; {
		k, _, errno := unix.RawSyscall(unix.SYS_IO_SUBMIT, b.ctx, uintptr(b.n-i), uintptr(unsafe.Pointer(&b.at[i])))
		switch {
		case errno == unix.EINTR:
		case errno != 0: // of the first one
			done(i, errno)
			i++
		default:
			i += int(k)
			made += int(k)
		}
	}
	for made > 0 {
		k, _, errno := unix.Syscall6(unix.SYS_IO_GETEVENTS, b.ctx, 1, uintptr(made), uintptr(unsafe.Pointer(&b.events[0])), 0, 0)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return true // impossible; what came of the writes is not known, so they are taken for made
		}
		for _, e := range b.events[:k] {
			errno := unix.Errno(0)
			if e.res < 0 {
				errno = unix.Errno(-e.res)
			}
			done(int(e.data), errno)
		}
		made -= int(k)
	}
	return false
}
