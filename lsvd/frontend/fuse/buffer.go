package fuse

import (
	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd/internal/memlimit"
	"miren.dev/runtime/pkg/errs"
)

// buffer is memory for a request and its data, or the data of its answer.
type buffer struct {
	c      *Conn
	mem    []byte
	head   []byte // header and arguments of the request
	data   []byte
	out    []byte // header and arguments of the answer
	in     [2]unix.Iovec
	vec    [2]unix.Iovec // an answer
	unique uint64        // of a write that is queued, or a read that is to be answered
	size   int           // of it
	read   bool          // it is a read
}

const page = 4096

// newBuffer makes a buffer. The caller holds bufMu.
func newBuffer(c *Conn) (*buffer, error) {
	mem, err := unix.Mmap(-1, 0, page+maxWrite, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		return nil, errs.Wrap(err, "make a buffer")
	}
	memlimit.AddOffHeap(int64(len(mem)))
	b := &buffer{c: c, mem: mem, data: mem[page:]}
	b.head, b.out = mem[:inHead+writeArg], mem[page/2:page/2:page]
	b.in[0].Base, b.in[1].Base = &b.head[0], &b.data[0]
	b.in[0].SetLen(len(b.head))
	b.in[1].SetLen(len(b.data))
	return b, nil
}

// maxBuffers is how many requests are carried out at a time: more than a loop
// device has under way (128), so that none waits for others that wait for the store.
const maxBuffers = 168

// getBuffer returns an unused buffer, or a new one. If there are as many as there
// may be, or no memory for one more, it waits for one, or returns nil.
func (c *Conn) getBuffer(wait bool) *buffer {
	c.bufMu.Lock()
	defer c.bufMu.Unlock()
	for {
		if n := len(c.spare); n > 0 {
			b := c.spare[n-1]
			c.spare = c.spare[:n-1]
			c.leastSpare = min(c.leastSpare, n-1)
			return b
		}
		if c.buffers < maxBuffers {
			b, err := newBuffer(c)
			if err == nil {
				c.buffers++
				return b
			}
			if wait && c.buffers == 0 {
				c.end(err)
				return nil
			}
		}
		if !wait {
			return nil
		}
		c.bufFreed.Wait()
	}
}

// putBuffer gives a buffer back.
func (c *Conn) putBuffer(b *buffer) {
	c.bufMu.Lock()
	c.spare = append(c.spare, b)
	c.bufMu.Unlock()
	c.bufFreed.Signal()
}

// trimBuffers frees the buffers that were not needed since it ran last.
func (c *Conn) trimBuffers() {
	c.bufMu.Lock()
	defer c.bufMu.Unlock()
	c.free(c.leastSpare)
	c.leastSpare = len(c.spare)
}

// free frees n of the spare buffers. The caller holds bufMu.
func (c *Conn) free(n int) {
	for _, b := range c.spare[:n] {
		memlimit.AddOffHeap(-int64(len(b.mem)))
		unix.Munmap(b.mem)
	}
	c.spare = append([]*buffer(nil), c.spare[n:]...)
	c.buffers -= n
}
