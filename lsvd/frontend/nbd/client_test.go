package nbd

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
)

// client is a small NBD client: one goroutine reads replies.
type client struct {
	t          *testing.T
	c          net.Conn
	size       uint64
	flags      uint16
	structured bool

	mu      sync.Mutex
	cookie  uint64
	waiting map[uint64]*call
}

type call struct {
	read   []byte
	status []uint32 // length, state
	code   uint32
	done   chan error
}

func dial(t *testing.T, path string) *client {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	x := &client{t: t, c: c, waiting: map[uint64]*call{}}
	var h [18]byte
	x.must(io.ReadFull(c, h[:]))
	if string(h[:16]) != "NBDMAGICIHAVEOPT" {
		t.Fatalf("greeting %q", h)
	}
	x.must(c.Write([]byte{0, 0, 0, 3}))
	return x
}

func (x *client) must(_ int, err error) {
	x.t.Helper()
	if err != nil {
		x.t.Fatal(err)
	}
}

// option sends an option and returns the replies, up to ACK or an error.
func (x *client) option(opt uint32, data []byte) (types []uint32, bodies [][]byte) {
	x.t.Helper()
	b := append([]byte("IHAVEOPT"), binary.BigEndian.AppendUint32(nil, opt)...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	x.must(x.c.Write(append(b, data...)))
	for {
		var h [20]byte
		x.must(io.ReadFull(x.c, h[:]))
		typ := binary.BigEndian.Uint32(h[12:])
		body := make([]byte, binary.BigEndian.Uint32(h[16:]))
		x.must(io.ReadFull(x.c, body))
		types, bodies = append(types, typ), append(bodies, body)
		if typ == repAck || typ>>31 == 1 {
			return types, bodies
		}
	}
}

func str(s string) []byte { return append(binary.BigEndian.AppendUint32(nil, uint32(len(s))), s...) }

// start negotiates and begins transmission.
func (x *client) start(export string, structured bool) {
	x.t.Helper()
	if structured {
		x.structured = true
		x.option(optStructured, nil)
		types, _ := x.option(optSetContext, append(append(str(export), 0, 0, 0, 1), str(contextName)...))
		if len(types) != 2 || types[0] != repContext {
			x.t.Fatalf("set context: %v", types)
		}
	}
	types, bodies := x.option(optGo, append(str(export), 0, 0))
	if types[len(types)-1] != repAck {
		x.t.Fatalf("go: %x %q", types, bodies)
	}
	x.size, x.flags = binary.BigEndian.Uint64(bodies[0][2:]), binary.BigEndian.Uint16(bodies[0][10:])
	go x.replies()
}

func (x *client) replies() {
	err := x.receive()
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, c := range x.waiting {
		c.done <- err
	}
	x.waiting = nil
}

func (x *client) receive() error {
	for {
		var h [20]byte
		if _, err := io.ReadFull(x.c, h[:16]); err != nil {
			return err
		}
		magic := binary.BigEndian.Uint32(h[:])
		x.mu.Lock()
		c := x.waiting[binary.BigEndian.Uint64(h[8:])]
		delete(x.waiting, binary.BigEndian.Uint64(h[8:]))
		x.mu.Unlock()
		if c == nil {
			return fmt.Errorf("reply %x to nothing", h)
		}
		if magic == magicSimple {
			c.code = binary.BigEndian.Uint32(h[4:])
			if c.code == 0 && c.read != nil {
				if x.structured {
					return fmt.Errorf("simple reply to a read")
				}
				if _, err := io.ReadFull(x.c, c.read); err != nil {
					return err
				}
			}
			c.done <- nil
			continue
		}
		if _, err := io.ReadFull(x.c, h[16:]); err != nil {
			return err
		}
		body := make([]byte, binary.BigEndian.Uint32(h[16:]))
		if _, err := io.ReadFull(x.c, body); err != nil {
			return err
		}
		switch typ := binary.BigEndian.Uint16(h[6:]); typ {
		case chunkData:
			copy(c.read, body[8:])
		case chunkHole:
			clear(c.read)
		case chunkBlockStatus:
			for b := body[4:]; len(b) > 0; b = b[4:] {
				c.status = append(c.status, binary.BigEndian.Uint32(b))
			}
		case chunkError:
			c.code = binary.BigEndian.Uint32(body)
		default:
			return fmt.Errorf("chunk of type %d", typ)
		}
		c.done <- nil
	}
}

// do sends a request and waits for its reply.
func (x *client) do(typ, flags uint16, off uint64, n uint32, data []byte) *call {
	x.t.Helper()
	c := &call{done: make(chan error, 1)}
	if typ == cmdRead {
		c.read = bytes.Repeat([]byte{0xee}, int(n))
	}
	x.mu.Lock()
	x.cookie++
	x.waiting[x.cookie] = c
	b := binary.BigEndian.AppendUint32(nil, magicRequest)
	b = binary.BigEndian.AppendUint16(b, flags)
	b = binary.BigEndian.AppendUint16(b, typ)
	b = binary.BigEndian.AppendUint64(b, x.cookie)
	b = binary.BigEndian.AppendUint64(b, off)
	b = binary.BigEndian.AppendUint32(b, n)
	_, err := x.c.Write(append(b, data...))
	x.mu.Unlock()
	if err == nil {
		err = <-c.done
	}
	if err != nil {
		x.t.Error(err)
	}
	return c
}

func (x *client) ok(typ, flags uint16, off uint64, n uint32, data []byte) *call {
	x.t.Helper()
	c := x.do(typ, flags, off, n, data)
	if c.code != 0 {
		x.t.Errorf("command %d at %d+%d: error %d", typ, off, n, c.code)
	}
	return c
}

func (x *client) close() {
	b := make([]byte, 28)
	binary.BigEndian.PutUint32(b, magicRequest)
	binary.BigEndian.PutUint16(b[6:], cmdDisconnect)
	x.c.Write(b)
	x.c.Close()
}
