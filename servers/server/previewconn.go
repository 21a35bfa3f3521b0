package server

import (
	"context"
	"io"
	"net"
	"sync"
	"time"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/rpc"
)

// previewConn is a connection to a port of a preview through the server.
type previewConn struct {
	st     rpc.ClientStream[rpc.Bytes, rpc.Bytes]
	cancel context.CancelFunc

	mu    sync.Mutex
	timer *time.Timer // ends the connection at the deadline of reads
}

// dialPreview connects to a port of a preview. ctx bounds the time until it is
// connected.
func dialPreview(ctx context.Context, previews sandbox.PreviewsClient, pid id.Preview, port int) (net.Conn, error) {
	st, cancel, err := dialStream(ctx, func(ctx context.Context) (rpc.ClientStream[rpc.Bytes, rpc.Bytes], error) {
		return previews.Dial(ctx, &sandbox.DialPreviewRequest{Preview: pid, Port: int64(port)})
	})
	if err != nil {
		return nil, err
	}
	return &previewConn{st: st, cancel: cancel}, nil
}

// dialStream makes a call whose bytes are a connection, and waits for its first byte, which says
// that there is one. ctx bounds the time until then; the call lasts until the function that is
// returned is called.
func dialStream(ctx context.Context, call func(context.Context) (rpc.ClientStream[rpc.Bytes, rpc.Bytes], error)) (rpc.ClientStream[rpc.Bytes, rpc.Bytes], context.CancelFunc, error) {
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	st, err := call(base)
	if err == nil {
		_, err = io.ReadFull(st.Reader(), make([]byte, 1))
	}
	if err == nil && !stop() {
		err = ctx.Err()
	}
	if err != nil {
		cancel()
		if st != nil {
			_ = st.Close() // it failed
		}
		return nil, nil, err
	}
	return st, cancel, nil
}

func (c *previewConn) Read(b []byte) (int, error)  { return c.st.Reader().Read(b) }
func (c *previewConn) Write(b []byte) (int, error) { return c.st.Writer().Write(b) }

// CloseWrite ends what is sent, as shutdown does.
func (c *previewConn) CloseWrite() error { return c.st.CloseSend() }

func (c *previewConn) Close() error {
	_ = c.SetReadDeadline(time.Time{})
	defer c.cancel()
	return c.st.Close()
}

// SetReadDeadline ends the connection at t; the zero time: not.
func (c *previewConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
	if !t.IsZero() {
		c.timer = time.AfterFunc(time.Until(t), c.cancel)
	}
	return nil
}

// SetDeadline sets the deadline of reads.
func (c *previewConn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// SetWriteDeadline ends the connection at t, too.
func (c *previewConn) SetWriteDeadline(t time.Time) error { return c.SetReadDeadline(t) }

type previewAddr struct{}

func (previewAddr) Network() string { return "sandbox" }
func (previewAddr) String() string  { return "sandbox" }

func (*previewConn) LocalAddr() net.Addr  { return previewAddr{} }
func (*previewConn) RemoteAddr() net.Addr { return previewAddr{} }
