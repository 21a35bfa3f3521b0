package holder

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/proc"
)

// Client is a connection to a holder. What it puts and takes belongs to it
// until it is closed or its process ends. Its methods may be called
// concurrently.
type Client struct {
	c    *net.UnixConn
	done chan struct{}

	mu      sync.Mutex
	waiting []chan result // answers come in the order of requests
	err     error         // why there will be no more answers
}

type result struct {
	answer
	files []int
	err   error
}

// Spec says how a holder is started.
type Spec struct {
	Path string   // executable
	Args []string // that have it call Run with Socket(Dir)
	Dir  string   // where socket, log and record of the process are
}

// Socket is the socket of the holder in a directory.
func Socket(dir string) string { return filepath.Join(dir, "holder.sock") }

// Start connects to the holder in s.Dir, which it starts if there is none: in
// a session of its own, so that it outlives the caller.
func Start(ctx context.Context, s Spec) (*Client, error) {
	var c *Client
	_, err := proc.Ensure(ctx, proc.Spec{
		Name: "holder", Path: s.Path, Args: s.Args, LogFile: filepath.Join(s.Dir, "holder.log"), RecordFile: filepath.Join(s.Dir, "holder.json"),
		Ready: func(ctx context.Context) (err error) {
			c, err = Dial(ctx, Socket(s.Dir))
			return err
		},
		ReadyTimeout: 30 * time.Second,
	})
	return c, errs.Wrap(err, "start the holder")
}

// Dial connects to a holder.
func Dial(ctx context.Context, socket string) (*Client, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unixpacket", socket)
	if err != nil {
		return nil, errs.New(errs.Unavailable, "connect to the holder: %w", err)
	}
	c := &Client{c: conn.(*net.UnixConn), done: make(chan struct{})}
	go c.run()
	return c, nil
}

// run gives answers to the callers that wait for them.
func (c *Client) run() {
	defer close(c.done)
	buf := make([]byte, maxPacket)
	for {
		p, files, err := receive(c.c, buf)
		if err == nil && p == nil {
			err = errs.New(errs.Unavailable, "the holder has gone")
		}
		var r result
		if err == nil {
			r.files = files
			if err = json.Unmarshal(p, &r.answer); err != nil {
				closeAll(files)
				err = errs.New(errs.Internal, "answer of the holder: %w", err)
			}
		}
		c.mu.Lock()
		if err != nil || len(c.waiting) == 0 {
			if err == nil {
				closeAll(files)
				err = errs.New(errs.Internal, "the holder answers what it was not asked")
			}
			c.err = err
			for _, w := range c.waiting {
				w <- result{err: err}
			}
			c.waiting = nil
			c.mu.Unlock()
			c.c.Close()
			return
		}
		w := c.waiting[0]
		c.waiting = c.waiting[1:]
		c.mu.Unlock()
		w <- r
	}
}

// call sends a request and waits for its answer.
func (c *Client) call(ctx context.Context, q request, files ...*os.File) (result, error) {
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	w := make(chan result, 1)
	c.mu.Lock()
	err := c.err
	if err == nil {
		if err = send(c.c, q, fds); err == nil {
			c.waiting = append(c.waiting, w)
		}
	}
	c.mu.Unlock()
	if err != nil {
		return result{}, errs.Wrap(err, "ask the holder")
	}
	select {
	case r := <-w:
		if r.err == nil && r.Class != "" {
			r.err = errs.New(r.Class, "holder: %s", r.Error)
		}
		return r, r.err
	case <-ctx.Done():
		go func() { // ends with the answer or the connection
			r := <-w
			closeAll(r.files)
		}()
		return result{}, errs.Wrap(ctx.Err(), "ask the holder")
	}
}

// Put gives the holder duplicates of files and data under a name, instead of
// what it may have there.
func (c *Client) Put(ctx context.Context, name string, meta []byte, files ...*os.File) error {
	_, err := c.call(ctx, request{Op: "put", Name: name, Meta: meta}, files...)
	return err
}

// Take returns duplicates of the files under a name, and their data. They
// belong to the client from then on, as if it had put them. If nothing is
// there it returns NotFound, and Conflict if they belong to another client.
func (c *Client) Take(ctx context.Context, name string) (meta []byte, files []*os.File, err error) {
	r, err := c.call(ctx, request{Op: "take", Name: name})
	if err != nil {
		return nil, nil, err
	}
	for _, fd := range r.files {
		_ = unix.SetNonblock(fd, false) // os.File would poll one that does not block
		files = append(files, os.NewFile(uintptr(fd), name))
	}
	return r.Meta, files, nil
}

// Drop has the holder close what it has under a name; NotFound if it has nothing.
func (c *Client) Drop(ctx context.Context, name string) error {
	_, err := c.call(ctx, request{Op: "drop", Name: name})
	return err
}

// List returns what the holder has.
func (c *Client) List(ctx context.Context) ([]Entry, error) {
	r, err := c.call(ctx, request{Op: "list"})
	return r.Entries, err
}

// Stop ends the holder. It refuses with FailedPrecondition while it holds something.
func (c *Client) Stop(ctx context.Context) error {
	_, err := c.call(ctx, request{Op: "stop"})
	return err
}

// Done is closed when the holder has gone or the client is closed.
func (c *Client) Done() <-chan struct{} { return c.done }

// Close ends the connection: what belongs to it waits for a successor.
func (c *Client) Close() error {
	err := c.c.Close()
	<-c.done
	return err
}
