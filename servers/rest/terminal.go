package rest

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/coder/websocket"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/opt"
	"miren.dev/runtime/servers/api"
)

// Limits of a terminal.
const (
	maxTerminalMessage = 1 << 20
	terminalWrite      = time.Minute // for which a client may read nothing
	terminalPing       = 30 * time.Second
)

// shell is the command line of a terminal: bash if the container has it.
var shell = []string{"/bin/sh", "-c", "if command -v bash >/dev/null 2>&1; then exec bash; fi; exec sh"}

// terminalMessage is a message of text of a terminal. Input and output are
// messages of bytes.
type terminalMessage struct {
	Rows     int64  `json:"rows,omitempty"` // of the client: the size of its window
	Cols     int64  `json:"cols,omitempty"`
	ExitCode *int64 `json:"exit_code,omitempty"` // of the server: the last message
	Note     string `json:"note,omitempty"`      // of the server, for the user
	Error    string `json:"error,omitempty"`     // of the server: the last message
}

// mountTerminals serves a shell of a container by WebSocket, which OpenAPI does
// not describe.
func mountTerminals(s *api.Server, mux *http.ServeMux) {
	mux.HandleFunc("GET "+Prefix+"/containers/{id}/terminal", func(w http.ResponseWriter, r *http.Request) {
		if err := serveTerminal(s, w, r); err != nil {
			api.WriteProblem(w, err)
		}
	})
}

// serveTerminal returns an error if the connection did not become a WebSocket.
func serveTerminal(s *api.Server, w http.ResponseWriter, r *http.Request) error {
	caller, err := s.AuthenticateRequest(r)
	if err != nil {
		return err
	}
	defer caller.Release()
	client := sandbox.NewSandboxesClient(caller.Client)
	sid := id.Sandbox(r.PathValue("id"))
	// A refusal is an answer, not the end of a terminal that had begun.
	if err := client.CheckExec(r.Context(), &sandbox.SandboxRequest{Sandbox: sid}); err != nil {
		return err
	}
	size := func(name string) *int64 {
		n, err := strconv.ParseUint(r.URL.Query().Get(name), 10, 16)
		if err != nil {
			return nil
		}
		return opt.Of(int64(n))
	}
	conn, err := websocket.Accept(w, r, nil) // it refuses other origins, and answers itself
	if err != nil {
		return nil
	}
	defer conn.CloseNow()
	conn.SetReadLimit(maxTerminalMessage)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	st, err := client.Exec(ctx, &sandbox.ExecRequest{
		Sandbox: sid, Command: shell, Env: map[string]string{"TERM": "xterm-256color"}, TTY: opt.Of(true), Stdin: opt.Of(true),
		Rows: size("rows"), Cols: size("cols"),
	})
	if err != nil {
		endTerminal(ctx, conn, err)
		return nil
	}
	defer st.Close()
	go func() {
		defer cancel() // the client has gone: the shell ends with its call
		passInput(ctx, conn, st.Send)
	}()
	go keepAlive(ctx, conn)
	endTerminal(ctx, conn, passOutput(ctx, conn, st.Recv))
	return nil
}

// passInput passes on what the client sends, until the connection ends.
func passInput(ctx context.Context, conn *websocket.Conn, send func(*sandbox.ExecInput) error) {
	for {
		kind, b, err := conn.Read(ctx)
		if err != nil {
			return
		}
		in := &sandbox.ExecInput{Stdin: b}
		if kind == websocket.MessageText {
			var m terminalMessage
			if json.Unmarshal(b, &m) != nil || m.Rows < 1 || m.Cols < 1 || m.Rows > 65535 || m.Cols > 65535 {
				_ = conn.Close(websocket.StatusInvalidFramePayloadData, "a message of text is not {rows, cols}")
				return
			}
			in = &sandbox.ExecInput{Resize: &sandbox.TerminalSize{Rows: m.Rows, Cols: m.Cols}}
		}
		if send(in) != nil {
			return // passOutput says why
		}
	}
}

// passOutput passes on what the shell prints, and how it ended.
func passOutput(ctx context.Context, conn *websocket.Conn, recv func() (*sandbox.ExecOutput, error)) error {
	for {
		m, err := recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		switch {
		case len(m.Stdout) > 0:
			err = sendMessage(ctx, conn, websocket.MessageBinary, m.Stdout)
		case m.Note != "":
			err = sendTerminal(ctx, conn, terminalMessage{Note: m.Note})
		case m.ExitCode != nil:
			err = sendTerminal(ctx, conn, terminalMessage{ExitCode: m.ExitCode})
		}
		if err != nil {
			return nil // the client has gone
		}
	}
}

func sendMessage(ctx context.Context, conn *websocket.Conn, kind websocket.MessageType, b []byte) error {
	ctx, cancel := context.WithTimeout(ctx, terminalWrite)
	defer cancel()
	return conn.Write(ctx, kind, b)
}

func sendTerminal(ctx context.Context, conn *websocket.Conn, m terminalMessage) error {
	b, err := json.Marshal(m)
	if err != nil {
		return errs.New(errs.Internal, "terminal: %w", err)
	}
	return sendMessage(ctx, conn, websocket.MessageText, b)
}

// endTerminal closes a connection, with the error if there is one.
func endTerminal(ctx context.Context, conn *websocket.Conn, err error) {
	if err != nil && ctx.Err() == nil {
		p := api.ProblemOf(err)
		_ = sendTerminal(ctx, conn, terminalMessage{Error: p.Detail}) // the client may have gone
	}
	_ = conn.Close(websocket.StatusNormalClosure, "")
}

// keepAlive ends a connection whose client does not answer.
func keepAlive(ctx context.Context, conn *websocket.Conn) {
	t := time.NewTicker(terminalPing)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		pctx, cancel := context.WithTimeout(ctx, terminalWrite)
		err := conn.Ping(pctx)
		cancel()
		if err != nil {
			_ = conn.CloseNow()
			return
		}
	}
}
