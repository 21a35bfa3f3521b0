package mcpserver

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"miren.dev/runtime/domain/languages"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
)

// away is a server that cannot be reached.
type away struct{}

var errAway = errs.New(errs.Unavailable, "the server is away").WithHint("start it")

func (away) Call(context.Context, *rpc.MethodInfo, any, any) error { return errAway }
func (away) Open(context.Context, *rpc.MethodInfo, any) (rpc.Stream, error) {
	return nil, errAway
}

// connect returns a client of a new session.
func connect(t *testing.T, o Options) *sdk.ClientSession {
	t.Helper()
	o.Client = away{}
	s, err := newSession(o)
	if err != nil {
		t.Fatal(err)
	}
	near, far := sdk.NewInMemoryTransports()
	if _, err := s.server.Connect(t.Context(), far, nil); err != nil {
		t.Fatal(err)
	}
	cs, err := sdk.NewClient(&sdk.Implementation{Name: "test"}, nil).Connect(t.Context(), near, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cs.Close() })
	return cs
}

func TestToolsAreThoseOfTheOptions(t *testing.T) {
	all, groups := ToolNames()
	for name, c := range map[string]struct {
		o          Options
		has, lacks []string
	}{
		"all":        {Options{Files: t.TempDir()}, all, nil},
		"no files":   {Options{}, []string{"read_file"}, []string{"upload_file", "download_file"}},
		"no network": {Options{NoNetwork: true}, []string{"create_sandbox"}, []string{"set_network"}},
		"one":        {Options{Tools: []string{"run_code"}}, []string{"run_code"}, []string{"run_command", "create_sandbox"}},
		"groups":     {Options{Tools: groups}, []string{"run_code", "fork_sandbox"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var names []string
			for tool, err := range connect(t, c.o).Tools(t.Context(), nil) {
				if err != nil {
					t.Fatal(err)
				}
				names = append(names, tool.Name)
			}
			for _, n := range c.has {
				if !slices.Contains(names, n) {
					t.Errorf("%s is missing in %v", n, names)
				}
			}
			for _, n := range c.lacks {
				if slices.Contains(names, n) {
					t.Errorf("%s is there", n)
				}
			}
		})
	}
	if err := CheckTools([]string{"code", "run_cod"}); !errs.Is(err, errs.InvalidArgument) || !strings.Contains(errs.HintOf(err), "did you mean run_code?") {
		t.Errorf("an unknown tool: %v, %s", err, errs.HintOf(err))
	}
}

func TestLanguagesAreThoseOfTheTable(t *testing.T) {
	for tool, err := range connect(t, Options{}).Tools(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		if tool.Name != "run_code" {
			continue
		}
		b, err := json.Marshal(tool.InputSchema)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range languages.All() {
			if !strings.Contains(string(b), `"`+l.Name+`"`) {
				t.Errorf("the schema lacks %s: %s", l.Name, b)
			}
		}
	}
}

func TestErrorsAreResultsWithAdvice(t *testing.T) {
	cs := connect(t, Options{NoNetwork: true})
	for tool, c := range map[string]struct {
		args map[string]any
		want string
	}{
		"list_sandboxes": {nil, "the server is away\nstart it"},
		"create_sandbox": {map[string]any{"network": "all"}, "without --no-network"},
		"run_code":       {map[string]any{"language": "shell", "code": "", "timeout_seconds": -1}, "timeout_seconds"},
		"read_file":      {map[string]any{"sandbox": "x"}, "path"},
	} {
		res, err := cs.CallTool(t.Context(), &sdk.CallToolParams{Name: tool, Arguments: c.args})
		if err != nil || !res.IsError || !strings.Contains(res.Content[0].(*sdk.TextContent).Text, c.want) {
			b, _ := json.Marshal(res)
			t.Errorf("%s: %s, %v; want %q", tool, b, err, c.want)
		}
	}
	err := toolError(errs.New(errs.NotFound, "nothing").WithHint("`r sandbox list` lists all"))
	if err.Error() != "nothing" {
		t.Errorf("advice for a terminal: %q", err)
	}
}

func TestOutputKeepsItsBeginningAndEnd(t *testing.T) {
	for _, n := range []int{0, 1, 99, 100, 101, 5000} {
		for _, piece := range []int{1, 7, 1000} {
			b, all := &bounded{max: 100}, strings.Builder{}
			for i := range n {
				fmt.Fprint(&all, i%10)
			}
			for rest := all.String(); rest != ""; {
				k := min(piece, len(rest))
				_, _ = io.WriteString(b, rest[:k])
				rest = rest[k:]
			}
			text := all.String()
			if n > 100 {
				text = text[:50] + fmt.Sprintf("\n[... %d bytes were cut here: write the output to a file and read parts of it with read_file ...]\n", n-100) + text[n-50:]
			}
			if b.String() != text || b.total != int64(n) || len(b.tail) > 101+piece {
				t.Errorf("%d bytes in pieces of %d: %q, %d kept", n, piece, b.String(), len(b.tail))
			}
		}
	}
	b := &bounded{max: 100}
	if _, _ = b.Write([]byte("a\xffb")); b.String() != "a\uFFFDb" {
		t.Errorf("bytes that are no text: %q", b)
	}
}

func TestPartsOfFilesEndWithWholeCharacters(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "abc": "abc", "aé": "aé", "a\xc3": "a", "a\xe2\x82": "a", "a€": "a€", "\xf0\x9f\x98": "\xf0\x9f\x98", "a\xf0\x9f\x98": "a", "a\xff": "a\xff",
	} {
		if got := string(wholeRunes([]byte(in))); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestHTTPNeedsAKey(t *testing.T) {
	h, err := NewHandler(HandlerOptions{Authenticate: func(r *http.Request) (*Caller, error) {
		switch r.Header.Get("X-API-Key") {
		case "good":
			return &Caller{ID: "good", Client: away{}, Release: func() {}}, nil
		case "":
			return nil, errs.New(errs.Unauthenticated, "no key")
		}
		return nil, errAway
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	for key, want := range map[string]int{"good": http.StatusOK, "": http.StatusUnauthorized, "other": http.StatusServiceUnavailable} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/mcp", strings.NewReader(
			`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`))
		r.Header.Set("X-API-Key", key)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != want || (w.Header().Get("WWW-Authenticate") != "") != (want == http.StatusUnauthorized) {
			t.Errorf("key %q: %d %v %s", key, w.Code, w.Header(), w.Body)
		}
	}
	h.mu.Lock()
	n := len(h.sessions)
	h.mu.Unlock()
	if n != 1 {
		t.Errorf("%d sessions, want that of the good key", n)
	}
}
