package sshserver

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/agentproto"
	"miren.dev/runtime/pkg/rpc"
)

const (
	// maxListeners bounds the ports of the sandbox on which a connection listens.
	maxListeners = 8
	// listenTime bounds the start of a listener.
	listenTime = 30 * time.Second
	// maxListenLine bounds a line of a listener, in bytes.
	maxListenLine = 256
)

// Payloads of RFC 4254, section 7.
type (
	listenRequest struct {
		Addr string
		Port uint32
	}
	forwardedRequest struct {
		Addr       string
		Port       uint32
		Origin     string
		OriginPort uint32
	}
)

// listener is a port of the sandbox whose connections go to the client (ssh -R).
// A process in the sandbox listens: the agent's program, as agentproto.ListenFlag
// says. It announces connections on its output; the gateway claims each by a
// connection to a second port of the process.
type listener struct {
	bind  listenRequest // as the client named it, with the port that was chosen
	relay int64
	end   context.CancelFunc

	mu sync.Mutex // guards Send
	st rpc.ClientStream[sandbox.ExecInput, sandbox.ExecOutput]
}

// listen begins to listen on a port, always on the loopback address. The second
// result is false if that failed.
func (c *conn) listen(ctx context.Context, payload []byte) ([]byte, bool) {
	var r listenRequest
	if ssh.Unmarshal(payload, &r) != nil || r.Port > sandbox.MaxPort || c.refused != nil || len(c.listeners) >= maxListeners {
		return nil, false
	}
	ctx, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(listenTime, cancel)
	defer timer.Stop()
	yes := true
	st, err := sandbox.NewSandboxesClient(c.rpc).Exec(ctx, &sandbox.ExecRequest{
		Sandbox: c.sandbox, Command: []string{agentproto.GuestBinary, agentproto.ListenFlag, fmt.Sprint(r.Port)}, Stdin: &yes,
	})
	if err != nil {
		cancel()
		return nil, false
	}
	l, lines := &listener{bind: r, end: cancel, st: st}, &lines{st: st}
	first, err := lines.next()
	var port uint32
	if err == nil {
		_, err = fmt.Sscanf(first, "%d %d", &port, &l.relay)
	}
	if err != nil || port == 0 || r.Port != 0 && port != r.Port {
		cancel()
		_ = st.Close()
		return nil, false
	}
	l.bind.Port = port
	c.listeners = append(c.listeners, l)
	c.wg.Go(func() {
		defer st.Close()
		defer cancel()
		c.connections(ctx, l, lines)
	})
	if r.Port != 0 {
		return nil, true
	}
	return ssh.Marshal(struct{ Port uint32 }{port}), true
}

// unlisten ends a listener, and reports whether there was one. Connections that
// it accepted end with it.
func (c *conn) unlisten(payload []byte) bool {
	var r listenRequest
	if ssh.Unmarshal(payload, &r) != nil {
		return false
	}
	for i, l := range c.listeners {
		if l.bind == r {
			l.end()
			c.listeners = append(c.listeners[:i], c.listeners[i+1:]...)
			return true
		}
	}
	return false
}

// connections serves the connections of a listener until it ends.
func (c *conn) connections(ctx context.Context, l *listener, lines *lines) {
	for {
		s, err := lines.next()
		if err != nil {
			if ctx.Err() == nil {
				c.logger.Info("ssh listener has ended", "port", l.bind.Port, "error", err)
			}
			return
		}
		var token string
		var port uint32
		if _, err := fmt.Sscanf(s, "%s %d", &token, &port); err != nil || len(token) != agentproto.ListenToken {
			c.logger.Warn("ssh listener is damaged", "port", l.bind.Port)
			return
		}
		if c.channels.Add(1) > maxChannels {
			c.channels.Add(-1)
			l.refuse(token)
			continue
		}
		c.wg.Go(func() {
			defer c.channels.Add(-1)
			c.reverse(ctx, l, token, port)
		})
	}
}

// refuse closes a connection that was announced.
func (l *listener) refuse(token string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.st.Send(&sandbox.ExecInput{Stdin: []byte(token + "\n")}) // one that has ended has no connections
}

// reverse connects the client with a connection that was announced.
func (c *conn) reverse(ctx context.Context, l *listener, token string, origin uint32) {
	ch, requests, err := c.ssh.OpenChannel("forwarded-tcpip", ssh.Marshal(forwardedRequest{l.bind.Addr, l.bind.Port, "127.0.0.1", origin}))
	if err != nil {
		l.refuse(token)
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	st, err := sandbox.NewSandboxesClient(c.rpc).Dial(ctx, &sandbox.DialRequest{Sandbox: c.sandbox, Port: l.relay})
	if err == nil {
		_, err = io.WriteString(st.Writer(), token)
	}
	if err != nil {
		c.logger.Info("ssh connection of a listener failed", "port", l.bind.Port, "error", err)
		l.refuse(token)
		go ssh.DiscardRequests(requests)
		_ = ch.Close()
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer ch.Close() // so that the copy below ends
	defer st.Close()
	wg.Go(func() { ssh.DiscardRequests(requests) })
	sent := make(chan struct{})
	wg.Go(func() {
		defer close(sent)
		if _, err := io.Copy(st.Writer(), ch); err == nil {
			_ = st.CloseSend() // a call that has ended shows below
		}
	})
	if _, err := io.Copy(ch, &frames{r: st.Reader()}); err == nil && ch.CloseWrite() == nil {
		select { // the client may still send
		case <-sent:
			_, _ = io.Copy(io.Discard, st.Reader()) // until it has arrived
		case <-ctx.Done():
		}
	}
}

// frames reads the frames of a peer, as agentproto.ListenFlag says, until it ends
// its side.
type frames struct {
	r    io.Reader
	left int
	end  bool
}

func (f *frames) Read(b []byte) (int, error) {
	for f.left == 0 && !f.end {
		var head [4]byte
		if _, err := io.ReadFull(f.r, head[:]); err != nil {
			return 0, io.ErrUnexpectedEOF
		}
		n := binary.BigEndian.Uint32(head[:])
		if n > agentproto.Chunk {
			return 0, fmt.Errorf("a frame of %d bytes", n)
		}
		f.left, f.end = int(n), n == 0
	}
	if f.end {
		return 0, io.EOF
	}
	n, err := f.r.Read(b[:min(len(b), f.left)])
	f.left -= n
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// lines reads the output of a listener.
type lines struct {
	st   rpc.ClientStream[sandbox.ExecInput, sandbox.ExecOutput]
	rest string
}

// next returns the next line. An error says that there is none.
func (l *lines) next() (string, error) {
	for {
		if s, rest, ok := strings.Cut(l.rest, "\n"); ok {
			l.rest = rest
			return s, nil
		}
		if len(l.rest) > maxListenLine {
			return "", fmt.Errorf("a line of more than %d bytes", maxListenLine)
		}
		m, err := l.st.Recv()
		switch {
		case err != nil:
			return "", err
		case m.ExitCode != nil:
			return "", fmt.Errorf("the process that listens ended with code %d", *m.ExitCode)
		}
		l.rest += string(m.Stdout)
	}
}
