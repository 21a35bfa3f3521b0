//go:build !linux

package rpc

import (
	"net"

	"miren.dev/runtime/pkg/errs"
)

// socketPair returns two connected sockets of the loopback, which nobody else has.
func socketPair() (a, b net.Conn, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	if a, err = net.Dial("tcp", l.Addr().String()); err != nil {
		return nil, nil, err
	}
	if b, err = l.Accept(); err == nil && b.RemoteAddr().String() != a.LocalAddr().String() {
		_ = b.Close()
		err = errs.New(errs.Unavailable, "another program connected to the socket of this one")
	}
	if err != nil {
		_ = a.Close()
		return nil, nil, err
	}
	return a, b, nil
}
