// Package httpserve has the listener and the log of HTTP servers that anyone may reach.
package httpserve

import (
	"net"

	"golang.org/x/net/netutil"
)

// Listener returns a listener whose clients get the last answer of a connection that the server closes
// before it has read all of the request: net/http answers a malformed header so. With l alone a client
// may see a reset in place of it.
func Listener(l net.Listener) net.Listener { return listener{l} }

// Limit is Listener with at most so many connections open at once; further ones wait.
func Limit(l net.Listener, connections int) net.Listener {
	return netutil.LimitListener(Listener(l), connections)
}

type listener struct{ net.Listener }

// Accept implements net.Listener.
func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if tc, ok := c.(*net.TCPConn); ok {
		return conn{tc}, err
	}
	return c, err
}

type conn struct{ *net.TCPConn }

// Close closes the connection. The end of the data goes first: the kernel resets a connection that
// is closed with data that was not read, and the client would fail as it waits for the end.
func (c conn) Close() error {
	_ = c.CloseWrite() // a connection that is broken has no end of its data
	return c.TCPConn.Close()
}
