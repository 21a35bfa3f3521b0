package mock

import (
	"context"
	"io"
	"maps"
	"path"
	"strings"
	"sync"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/sandboxfs"
)

// maxEvents is how many changes a watch keeps.
const maxEvents = 4096

// fileWatch reports the changes of a directory. Only what the driver is asked for
// changes files, so it reports that.
type fileWatch struct {
	b         *box
	dir       string
	recursive bool

	mu     sync.Mutex
	cond   sync.Cond
	events []sandboxfs.Event
	end    error
}

// Watch implements sandboxfs.FS.
func (f *files) Watch(_ context.Context, p string, recursive bool) (sandboxfs.Watcher, error) {
	var w *fileWatch
	err := f.use(p, f.open, func(x *file) error {
		i, err := x.root.Stat(x.name)
		if err != nil {
			return err
		}
		if !i.IsDir() {
			return errs.New(errs.InvalidArgument, "%s is not a directory", x.abs)
		}
		w = &fileWatch{b: x.b, dir: x.abs, recursive: recursive}
		w.cond.L = &w.mu
		x.b.mu.Lock()
		defer x.b.mu.Unlock()
		x.b.watches[w] = true
		return nil
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}

// Next implements sandboxfs.Watcher.
func (w *fileWatch) Next() (sandboxfs.Event, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.events) == 0 && w.end == nil {
		w.cond.Wait()
	}
	if len(w.events) == 0 {
		return sandboxfs.Event{}, w.end
	}
	e := w.events[0]
	w.events = w.events[1:]
	return e, nil
}

// Close implements sandboxfs.Watcher.
func (w *fileWatch) Close() error {
	w.b.mu.Lock()
	delete(w.b.watches, w)
	w.b.mu.Unlock()
	w.stop(io.ErrClosedPipe)
	return nil
}

func (w *fileWatch) stop(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.end == nil {
		w.end = err
	}
	w.cond.Broadcast()
}

func (w *fileWatch) add(e sandboxfs.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.events) == maxEvents {
		w.events = []sandboxfs.Event{{Change: sandboxfs.Missed, Path: "."}}
	}
	w.events = append(w.events, e)
	w.cond.Broadcast()
}

// changed reports a change to those who watch.
func (b *box) changed(c sandboxfs.Change, p string, dir bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for w := range b.watches {
		switch rest, below := strings.CutPrefix(p, strings.TrimSuffix(w.dir, "/")+"/"); {
		case p == w.dir && c == sandboxfs.Removed:
			w.stop(io.EOF)
		case below && (w.recursive || path.Dir(rest) == "."):
			w.add(sandboxfs.Event{Change: c, Path: rest, Dir: dir})
		}
	}
}

// Attrs implements sandboxfs.FS.
func (f *files) Attrs(_ context.Context, p string) (a map[string][]byte, err error) {
	err = f.use(p, f.open, func(x *file) error {
		_, err := x.root.Stat(x.name)
		a = x.b.attrs(x.abs)
		return err
	})
	return a, err
}

// Limits of attributes, in bytes.
const (
	maxAttrName = 200
	maxAttr     = 32 << 10
)

// SetAttr implements sandboxfs.FS.
func (f *files) SetAttr(_ context.Context, p, name string, value []byte) error {
	return f.use(p, f.writable, func(x *file) error {
		if _, err := x.root.Stat(x.name); err != nil {
			return err
		}
		if name == "" || len(name) > maxAttrName || len(value) > maxAttr {
			return errs.New(errs.InvalidArgument, "an attribute has a name of 1 to %d bytes and a value of up to %d", maxAttrName, maxAttr)
		}
		x.b.mu.Lock()
		a := maps.Clone(x.b.xattrs[x.abs])
		if a == nil {
			a = map[string][]byte{}
		}
		if a[name] = value; value == nil {
			delete(a, name)
		}
		x.b.xattrs[x.abs] = a
		x.b.mu.Unlock()
		return x.attributes(nil)
	})
}

// attrs returns the extended attributes of a file.
func (b *box) attrs(p string) map[string][]byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.xattrs[p])
}

// moveAttrs moves the attributes of a file and of those below it; to "" deletes them.
func (b *box) moveAttrs(from, to string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for p, a := range maps.Clone(b.xattrs) {
		if within(from, p) {
			delete(b.xattrs, p)
			if to != "" {
				b.xattrs[to+strings.TrimPrefix(p, from)] = a
			}
		}
	}
}
