package nbd

import (
	"context"
	"encoding/binary"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/pkg/errs"
)

// handle carries out a request and answers it.
func (x *session) handle(ctx context.Context, w *replies, q *request) {
	var head [64]byte
	h := head[:0]
	data, status, err := x.do(ctx, q)
	switch {
	case err != nil:
		h = x.failed(h, q, err)
	case q.typ == cmdBlockStatus:
		h = append(appendChunk(h, q, chunkBlockStatus, len(status)), status...)
	case q.typ == cmdRead && x.structured && data == nil:
		h = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(appendChunk(h, q, chunkHole, 12), q.off), q.n)
	case q.typ == cmdRead:
		h = x.readHead(h, q, len(data.b))
	default:
		// Only reads and block status must be answered with chunks.
		h = appendSimple(h, q, 0)
	}
	w.add(q, h, data)
	requests.Put(q)
}

// readHead appends what precedes the data of a read, of n bytes.
func (x *session) readHead(h []byte, q *request, n int) []byte {
	if !x.structured {
		return appendSimple(h, q, 0)
	}
	return binary.BigEndian.AppendUint64(appendChunk(h, q, chunkData, 8+n), q.off)
}

// failed appends the reply to a request that failed.
func (x *session) failed(h []byte, q *request, err error) []byte {
	if code(err) == nbdEIO {
		x.s.logger.Error("request failed", "volume", x.export.Name, "operation", q.typ, "offset", q.off, "length", q.n, "error", err)
	}
	return x.failure(h, q, code(err))
}

func (x *session) failure(h []byte, q *request, code uint32) []byte {
	if !x.structured {
		return appendSimple(h, q, code)
	}
	h = binary.BigEndian.AppendUint32(appendChunk(h, q, chunkError, 6), code)
	return binary.BigEndian.AppendUint16(h, 0) // no message
}

// flagsOf are the flags that a command may have; FUA is allowed on all, so 0
// stands for an unknown command.
var flagsOf = [...]uint16{cmdRead: cmdFlagFUA | cmdFlagDF, cmdWrite: cmdFlagFUA, cmdFlush: cmdFlagFUA, cmdTrim: cmdFlagFUA,
	cmdWriteZeroes: cmdFlagFUA | cmdFlagNoHole, cmdBlockStatus: cmdFlagFUA | cmdFlagReqOne}

// check refuses a request that the disk cannot carry out.
func (x *session) check(q *request) error {
	if int(q.typ) >= len(flagsOf) || flagsOf[q.typ] == 0 || q.flags&^flagsOf[q.typ] != 0 {
		return errs.New(errs.InvalidArgument, "command %d with flags %#x", q.typ, q.flags)
	}
	size := uint64(x.export.Disk.Size())
	inside := q.off <= size && uint64(q.n) <= size-q.off
	changes := q.typ == cmdWrite || q.typ == cmdTrim || q.typ == cmdWriteZeroes
	switch {
	case changes && x.export.ReadOnly:
		return errs.New(errs.PermissionDenied, "export %q is read-only", x.export.Name)
	case !inside && (q.typ == cmdWrite || q.typ == cmdWriteZeroes):
		return errs.New(errs.ResourceExhausted, "%d+%d is behind the end of the disk", q.off, q.n)
	case !inside && q.typ != cmdFlush:
		return errs.New(errs.InvalidArgument, "%d+%d is behind the end of the disk", q.off, q.n)
	case q.typ == cmdRead && q.n > maxPayload:
		return errs.New(errs.InvalidArgument, "read of %d bytes", q.n)
	case q.typ == cmdBlockStatus && (!x.hasStatus || q.n == 0):
		return errs.New(errs.InvalidArgument, "block status was not agreed on")
	}
	return nil
}

// do carries out a request. A structured read of a hole returns no data.
func (x *session) do(ctx context.Context, q *request) (data *buffer, status []byte, err error) {
	if err := x.check(q); err != nil {
		q.data.free()
		return nil, nil, err
	}
	disk := x.export.Disk
	var flags lsvd.Flags
	if q.flags&cmdFlagFUA != 0 {
		flags = lsvd.FUA
	}
	off, n := int64(q.off), int64(q.n)
	switch q.typ {
	case cmdRead:
		data, err = x.read(ctx, off, n)
		return data, nil, err
	case cmdWrite:
		err = disk.WriteAt(ctx, q.data.b, off, flags)
		q.data.free()
		return nil, nil, err
	case cmdFlush:
		return nil, nil, disk.Flush(ctx)
	case cmdTrim:
		return nil, nil, disk.Trim(ctx, off, n, flags)
	case cmdWriteZeroes:
		return nil, nil, disk.Zero(ctx, off, n, flags)
	}
	status, err = x.blockStatus(off, n, q.flags&cmdFlagReqOne != 0)
	return nil, status, err
}

func (x *session) blockStatus(off, n int64, one bool) ([]byte, error) {
	b := binary.BigEndian.AppendUint32(nil, contextID)
	count := 0
	err := x.export.Disk.Status(off, n, func(_, n int64, hole bool) bool {
		b = binary.BigEndian.AppendUint32(b, uint32(n))
		state := uint32(0)
		if hole {
			state = stateHole
		}
		b = binary.BigEndian.AppendUint32(b, state)
		count++
		return !one && count < maxExtents
	})
	return b, err
}

// askHole is the size, in bytes, from which a read first asks the map for holes:
// sending zeros costs more than the question.
const askHole = 64 << 10

func (x *session) read(ctx context.Context, off, n int64) (*buffer, error) {
	if x.structured && n >= askHole {
		hole := false
		err := x.export.Disk.Status(off, n, func(_, part int64, h bool) bool { hole = h && part == n; return false })
		if err != nil || hole {
			return nil, err
		}
	}
	data := newBuffer(int(n))
	if err := x.export.Disk.ReadAt(ctx, data.b, off); err != nil {
		data.free()
		return nil, err
	}
	return data, nil
}
