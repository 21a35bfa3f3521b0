package agent_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/components/agent"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/agentproto"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/sandboxfs"
	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/wait"
)

// data returns the payload of a data frame.
func data(offset int64, b []byte) raw {
	return append(binary.LittleEndian.AppendUint64(nil, uint64(offset)), b...)
}

// A program in the agent's place can end what it is asked to do, and nothing else: the node neither trusts an offset
// nor keeps more than a window.
func TestHostileAgent(t *testing.T) {
	huge := int64(1) << 61
	for _, c := range []struct {
		name     string
		detached bool
		cut      bool // the node ends the connection
		send     func(p *peer, id uint64)
	}{
		{"more than the window", false, true, func(p *peer, id uint64) {
			for at := int64(0); at <= agentproto.OutWindow; at += agentproto.Chunk {
				p.send(agentproto.TData, id, data(at, make([]byte, agentproto.Chunk)))
			}
		}},
		{"a gap", false, true, func(p *peer, id uint64) { p.send(agentproto.TData, id, data(10, []byte("x"))) }},
		{"a gap where gaps may be", true, false, func(p *peer, id uint64) {
			p.send(agentproto.TData, id, data(huge, []byte("x")))
			p.send(agentproto.TDone, id, agentproto.Done{Out: huge + 1, Result: agentproto.Exit{}.Append(nil)})
		}},
		{"the window after a gap", true, true, func(p *peer, id uint64) {
			for at := huge; at <= huge+agentproto.OutWindow; at += agentproto.Chunk {
				p.send(agentproto.TData, id, data(at, make([]byte, agentproto.Chunk)))
			}
		}},
		{"an end before its output", false, true, func(p *peer, id uint64) {
			p.send(agentproto.TDone, id, agentproto.Done{Out: 5, Result: agentproto.Exit{}.Append(nil)})
		}},
		{"an end of a stream before its output", false, true, func(p *peer, id uint64) { p.send(agentproto.TEnd, id, agentproto.Number(5)) }},
		{"no exit", false, false, func(p *peer, id uint64) { p.send(agentproto.TDone, id, agentproto.Done{Result: []byte{255}}) }},
		{"input that was not sent", false, false, func(p *peer, id uint64) {
			p.send(agentproto.TAck, id, agentproto.Number(huge))
			p.send(agentproto.TOpened, id, agentproto.Opened{In: huge, InAck: huge, Out: 0})
			p.send(agentproto.TDone, id, agentproto.Done{Result: agentproto.Exit{}.Append(nil)})
		}},
		{"channels that do not exist", false, false, func(p *peer, id uint64) {
			for i := range uint64(1000) {
				p.send(agentproto.TData, id+1+i, data(0, []byte("x")))
				p.send(agentproto.TOpened, id+1+i, agentproto.Opened{})
				p.send(agentproto.TDone, id+1+i, agentproto.Done{})
			}
			p.send(agentproto.TDone, id, agentproto.Done{Result: agentproto.Exit{}.Append(nil)})
		}},
		{"a message that is cut", false, true, func(p *peer, id uint64) { p.send(agentproto.TOpened, id, raw{1, 255}) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPeer(t)
			asked := make(chan uint64, 1)
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				for f, ok := p.await(agentproto.TOpen); ok; f, ok = p.await(agentproto.TOpen) {
					asked <- f.ID
				}
			}()
			conn, err := p.hub.Conn(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				id := <-asked
				p.send(agentproto.TOpened, id, agentproto.Opened{})
				c.send(p, id)
			}()
			x, err := conn.Exec(t.Context(), execution.ExecSpec{Command: []string{"x"}, Detached: c.detached})
			if err != nil {
				t.Fatal(err)
			}
			defer x.Close()
			if c.cut {
				wait.Receive(t, "the end of the connection", gone)
			} else {
				_, _ = x.Wait(t.Context())
				if !conn.Connected() {
					t.Error("the connection was ended")
				}
			}
		})
	}
}

// A list that claims to be longer than its message costs no memory, and is an error.
func TestHostileLists(t *testing.T) {
	p := newPeer(t)
	go func() {
		for f, ok := p.await(agentproto.TOpen); ok; f, ok = p.await(agentproto.TOpen) {
			p.send(agentproto.TDone, f.ID, agentproto.Done{Result: []byte{255, 255, 255, 255, 255, 255, 255, 255, 127, 0, 1}})
		}
	}()
	conn, err := p.hub.Conn(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	files := conn.Files(sandboxfs.View{})
	_, err1 := conn.Processes(t.Context())
	_, _, err2 := files.List(t.Context(), "/", sandboxfs.ListOptions{})
	_, err3 := files.Attrs(t.Context(), "/")
	_, err4 := files.Stat(t.Context(), "/")
	for i, err := range []error{err1, err2, err3, err4} {
		if !errs.Is(err, errs.Internal) {
			t.Errorf("%d: %v", i, err)
		}
	}
	runtime.ReadMemStats(&after)
	if grown := int64(after.TotalAlloc) - int64(before.TotalAlloc); grown > 8<<20 {
		t.Errorf("%d bytes were allocated", grown)
	}
}

// A read has no more bytes than the caller asked for, whatever the agent sends.
func TestHostileRead(t *testing.T) {
	p := newPeer(t)
	go func() {
		for f, ok := p.await(agentproto.TOpen); ok; f, ok = p.await(agentproto.TOpen) {
			p.send(agentproto.TOpened, f.ID, agentproto.Opened{Info: agentproto.FileInfo{Name: "f", Size: 4}.Append(nil)})
			p.send(agentproto.TData, f.ID, data(0, []byte("longer than asked")))
			p.send(agentproto.TDone, f.ID, agentproto.Done{Out: 17})
		}
	}()
	conn, err := p.hub.Conn(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	for length, want := range map[int64]string{0: "longer than asked", 6: "longer"} {
		r, err := conn.Files(sandboxfs.View{}).Read(t.Context(), "/f", 0, length)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(r); err != nil || string(b) != want {
			t.Errorf("%d bytes: %q, %v", length, b, err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A program of a sandbox may connect in the agent's place as often as it likes. The server's log says it now and then.
func TestHandshakesDoNotFillTheLog(t *testing.T) {
	need.Root(t)
	var text bytes.Buffer
	config := agent.HubConfig{
		Dir: filepath.Join(t.TempDir(), "agents"), LogDir: filepath.Join(t.TempDir(), "logs"), AgentPath: built.agent, AgentDir: t.TempDir(),
		Logger: slog.New(slog.NewTextHandler(&text, nil)),
	}
	hub := agent.NewHub(config)
	t.Cleanup(func() { hub.Close() })
	if _, err := hub.Prepare(id, agent.GuestConfig{}); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		c, err := net.Dial("unix", filepath.Join(config.Dir, id, agentproto.SocketName))
		if err != nil {
			t.Fatal(err)
		}
		p := &peer{t: t, c: c}
		p.send(agentproto.THello, 0, agentproto.Hello{MinVersion: agentproto.MinVersion, MaxVersion: agentproto.MaxVersion, Token: "wrong", Boot: 1})
		_, _ = io.Copy(io.Discard, c) // until the hub has refused it
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	hub.Close()
	if n := strings.Count(text.String(), "agent handshake"); n < 1 || n > 10 {
		t.Errorf("%d lines of the log for 100 refused handshakes:\n%.500s", n, text.String())
	}
}

// A program in the agent's place may go on speaking and read nothing. The node then ends the connection: a caller that
// gives up, and one whose input waits, get on.
func TestAgentThatReadsNothing(t *testing.T) {
	const heartbeat = 500 * time.Millisecond
	p := newPeerOf(t, heartbeat)
	conn, err := p.hub.Conn(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		f, ok := p.await(agentproto.TOpen)
		if !ok {
			return
		}
		p.send(agentproto.TOpened, f.ID, agentproto.Opened{})
		for range time.Tick(heartbeat / 4) {
			b := agentproto.AppendFrame(nil, agentproto.Frame{Type: agentproto.TPing, Payload: agentproto.Number(1).Append(nil)})
			if _, err := p.c.Write(b); err != nil {
				return
			}
		}
	}()
	x, err := conn.Exec(t.Context(), execution.ExecSpec{Command: []string{"cat"}})
	if err != nil {
		t.Fatal(err)
	}
	written, closed := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := x.Stdin().Write(make([]byte, 4*agentproto.InWindow)) // more than the socket and the window hold
		written <- err
	}()
	wait.For(t, "the end of the connection", func() bool { return !conn.Connected() }, wait.Within(20*heartbeat))
	go func() { closed <- x.Close() }()
	wait.Receive(t, "the end of the process for its caller", closed)
	if err := wait.Receive(t, "the end of the input", written); err == nil {
		t.Error("input that nobody read was written")
	}
}
