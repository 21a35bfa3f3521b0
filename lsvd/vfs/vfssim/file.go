package vfssim

import (
	"bytes"
	"maps"
	"slices"
)

// piece is the unit in which a power loss keeps, drops or tears writes.
const piece = 512

// chunk is the unit in which a file takes memory: log files are mostly zeros.
const chunk = 64 << 10

var zeros [chunk]byte

// inode is a file or a directory, and what a power loss can make of it.
type inode struct {
	names map[string]*entry // of a directory; nil: it is a file

	chunks [][]byte // the content; nil reads as zeros
	size   int64
	synced int64            // the size that survives
	before map[int64][]byte // pieces below synced that were written since: what they were
	lost   map[int64][]byte // pieces that a failed sync dropped: what they were before
}

// entry is a name in a directory.
type entry struct {
	now *inode
	was []*inode // what the name was since the directory was synced, oldest first; nil: nothing
}

func newFile() *inode { return &inode{before: map[int64][]byte{}, lost: map[int64][]byte{}} }
func newDir() *inode  { return &inode{names: map[string]*entry{}} }

// set changes what a name of the directory is; nil removes it.
func (d *inode) set(name string, to *inode) {
	e := d.names[name]
	if e == nil {
		e = &entry{}
		d.names[name] = e
	}
	e.was = append(e.was, e.now)
	e.now = to
}

// get returns what a name of the directory is, or nil.
func (d *inode) get(name string) *inode {
	if e := d.names[name]; e != nil {
		return e.now
	}
	return nil
}

// syncNames makes the names durable.
func (d *inode) syncNames() {
	for name, e := range d.names {
		if e.was = nil; e.now == nil {
			delete(d.names, name)
		}
	}
}

// clone returns a copy of the tree. Files with several names stay one.
func (d *inode) clone(seen map[*inode]*inode) *inode {
	if d == nil || seen[d] != nil {
		return seen[d]
	}
	c := &inode{size: d.size, synced: d.synced, before: maps.Clone(d.before), lost: maps.Clone(d.lost), chunks: slices.Clone(d.chunks)}
	seen[d] = c
	for i, b := range c.chunks {
		c.chunks[i] = bytes.Clone(b)
	}
	if d.names != nil {
		c.names = map[string]*entry{}
		for name, e := range d.names {
			x := &entry{now: e.now.clone(seen)}
			for _, w := range e.was {
				x.was = append(x.was, w.clone(seen))
			}
			c.names[name] = x
		}
	}
	return c
}

// read fills p, which lies within the file.
func (d *inode) read(p []byte, off int64) {
	for len(p) > 0 {
		n := min(len(p), int(chunk-off%chunk))
		if c := d.chunks[off/chunk]; c != nil {
			copy(p[:n], c[off%chunk:])
		} else {
			clear(p[:n])
		}
		p, off = p[n:], off+int64(n)
	}
}

// write changes the content, and the size if it has to.
func (d *inode) write(p []byte, off int64) {
	d.resize(max(d.size, off+int64(len(p))))
	for len(p) > 0 {
		n := min(len(p), int(chunk-off%chunk))
		c := &d.chunks[off/chunk]
		if *c == nil && !bytes.Equal(p[:n], zeros[:n]) {
			*c = make([]byte, chunk)
		}
		if *c != nil {
			copy((*c)[off%chunk:], p[:n])
		}
		p, off = p[n:], off+int64(n)
	}
}

func (d *inode) resize(size int64) {
	d.size = size
	for int64(len(d.chunks))*chunk < size {
		d.chunks = append(d.chunks, nil)
	}
}

// durable returns what a piece was at the last sync; behind its end, zeros.
func (d *inode) durable(i int64) []byte {
	for _, m := range []map[int64][]byte{d.lost, d.before} {
		if b := m[i]; b != nil {
			return b
		}
	}
	b := make([]byte, piece)
	if n := min(piece, d.synced-i*piece); n > 0 {
		d.read(b[:n], i*piece)
	}
	return b
}

// save keeps what n bytes from off are, for they will be written. A piece that
// was dropped is dirty again, and with it all that it has.
func (d *inode) save(off, n int64) {
	for i := off / piece; i*piece < off+n; i++ {
		switch {
		case d.lost[i] != nil:
			d.before[i] = d.lost[i]
			delete(d.lost, i)
		case i*piece < d.synced && d.before[i] == nil:
			d.before[i] = d.durable(i)
		}
	}
}

// dirty returns the pieces that were written since the last sync, in order.
func (d *inode) dirty() []int64 {
	all := slices.Collect(maps.Keys(d.before))
	for i := d.synced / piece; i*piece < d.size; i++ {
		if d.before[i] == nil && d.lost[i] == nil && d.chunks[i*piece/chunk] != nil {
			all = append(all, i)
		}
	}
	slices.Sort(all)
	return all
}

// sync makes the content what survives, but for what an earlier sync dropped.
func (d *inode) sync() {
	d.synced = d.size
	clear(d.before)
}

// failSync drops the dirty pieces, as the kernel does when it cannot write
// them: they read as written, and no later sync writes them.
func (d *inode) failSync() {
	for _, i := range d.dirty() {
		d.lost[i] = d.durable(i)
	}
	clear(d.before)
}

// evict forgets the dropped pieces: they read as they were before.
func (d *inode) evict() {
	for i, b := range d.lost {
		d.write(b[:min(piece, d.size-i*piece)], i*piece)
	}
	clear(d.lost)
}

// crash makes the file what a power loss leaves of it.
func (d *inode) crash(path string, pick Pick) {
	size := d.synced
	all := append(d.dirty(), slices.Collect(maps.Keys(d.lost))...)
	slices.Sort(all)
	for _, i := range all {
		was, lo := d.durable(i), i*piece
		n := min(piece, d.size-lo)
		cut := n // so much of it is new
		switch pick(Unsynced{Path: path, Kind: Data, Piece: i}, 3) {
		case 0:
			cut = 0
		case 1:
			cut = int64(pick(Unsynced{Path: path, Kind: Torn, Piece: i}, int(n)+1))
		}
		d.write(was[cut:n], lo+cut)
		if cut > 0 {
			size = max(size, lo+n)
		}
	}
	if d.size != size && pick(Unsynced{Path: path, Kind: Size}, 2) == 0 {
		d.truncate(size)
	}
	clear(d.lost)
	d.sync()
}

func (d *inode) truncate(size int64) {
	end := min(d.size, (size+chunk-1)/chunk*chunk)
	if end > size {
		d.write(make([]byte, end-size), size)
	}
	d.size, d.chunks = size, d.chunks[:(size+chunk-1)/chunk]
}
