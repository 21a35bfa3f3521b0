package ingress

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// tunnel connects client and sandbox after status 101.
func (x *exchange) tunnel(c *upConn, re *response) error {
	if x.stream != nil {
		return x.tunnelStream(c)
	}
	h := x.w.Header().Clone()
	clear(x.w.Header())
	client, brw, err := http.NewResponseController(x.w).Hijack()
	if err != nil {
		return &answerError{err}
	}
	x.started, x.upgraded, x.status, x.first = true, true, re.status, time.Now()
	x.in.tunnels.add(client, c.Conn)
	defer x.in.conns.Add(-1)
	defer x.in.tunnels.remove(client)
	defer client.Close()
	_ = client.SetDeadline(time.Time{})
	_ = c.Conn.SetDeadline(time.Time{})

	head := append(make([]byte, 0, 1024), "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n"...)
	head = appendField(head, "Upgrade", re.upgrade)
	for name, values := range h {
		if name == "Content-Length" {
			continue
		}
		for _, v := range values {
			head = appendField(head, name, v)
		}
	}
	if h["X-Request-Id"] == nil {
		head = appendField(head, "X-Request-Id", x.out.requestID)
	}
	head = append(head, "\r\n"...)
	if n := c.br.Buffered(); n > 0 {
		p, _ := c.br.Peek(n)
		head = append(head, p...)
	}
	if _, err := client.Write(head); err != nil {
		return &clientReadError{err}
	}
	if n := brw.Reader.Buffered(); n > 0 {
		p, _ := brw.Reader.Peek(n)
		if _, err := c.Conn.Write(p); err != nil {
			return err
		}
	}
	up := make(chan struct{})
	go func() {
		defer close(up)
		pipe(c.Conn, client)
	}()
	x.bytes += pipe(client, c.Conn)
	<-up
	return nil
}

// halfOpenLife is how long one direction of a tunnel may outlive the other.
const halfOpenLife = time.Hour

// pipe copies until src ends, then closes dst for writing; an error ends both
// directions.
func pipe(dst, src net.Conn) int64 {
	n, err := io.Copy(dst, src)
	if half, ok := halfOf(dst); ok && err == nil && half.CloseWrite() == nil {
		_ = dst.SetReadDeadline(time.Now().Add(halfOpenLife))
		return n
	}
	dst.Close()
	src.Close()
	return n
}

// tunnels are the connections that http.Server no longer manages.
type tunnels struct {
	mu    sync.Mutex
	conns map[net.Conn]net.Conn
	idle  chan struct{} // closed when the last tunnel has ended; nil: no goroutine waits
}

func (t *tunnels) add(client, sandbox net.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.conns == nil {
		t.conns = map[net.Conn]net.Conn{}
	}
	t.conns[client] = sandbox
}

func (t *tunnels) remove(client net.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.conns, client)
	if len(t.conns) == 0 && t.idle != nil {
		close(t.idle)
		t.idle = nil
	}
}

func (t *tunnels) count() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return int64(len(t.conns))
}

// drain waits until the tunnels have ended, and ends those that remain when ctx
// does.
func (t *tunnels) drain(ctx context.Context) {
	t.mu.Lock()
	if len(t.conns) == 0 {
		t.mu.Unlock()
		return
	}
	idle := make(chan struct{})
	t.idle = idle
	t.mu.Unlock()
	select {
	case <-idle:
		return
	case <-ctx.Done():
	}
	t.mu.Lock()
	for client, sandbox := range t.conns {
		client.Close()
		sandbox.Close()
	}
	t.mu.Unlock()
	<-idle
}
