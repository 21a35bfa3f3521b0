package agentproto

import (
	"encoding/binary"
	"errors"
	"io"
)

// Type is the type of a frame.
type Type uint8

// Frame types. Numbers are never reused.
const (
	THello     Type = 1  // agent: Hello
	TWelcome   Type = 2  // node: Welcome
	TPing      Type = 3  // both: Time
	TPong      Type = 4  // both: Time
	TMain      Type = 5  // agent: Main, at every change
	TReply     Type = 6  // agent: Reply to the request with this id
	TStartMain Type = 7  // node: request
	TSignal    Type = 8  // node: request, Signal of the main process
	TListening Type = 9  // node: request
	TRefused   Type = 10 // both: Failure; the peer does not accept the type of the frame with this id
	TConfigure Type = 11 // node: request, Configure
	TMount     Type = 12 // node: request, Mount, once after a Configure that announces it
	TOpen      Type = 32 // node: Open
	TResume    Type = 33 // node: Resume
	TOpened    Type = 34 // agent: Opened
	TData      Type = 35 // both: data of a stream
	TAck       Type = 36 // both: offset in a stream before which all was used
	TEnd       Type = 37 // both: offset at which a stream ends
	TControl   Type = 38 // node: a message of the kind, whose number is the stream
	TDone      Type = 39 // agent: Done, after all output
	TClose     Type = 40 // node: end the work and forget the channel
	TSuspend   Type = 64 // node: request before a snapshot; see Identity
	TIdentify  Type = 65 // node: request with the Identity of a restored sandbox
)

const headerSize = 4 + 1 + 1 + 8

// ErrTooBig is returned for a frame over the reader's bound.
var ErrTooBig = errors.New("agentproto: frame too big")

// Frame is one message. Payload is valid until the next Read.
type Frame struct {
	Type    Type
	Stream  uint8
	ID      uint64
	Payload []byte
}

// AppendFrame appends f to b.
func AppendFrame(b []byte, f Frame) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(f.Payload)))
	b = append(b, byte(f.Type), f.Stream)
	b = binary.LittleEndian.AppendUint64(b, f.ID)
	return append(b, f.Payload...)
}

// AppendData appends a frame of type t with data at offset.
func AppendData(b []byte, t Type, stream uint8, id uint64, offset int64, data []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(8+len(data)))
	b = append(b, byte(t), stream)
	b = binary.LittleEndian.AppendUint64(b, id)
	b = binary.LittleEndian.AppendUint64(b, uint64(offset))
	return append(b, data...)
}

// Data splits the payload of a data frame.
func (f Frame) Data() (offset int64, data []byte, err error) {
	if len(f.Payload) < 8 {
		return 0, nil, ErrMalformed
	}
	v := binary.LittleEndian.Uint64(f.Payload)
	if v > 1<<62 {
		return 0, nil, ErrMalformed
	}
	return int64(v), f.Payload[8:], nil
}

// Reader reads frames. It is not safe for concurrent use.
type Reader struct {
	r     io.Reader
	max   int // of a payload
	buf   []byte
	start int  // start of the unread bytes in buf
	full  bool // the last read filled buf
}

// readSize is the capacity of an idle reader.
const readSize = 16 << 10

// NewReader returns a reader of frames of at most maxPayload bytes.
func NewReader(r io.Reader, maxPayload int) *Reader {
	return &Reader{r: r, max: maxPayload, buf: make([]byte, 0, readSize)}
}

// Read returns the next frame. It returns io.EOF if the input ends between two
// frames, and io.ErrUnexpectedEOF if it ends within one.
func (r *Reader) Read() (Frame, error) {
	if err := r.fill(headerSize); err != nil {
		return Frame{}, err
	}
	h := r.buf[r.start:]
	n := int(binary.LittleEndian.Uint32(h))
	if n > r.max || n < 0 {
		return Frame{}, ErrTooBig
	}
	if err := r.fill(headerSize + n); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return Frame{}, err
	}
	h = r.buf[r.start:]
	r.start += headerSize + n
	return Frame{
		Type:    Type(h[4]),
		Stream:  h[5],
		ID:      binary.LittleEndian.Uint64(h[6:]),
		Payload: h[headerSize : headerSize+n : headerSize+n],
	}, nil
}

// fill makes n unread bytes available.
func (r *Reader) fill(n int) error {
	for len(r.buf)-r.start < n {
		if r.start == len(r.buf) {
			r.start = 0
			switch {
			case cap(r.buf) > 4*Chunk, !r.full && cap(r.buf) > readSize: // after a large frame, or much data
				r.buf = make([]byte, 0, readSize)
			case r.full && cap(r.buf) < 4*Chunk: // there is more to read: few system calls
				r.buf = make([]byte, 0, 2*cap(r.buf))
			}
			r.buf = r.buf[:0]
		}
		if cap(r.buf)-r.start < n {
			to := r.buf[:0] // payloads of earlier frames are used no more
			if cap(to) < n {
				to = make([]byte, 0, max(n, 2*cap(to)))
			}
			r.buf, r.start = append(to, r.buf[r.start:]...), 0
		}
		m, err := r.r.Read(r.buf[len(r.buf):cap(r.buf)])
		r.buf = r.buf[:len(r.buf)+m]
		r.full = m > 0 && len(r.buf) == cap(r.buf)
		if err != nil && len(r.buf)-r.start < n {
			if err == io.EOF && len(r.buf) > r.start {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}
