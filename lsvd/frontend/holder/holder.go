// Package holder keeps open files for processes that may end at any moment: a
// process of its own that does nothing else, so it has no reason to end. A
// disk daemon puts the files of its FUSE connections here, each under a name
// with a little data, and its successor takes them. While the holder has a
// connection's file, the kernel lets its users wait instead of failing them.
//
// # Who owns what
//
// A file belongs to the client connection that put or took it last; another
// gets Conflict while that connection lasts. So a client keeps its connection
// for as long as it uses the files. When the connection ends, the files wait
// for a successor for [Options].HandoverTimeout and are closed then: with no process
// having them open, users get errors within a moment instead of waiting for
// ever. Drop closes them at once.
//
// # Protocol
//
// A unix socket of type SOCK_SEQPACKET, for the user of the holder only. A
// request is one packet of JSON, with files attached if it is a put:
//
//	{"op": "put|take|list|drop|stop", "name": ..., "meta": <base64>}
//
// and so is its answer, with files attached if it answers a take:
//
//	{"class": ..., "error": ..., "meta": ..., "entries": [...]}
//
// class is empty if it worked. Unknown fields are ignored on both sides.
package holder

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/errs"
)

// Limits of the protocol.
const (
	maxPacket = 64 << 10
	maxName   = 256
	maxMeta   = 16 << 10
	maxFiles  = 64
	maxHeld   = 1024 // names
)

// Options configure a holder. The zero value is usable.
type Options struct {
	// HandoverTimeout is how long files wait for a successor; default 30 s.
	HandoverTimeout time.Duration
	// Idle is how long the holder stays while it holds nothing and has no
	// client; default 1 minute.
	Idle   time.Duration
	Logger *slog.Logger // default: discard
}

func (o Options) withDefaults() Options {
	if o.HandoverTimeout == 0 {
		o.HandoverTimeout = 30 * time.Second
	}
	if o.Idle == 0 {
		o.Idle = time.Minute
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

type request struct {
	Op   string `json:"op"`
	Name string `json:"name,omitempty"`
	Meta []byte `json:"meta,omitempty"`
}

type answer struct {
	Class   errs.Class `json:"class,omitempty"`
	Error   string     `json:"error,omitempty"`
	Meta    []byte     `json:"meta,omitempty"`
	Entries []Entry    `json:"entries,omitempty"`
}

// Entry is what a holder has under a name.
type Entry struct {
	Name  string        `json:"name"`
	Files int           `json:"files"`
	Owned bool          `json:"owned"` // by a connected client
	Left  time.Duration `json:"left"`  // until it is closed, if it is not owned
	Meta  []byte        `json:"meta"`
}

// item is what is held under a name.
type item struct {
	meta  []byte
	files []int
	owner *net.UnixConn // nil: waits for a successor
	until time.Time
	timer *time.Timer
}

func (i *item) close() {
	if i.timer != nil {
		i.timer.Stop()
	}
	closeAll(i.files)
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

type server struct {
	o    Options
	stop context.CancelFunc

	mu      sync.Mutex
	items   map[string]*item
	clients map[*net.UnixConn]bool
	idle    *time.Timer
}

// Run holds files for the processes that connect to the socket until ctx ends, it
// is told to stop, or it was idle for a while; then it returns nil. If a
// holder is there already it returns Conflict.
func Run(ctx context.Context, socket string, o Options) error {
	o = o.withDefaults()
	l, unlock, err := listen(socket)
	if err != nil {
		return err
	}
	defer unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &server{o: o, stop: cancel, items: map[string]*item{}, clients: map[*net.UnixConn]bool{}}
	s.idle = time.AfterFunc(o.Idle, s.idled)
	defer s.idle.Stop()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	var wg sync.WaitGroup
	defer s.closeItems()
	defer wg.Wait()
	for {
		c, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			cancel()
			return errs.Wrap(err, "accept a client of the holder")
		}
		s.mu.Lock()
		s.clients[c] = true
		s.mu.Unlock()
		wg.Go(func() {
			stop := context.AfterFunc(ctx, func() { c.Close() })
			defer stop()
			if err := s.serve(c); err != nil && ctx.Err() == nil {
				o.Logger.Warn("client of the holder failed", "error", err)
			}
			s.left(c)
			c.Close()
		})
	}
}

// listen makes the socket under a lock, so that of two holders that start at
// a time one gives up, and the socket of a dead one is replaced.
func listen(socket string) (*net.UnixListener, func(), error) {
	lock, err := os.OpenFile(socket+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, nil, errs.Wrap(err, "lock the holder's socket")
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, nil, errs.New(errs.Conflict, "another holder has %s", socket)
		}
		return nil, nil, errs.Wrap(err, "lock the holder's socket")
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		lock.Close()
		return nil, nil, errs.Wrap(err, "remove the socket of a holder that has ended")
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err == nil {
		err = os.Chmod(socket, 0o600) // a client that was faster is refused all the same
	}
	if err != nil {
		lock.Close()
		return nil, nil, errs.Wrap(err, "listen on %s", socket)
	}
	return l, func() {
		l.Close()
		lock.Close()
	}, nil
}

// idled ends the holder if it is not needed.
func (s *server) idled() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.items) == 0 && len(s.clients) == 0 {
		s.stop()
	}
}

// rest starts the time until the holder ends, if it is not needed. The caller
// holds mu.
func (s *server) rest() {
	if len(s.items) == 0 && len(s.clients) == 0 {
		s.idle.Reset(s.o.Idle)
	}
}

func (s *server) closeItems() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range s.items {
		i.close()
	}
	s.items = nil
}

// left has what a client owned wait for a successor.
func (s *server) left(c *net.UnixConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.clients, c)
	for name, i := range s.items {
		if i.owner != c {
			continue
		}
		i.owner = nil
		i.until = time.Now().Add(s.o.HandoverTimeout)
		i.timer = time.AfterFunc(s.o.HandoverTimeout, func() { s.expire(name, i) })
		s.o.Logger.Info("files wait for a successor", "name", name, "timeout", s.o.HandoverTimeout)
	}
	s.rest()
}

func (s *server) expire(name string, i *item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.items[name] != i || i.owner != nil {
		return
	}
	s.o.Logger.Warn("no successor has come: files are closed", "name", name)
	i.close()
	delete(s.items, name)
	s.rest()
}

// do carries out a request. It returns files to be sent with the answer, which
// stay its own. Those that came with the request are closed unless kept.
func (s *server) do(c *net.UnixConn, q request, files []int) (a answer, send []int, kept bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.items[q.Name]
	if i != nil && i.owner != nil && i.owner != c && q.Op != "list" && q.Op != "stop" {
		return a, nil, false, errs.New(errs.Conflict, "%s is in use by another process", q.Name)
	}
	switch q.Op {
	case "put":
		if q.Name == "" || len(q.Name) > maxName || len(q.Meta) > maxMeta || len(files) == 0 {
			return a, nil, false, errs.New(errs.InvalidArgument, "put of %d files and %d bytes under a name of %d bytes", len(files), len(q.Meta), len(q.Name))
		}
		if i == nil && len(s.items) >= maxHeld {
			return a, nil, false, errs.New(errs.ResourceExhausted, "%d names are held already", len(s.items))
		}
		if i != nil {
			i.close()
		}
		s.items[q.Name] = &item{meta: q.Meta, files: files, owner: c}
		return a, nil, true, nil
	case "take":
		if i == nil {
			return a, nil, false, errs.New(errs.NotFound, "nothing is held under %q", q.Name)
		}
		i.owner = c
		if i.timer != nil {
			i.timer.Stop()
		}
		// Duplicates: another request of this client may close them while they are sent.
		for _, fd := range i.files {
			d, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				closeAll(send)
				return a, nil, false, errs.Wrap(err, "duplicate a file")
			}
			send = append(send, d)
		}
		a.Meta = i.meta
		return a, send, false, nil
	case "drop":
		if i == nil {
			return a, nil, false, errs.New(errs.NotFound, "nothing is held under %q", q.Name)
		}
		i.close()
		delete(s.items, q.Name)
		return a, nil, false, nil
	case "list":
		for name, i := range s.items {
			e := Entry{Name: name, Files: len(i.files), Owned: i.owner != nil, Meta: i.meta}
			if !e.Owned {
				e.Left = max(time.Until(i.until), 0)
			}
			a.Entries = append(a.Entries, e)
		}
		slices.SortFunc(a.Entries, func(x, y Entry) int { return strings.Compare(x.Name, y.Name) })
		return a, nil, false, nil
	case "stop":
		if len(s.items) > 0 {
			return a, nil, false, errs.New(errs.FailedPrecondition, "%d names are held", len(s.items))
		}
		return a, nil, false, nil
	}
	return a, nil, false, errs.New(errs.Unimplemented, "the holder does not know %q", q.Op)
}

// serve answers the requests of a client until it leaves.
func (s *server) serve(c *net.UnixConn) error {
	if err := allowed(c); err != nil {
		return err
	}
	buf := make([]byte, maxPacket)
	for {
		p, files, err := receive(c, buf)
		if err != nil {
			return err
		}
		if p == nil {
			return nil
		}
		var q request
		if err := json.Unmarshal(p, &q); err != nil {
			closeAll(files)
			return errs.New(errs.InvalidArgument, "request of a client: %w", err)
		}
		a, out, kept, err := s.do(c, q, files)
		if !kept {
			closeAll(files)
		}
		if err != nil {
			a = answer{Class: errs.ClassOf(err), Error: err.Error()}
		}
		err = send(c, a, out)
		closeAll(out)
		if err != nil {
			return err
		}
		if q.Op == "stop" && a.Class == "" {
			s.stop()
		}
	}
}

// allowed refuses other users.
func allowed(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return errs.Wrap(err, "identify the client")
	}
	var cred *unix.Ucred
	var e error
	if err := raw.Control(func(fd uintptr) { cred, e = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return errs.Wrap(err, "identify the client")
	}
	if e != nil {
		return errs.Wrap(e, "identify the client")
	}
	if cred.Uid != uint32(os.Getuid()) && cred.Uid != 0 {
		return errs.New(errs.PermissionDenied, "user %d may not use the holder", cred.Uid)
	}
	return nil
}
