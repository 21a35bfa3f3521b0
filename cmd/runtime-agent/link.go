package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/agentproto"
)

// link is one connection to the node.
type link struct {
	f     *os.File
	w     *agentproto.Writer
	heard atomic.Int64 // when the last frame came, unix nanoseconds
	done  chan struct{}
}

// Bounds of the pause before a redial.
const (
	redialMin   = 20 * time.Millisecond
	redialMax   = time.Second
	helloWithin = 10 * time.Second
)

// dialLoop keeps a connection to the node for ever.
func (a *agent) dialLoop() {
	wait := redialMin
	for {
		began := time.Now()
		err := a.connect()
		if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, os.ErrNotExist) {
			fmt.Fprintln(os.Stderr, "runtime-agent: connection:", err)
		}
		if time.Since(began) > redialMax {
			wait = redialMin
		}
		time.Sleep(a.redialPause(wait))
		wait = min(2*wait, redialMax)
	}
}

// connect dials, and serves the connection until it is lost.
func (a *agent) connect() error {
	// Without the socket nothing is opened: a snapshot may be under way.
	f, err := dial(filepath.Join(a.dir, agentproto.SocketName))
	if err != nil {
		return err
	}
	defer f.Close()
	c, err := readConfig(a.dir) // a restored sandbox has another token
	if err != nil {
		return err
	}
	l := &link{f: f, w: agentproto.NewWriter(f), done: make(chan struct{})}
	_ = f.SetDeadline(time.Now().Add(helloWithin)) // a socket has deadlines
	hello := agentproto.Hello{
		MinVersion: agentproto.MinVersion, MaxVersion: agentproto.MaxVersion,
		Token: c.Token, Boot: a.boot, Main: a.mainState(),
	}
	if err := l.w.Send(message(agentproto.THello, 0, 0, hello)); err != nil {
		return err
	}
	r := agentproto.NewReader(f, agentproto.MaxFromNode)
	fr, err := r.Read()
	if err != nil {
		return err
	}
	welcome, err := agentproto.DecodeWelcome(fr.Payload)
	switch {
	case err != nil || fr.Type != agentproto.TWelcome:
		return agentproto.ErrMalformed
	case welcome.Refused != "":
		return fmt.Errorf("refused: %s", welcome.Refused)
	case welcome.Version < agentproto.MinVersion || welcome.Version > agentproto.MaxVersion:
		return fmt.Errorf("the node wants version %d", welcome.Version)
	}
	_ = f.SetDeadline(time.Time{})
	a.connected(c)
	l.heard.Store(time.Now().UnixNano())
	a.mu.Lock()
	a.link = l
	changed := a.main != hello.Main
	a.mu.Unlock()
	if changed {
		a.report()
	}
	beat := time.Duration(welcome.Heartbeat)
	if beat <= 0 {
		beat = agentproto.Heartbeat
	}
	go l.heartbeat(beat)
	err = a.serve(l, r)
	close(l.done)
	l.w.Close()
	a.mu.Lock()
	a.link = nil
	a.mu.Unlock()
	for _, c := range a.channels.all() {
		c.connectionLost(l)
	}
	return err
}

// dial connects to a unix socket; package net would double the agent's size.
func dial(path string) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		unix.Close(fd)
		return nil, err
	}
	_ = unix.SetNonblock(fd, true) // cannot fail on a socket
	return os.NewFile(uintptr(fd), "node"), nil
}

// heartbeat pings, and closes the connection when the node is silent: after a
// checkpoint that leaves the sandbox running, no other sign shows its end.
func (l *link) heartbeat(every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-l.done:
			return
		case now := <-t.C:
			if now.UnixNano()-l.heard.Load() > int64(every)*agentproto.HeartbeatMisses {
				l.w.Close()
				return
			}
			if l.w.Queue(message(agentproto.TPing, 0, 0, agentproto.Number(now.UnixNano()))) != nil {
				return
			}
		}
	}
}

// flush waits until everything is written, for at most d.
func (l *link) flush(d time.Duration) error {
	t := time.AfterFunc(d, l.w.Close)
	defer t.Stop()
	return l.w.Flush()
}

// serve reads frames. It must not block: see agentproto.Writer.
func (a *agent) serve(l *link, r *agentproto.Reader) error {
	for {
		f, err := r.Read()
		if err != nil {
			return err
		}
		l.heard.Store(time.Now().UnixNano())
		if err := a.handle(l, f); err != nil {
			return fmt.Errorf("frame of type %d: %w", f.Type, err)
		}
	}
}

func (a *agent) handle(l *link, f agentproto.Frame) error {
	switch f.Type {
	case agentproto.TPing:
		return l.w.Queue(message(agentproto.TPong, 0, f.ID, agentproto.Number(time.Now().UnixNano())))
	case agentproto.TStartMain:
		go func() {
			a.start <- func(x agentproto.Failure) {
				_ = l.w.Send(message(agentproto.TReply, 0, f.ID, agentproto.Reply{Failure: x}))
			}
		}()
	case agentproto.TSignal:
		n, err := agentproto.DecodeNumber(f.Payload)
		if err != nil || n > 64 {
			return agentproto.ErrMalformed
		}
		reply := agentproto.Reply{}
		if s := a.mainState().State; s != agentproto.MainRunning && s != agentproto.MainNone {
			reply.Failure = agentproto.Failure{Kind: agentproto.Wrong, Message: "the main process does not run"}
		}
		go func() {
			if reply.Kind == agentproto.OK {
				a.kill <- syscall.Signal(n)
			}
			_ = l.w.Send(message(agentproto.TReply, 0, f.ID, reply))
		}()
	case agentproto.TConfigure:
		m, err := agentproto.DecodeConfigure(f.Payload)
		if err != nil {
			return err
		}
		go func() {
			_ = l.w.Send(message(agentproto.TReply, 0, f.ID, agentproto.Reply{Failure: a.configure(m)})) // the node repeats it
		}()
	case agentproto.TMount:
		m, err := agentproto.DecodeMount(f.Payload)
		if err != nil {
			return err
		}
		go func() {
			_ = l.w.Send(message(agentproto.TReply, 0, f.ID, agentproto.Reply{Failure: a.mount(m)})) // the node repeats it
		}()
	case agentproto.TListening:
		go func() {
			_ = l.w.Send(message(agentproto.TReply, 0, f.ID, agentproto.Reply{Listening: listening()}))
		}()
	case agentproto.TSuspend:
		go func() {
			a.suspend()
			_ = l.w.Send(message(agentproto.TReply, 0, f.ID, agentproto.Reply{}))
		}()
	case agentproto.TIdentify:
		m, err := agentproto.DecodeIdentity(f.Payload)
		if err != nil {
			return err
		}
		go func() {
			_ = l.w.Send(message(agentproto.TReply, 0, f.ID, agentproto.Reply{Failure: a.identify(m)}))
		}()
	case agentproto.TOpen:
		m, err := agentproto.DecodeOpen(f.Payload)
		if err != nil {
			return err
		}
		return a.open(l, f.ID, m)
	case agentproto.TResume:
		m, err := agentproto.DecodeResume(f.Payload)
		if err != nil {
			return err
		}
		if c := a.channels.get(f.ID); c != nil && !c.isClosed() {
			c.attach(l, m)
		} else {
			d := agentproto.Done{Failure: agentproto.Failure{Kind: agentproto.Lost, Message: "the process is not known, or not any more"}}
			return l.w.Queue(message(agentproto.TDone, 0, f.ID, d))
		}
	case agentproto.TAck, agentproto.TData, agentproto.TEnd, agentproto.TControl, agentproto.TClose:
		if c := a.channels.get(f.ID); c != nil { // otherwise it has ended meanwhile
			return c.handle(f)
		}
	case agentproto.TPong, agentproto.TRefused: // the agent sends no requests, so nothing waits for a refusal
	default:
		return l.w.Queue(message(agentproto.TRefused, 0, f.ID, agentproto.Refuse(f.Type)))
	}
	return nil
}

type appender interface{ Append([]byte) []byte }

// message returns the arguments with which a Writer sends m.
func message(t agentproto.Type, stream uint8, id uint64, m appender) func([]byte) []byte {
	return func(b []byte) []byte {
		return agentproto.AppendFrame(b, agentproto.Frame{Type: t, Stream: stream, ID: id, Payload: m.Append(nil)})
	}
}

func randomID() uint64 {
	var b [8]byte
	if n, err := unix.Getrandom(b[:], 0); err != nil || n != len(b) {
		return uint64(time.Now().UnixNano()) // it need not be secret
	}
	return binary.LittleEndian.Uint64(b[:])
}
