package fuse

import (
	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/pkg/errs"
)

// carryOut carries out a request and answers it, unless it did not come to an end
// because we stop.
func (c *Conn) carryOut(q *request) {
	if q.h.op == opWrite && c.queueWrite(q) {
		c.commit()
		return
	}
	defer c.putBuffer(q.buffer)
	if q.h.op == opFsync && c.join(q) {
		return
	}
	q.out = q.out[:outHead]
	data, err := q.do()
	errno, plain := err.(unix.Errno)
	if err != nil && !plain {
		if c.serving.Err() != nil {
			return // it is for the successor
		}
		errno = unix.EIO
		c.opts.Logger.Error("request failed", "volume", c.Name, "operation", q.h.op, "error", err)
	}
	q.finish(q.h.unique, data, errno)
}

// finish answers: with what follows the header in r.out, and data.
func (r *buffer) finish(unique uint64, data []byte, errno unix.Errno) {
	if errno != 0 {
		r.out, data = r.out[:outHead], nil
	}
	reply(r.out, unique, errno, len(r.out)-outHead+len(data))
	r.answer(data)
}

// do carries out a request. It appends the answer to r.out and returns data that
// follows it. Errors other than unix.Errno are those of the disk.
func (r *request) do() ([]byte, error) {
	c, in, more := r.c, r.in(), r.more()
	if least, ok := arguments[r.h.op]; !ok {
		return nil, unix.ENOSYS
	} else if len(in) < least {
		return nil, unix.EINVAL
	}
	switch r.h.op {
	case opRead:
		return r.readDisk(in)
	case opWrite:
		return nil, r.write(in, more)
	case opFsync:
		return nil, errs.Wrap(c.disk.Flush(c.serving), "flush")
	case opFallocate:
		return nil, r.fallocate(in)
	case opLookup:
		name := append(append([]byte(nil), in...), r.data[:min(more, 512)]...)
		if r.h.node != rootNode || string(name) != c.Name+"\x00" {
			return nil, unix.ENOENT
		}
		r.out = c.entry(r.out)
	case opGetattr:
		r.out = c.attrOut(r.out, r.h.node)
	case opSetattr:
		if ne.Uint32(in)&setattrSize != 0 {
			return nil, unix.EPERM
		}
		r.out = c.attrOut(r.out, r.h.node)
	case opOpen:
		r.out = openOut(r.out, openDirectIO|openParallel|openNoFlush)
	case opOpendir:
		r.out = openOut(r.out, 0)
	case opReaddir:
		r.readdir(in)
	case opStatfs:
		r.out = c.statfs(r.out)
	case opRelease, opReleasedir, opFlush, opFsyncdir, opAccess, opDestroy:
	}
	return nil, nil
}

// arguments says which requests are carried out, and how long the arguments
// are at least.
var arguments = map[uint32]int{
	opLookup: 1, opGetattr: 0, opSetattr: 16, opOpen: 0, opRead: 24, opWrite: 24, opStatfs: 0, opRelease: 0, opFsync: 0, opFlush: 0,
	opOpendir: 0, opReaddir: 24, opReleasedir: 0, opFsyncdir: 0, opAccess: 0, opDestroy: 0, opFallocate: 28,
}

func (r *request) readDisk(in []byte) ([]byte, error) {
	off, n, size := int64(ne.Uint64(in[8:])), int64(ne.Uint32(in[16:])), r.c.disk.Size()
	if off < 0 || n > maxWrite {
		return nil, unix.EINVAL
	}
	p := r.data[:max(min(n, size-off), 0)]
	if len(p) == 0 {
		return nil, nil
	}
	if err := r.c.disk.ReadAt(r.c.serving, p, off); err != nil {
		return nil, errs.Wrap(err, "read %d+%d", off, len(p))
	}
	return p, nil
}

func (r *request) write(in []byte, more int) error {
	off, n := int64(ne.Uint64(in[8:])), int(ne.Uint32(in[16:]))
	if off < 0 || n != more {
		return unix.EINVAL
	}
	if size := r.c.disk.Size(); off > size || int64(n) > size-off {
		return unix.ENOSPC
	}
	if err := r.c.disk.WriteAt(r.c.serving, r.data[:n], off, 0); err != nil {
		return errs.Wrap(err, "write %d+%d", off, n)
	}
	r.out = ne.AppendUint64(r.out, uint64(n))
	return nil
}

func (r *request) fallocate(in []byte) error {
	off, n, mode := int64(ne.Uint64(in[8:])), int64(ne.Uint64(in[16:])), ne.Uint32(in[24:])
	size := r.c.disk.Size()
	if off < 0 || n <= 0 {
		return unix.EINVAL
	}
	if off > size {
		return nil // beyond the end nothing is kept, whatever the mode
	}
	n = min(n, size-off)
	switch mode {
	case unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE:
		if off%lsvd.BlockSize == 0 && (n%lsvd.BlockSize == 0 || off+n == size) {
			return errs.Wrap(r.c.disk.Trim(r.c.serving, off, n, 0), "trim %d+%d", off, n)
		}
		// The kernel relies on zeros, also where a trim would leave the ends alone.
	case unix.FALLOC_FL_ZERO_RANGE, unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE:
	default:
		return unix.EOPNOTSUPP
	}
	return errs.Wrap(r.c.disk.Zero(r.c.serving, off, n, 0), "zero %d+%d", off, n)
}

func (r *request) readdir(in []byte) {
	entries := []struct {
		node uint64
		kind uint32
		name string
	}{{rootNode, unix.DT_DIR, "."}, {rootNode, unix.DT_DIR, ".."}, {fileNode, unix.DT_REG, r.c.Name}}
	limit := outHead + int(ne.Uint32(in[16:]))
	for i := ne.Uint64(in[8:]); i < uint64(len(entries)); i++ {
		e := entries[i]
		b := dirent(r.out, e.node, i+1, e.kind, e.name)
		if len(b) > limit {
			return
		}
		r.out = b
	}
}
