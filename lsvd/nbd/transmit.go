package nbd

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"

	"golang.org/x/sync/semaphore"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/pkg/errs"
)

// request is one command of the client.
type request struct {
	flags  uint16
	typ    uint16
	cookie uint64
	off    uint64
	n      uint32
	data   []byte
}

// transmit answers requests until the client disconnects.
func (x *session) transmit(ctx context.Context) error {
	w := &writer{c: x.c}
	slots := semaphore.NewWeighted(maxInFlight)
	bytes := semaphore.NewWeighted(maxBusyBytes)
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		var h [28]byte
		if _, err := io.ReadFull(x.r, h[:]); err != nil {
			if errors.Is(err, io.EOF) {
				return nil // without good-bye, between requests
			}
			return errs.Wrap(err, "read request")
		}
		if binary.BigEndian.Uint32(h[:]) != magicRequest {
			return errs.New(errs.InvalidArgument, "request without magic")
		}
		q := &request{flags: binary.BigEndian.Uint16(h[4:]), typ: binary.BigEndian.Uint16(h[6:]), cookie: binary.BigEndian.Uint64(h[8:]),
			off: binary.BigEndian.Uint64(h[16:]), n: binary.BigEndian.Uint32(h[24:])}
		if q.typ == cmdDisconnect {
			return nil
		}
		busy := int64(0)
		if q.typ == cmdRead || q.typ == cmdWrite {
			busy = int64(min(q.n, maxPayload))
		}
		if slots.Acquire(ctx, 1) != nil || bytes.Acquire(ctx, busy) != nil {
			return nil // the server ends
		}
		if q.typ == cmdWrite {
			if q.n > maxPayload {
				return errs.New(errs.InvalidArgument, "write of %d bytes", q.n)
			}
			q.data = make([]byte, q.n)
			if _, err := io.ReadFull(x.r, q.data); err != nil {
				return errs.Wrap(err, "read payload")
			}
		}
		wg.Go(func() {
			x.handle(ctx, w, q)
			bytes.Release(busy)
			slots.Release(1)
		})
	}
}

// writer writes replies, each whole. After an error the connection is useless
// and is closed, so that the client does not wait for what will never come.
type writer struct {
	mu sync.Mutex
	c  net.Conn
}

func (w *writer) write(parts ...[]byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := net.Buffers(parts)
	if _, err := b.WriteTo(w.c); err != nil {
		w.c.Close()
	}
}

func (x *session) handle(ctx context.Context, w *writer, q *request) {
	data, status, err := x.do(ctx, q)
	switch {
	case err != nil:
		if code(err) == nbdEIO {
			x.s.logger.Error("request failed", "export", x.export.Name, "type", q.typ, "offset", q.off, "length", q.n, "err", err)
		}
		x.fail(w, q, code(err))
	case q.typ == cmdBlockStatus:
		w.write(chunk(q, chunkBlockStatus, len(status)), status)
	case q.typ == cmdRead && x.structured && data == nil:
		w.write(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(chunk(q, chunkHole, 12), q.off), q.n))
	case q.typ == cmdRead && x.structured:
		w.write(binary.BigEndian.AppendUint64(chunk(q, chunkData, 8+len(data)), q.off), data)
	case q.typ == cmdRead:
		w.write(simple(q, 0), data)
	default:
		// Only reads and block status must be answered with chunks.
		w.write(simple(q, 0))
	}
}

func (x *session) fail(w *writer, q *request, code uint32) {
	if !x.structured {
		w.write(simple(q, code))
		return
	}
	b := binary.BigEndian.AppendUint32(chunk(q, chunkError, 6), code)
	w.write(binary.BigEndian.AppendUint16(b, 0)) // no message
}

func simple(q *request, code uint32) []byte {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, 16), magicSimple)
	b = binary.BigEndian.AppendUint32(b, code)
	return binary.BigEndian.AppendUint64(b, q.cookie)
}

// chunk is the header of the only chunk of a reply.
func chunk(q *request, typ uint16, n int) []byte {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, 40), magicChunk)
	b = binary.BigEndian.AppendUint16(b, chunkDone)
	b = binary.BigEndian.AppendUint16(b, typ)
	b = binary.BigEndian.AppendUint64(b, q.cookie)
	return binary.BigEndian.AppendUint32(b, uint32(n))
}

// do carries out a request. A structured read of a hole returns no data.
func (x *session) do(ctx context.Context, q *request) (data, status []byte, err error) {
	disk := x.export.Disk
	allowed := map[uint16]uint16{cmdRead: cmdFlagDF, cmdWrite: cmdFlagFUA, cmdFlush: cmdFlagFUA, cmdTrim: cmdFlagFUA,
		cmdWriteZeroes: cmdFlagFUA | cmdFlagNoHole, cmdBlockStatus: cmdFlagReqOne}
	if a, ok := allowed[q.typ]; !ok || q.flags&^(a|cmdFlagFUA) != 0 {
		return nil, nil, errs.New(errs.InvalidArgument, "command %d with flags %#x", q.typ, q.flags)
	}
	size := uint64(disk.Size())
	inside := q.off <= size && uint64(q.n) <= size-q.off
	changes := q.typ == cmdWrite || q.typ == cmdTrim || q.typ == cmdWriteZeroes
	switch {
	case changes && x.export.ReadOnly:
		return nil, nil, errs.New(errs.PermissionDenied, "export %q is read-only", x.export.Name)
	case !inside && (q.typ == cmdWrite || q.typ == cmdWriteZeroes):
		return nil, nil, errs.New(errs.ResourceExhausted, "%d+%d is behind the end of the disk", q.off, q.n)
	case !inside && q.typ != cmdFlush:
		return nil, nil, errs.New(errs.InvalidArgument, "%d+%d is behind the end of the disk", q.off, q.n)
	}
	var flags lsvd.Flags
	if q.flags&cmdFlagFUA != 0 {
		flags = lsvd.FUA
	}
	off, n := int64(q.off), int64(q.n)
	switch q.typ {
	case cmdRead:
		if q.n > maxPayload {
			return nil, nil, errs.New(errs.InvalidArgument, "read of %d bytes", q.n)
		}
		if x.structured && n > 0 {
			hole := false
			err := disk.Status(off, n, func(_, part int64, h bool) bool { hole = h && part == n; return false })
			if err != nil || hole {
				return nil, nil, err
			}
		}
		data = make([]byte, n)
		return data, nil, disk.ReadAt(ctx, data, off)
	case cmdWrite:
		return nil, nil, disk.WriteAt(ctx, q.data, off, flags)
	case cmdFlush:
		return nil, nil, disk.Flush(ctx)
	case cmdTrim:
		return nil, nil, disk.Trim(ctx, off, n, flags)
	case cmdWriteZeroes:
		return nil, nil, disk.Zero(ctx, off, n, flags)
	}
	if !x.hasStatus || q.n == 0 {
		return nil, nil, errs.New(errs.InvalidArgument, "block status was not agreed on")
	}
	status = binary.BigEndian.AppendUint32(nil, contextID)
	count := 0
	err = disk.Status(off, n, func(_, n int64, hole bool) bool {
		status = binary.BigEndian.AppendUint32(status, uint32(n))
		state := uint32(0)
		if hole {
			state = stateHole
		}
		status = binary.BigEndian.AppendUint32(status, state)
		count++
		return q.flags&cmdFlagReqOne == 0 && count < maxExtents
	})
	return nil, status, err
}
