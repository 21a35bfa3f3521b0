package dir

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd/internal/aio"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

// maxFiles bounds the objects that a Store keeps open for reads; after
// every sweepEvery opens it closes those that were deleted.
const (
	maxFiles   = 256
	sweepEvery = 32
)

// files are objects kept open, the most recently used first.
type files struct {
	mu     sync.Mutex
	byKey  map[string]*list.Element
	order  list.List // of *openFile
	opened int
}

// openFile is an open object. It is closed when it has been dropped and its last
// reader has released it.
type openFile struct {
	key    string
	refs   atomic.Int32
	fd     int
	direct int // another descriptor, for direct I/O; -1 if the file system has none
}

// ReadObject implements [store.Local]. What is aligned to pages, in the object and in
// memory, and is not in the page cache since it was written, passes it by:
// a reader of single blocks has a cache of its own, and a full page cache costs
// as much time as the read.
func (d *Store) ReadObject(ctx context.Context, key string, p []byte, off int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	o, err := d.open(key)
	if err != nil {
		return err
	}
	defer o.release()
	if o.direct >= 0 && aio.Aligned(p, off) && !aio.Cached(o.fd, off, len(p)) {
		if n, err := aio.Read(o.direct, p, off); err == nil {
			p, off = p[n:], off+int64(n) // nothing is left
		}
	}
	return o.read(p, off)
}

// ReadObjects implements [store.Local]. It reads what passes the page cache by with
// one call.
func (d *Store) ReadObjects(ctx context.Context, reads []*store.ObjectRead) {
	if len(reads) == 1 || ctx.Err() != nil {
		for _, r := range reads {
			r.Err = d.ReadObject(ctx, r.Key, r.P, r.Off)
		}
		return
	}
	files := make([]*openFile, len(reads))
	direct := make([]aio.Request, len(reads))
	var begin []*aio.Request
	for i, r := range reads {
		o, err := d.open(r.Key)
		if r.Err = err; err != nil {
			continue
		}
		defer o.release()
		files[i] = o
		if o.direct >= 0 && aio.Aligned(r.P, r.Off) && !aio.Cached(o.fd, r.Off, len(r.P)) {
			direct[i] = aio.Request{FD: o.direct, P: r.P, Off: r.Off}
			begin = append(begin, &direct[i])
		}
	}
	aio.ReadAll(begin)
	for i, r := range reads {
		if n := direct[i].N; r.Err == nil { // the rest, which the kernel did not read
			r.Err = files[i].read(r.P[n:], r.Off+int64(n))
		}
	}
}

// read fills p through the page cache.
func (o *openFile) read(p []byte, off int64) error {
	for len(p) > 0 {
		n, err := unix.Pread(o.fd, p, off)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return classify(err, o.key)
		case n == 0:
			return errs.New(errs.InvalidArgument, "object %s ends before %d+%d", o.key, off, len(p))
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

func (o *openFile) release() {
	if o.refs.Add(-1) > 0 {
		return
	}
	unix.Close(o.fd)
	if o.direct >= 0 {
		unix.Close(o.direct)
	}
}

// open returns an object, which the caller releases.
func (d *Store) open(key string) (*openFile, error) {
	x := d.files
	x.mu.Lock()
	if e := x.byKey[key]; e != nil {
		defer x.mu.Unlock()
		return x.take(e), nil
	}
	x.mu.Unlock()
	if err := store.CheckKey(key); err != nil {
		return nil, err
	}
	fd, err := openRead(d.path(key), 0)
	if err != nil {
		return nil, classify(err, key)
	}
	o := &openFile{key: key, fd: fd}
	o.refs.Store(1)
	if o.direct, err = openRead(d.path(key), unix.O_DIRECT); err != nil {
		o.direct = -1
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.byKey[key]; e != nil { // another caller was faster
		o.release()
		return x.take(e), nil
	}
	o.refs.Add(1)
	x.byKey[key] = x.order.PushFront(o)
	for x.order.Len() > maxFiles {
		x.drop(x.order.Back())
	}
	if x.opened++; x.opened%sweepEvery == 0 {
		x.sweep()
	}
	return o, nil
}

func openRead(path string, flags int) (int, error) {
	for {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|flags, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// take is an open object for another reader. The caller holds mu.
func (x *files) take(e *list.Element) *openFile {
	x.order.MoveToFront(e)
	o := e.Value.(*openFile)
	o.refs.Add(1)
	return o
}

// sweep gives back the space of what other processes deleted. The caller
// holds mu.
func (x *files) sweep() {
	for e := x.order.Front(); e != nil; {
		next := e.Next()
		var st unix.Stat_t
		if unix.Fstat(e.Value.(*openFile).fd, &st) == nil && st.Nlink == 0 {
			x.drop(e)
		}
		e = next
	}
}

// drop closes a file; readers that are at it finish first. The caller holds mu.
func (x *files) drop(e *list.Element) {
	o := x.order.Remove(e).(*openFile)
	delete(x.byKey, o.key)
	o.release()
}

// close closes all files; the cleanup of the Store calls it.
func (x *files) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for x.order.Len() > 0 {
		x.drop(x.order.Back())
	}
}

// forget closes the file of an object that is deleted.
func (x *files) forget(key string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.byKey[key]; e != nil {
		x.drop(e)
	}
}
