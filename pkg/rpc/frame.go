package rpc

import (
	"encoding/binary"
	"io"

	"miren.dev/runtime/pkg/errs"
)

const (
	headerLen  = 12
	maxPayload = 64 << 10 // bytes of any frame
	chunkLen   = 32 << 10 // bytes of a message, or of raw bytes, in one DATA frame
	maxHello   = 256
	magic      = "rRPC"
	version    = 1
)

type frameType uint8

const (
	frameHello frameType = iota + 1
	frameCall
	frameData
	frameReply
	frameCancel
	frameWindow
	framePing
	frameGoAway
)

// Flags of frames.
const (
	flagBody     = 1 << 0 // CALL, REPLY: the body is a message of DATA frames
	flagError    = 1 << 1 // REPLY: the payload is an error
	flagMore     = 1 << 2 // DATA: the next frame continues the message
	flagLarge    = 1 << 3 // DATA: the payload begins with the length of the message
	flagEnd      = 1 << 4 // DATA: this side sends no more
	flagAck      = 1 << 5 // PING: an answer
	flagOptional = 1 << 7 // of a frame of unknown type: ignore it
)

type header struct {
	typ    frameType
	flags  uint8
	length int
	id     uint64
}

func appendHeader(b []byte, h header) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(h.length)<<8|uint32(h.typ))
	return binary.BigEndian.AppendUint64(b, uint64(h.flags)<<56|h.id)
}

func parseHeader(b []byte) header {
	a, c := binary.BigEndian.Uint32(b), binary.BigEndian.Uint64(b[4:])
	return header{typ: frameType(a), length: int(a >> 8), flags: uint8(c >> 56), id: c & (1<<56 - 1)}
}

// protocolError reports a peer that breaks the protocol; it ends the
// connection.
func protocolError(format string, args ...any) error {
	return errs.New(errs.Unavailable, "rpc: protocol error: "+format, args...)
}

// frameReader reads frames out of one buffer.
type frameReader struct {
	r          io.Reader
	buf        []byte
	start, end int
}

func newFrameReader(r io.Reader) *frameReader {
	return &frameReader{r: r, buf: make([]byte, headerLen+maxPayload)}
}

// next returns the next frame. The payload is valid until the next call.
func (f *frameReader) next() (header, []byte, error) {
	if err := f.fill(headerLen); err != nil {
		return header{}, nil, err
	}
	h := parseHeader(f.buf[f.start:])
	if h.length > maxPayload {
		return h, nil, protocolError("frame of %d bytes, at most %d are allowed", h.length, maxPayload)
	}
	if err := f.fill(headerLen + h.length); err != nil {
		return h, nil, err
	}
	p := f.buf[f.start+headerLen : f.start+headerLen+h.length]
	f.start += headerLen + h.length
	return h, p, nil
}

// fill makes at least n bytes available at start.
func (f *frameReader) fill(n int) error {
	if f.end-f.start >= n {
		return nil
	}
	if f.start == f.end {
		f.start, f.end = 0, 0
	}
	if f.start+n > len(f.buf) {
		f.end = copy(f.buf, f.buf[f.start:f.end])
		f.start = 0
	}
	for f.end-f.start < n {
		m, err := f.r.Read(f.buf[f.end:])
		f.end += m
		if f.end-f.start >= n {
			return nil
		}
		if err != nil {
			if err == io.EOF && f.end > f.start {
				return io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

// Settings that a side announces in HELLO.
const (
	settingStreamWindow = 1
	settingConnWindow   = 2
	settingMaxCalls     = 3
	settingMaxMessage   = 4
)

type hello struct {
	version, minVersion      uint8
	streamWindow, connWindow int64
	maxCalls, maxMessage     int64
}

func appendHello(b []byte, h hello) []byte {
	p := append([]byte(magic), h.version, h.minVersion)
	for _, kv := range [][2]uint64{
		{settingStreamWindow, uint64(h.streamWindow)}, {settingConnWindow, uint64(h.connWindow)},
		{settingMaxCalls, uint64(h.maxCalls)}, {settingMaxMessage, uint64(h.maxMessage)},
	} {
		p = binary.AppendUvarint(binary.AppendUvarint(p, kv[0]), kv[1])
	}
	return append(appendHeader(b, header{typ: frameHello, length: len(p)}), p...)
}

func parseHello(h header, p []byte) (hello, error) {
	var out hello
	if h.typ != frameHello || len(p) < len(magic)+2 || len(p) > maxHello || string(p[:len(magic)]) != magic {
		return out, protocolError("the peer does not speak runtime's RPC")
	}
	p = p[len(magic):]
	out.version, out.minVersion = p[0], p[1]
	if out.minVersion > version || out.version < version {
		return out, errs.New(errs.FailedPrecondition, "the peer speaks versions %d to %d of the RPC protocol, this side %d", out.minVersion, out.version, version).
			WithHint("install the same version of runtime on both sides")
	}
	for p = p[2:]; len(p) > 0; {
		k, n := binary.Uvarint(p)
		if n <= 0 {
			return out, protocolError("malformed settings")
		}
		v, m := binary.Uvarint(p[n:])
		if m <= 0 {
			return out, protocolError("malformed settings")
		}
		p = p[n+m:]
		if v > 1<<40 {
			return out, protocolError("setting %d is %d", k, v)
		}
		switch k {
		case settingStreamWindow:
			out.streamWindow = int64(v)
		case settingConnWindow:
			out.connWindow = int64(v)
		case settingMaxCalls:
			out.maxCalls = int64(v)
		case settingMaxMessage:
			out.maxMessage = int64(v)
		}
	}
	if out.streamWindow < minWindow || out.connWindow < out.streamWindow || out.maxCalls < 1 || out.maxMessage < 1 {
		return out, protocolError("settings are out of range")
	}
	return out, nil
}

// callHeader travels with every call.
type callHeader struct {
	method    string
	timeout   int64 // microseconds; 0: none
	requestID string
	trace     string
}

const (
	hasTimeout = 1 << iota
	hasRequestID
	hasTrace
	hasExtension
)

// maxCallHeader bounds the encoded header: four strings and a number.
const maxCallHeader = 1100

func appendCallHeader(b []byte, h *callHeader) []byte {
	var flags byte
	if h.timeout > 0 {
		flags |= hasTimeout
	}
	if h.requestID != "" {
		flags |= hasRequestID
	}
	if h.trace != "" {
		flags |= hasTrace
	}
	b = append(b, flags, byte(len(h.method)))
	b = append(b, h.method...)
	if h.timeout > 0 {
		b = binary.AppendUvarint(b, uint64(h.timeout))
	}
	if h.requestID != "" {
		b = append(append(b, byte(len(h.requestID))), h.requestID...)
	}
	if h.trace != "" {
		b = append(append(b, byte(len(h.trace))), h.trace...)
	}
	return b
}

// rawCallHeader points into the frame it was parsed from.
type rawCallHeader struct {
	method, requestID, trace []byte
	timeout                  int64
}

// parseCallHeader returns the header and the rest of the payload.
func parseCallHeader(p []byte) (h rawCallHeader, rest []byte, ok bool) {
	if len(p) < 1 {
		return h, nil, false
	}
	flags := p[0]
	p = p[1:]
	if h.method, p, ok = takeString(p); !ok {
		return h, nil, false
	}
	if flags&hasTimeout != 0 {
		v, n := binary.Uvarint(p)
		if n <= 0 || v > 1<<53 {
			return h, nil, false
		}
		h.timeout, p = int64(v), p[n:]
	}
	if flags&hasRequestID != 0 {
		if h.requestID, p, ok = takeString(p); !ok {
			return h, nil, false
		}
	}
	if flags&hasTrace != 0 {
		if h.trace, p, ok = takeString(p); !ok {
			return h, nil, false
		}
	}
	if flags&hasExtension != 0 {
		if _, p, ok = takeString(p); !ok {
			return h, nil, false
		}
	}
	return h, p, true
}

func takeString(p []byte) (s, rest []byte, ok bool) {
	if len(p) < 1 || len(p) < 1+int(p[0]) {
		return nil, nil, false
	}
	n := 1 + int(p[0])
	return p[1:n], p[n:], true
}
