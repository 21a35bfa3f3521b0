package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"miren.dev/runtime/api/sandbox"
)

// streamGoal is the least throughput of a stream of a face: its ratio to the raw stream.
const streamGoal = 0.5

// streamPort is the port of the sandbox at which webSocketServer listens.
const streamPort = 9100

// webSocketServer answers each connection with an endless stream of WebSocket messages
// of 64 KiB.
const webSocketServer = `
import base64, hashlib, socket, struct, threading
def serve(c):
    head = b""
    while b"\r\n\r\n" not in head:
        head += c.recv(4096)
    key = next(l.split(b": ")[1] for l in head.split(b"\r\n") if l.lower().startswith(b"sec-websocket-key"))
    accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    c.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n")
    frame = struct.pack("!BBQ", 0x82, 127, 65536) + bytes(65536)
    try:
        while True: c.sendall(frame)
    except OSError: c.close()
s = socket.create_server(("0.0.0.0", 9100))
while True: threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
`

// benchStreams compares streams of faces with the raw ones, in turns.
func benchStreams(ctx context.Context, b *bench, i *install, c sandbox.SandboxesClient, sb *sandbox.Sandbox, web *webFace) error {
	var sse, ws pair
	// A process that never waits for its readers writes as fast as it can.
	command := []string{"timeout", strconv.FormatFloat(b.turn().Seconds(), 'f', 1, 64), "yes", strings.Repeat("x", 63)}
	err := b.turns(ctx, 5, func(side int) (figures, error) {
		read := web.outputBySSE
		if side == 1 {
			read = func(ctx context.Context, command []string) (float64, error) { return outputByRPC(ctx, c, sb, command) }
		}
		v, err := read(ctx, command)
		return figures{v}, err
	}, &sse)
	if err != nil {
		return fmt.Errorf("output of a process: %w", err)
	}
	b.report.compare("output of a process by REST, server-sent events", "MB/s", "RPC", &sse, streamGoal, 0)

	detached := true
	server, err := c.Exec(ctx, &sandbox.ExecRequest{Sandbox: sb.GetID(), Command: []string{"python3", "-c", webSocketServer}, Detached: &detached})
	if err != nil {
		return err
	}
	defer server.Close()
	port, public := int64(streamPort), true
	preview, err := sandbox.NewPreviewsClient(i.client).Create(ctx, &sandbox.CreatePreviewRequest{Sandbox: sb.GetID(), Port: &port, Public: &public})
	if err != nil {
		return err
	}
	host := strings.TrimSuffix(strings.TrimPrefix(preview.URL, "http://"), "/")
	direct := net.JoinHostPort(sb.Status.Address, strconv.Itoa(streamPort))
	if err := streamReady(ctx, i.address, host); err != nil {
		return err
	}
	err = b.turns(ctx, 5, func(side int) (figures, error) {
		address := i.address
		if side == 1 {
			address = direct
		}
		v, err := webSocketRate(ctx, address, host, b.turn())
		return figures{v}, err
	}, &ws)
	if err != nil {
		return fmt.Errorf("WebSocket: %w", err)
	}
	b.report.compare("WebSocket messages of 64 KiB through a preview", "MB/s", "straight to the sandbox", &ws, streamGoal, 0)
	return nil
}

// outputBySSE starts a command, follows its output to the end, and returns how many
// million bytes of it came in a second.
func (w *webFace) outputBySSE(ctx context.Context, command []string) (float64, error) {
	body, err := json.Marshal(map[string]any{"command": command, "background": true})
	if err != nil {
		return 0, err
	}
	header := http.Header{"Authorization": {"Bearer " + w.key}, "Content-Type": {"application/json"}}
	path := "/api/v1/sessions/" + w.sandbox + "/commands"
	b, err := w.post(ctx, path, header, body)
	if err != nil {
		return 0, err
	}
	var job struct{ ID string }
	if err := json.Unmarshal(b, &job); err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.base+path+"/"+job.ID+"/stream", nil)
	if err != nil {
		return 0, err
	}
	req.Header = header
	began := time.Now()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 4<<20)
	var name string
	n := 0
	for lines.Scan() {
		if event, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			name = event
		}
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		switch {
		case !ok:
		case name == "end":
			return streamRate(n, time.Since(began))
		case name == "output":
			var out struct{ Data string }
			if err := json.Unmarshal(data, &out); err != nil {
				return 0, err
			}
			n += len(out.Data)
		case name == "error":
			return 0, fmt.Errorf("%s", data)
		}
	}
	return 0, errors.Join(lines.Err(), io.ErrUnexpectedEOF)
}

// outputByRPC does the same by RPC.
func outputByRPC(ctx context.Context, c sandbox.SandboxesClient, sb *sandbox.Sandbox, command []string) (float64, error) {
	detached := true
	began := time.Now()
	st, err := c.Exec(ctx, &sandbox.ExecRequest{Sandbox: sb.GetID(), Command: command, Detached: &detached})
	if err != nil {
		return 0, err
	}
	defer st.Close()
	for n := 0; ; {
		o, err := st.Recv()
		if err != nil {
			return 0, err
		}
		n += len(o.Stdout)
		if o.ExitCode != nil {
			return streamRate(n, time.Since(began))
		}
	}
}

// streamRate returns million bytes per second.
func streamRate(n int, took time.Duration) (float64, error) {
	if n == 0 {
		return 0, errors.New("nothing came")
	}
	return float64(n) / 1e6 / took.Seconds(), nil
}

// streamReady waits until a preview of the server of WebSockets answers.
func streamReady(ctx context.Context, address, host string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		_, err := webSocketRate(ctx, address, host, 10*time.Millisecond)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// webSocketRate reads the messages of a WebSocket for some time, and returns how many
// million bytes came in a second.
func webSocketRate(ctx context.Context, address, host string, turn time.Duration) (float64, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return 0, err
	}
	if _, err := fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", host); err != nil {
		return 0, err
	}
	r := bufio.NewReaderSize(c, 1<<16)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return 0, err
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		return 0, fmt.Errorf("%s: %s", address, resp.Status)
	}
	message := make([]byte, 10+1<<16)
	n, began := 0, time.Now()
	for n == 0 || time.Since(began) < turn {
		k, err := io.ReadFull(r, message)
		if err != nil {
			return 0, err
		}
		if message[0] != 0x82 || message[1] != 127 {
			return 0, fmt.Errorf("a message begins with % x", message[:2])
		}
		n += k
	}
	return streamRate(n, time.Since(began))
}
