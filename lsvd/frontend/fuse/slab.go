package fuse

import (
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd/internal/memlimit"
	"miren.dev/runtime/pkg/errs"
)

// slab is the data of two buffers in one huge page, if the machine has them: in
// those the kernel copies to the data, and finds its pages for the direct write
// of the log, for much less. It is freed when both are.
type slab struct {
	mem   []byte
	data  [hugePage / maxWrite][]byte // nil: in use
	inUse int
}

const hugePage = 2 << 20

func newSlab() (*slab, error) {
	mem, err := unix.Mmap(-1, 0, 2*hugePage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, errs.Wrap(err, "make a buffer")
	}
	memlimit.AddOffHeap(hugePage) // the rest is not touched
	at := int(-uintptr(unsafe.Pointer(&mem[0])) & (hugePage - 1))
	data := mem[at : at+hugePage]
	unix.Madvise(data, unix.MADV_HUGEPAGE) // else small pages do
	for i := 0; i < len(data); i += page {
		data[i] = 0 // brings it in
	}
	s := &slab{mem: mem}
	for i := range s.data {
		s.data[i] = data[i*maxWrite : (i+1)*maxWrite : (i+1)*maxWrite]
	}
	return s, nil
}

// carve returns the slab and the place in it for the data of a new buffer. The
// caller holds bufMu.
func (c *Conn) carve() (s *slab, data []byte, err error) {
	i := slices.IndexFunc(c.slabs, func(s *slab) bool { return s.inUse < len(s.data) })
	if i < 0 {
		if s, err = newSlab(); err != nil {
			return nil, nil, err
		}
		c.slabs = append(c.slabs, s)
	} else {
		s = c.slabs[i]
	}
	k := slices.IndexFunc(s.data[:], func(p []byte) bool { return p != nil })
	data, s.data[k] = s.data[k], nil
	s.inUse++
	return s, data, nil
}

// release gives back what carve returned. The caller holds bufMu.
func (c *Conn) release(s *slab, data []byte) {
	k := slices.IndexFunc(s.data[:], func(p []byte) bool { return p == nil })
	s.data[k] = data
	if s.inUse--; s.inUse == 0 {
		c.slabs = slices.DeleteFunc(c.slabs, func(x *slab) bool { return x == s })
		memlimit.AddOffHeap(-hugePage)
		unix.Munmap(s.mem)
	}
}
