package store

import (
	"container/list"
	"context"
	"errors"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/errs"
)

// Near is what a store may offer beside [Store] if its objects are as near as
// a local file: reading small pieces one by one costs no more than reading
// them together.
type Near interface {
	// ReadObject fills p from off of an object that is never replaced. After
	// the object was deleted it may go on to succeed for a while. Where the
	// object ends before p is full, it fails with InvalidArgument.
	ReadObject(ctx context.Context, key string, p []byte, off int64) error
}

// maxFiles bounds the objects that a Dir keeps open for ReadObject; after
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

type openFile struct {
	key string
	f   *os.File
}

// ReadObject implements [Near].
func (d *Dir) ReadObject(ctx context.Context, key string, p []byte, off int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	for try := 0; ; try++ {
		f, err := d.open(key)
		if err != nil {
			return err
		}
		_, err = f.ReadAt(p, off)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, os.ErrClosed) && try < 100:
			continue // another reader needed its place
		case errors.Is(err, io.EOF):
			return errs.New(errs.InvalidArgument, "object %s ends before %d+%d", key, off, len(p))
		}
		return classify(err, key)
	}
}

func (d *Dir) open(key string) (*os.File, error) {
	x := &d.files
	x.mu.Lock()
	if e := x.byKey[key]; e != nil {
		x.order.MoveToFront(e)
		f := e.Value.(*openFile).f
		x.mu.Unlock()
		return f, nil
	}
	x.mu.Unlock()
	if err := CheckKey(key); err != nil {
		return nil, err
	}
	f, err := os.Open(d.path(key))
	if err != nil {
		return nil, classify(err, key)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.byKey[key]; e != nil { // somebody else was faster
		f.Close()
		return e.Value.(*openFile).f, nil
	}
	if x.byKey == nil {
		x.byKey = map[string]*list.Element{}
	}
	x.byKey[key] = x.order.PushFront(&openFile{key: key, f: f})
	for x.order.Len() > maxFiles {
		x.drop(x.order.Back())
	}
	if x.opened++; x.opened%sweepEvery == 0 {
		x.sweep()
	}
	return f, nil
}

// sweep gives back the space of what other processes deleted. The caller
// holds mu.
func (x *files) sweep() {
	for e := x.order.Front(); e != nil; {
		next := e.Next()
		var st unix.Stat_t
		if unix.Fstat(int(e.Value.(*openFile).f.Fd()), &st) == nil && st.Nlink == 0 {
			x.drop(e)
		}
		e = next
	}
}

// drop closes a file; readers that are at it finish first. The caller holds mu.
func (x *files) drop(e *list.Element) {
	o := x.order.Remove(e).(*openFile)
	delete(x.byKey, o.key)
	o.f.Close()
}

// forget closes the file of an object that is deleted.
func (x *files) forget(key string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.byKey[key]; e != nil {
		x.drop(e)
	}
}
