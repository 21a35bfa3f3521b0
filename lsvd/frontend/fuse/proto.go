package fuse

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/pkg/errs"
)

// Requests, flags and structures of the kernel's protocol (linux/fuse.h),
// which is in the machine's byte order.
const (
	opLookup      = 1
	opForget      = 2
	opGetattr     = 3
	opSetattr     = 4
	opOpen        = 14
	opRead        = 15
	opWrite       = 16
	opStatfs      = 17
	opRelease     = 18
	opFsync       = 20
	opFlush       = 25
	opInit        = 26
	opOpendir     = 27
	opReaddir     = 28
	opReleasedir  = 29
	opFsyncdir    = 30
	opAccess      = 34
	opInterrupt   = 36
	opDestroy     = 38
	opBatchForget = 42
	opFallocate   = 43
)

const (
	protoMajor = 7
	// The oldest minor version that has everything used here (6.1 has 37), and
	// the newest that was looked at.
	protoOldest = 31
	protoNewest = 40

	initAsyncRead  = 1 << 0
	initBigWrites  = 1 << 5
	initAsyncDIO   = 1 << 15
	initParallel   = 1 << 18 // directory operations
	initMaxPages   = 1 << 22
	initExt        = 1 << 30
	initHasResend2 = 1 << (39 - 32) // in the second word

	openDirectIO = 1 << 0
	openNoFlush  = 1 << 5 // closing asks for nothing, so it never waits
	openParallel = 1 << 6 // direct writes

	setattrSize = 1 << 3

	notifyResend = 7

	rootNode = 1
	fileNode = 2

	maxWrite = 1 << 20

	background = 512 // requests that the kernel has under way at a time; a loop device sends fewer
	inHead     = 40  // bytes before the arguments of a request
	writeArg   = 40  // arguments of a write before its data
	outHead    = 16
	forever    = 1 << 40 // seconds
)

// MaxUnderWay bounds the bytes of the writes that the kernel has under way at a time.
const MaxUnderWay = background * maxWrite

var ne = binary.NativeEndian

// head is the header of a request.
type head struct {
	op     uint32
	unique uint64
	node   uint64
}

func parseHead(b []byte) head {
	return head{op: ne.Uint32(b[4:]), unique: ne.Uint64(b[8:]), node: ne.Uint64(b[16:])}
}

// reply is a header and arguments of an answer.
func reply(b []byte, unique uint64, errno unix.Errno, more int) []byte {
	b = ne.AppendUint32(b[:0], uint32(outHead+more))
	b = ne.AppendUint32(b, uint32(-int32(errno)))
	return ne.AppendUint64(b, unique)
}

// greet answers the first request of a connection: which version and features
// are used.
func (c *Conn) greet() error {
	b := make([]byte, inHead+writeArg+maxWrite)
	var n int
	for {
		var err error
		if n, err = unix.Read(c.fd, b); err == nil {
			break
		} else if !errors.Is(err, unix.EINTR) {
			return errs.Wrap(err, "read")
		}
	}
	if n < inHead+16 || parseHead(b).op != opInit {
		return errs.New(errs.Unavailable, "the first request is %d", parseHead(b).op)
	}
	h, in := parseHead(b), b[inHead:n]
	major, minor, flags, flags2 := ne.Uint32(in), ne.Uint32(in[4:]), ne.Uint32(in[12:]), uint32(0)
	if major != protoMajor || minor < protoOldest {
		return errs.New(errs.Unimplemented, "the kernel's FUSE protocol is %d.%d, older than %d.%d", major, minor, protoMajor, protoOldest)
	}
	if flags&initExt != 0 && len(in) >= 20 {
		flags2 = ne.Uint32(in[16:])
	}
	if flags&initMaxPages == 0 || flags&initAsyncDIO == 0 {
		return errs.New(errs.Unimplemented, "the kernel's FUSE has no large or no asynchronous requests")
	}
	c.Resend = flags2&initHasResend2 != 0
	out := reply(nil, h.unique, 0, 64)
	out = ne.AppendUint32(out, protoMajor)
	out = ne.AppendUint32(out, min(minor, protoNewest))
	out = ne.AppendUint32(out, 0) // read-ahead: nothing is cached
	out = ne.AppendUint32(out, flags&(initAsyncRead|initBigWrites|initAsyncDIO|initParallel|initMaxPages|initExt))
	out = ne.AppendUint16(out, background)
	out = ne.AppendUint16(out, 384) // and how many are congestion
	out = ne.AppendUint32(out, maxWrite)
	out = ne.AppendUint32(out, 1)            // granularity of times, ns
	out = ne.AppendUint16(out, maxWrite>>12) // pages of a request
	out = ne.AppendUint16(out, 0)            // alignment of mappings
	out = ne.AppendUint32(out, 0)            // second word of flags
	out = append(out, make([]byte, 80-len(out))...)
	_, err := unix.Write(c.fd, out)
	return errs.Wrap(err, "answer")
}

// resend asks the kernel to send again what was read and not answered.
func (c *Conn) resend() error {
	if !c.Resend {
		return errs.New(errs.Unimplemented, "the kernel cannot send requests again (Linux 6.9 can)")
	}
	b := ne.AppendUint32(nil, outHead)
	b = ne.AppendUint32(b, notifyResend)
	b = ne.AppendUint64(b, 0)
	_, err := unix.Write(c.fd, b)
	return errs.Wrap(err, "ask the kernel to send requests again")
}

// attr appends the attributes of a node.
func (c *Conn) attr(b []byte, node uint64) []byte {
	size, mode, links := uint64(0), uint32(unix.S_IFDIR|0o700), uint32(2)
	if node == fileNode {
		size, mode, links = uint64(c.disk.Size()), unix.S_IFREG|0o600, 1
	}
	b = ne.AppendUint64(b, node)
	b = ne.AppendUint64(b, size)
	b = ne.AppendUint64(b, size/512)
	b = append(b, make([]byte, 36)...) // times
	b = ne.AppendUint32(b, mode)
	b = ne.AppendUint32(b, links)
	b = append(b, make([]byte, 12)...) // user, group, device
	b = ne.AppendUint32(b, 4096)
	return ne.AppendUint32(b, 0)
}

func (c *Conn) entry(b []byte) []byte {
	b = ne.AppendUint64(b, fileNode)
	b = ne.AppendUint64(b, 1) // generation
	b = ne.AppendUint64(b, forever)
	b = ne.AppendUint64(b, forever)
	b = ne.AppendUint64(b, 0) // nanoseconds of both
	return c.attr(b, fileNode)
}

func (c *Conn) attrOut(b []byte, node uint64) []byte {
	b = ne.AppendUint64(b, forever)
	b = ne.AppendUint64(b, 0)
	return c.attr(b, node)
}

func openOut(b []byte, flags uint32) []byte {
	b = ne.AppendUint64(b, 0)
	b = ne.AppendUint32(b, flags)
	return ne.AppendUint32(b, 0)
}

func (c *Conn) statfs(b []byte) []byte {
	b = ne.AppendUint64(b, uint64(c.disk.Size())/lsvd.BlockSize)
	b = ne.AppendUint64(b, 0)
	b = ne.AppendUint64(b, 0)
	b = ne.AppendUint64(b, 1)
	b = ne.AppendUint64(b, 0)
	b = ne.AppendUint32(b, lsvd.BlockSize)
	b = ne.AppendUint32(b, 255)
	b = ne.AppendUint32(b, lsvd.BlockSize)
	return append(b, make([]byte, 28)...)
}

// dirent appends an entry of a directory; next is the offset of what follows.
func dirent(b []byte, node, next uint64, kind uint32, name string) []byte {
	b = ne.AppendUint64(b, node)
	b = ne.AppendUint64(b, next)
	b = ne.AppendUint32(b, uint32(len(name)))
	b = ne.AppendUint32(b, kind)
	b = append(b, name...)
	return append(b, make([]byte, -len(name)&7)...)
}
