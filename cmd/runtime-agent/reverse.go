package main

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/agentproto"
)

const (
	// maxReversed bounds the connections of one listener, maxClaims those of the
	// relay port that have not said which one they claim.
	maxReversed, maxClaims = 128, 32
	// claimTime is how long a connection waits to be claimed, and a claim for its
	// token.
	claimTime = 10 * time.Second
	// acceptPause is the time after a connection that could not be accepted.
	acceptPause = 10 * time.Millisecond
)

// reverse listens on a port of the sandbox for a client outside. It works as
// agentproto.ListenFlag says, and is a process of the sandbox's user like others.
type reverse struct {
	out   io.Writer
	slots chan struct{} // one for each connection

	mu      sync.Mutex
	waiting map[string]*os.File // by token
}

// listenFor serves a port until in ends.
func listenFor(port string, in io.Reader, out io.Writer) error {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return unix.EINVAL
	}
	public, at, err := listenTCP(int(n))
	if err != nil {
		return err
	}
	relay, through, err := listenTCP(0)
	if err != nil {
		return err
	}
	r := &reverse{out: out, slots: make(chan struct{}, maxReversed), waiting: map[string]*os.File{}}
	if _, err := fmt.Fprintf(out, "%d %d\n", at, through); err != nil {
		return err
	}
	go r.accept(public)
	go r.claims(relay)
	for s := bufio.NewScanner(in); s.Scan(); {
		r.refuse(s.Text())
	}
	return nil // the end of the process ends the connections
}

// listenTCP listens on the loopback address. Port 0 is any that is free.
func listenTCP(port int) (fd, bound int, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, 0, err
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) // the last listener's connections may not have ended
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return -1, 0, err
	}
	if err := unix.Listen(fd, maxReversed); err != nil {
		return -1, 0, err
	}
	a, err := unix.Getsockname(fd)
	if err != nil {
		return -1, 0, err
	}
	return fd, a.(*unix.SockaddrInet4).Port, nil
}

// acceptTCP waits for a connection.
func acceptTCP(fd int) (*os.File, int) {
	for {
		c, from, err := unix.Accept4(fd, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		if err != nil { // it has gone again, or there are too many files
			time.Sleep(acceptPause)
			continue
		}
		_ = unix.SetsockoptInt(c, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1) // small messages at once
		port := 0
		if a, ok := from.(*unix.SockaddrInet4); ok {
			port = a.Port
		}
		return os.NewFile(uintptr(c), "connection"), port
	}
}

// accept announces connections.
func (r *reverse) accept(fd int) {
	for {
		r.slots <- struct{}{}
		f, port := acceptTCP(fd)
		var random [agentproto.ListenToken / 2]byte
		if _, err := unix.Getrandom(random[:], 0); err != nil {
			f.Close()
			<-r.slots
			continue
		}
		token := hex.EncodeToString(random[:])
		r.mu.Lock()
		r.waiting[token] = f
		r.mu.Unlock()
		time.AfterFunc(claimTime, func() { r.refuse(token) })
		_, _ = fmt.Fprintf(r.out, "%s %d\n", token, port) // its reader has gone: the input ends too
	}
}

// take returns a connection that waits; nil: there is none.
func (r *reverse) take(token string) *os.File {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.waiting[token]
	delete(r.waiting, token)
	return f
}

// refuse closes a connection that waits.
func (r *reverse) refuse(token string) {
	if f := r.take(token); f != nil {
		f.Close()
		<-r.slots
	}
}

// claims connects those that claim a connection with it.
func (r *reverse) claims(fd int) {
	slots := make(chan struct{}, maxClaims)
	for {
		f, _ := acceptTCP(fd)
		select {
		case slots <- struct{}{}:
		default:
			f.Close()
			continue
		}
		go func() {
			_ = f.SetReadDeadline(time.Now().Add(claimTime)) // a socket has deadlines
			token := make([]byte, agentproto.ListenToken)
			_, err := io.ReadFull(f, token)
			_ = f.SetReadDeadline(time.Time{})
			<-slots
			var claimed *os.File
			if err == nil {
				claimed = r.take(string(token))
			}
			if claimed == nil {
				f.Close()
				return
			}
			splice(claimed, f)
			<-r.slots
		}()
	}
}

// splice moves bytes between a peer and the relay until both have ended.
func splice(peer, relay *os.File) {
	var wg sync.WaitGroup
	move := func(f func() error) {
		if f() != nil {
			_, _ = peer.SetDeadline(past), relay.SetDeadline(past) // sockets have deadlines
		}
	}
	wg.Go(func() { move(func() error { return frames(relay, peer) }) })
	wg.Go(func() {
		move(func() error {
			// Without the methods of os.File, which would try what no socket can.
			_, err := io.Copy(struct{ io.Writer }{peer}, struct{ io.Reader }{relay})
			shutdownWrite(peer)
			return err
		})
	})
	wg.Wait()
	peer.Close()
	relay.Close()
}

// frames writes what is read, and its end, in frames.
func frames(to io.Writer, from io.Reader) error {
	const head = 4
	buf := make([]byte, head+agentproto.Chunk)
	for {
		n, err := from.Read(buf[head:])
		if err != nil && err != io.EOF {
			return err
		}
		binary.BigEndian.PutUint32(buf, uint32(n))
		if _, werr := to.Write(buf[:head+n]); werr != nil || n == 0 {
			return werr
		}
	}
}
