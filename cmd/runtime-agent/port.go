package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/agentproto"
)

// dialSeconds bounds how long a connection inside the sandbox may take.
const dialSeconds = 10

// port is the work of a channel of KindDial.
type port struct {
	c *channel
	m agentproto.Dial

	mu sync.Mutex
	f  *os.File // nil before it is connected
}

// begin connects.
func (p *port) begin() {
	go func() {
		f, err := dialPort(int(p.m.Port))
		if err != nil {
			p.c.fail(agentproto.Failure{Kind: agentproto.Wrong, Message: fmt.Sprintf("port %d: %v", p.m.Port, err)})
			return
		}
		p.mu.Lock()
		p.f = f
		p.mu.Unlock()
		defer f.Close()
		if p.c.isClosed() {
			p.c.fail(agentproto.Failure{Kind: agentproto.Wrong, Message: "closed before it was connected"})
			return
		}
		p.c.ready(nil, false)
		fed := make(chan struct{})
		p.c.in.serve(func() { p.feed(f); close(fed) }, func() { _ = f.SetWriteDeadline(past) }, false)
		for err == nil {
			p.c.out.hasRoom()
			err = readSome(f, func(b []byte) { p.c.out.add(b); p.c.flush() })
		}
		p.c.out.end()
		p.c.flush()
		if errors.Is(err, errEnd) {
			<-fed // the other direction may go on
		}
		p.c.finish(agentproto.Done{})
	}()
}

// feed moves input to the connection until either ends.
func (p *port) feed(f *os.File) {
	buf := chunks.Get().(*[agentproto.Chunk]byte)
	defer chunks.Put(buf)
	for {
		n, err := p.c.in.Read(buf[:])
		if err == io.EOF {
			shutdownWrite(f)
		}
		if err != nil {
			return
		}
		if _, err := f.Write(buf[:n]); err != nil {
			p.c.in.drop()
			return
		}
	}
}

func (p *port) control(uint8, []byte) error { return nil }

// stop ends the connection.
func (p *port) stop() {
	p.mu.Lock()
	f := p.f
	p.mu.Unlock()
	if f != nil {
		_ = f.SetDeadline(past) // a socket has deadlines
	}
	p.c.drop()
}

func shutdownWrite(f *os.File) {
	if rc, err := f.SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_WR) }) // it may have ended
	}
}

// dialPort connects to a port on the loopback addresses, or on the address on
// which something listens.
func dialPort(n int) (*os.File, error) {
	f, err := dialTCP(&unix.SockaddrInet4{Port: n, Addr: [4]byte{127, 0, 0, 1}})
	if err == nil {
		return f, nil
	}
	for _, l := range listening() {
		if int(l.Port) != n {
			continue
		}
		var to unix.Sockaddr
		if len(l.Addr) == 4 {
			to = &unix.SockaddrInet4{Port: n, Addr: [4]byte([]byte(l.Addr))}
		} else {
			a := [16]byte([]byte(l.Addr))
			if a == ([16]byte{}) {
				a[15] = 1 // any address: the loopback address
			}
			to = &unix.SockaddrInet6{Port: n, Addr: a}
		}
		if f, again := dialTCP(to); again == nil {
			return f, nil
		}
	}
	if err == unix.ECONNREFUSED {
		return nil, errors.New("nothing listens on it")
	}
	return nil, err
}

func dialTCP(to unix.Sockaddr) (*os.File, error) {
	family := unix.AF_INET
	if _, ok := to.(*unix.SockaddrInet6); ok {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: dialSeconds}) // also of connect
	if err := unix.Connect(fd, to); err != nil {
		unix.Close(fd)
		return nil, err
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1) // small messages at once
	_ = unix.SetNonblock(fd, true)                                    // cannot fail on a socket
	return os.NewFile(uintptr(fd), "port"), nil
}
