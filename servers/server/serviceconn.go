package server

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
)

// serviceConn is a connection to a port of a service on a runner, through the server. It is one end
// of a pair of sockets, whose other end is copied to and from the call, so that the ingress can use
// deadlines and see whether an unused connection is still open.
type serviceConn struct {
	*net.UnixConn
	cancel context.CancelFunc // ends the call
	failed atomic.Pointer[error]
}

// dialService connects to a port of a service. ctx bounds the time until it is connected.
func dialService(ctx context.Context, c sandbox.SandboxesClient, sid id.Sandbox, port int) (net.Conn, error) {
	st, cancel, err := dialStream(ctx, func(ctx context.Context) (rpc.ClientStream[rpc.Bytes, rpc.Bytes], error) {
		return c.DialService(ctx, &sandbox.DialRequest{Sandbox: sid, Port: int64(port)})
	})
	if err != nil {
		return nil, err
	}
	end, far, err := socketPair()
	if err != nil {
		cancel()
		_ = st.Close() // the error above is the one that matters
		return nil, err
	}
	conn := &serviceConn{UnixConn: end, cancel: cancel}
	go conn.relay(far, st)
	return conn, nil
}

// relay copies between the call and the other end until both directions have ended.
func (c *serviceConn) relay(far *net.UnixConn, st rpc.ClientStream[rpc.Bytes, rpc.Bytes]) {
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		if _, err := io.Copy(st.Writer(), far); err == nil {
			_ = st.CloseSend() // an error shows in the other direction
		}
	}()
	_, err := io.Copy(far, st.Reader())
	if err != nil {
		c.failed.Store(&err)
	}
	// The call has ended, so nothing that is sent arrives.
	far.Close()
	<-sent
	c.cancel()
	_ = st.Close() // it has ended
}

// Read is net.Conn's. If the call failed, it does so too: the data ended early.
func (c *serviceConn) Read(b []byte) (int, error) {
	n, err := c.UnixConn.Read(b)
	if errors.Is(err, io.EOF) {
		if why := c.failed.Load(); why != nil {
			return n, errs.Wrap(*why, "the connection to the runner")
		}
	}
	return n, err
}

// WriteTo and ReadFrom hide those of UnixConn, which do not use Read.
func (c *serviceConn) WriteTo(w io.Writer) (int64, error) { return io.Copy(w, struct{ io.Reader }{c}) }

// ReadFrom is io.ReaderFrom's.
func (c *serviceConn) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{c.UnixConn}, r)
}

// Close is net.Conn's. Written bytes that the service has not received yet are lost.
func (c *serviceConn) Close() error {
	c.cancel()
	return c.UnixConn.Close()
}

// LocalAddr is net.Conn's.
func (*serviceConn) LocalAddr() net.Addr { return previewAddr{} }

// RemoteAddr is net.Conn's.
func (*serviceConn) RemoteAddr() net.Addr { return previewAddr{} }

// socketPair returns two connected sockets.
func socketPair() (a, b *net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, errs.New(errs.ResourceExhausted, "make a pair of sockets: %w", err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, ferr := net.FileConn(f)
		f.Close()
		if ferr != nil {
			err = errors.Join(err, ferr)
			continue
		}
		ends[i] = c.(*net.UnixConn)
	}
	if err != nil {
		for _, c := range ends {
			if c != nil {
				c.Close()
			}
		}
		return nil, nil, err
	}
	return ends[0], ends[1], nil
}
