package e2b

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"miren.dev/runtime/api/interpreter"
)

func (s *Server) interpreterRoutes() *http.ServeMux {
	mux := http.NewServeMux()
	for pattern, h := range map[string]func(context.Context, *guest, http.ResponseWriter, *http.Request) (int, any, error){
		"POST /contexts":              s.createContext,
		"GET /contexts":               s.listContexts,
		"DELETE /contexts/{id}":       s.deleteContext,
		"POST /contexts/{id}/restart": s.restartContext,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			g, err := s.interpreterGuest(r)
			if err != nil {
				fail(w, err)
				return
			}
			code, v, err := h(r.Context(), g, w, r)
			if err != nil {
				fail(w, s.explain(r.Context(), g.sb.GetID(), err))
				return
			}
			answer(w, code, v)
		})
	}
	mux.HandleFunc("POST /execute", s.execute)
	mux.HandleFunc("GET /health", s.health)
	mux.HandleFunc("/", notFound)
	return mux
}

func (s *Server) interpreterGuest(r *http.Request) (*guest, error) {
	_, name := target(r)
	if err := s.traffic(r, name); err != nil {
		return nil, err
	}
	return s.guestOf(r.Context(), name, "")
}

// codeContext is a context as E2B's API describes it.
type codeContext struct {
	ID       string `json:"id"`
	Language string `json:"language"`
	Cwd      string `json:"cwd"`
}

func contextOf(g *guest, c *interpreter.CodeContext) codeContext {
	cwd := c.Workdir
	if cwd == "" {
		cwd = g.home()
	}
	return codeContext{c.ID, c.Language, cwd}
}

func (s *Server) createContext(ctx context.Context, g *guest, w http.ResponseWriter, r *http.Request) (int, any, error) {
	var q struct {
		Language string `json:"language"`
		Cwd      string `json:"cwd"`
	}
	if err := decode(w, r, &q); err != nil {
		return 0, nil, err
	}
	resp, err := g.interpreter.Create(ctx, &interpreter.CreateContextRequest{Sandbox: g.sb.GetID(), Language: q.Language, Workdir: q.Cwd})
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, contextOf(g, &resp.Context), nil
}

func (s *Server) listContexts(ctx context.Context, g *guest, _ http.ResponseWriter, _ *http.Request) (int, any, error) {
	resp, err := g.interpreter.List(ctx, &interpreter.ContextsRequest{Sandbox: g.sb.GetID()})
	if err != nil {
		return 0, nil, err
	}
	list := []codeContext{}
	for i := range resp.Contexts {
		list = append(list, contextOf(g, &resp.Contexts[i]))
	}
	return http.StatusOK, list, nil
}

func (s *Server) deleteContext(ctx context.Context, g *guest, _ http.ResponseWriter, r *http.Request) (int, any, error) {
	return http.StatusNoContent, nil, g.interpreter.Delete(ctx, &interpreter.ContextRequest{Sandbox: g.sb.GetID(), Context: r.PathValue("id")})
}

func (s *Server) restartContext(ctx context.Context, g *guest, _ http.ResponseWriter, r *http.Request) (int, any, error) {
	_, err := g.interpreter.Restart(ctx, &interpreter.ContextRequest{Sandbox: g.sb.GetID(), Context: r.PathValue("id")})
	return http.StatusNoContent, nil, err
}

// executionPing is the time between messages that show that a server lives.
const executionPing = 5 * time.Second

// lines sends JSON, a line each.
type lines struct {
	mu sync.Mutex
	w  http.ResponseWriter
}

func (l *lines) send(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.w.Write(append(b, '\n')); err != nil {
		return err
	}
	return http.NewResponseController(l.w).Flush()
}

// execute executes code. A client that goes away interrupts it.
func (s *Server) execute(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Code     string            `json:"code"`
		Context  string            `json:"context_id"`
		Language string            `json:"language"`
		Env      map[string]string `json:"env_vars"`
	}
	g, err := s.interpreterGuest(r)
	if err == nil {
		err = decode(w, r, &q)
	}
	if err != nil {
		fail(w, err)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	st, err := g.interpreter.Run(ctx, &interpreter.RunRequest{Sandbox: g.sb.GetID(), Code: q.Code, Context: q.Context, Language: q.Language, Env: q.Env})
	if err != nil {
		fail(w, s.explain(ctx, g.sb.GetID(), err))
		return
	}
	defer st.Close()
	// The status of the answer tells of errors, so it waits for a first message, but
	// clients wait for the status: a ping is one too.
	type received struct {
		event *interpreter.RunEvent
		err   error
	}
	events := make(chan received)
	s.running.Go(func() {
		defer close(events)
		for {
			m, err := st.Recv()
			select {
			case events <- received{m, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	})
	out := &lines{w: w}
	begun := false
	ping := time.NewTicker(executionPing)
	defer ping.Stop()
	for {
		select {
		case <-ping.C:
			begun = true
			if out.send(map[string]string{"type": "keepalive"}) != nil {
				return
			}
		case e := <-events:
			switch {
			case e.err == io.EOF || ctx.Err() != nil:
				return
			case e.err != nil && !begun:
				fail(w, s.explain(ctx, g.sb.GetID(), e.err))
				return
			case e.err != nil:
				panic(http.ErrAbortHandler) // so that the client does not take it for the end
			}
			begun = true
			for _, v := range linesOf(e.event) {
				if out.send(v) != nil {
					return
				}
			}
		}
	}
}

// errorNames are names of errors that clients show for ends without an error of
// the code.
var errorNames = map[interpreter.Outcome]struct{ name, value string }{
	interpreter.OutcomeEnded:   {"ContextEnded", "the process of the context ended: its variables are gone"},
	interpreter.OutcomeTimeout: {"TimeoutError", "the time of the execution is over"},
}

// linesOf returns what E2B's clients read of an event.
func linesOf(e *interpreter.RunEvent) []any {
	now := time.Now().UTC().Format(time.RFC3339Nano)
	switch {
	case e.Result != nil:
		return []any{resultOf(e.Result)}
	case e.Error != nil:
		return []any{map[string]any{"type": "error", "name": e.Error.Name, "value": e.Error.Value, "traceback": e.Error.Traceback}}
	case e.End != nil:
		var all []any
		if n, ok := errorNames[e.End.Outcome]; ok {
			all = append(all, map[string]any{"type": "error", "name": n.name, "value": n.value, "traceback": ""})
		}
		return append(all, map[string]any{"type": "number_of_executions", "execution_count": e.End.Count}, map[string]any{"type": "end_of_execution"})
	case e.Stderr != "":
		return []any{map[string]any{"type": "stderr", "text": e.Stderr, "timestamp": now}}
	case e.Stdout != "":
		return []any{map[string]any{"type": "stdout", "text": e.Stdout, "timestamp": now}}
	}
	return nil
}

// formats has E2B's name of a media type, and whether the content is JSON.
var formats = map[string]struct {
	name string
	json bool
}{
	"text/plain": {"text", false}, "text/html": {"html", false}, "text/markdown": {"markdown", false}, "image/svg+xml": {"svg", false},
	"image/png": {"png", false}, "image/jpeg": {"jpeg", false}, "application/pdf": {"pdf", false}, "text/latex": {"latex", false},
	"application/json": {"json", true}, "application/javascript": {"javascript", false},
	"application/vnd.runtime.data+json": {"data", true}, "application/vnd.runtime.chart+json": {"chart", true},
}

func resultOf(r *interpreter.Result) map[string]any {
	m := map[string]any{"type": "result", "is_main_result": r.Main != nil && *r.Main}
	for kind, content := range r.Formats {
		f, known := formats[kind]
		switch {
		case !known && strings.HasSuffix(kind, "json"), f.json:
			if json.Valid([]byte(content)) {
				if !known {
					f.name = kind
				}
				m[f.name] = json.RawMessage(content)
			}
		case known:
			m[f.name] = content
		default:
			m[kind] = content
		}
	}
	return m
}
