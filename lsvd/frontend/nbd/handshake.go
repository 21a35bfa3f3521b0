package nbd

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"miren.dev/runtime/pkg/errs"
)

// session is one connection.
type session struct {
	s          *Server
	c          net.Conn
	r          *bufio.Reader
	tls        *tls.Config // nil: no TLS; otherwise nothing is served without
	secure     bool        // TLS is on
	export     Export
	noZeroes   bool
	structured bool
	status     string // the export whose block status was agreed on
	hasStatus  bool
}

// serve runs one connection. It returns nil when the client says good-bye.
func (s *Server) serve(ctx context.Context, c net.Conn, cfg *tls.Config) error {
	x := &session{s: s, c: c, r: bufio.NewReader(c), tls: cfg}
	if err := c.SetDeadline(time.Now().Add(handshakeTime)); err != nil {
		return errs.Wrap(err, "handshake")
	}
	ready, err := x.handshake(ctx)
	if err == nil {
		err = c.SetDeadline(time.Time{})
	}
	if err != nil || !ready {
		if errors.Is(err, io.EOF) {
			return nil // a probe
		}
		return errs.Wrap(err, "handshake")
	}
	early := make([]byte, x.r.Buffered())
	if _, err := io.ReadFull(x.r, early); err != nil {
		return errs.Wrap(err, "handshake")
	}
	x.r = nil
	plain, ok := x.c.(syscall.Conn)
	if !ok || x.secure {
		return x.transmit(ctx, newNetStream(x.c), early)
	}
	k, err := takeSocket(plain)
	if err != nil {
		return err
	}
	defer k.release()
	stop := context.AfterFunc(ctx, func() { k.Close() })
	defer stop()
	return x.transmit(ctx, k, early)
}

func (x *session) txFlags() uint16 {
	f := uint16(txHasFlags | txFlush | txFUA | txTrim | txWriteZeroes | txMultiConn)
	if x.structured {
		f |= txDF
	}
	if x.export.ReadOnly {
		f |= txReadOnly
	}
	return f
}

// handshake negotiates; it reports whether transmission begins.
func (x *session) handshake(ctx context.Context) (bool, error) {
	b := binary.BigEndian.AppendUint64(nil, magicServer)
	b = binary.BigEndian.AppendUint64(b, magicOption)
	b = binary.BigEndian.AppendUint16(b, flagFixedNewstyle|flagNoZeroes)
	if _, err := x.c.Write(b); err != nil {
		return false, err
	}
	var flags [4]byte
	if _, err := io.ReadFull(x.r, flags[:]); err != nil {
		return false, err
	}
	f := binary.BigEndian.Uint32(flags[:])
	if f&^(flagFixedNewstyle|flagNoZeroes) != 0 {
		return false, errs.New(errs.InvalidArgument, "unknown client flags %#x", f)
	}
	x.noZeroes = f&flagNoZeroes != 0
	for range maxOptions {
		var h [16]byte
		if _, err := io.ReadFull(x.r, h[:]); err != nil {
			return false, err
		}
		opt, n := binary.BigEndian.Uint32(h[8:]), binary.BigEndian.Uint32(h[12:])
		if binary.BigEndian.Uint64(h[:]) != magicOption {
			return false, errs.New(errs.InvalidArgument, "option without magic")
		}
		if n > maxOption {
			if opt == optExportName || n > maxPayload {
				return false, errs.New(errs.InvalidArgument, "option %d of %d bytes", opt, n)
			}
			if _, err := io.CopyN(io.Discard, x.r, int64(n)); err != nil {
				return false, err
			}
			if err := x.reply(opt, repErrTooBig, nil); err != nil {
				return false, err
			}
			continue
		}
		data := make([]byte, n)
		if _, err := io.ReadFull(x.r, data); err != nil {
			return false, err
		}
		begin, end, err := x.option(ctx, opt, data)
		if err != nil || begin || end {
			return begin, err
		}
	}
	return false, errs.New(errs.InvalidArgument, "client sent too many options")
}

// option answers one option: whether transmission begins, or all ends.
func (x *session) option(ctx context.Context, opt uint32, data []byte) (begin, end bool, err error) {
	if x.tls != nil && !x.secure && opt != optStartTLS && opt != optAbort {
		if opt == optExportName { // has no way to answer with an error
			return false, false, errs.New(errs.Unauthenticated, "client asked for an export without TLS")
		}
		return false, false, x.reply(opt, repErrTLSReqd, []byte("this server requires TLS"))
	}
	switch opt {
	case optStartTLS:
		return false, false, x.startTLS(ctx, data)
	case optExportName:
		e, ok := x.s.exports[string(data)]
		if !ok {
			return false, false, errs.New(errs.NotFound, "no export %q", data)
		}
		x.use(e)
		b := binary.BigEndian.AppendUint64(nil, uint64(e.Disk.Size()))
		b = binary.BigEndian.AppendUint16(b, x.txFlags())
		if !x.noZeroes {
			b = append(b, make([]byte, 124)...)
		}
		_, err := x.c.Write(b)
		return true, false, err
	case optAbort:
		x.reply(opt, repAck, nil) // the client may be gone already
		return false, true, nil
	case optList:
		if len(data) != 0 {
			return false, false, x.reply(opt, repErrInvalid, nil)
		}
		for _, n := range slices.Sorted(maps.Keys(x.s.exports)) {
			if err := x.reply(opt, repServer, append(binary.BigEndian.AppendUint32(nil, uint32(len(n))), n...)); err != nil {
				return false, false, err
			}
		}
		return false, false, x.reply(opt, repAck, nil)
	case optInfo, optGo:
		return x.info(opt, data)
	case optStructured:
		if len(data) != 0 {
			return false, false, x.reply(opt, repErrInvalid, nil)
		}
		x.structured = true
		return false, false, x.reply(opt, repAck, nil)
	case optListContext, optSetContext:
		return false, false, x.context(opt, data)
	}
	return false, false, x.reply(opt, repErrUnsup, nil)
}

// use chooses the export; block status stays only if it was agreed on for it.
func (x *session) use(e Export) {
	x.export = e
	x.hasStatus = x.hasStatus && x.status == e.Name
}

func (x *session) info(opt uint32, data []byte) (begin, end bool, err error) {
	name, rest, ok := takeString(data)
	if !ok || len(rest) < 2 || len(rest) != 2+2*int(binary.BigEndian.Uint16(rest)) {
		return false, false, x.reply(opt, repErrInvalid, nil)
	}
	e, ok := x.s.exports[name]
	if !ok {
		return false, false, x.reply(opt, repErrUnknown, []byte("there is no such export"))
	}
	was := x.export
	x.export = e
	b := binary.BigEndian.AppendUint16(nil, infoExport)
	b = binary.BigEndian.AppendUint64(b, uint64(e.Disk.Size()))
	b = binary.BigEndian.AppendUint16(b, x.txFlags())
	if err := x.reply(opt, repInfo, b); err != nil {
		return false, false, err
	}
	b = binary.BigEndian.AppendUint16(nil, infoBlockSize)
	for _, v := range []uint32{minBlock, bestBlock, maxPayload} {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	if err := x.reply(opt, repInfo, b); err != nil {
		return false, false, err
	}
	for i := 2; i < len(rest); i += 2 {
		if binary.BigEndian.Uint16(rest[i:]) == infoName {
			if err := x.reply(opt, repInfo, append(binary.BigEndian.AppendUint16(nil, infoName), name...)); err != nil {
				return false, false, err
			}
		}
	}
	if opt == optGo {
		x.use(e)
	} else {
		x.export = was
	}
	return opt == optGo, false, x.reply(opt, repAck, nil)
}

// context lists or sets metadata contexts; there is one, base:allocation.
func (x *session) context(opt uint32, data []byte) error {
	name, rest, ok := takeString(data)
	if !ok || len(rest) < 4 || !x.structured {
		return x.reply(opt, repErrInvalid, nil)
	}
	if _, ok := x.s.exports[name]; !ok {
		return x.reply(opt, repErrUnknown, []byte("there is no such export"))
	}
	n := binary.BigEndian.Uint32(rest)
	rest = rest[4:]
	found := n == 0 && opt == optListContext
	for range n {
		var q string
		if q, rest, ok = takeString(rest); !ok {
			return x.reply(opt, repErrInvalid, nil)
		}
		found = found || q == contextName || opt == optListContext && strings.TrimSpace(q) == contextPattern
	}
	if len(rest) != 0 {
		return x.reply(opt, repErrInvalid, nil)
	}
	if opt == optSetContext {
		x.hasStatus, x.status = found, name
	}
	if found {
		id := uint32(contextID)
		if opt == optListContext {
			id = 0
		}
		if err := x.reply(opt, repContext, append(binary.BigEndian.AppendUint32(nil, id), contextName...)); err != nil {
			return err
		}
	}
	return x.reply(opt, repAck, nil)
}

func (x *session) reply(opt, typ uint32, data []byte) error {
	b := binary.BigEndian.AppendUint64(nil, magicReply)
	b = binary.BigEndian.AppendUint32(b, opt)
	b = binary.BigEndian.AppendUint32(b, typ)
	b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	_, err := x.c.Write(append(b, data...))
	return err
}

// takeString takes a string after its 32-bit length.
func takeString(b []byte) (s string, rest []byte, ok bool) {
	if len(b) < 4 {
		return "", nil, false
	}
	n := binary.BigEndian.Uint32(b)
	if n > maxName || uint64(n) > uint64(len(b)-4) {
		return "", nil, false
	}
	return string(b[4 : 4+n]), b[4+n:], true
}
