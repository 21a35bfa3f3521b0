package kubernetes

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"

	"miren.dev/runtime/pkg/agentproto"
	"miren.dev/runtime/pkg/errs"
)

// Bounds of the pause before a relay is executed again.
const (
	relayMin = 100 * time.Millisecond
	relayMax = 5 * time.Second
)

// relay keeps the agent of one sandbox connected.
type relay struct {
	stop context.CancelFunc
	done chan struct{}
}

// startRelay keeps the agent of a sandbox connected until it has ended, stopRelay or
// Close.
func (d *Driver) startRelay(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.relays[id] != nil || d.stopped.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancel(d.stopped)
	r := &relay{stop: cancel, done: make(chan struct{})}
	d.relays[id] = r
	d.relaying.Go(func() {
		defer close(r.done)
		defer cancel()
		d.keepConnected(ctx, id)
	})
}

// stopRelay returns when nothing more is written to the log.
func (d *Driver) stopRelay(id string) {
	d.mu.Lock()
	r := d.relays[id]
	delete(d.relays, id)
	d.mu.Unlock()
	if r != nil {
		r.stop()
		<-r.done
	}
}

func (d *Driver) keepConnected(ctx context.Context, id string) {
	pause := relayMin
	for ctx.Err() == nil {
		if _, err := d.Hub.Exit(id); err == nil {
			return
		}
		began := time.Now()
		err := d.connect(ctx, id)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			d.logger.Debug("relay of an agent", "sandbox", id, "error", err)
		}
		d.Notify(id)
		if time.Since(began) > relayMax {
			pause = relayMin
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, relayMax)
	}
}

// connect executes a relay in the pod, and connects it with the agent's socket until
// either is gone.
func (d *Driver) connect(ctx context.Context, id string) error {
	config, err := os.ReadFile(d.hubDir(id, agentproto.ConfigName))
	if err != nil {
		return err
	}
	log, err := openMirror(d.logDir(id, "spool"))
	if err != nil {
		return err
	}
	defer log.close()
	exec, err := d.executor(id, agentproto.GuestBinary, agentproto.PodRelayFlag, strconv.FormatInt(log.end(), 10))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	link := &link{socket: d.hubDir(id, agentproto.SocketName), dialled: make(chan struct{}), over: make(chan struct{})}
	defer link.close()
	context.AfterFunc(ctx, link.finish)
	r, w := io.Pipe()
	var frames sync.WaitGroup
	var failed error
	frames.Go(func() {
		failed = log.receive(r, func() {
			d.Notify(id)
			link.finish() // the input ends, so the relay knows that the record is here
		})
		_ = r.CloseWithError(errors.Join(failed, io.ErrClosedPipe))
		if failed != nil {
			cancel()
		}
	})
	first := agentproto.PodFrame{Type: agentproto.PodConfig, Payload: config}.Append(nil)
	err = exec.StreamWithContext(ctx, remotecommand.StreamOptions{
		Stdin: io.MultiReader(bytes.NewReader(first), link), Stdout: link, Stderr: w,
	})
	w.Close()
	frames.Wait()
	return errors.Join(err, failed)
}

// executor executes a command in the sandbox's container, by WebSocket, or by SPDY
// where something between refuses that.
func (d *Driver) executor(id string, command ...string) (remotecommand.Executor, error) {
	url := d.api.core.Post().Resource("pods").Namespace(d.cfg.Namespace).Name(d.podName(id)).SubResource("exec").
		VersionedParams(&v1.PodExecOptions{Container: containerName, Command: command, Stdin: true, Stdout: true, Stderr: true}, d.api.params).
		URL()
	websocket, err := remotecommand.NewWebSocketExecutor(d.cfg.Cluster, "GET", url.String())
	if err != nil {
		return nil, err
	}
	spdy, err := remotecommand.NewSPDYExecutor(d.cfg.Cluster, "POST", url)
	if err != nil {
		return nil, err
	}
	return remotecommand.NewFallbackExecutor(websocket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
}

// link is the connection to the agent's socket on this machine. It is made when the
// agent says something, since the other side waits only briefly for that.
type link struct {
	socket  string
	dialled chan struct{} // closed when conn is set

	mu       sync.Mutex
	conn     net.Conn
	over     chan struct{} // closed by finish
	finished bool
}

// Write hands on what the agent says.
func (l *link) Write(b []byte) (int, error) {
	l.mu.Lock()
	if l.conn == nil {
		conn, err := net.Dial("unix", l.socket)
		if err != nil {
			l.mu.Unlock()
			return 0, err
		}
		l.conn = conn
		close(l.dialled)
	}
	conn := l.conn
	l.mu.Unlock()
	return conn.Write(b)
}

// Read returns what the agent is told; io.EOF after finish.
func (l *link) Read(b []byte) (int, error) {
	select {
	case <-l.over:
		return 0, io.EOF
	case <-l.dialled:
	}
	n, err := l.conn.Read(b)
	select {
	case <-l.over:
		return n, io.EOF
	default:
		return n, err
	}
}

// finish ends what is read.
func (l *link) finish() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.finished {
		return
	}
	l.finished = true
	close(l.over)
	if l.conn != nil {
		_ = l.conn.SetReadDeadline(time.Unix(1, 0)) // a read that waits returns
	}
}

func (l *link) close() {
	l.finish()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil {
		l.conn.Close()
	}
}

// errRelay is an error that a relay reports.
func errRelay(text []byte) error {
	return errs.New(errs.Unavailable, "the relay in the pod: %.512q", text)
}
