package nbd

import (
	"encoding/binary"
	"sync"

	"miren.dev/runtime/pkg/errs"
)

// request is one command of the client.
type request struct {
	flags  uint16
	typ    uint16
	cookie uint64
	off    uint64
	n      uint32
	data   *buffer // of a write; of a read, once it is done
	busy   int64   // bytes taken of the budget
	link   *link   // of what is queued
}

var requests = sync.Pool{New: func() any { return new(request) }}

const requestSize = 28

func (q *request) decode(h []byte) error {
	if binary.BigEndian.Uint32(h) != magicRequest {
		return errs.New(errs.InvalidArgument, "request without magic")
	}
	*q = request{flags: binary.BigEndian.Uint16(h[4:]), typ: binary.BigEndian.Uint16(h[6:]), cookie: binary.BigEndian.Uint64(h[8:]),
		off: binary.BigEndian.Uint64(h[16:]), n: binary.BigEndian.Uint32(h[24:])}
	if q.typ == cmdWrite && q.n > maxPayload {
		return errs.New(errs.InvalidArgument, "write of %d bytes", q.n)
	}
	if q.typ == cmdRead || q.typ == cmdWrite {
		q.busy = int64(min(q.n, maxPayload))
	}
	return nil
}
