package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// h2Streams is how many requests of one HTTP/2 connection are open at once.
const h2Streams = 16

// h2Window is what an answer's bodies may have before the hammer says that it read them: more than a run gets.
const h2Window = 1<<31 - 1 - 65535

// h2Hammer is a hammer that speaks HTTP/2, with h2Streams requests open on each connection.
type h2Hammer struct {
	head  []byte // of each request, encoded without the table that a connection keeps
	conns []*h2Conn
}

type h2Conn struct {
	net.Conn
	framer *http2.Framer
	next   uint32 // id of the next stream
}

func newH2Hammer(ctx context.Context, address, host string, conns int, config *tls.Config) (*h2Hammer, error) {
	var head bytes.Buffer
	enc := hpack.NewEncoder(&head)
	enc.SetMaxDynamicTableSize(0)
	for _, f := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", host}, {":path", "/"}, {"user-agent", "bench"}, {"accept", "*/*"}} {
		if err := enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			return nil, err
		}
	}
	h := &h2Hammer{head: head.Bytes()}
	config = config.Clone()
	config.NextProtos = []string{"h2"}
	for range conns {
		c, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", address)
		if err != nil {
			h.close()
			return nil, err
		}
		hc := &h2Conn{Conn: c, framer: http2.NewFramer(c, c), next: 1}
		h.conns = append(h.conns, hc)
		if err := hc.greet(); err != nil {
			h.close()
			return nil, err
		}
	}
	return h, nil
}

// greet begins the connection.
func (c *h2Conn) greet() error {
	if p := c.Conn.(*tls.Conn).ConnectionState().NegotiatedProtocol; p != "h2" {
		return fmt.Errorf("the server chose the protocol %q in place of HTTP/2", p)
	}
	c.framer.SetReuseFrames()
	if _, err := c.Write([]byte(http2.ClientPreface)); err != nil {
		return err
	}
	// Without a table for the answers' heads, none of them has to be decoded to keep it.
	if err := c.framer.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize}, http2.Setting{ID: http2.SettingEnablePush}); err != nil {
		return err
	}
	return c.framer.WriteWindowUpdate(0, h2Window)
}

func (h *h2Hammer) close() {
	for _, c := range h.conns {
		_ = c.Close()
	}
}

// run sends requests for d and returns how long each took.
func (h *h2Hammer) run(ctx context.Context, d time.Duration) (latencies, time.Duration, error) {
	return onEach(ctx, h.conns, func(i int, start time.Time) (latencies, error) { return h.conns[i].run(ctx, h.head, start, d) })
}

// run opens the streams, and a new one for each that ends, until d has passed. It returns when all have ended.
func (c *h2Conn) run(ctx context.Context, head []byte, start time.Time, d time.Duration) (took latencies, err error) {
	began := make(map[uint32]time.Time, h2Streams)
	open := func(now time.Time) error {
		began[c.next] = now
		err := c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: c.next, BlockFragment: head, EndStream: true, EndHeaders: true})
		c.next += 2
		return err
	}
	for range h2Streams {
		if err := open(time.Now()); err != nil {
			return nil, err
		}
	}
	for len(began) > 0 {
		f, err := c.framer.ReadFrame()
		if err != nil {
			return nil, err
		}
		ended, err := c.received(f)
		if err != nil {
			return nil, err
		}
		if !ended {
			continue
		}
		now := time.Now()
		took = append(took, now.Sub(began[f.Header().StreamID]))
		delete(began, f.Header().StreamID)
		if now.Sub(start) < d && ctx.Err() == nil {
			if err := open(now); err != nil {
				return nil, err
			}
		}
	}
	return took, nil
}

// received handles a frame, and reports whether a good answer ended with it.
func (c *h2Conn) received(f http2.Frame) (ended bool, err error) {
	switch f := f.(type) {
	case *http2.HeadersFrame:
		return f.StreamEnded(), c.checkHead(f.HeaderBlockFragment())
	case *http2.DataFrame:
		return f.StreamEnded(), nil
	case *http2.SettingsFrame:
		if !f.IsAck() {
			return false, c.framer.WriteSettingsAck()
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			return false, c.framer.WritePing(true, f.Data)
		}
	case *http2.RSTStreamFrame:
		return false, fmt.Errorf("the server ended stream %d: %s", f.StreamID, f.ErrCode)
	case *http2.GoAwayFrame:
		return false, fmt.Errorf("the server ended the connection: %s", f.ErrCode)
	}
	return false, nil
}

// indexed200 is `:status 200` of the static table (RFC 7541, appendix A).
const indexed200 = 0x80 | 8

// checkHead refuses an answer that is not 200. An update of the table's size may come first.
func (c *h2Conn) checkHead(block []byte) error {
	for len(block) > 0 && block[0]&0xe0 == 0x20 {
		block = block[1:]
	}
	if len(block) == 0 || block[0] != indexed200 {
		return fmt.Errorf("the head of an answer is %x, not 200", block)
	}
	return nil
}
