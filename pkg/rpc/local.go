package rpc

import (
	"context"
	"net"

	"miren.dev/runtime/pkg/errs"
)

// Local returns a client within the process with the given identity. Its calls
// go through the same codec, permissions and flow control as calls from
// outside, and fail when ServerOptions.Refuse refuses the identity.
func (s *Server) Local(id Identity) *Client { return s.LocalFor(id, nil) }

// LocalFor is Local for a peer at an address, which the audit records: a server
// of another protocol calls for it.
func (s *Server) LocalFor(id Identity, from net.Addr) *Client {
	cl := newClient(ClientOptions{RetryFor: -1}.withDefaults())
	cl.target = target{network: "local", address: "in process"}
	cl.dialer = func(context.Context) (*conn, error) {
		if s.opts.Refuse != nil {
			if err := s.opts.Refuse(id); err != nil {
				return nil, err
			}
		}
		near, far, err := socketPair()
		if err != nil {
			return nil, errs.New(errs.Unavailable, "connect in process: %w", err)
		}
		if from != nil {
			far = fromAddr{far, from}
		}
		if !s.adopt(far, classLocal, func(net.Conn) (net.Conn, Identity, error) { return far, id, nil }) {
			_ = near.Close()
			return nil, errShutdown
		}
		c := newConn(near, true, cl.opts.Limits)
		if err := c.handshake(handshakeTimeout); err != nil {
			_ = near.Close()
			return nil, errs.New(errs.Unavailable, "connect in process: %w", err)
		}
		return c, nil
	}
	return cl
}

// fromAddr is a connection for a peer at another address.
type fromAddr struct {
	net.Conn
	from net.Addr
}

func (c fromAddr) RemoteAddr() net.Addr { return c.from }
