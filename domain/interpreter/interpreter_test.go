package interpreter_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/id"
	api "miren.dev/runtime/api/interpreter"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/interpreter"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

// guest is a sandbox whose server is the test: it gets the request and may
// answer anything.
type guest struct {
	sandboxes.Node
	t      *testing.T
	answer func(request string, conn net.Conn)
	ended  chan struct{} // closed when the answer has returned
}

// pipe is one side of a connection.
type pipe struct{ net.Conn }

func (p pipe) CloseWrite() error { return p.Close() }

func (g *guest) Dial(context.Context, id.Sandbox, int) (sandboxes.Conn, error) {
	ours, theirs := net.Pipe()
	go func() {
		defer close(g.ended)
		defer theirs.Close()
		line, err := bufio.NewReaderSize(theirs, 1<<20).ReadString('\n')
		if err != nil {
			g.t.Errorf("read the request: %v", err)
			return
		}
		g.answer(line, theirs)
	}()
	return pipe{ours}, nil
}

// serviceOf returns a service whose sandboxes have the given server.
func serviceOf(t *testing.T, answer func(request string, conn net.Conn)) *interpreter.Service {
	g := &guest{t: t, answer: answer, ended: make(chan struct{})}
	t.Cleanup(func() { <-g.ended })
	return &interpreter.Service{
		Node: g,
		Running: func(context.Context, id.Sandbox) (*sandbox.Sandbox, error) {
			sb := sandbox.NewSandbox()
			sb.ID, sb.Spec.Template.Env, sb.Spec.Template.Workdir = "sb-1", map[string]string{"CLAIMED": "yes"}, "/home/user"
			return sb, nil
		},
	}
}

// says is a server that answers with the given text and ends.
func says(text string) func(string, net.Conn) {
	return func(_ string, conn net.Conn) { _, _ = io.WriteString(conn, text) }
}

// run executes code and returns its events.
func run(t *testing.T, s *interpreter.Service, req interpreter.RunRequest) (events []*api.RunEvent, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*wait.Limit)
	defer cancel()
	err = s.Run(ctx, req, func(e *api.RunEvent) error {
		events = append(events, e)
		return nil
	})
	return events, err
}

const end = `{"end":{"outcome":"completed","count":1,"state_lost":false}}` + "\n"

func TestRunPassesOnWhatTheCodeDoes(t *testing.T) {
	var got map[string]any
	s := serviceOf(t, func(request string, conn net.Conn) {
		if err := json.Unmarshal([]byte(request), &got); err != nil {
			t.Error(err)
		}
		_, _ = io.WriteString(conn, `{"stdout":"a\n"}
{"stderr":"b"}
{"result":{"formats":{"text/plain":"2","image/svg+xml":"<svg>"},"main":true}}
{"error":{"name":"E","value":"v","traceback":"t"}}
`+end)
	})
	events, err := run(t, s, interpreter.RunRequest{Code: "1+1", Language: "py", Env: map[string]string{"A": "1"}, Timeout: 1500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(events)
	want := `[{"stdout":"a\n"},{"stderr":"b"},{"result":{"formats":{"image/svg+xml":"\u003csvg\u003e","text/plain":"2"},"main":true}},` +
		`{"error":{"name":"E","value":"v","traceback":"t"}},{"end":{"outcome":"completed","count":1,"state_lost":false}}]`
	if string(b) != want || err != nil {
		t.Errorf("events %s, %v\nwant   %s", b, err, want)
	}
	if text := fmt.Sprint(got); text != "map[code:1+1 env:map[CLAIMED:yes] env_vars:map[A:1] language:python op:run timeout:1.5 workdir:/home/user]" {
		t.Errorf("request %s", text)
	}
}

// TestHostileServer: whatever a program in the sandbox answers in the place of
// the interpreter is refused or bounded.
func TestHostileServer(t *testing.T) {
	many := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format+",", i)
		}
		return strings.TrimSuffix(b.String(), ",")
	}
	for name, c := range map[string]struct {
		says string
		want errs.Class
	}{
		"nothing":               {"", errs.Unavailable},
		"half a line":           {`{"stdout":"a"`, errs.Unavailable},
		"no end":                {`{"stdout":"a"}` + "\n", errs.Unavailable},
		"garbage":               {"HTTP/1.1 200 OK\r\n\r\n", errs.Unavailable},
		"an empty event":        {"{}\n", errs.Unavailable},
		"two events in one":     {`{"stdout":"a","stderr":"b"}` + "\n", errs.Unavailable},
		"deep":                  {strings.Repeat("[", 100_000) + "\n", errs.Unavailable},
		"an unknown outcome":    {`{"end":{"outcome":"won","count":1}}` + "\n", errs.Unavailable},
		"a negative count":      {`{"end":{"outcome":"completed","count":-1}}` + "\n", errs.Unavailable},
		"a huge count":          {`{"end":{"outcome":"completed","count":1e300}}` + "\n", errs.Unavailable},
		"a result of nothing":   {`{"result":{"formats":{}}}` + "\n", errs.Unavailable},
		"no media type":         {`{"result":{"formats":{"\u001b[2J":"a"}}}` + "\n", errs.Unavailable},
		"many formats":          {`{"result":{"formats":{` + many(100_000, `"a/b%d":""`) + `}}}` + "\n", errs.Unavailable},
		"its own class":         {`{"failed":{"class":"unauthenticated","message":"log in"}}` + "\n", errs.Unavailable},
		"a refusal":             {`{"failed":{"class":"not_found","message":"context x does not exist"}}` + "\n", errs.NotFound},
		"invalid UTF-8 is text": {"{\"stdout\":\"a\xff\"}\n" + end, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := run(t, serviceOf(t, says(c.says)), interpreter.RunRequest{Code: "1"})
			if errs.ClassOf(err) != c.want {
				t.Errorf("%v, want class %q", err, c.want)
			}
		})
	}
	t.Run("a line without end", func(t *testing.T) {
		sent := 0
		_, err := run(t, serviceOf(t, func(_ string, conn net.Conn) {
			for chunk := []byte(strings.Repeat("a", 1<<20)); ; sent += len(chunk) {
				if _, err := conn.Write(chunk); err != nil {
					return
				}
			}
		}), interpreter.RunRequest{Code: "1"})
		if !errs.Is(err, errs.Unavailable) {
			t.Error(err)
		}
		if sent > 16<<20 {
			t.Errorf("it took %d bytes", sent)
		}
	})
	t.Run("output without end", func(t *testing.T) {
		line := []byte(`{"stdout":"` + strings.Repeat("a", 1<<20) + `"}` + "\n")
		_, err := run(t, serviceOf(t, func(_ string, conn net.Conn) {
			for {
				if _, err := conn.Write(line); err != nil {
					return
				}
			}
		}), interpreter.RunRequest{Code: "1"})
		if !errs.Is(err, errs.ResourceExhausted) {
			t.Error(err)
		}
	})
	t.Run("control characters in a reason", func(t *testing.T) {
		_, err := run(t, serviceOf(t, says(`{"failed":{"class":"not_found","message":"a\u001b[2Jb`+strings.Repeat("c", 5000)+`"}}`+"\n")), interpreter.RunRequest{Code: "1"})
		if text := fmt.Sprint(err); strings.Contains(text, "\x1b") || len(text) > 1200 {
			t.Errorf("%q", text)
		}
	})
	for name, answer := range map[string]string{
		"no context":        `{}`,
		"an id of controls": `{"context":{"id":"\u001b[2J","language":"python"}}`,
		"a long id":         `{"context":{"id":"` + strings.Repeat("a", 65) + `","language":"python"}}`,
		"a long answer":     `{"context":{"id":"a","language":"python","workdir":"` + strings.Repeat("a", 1<<20) + `"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			c, err := serviceOf(t, says(answer+"\n")).Create(t.Context(), interpreter.CreateRequest{})
			if !errs.Is(err, errs.Unavailable) {
				t.Errorf("%+v, %v", c, err)
			}
		})
	}
	t.Run("many contexts", func(t *testing.T) {
		list, err := serviceOf(t, says(`{"contexts":[`+many(65, `{"id":"c%d","language":"python"}`)+"]}\n")).List(t.Context(), "sb-1")
		if !errs.Is(err, errs.Unavailable) {
			t.Errorf("%d contexts, %v", len(list), err)
		}
	})
}

// TestCallerThatLeavesInterrupts: the connection, by which the server knows of
// its caller, ends with the call, or with an event that the caller does not take.
func TestCallerThatLeavesInterrupts(t *testing.T) {
	untilClosed := func(_ string, conn net.Conn) {
		_, _ = io.WriteString(conn, `{"stdout":"a"}`+"\n")
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("the connection goes on: %v", err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	err := serviceOf(t, untilClosed).Run(ctx, interpreter.RunRequest{Code: "1"}, func(*api.RunEvent) error {
		cancel()
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	slow := errors.New("cannot send")
	if err := serviceOf(t, untilClosed).Run(t.Context(), interpreter.RunRequest{Code: "1"}, func(*api.RunEvent) error { return slow }); !errors.Is(err, slow) {
		t.Error(err)
	}
}

func TestCodeThatCannotBeExecutedIsRefused(t *testing.T) {
	s := &interpreter.Service{Running: func(context.Context, id.Sandbox) (*sandbox.Sandbox, error) {
		t.Error("the sandbox is used")
		return nil, errors.New("used")
	}}
	for name, req := range map[string]interpreter.RunRequest{
		"unknown language":     {Code: "1", Language: "cobol"},
		"language and context": {Code: "1", Language: "go", Context: "c1"},
		"variable":             {Code: "1", Env: map[string]string{"A=B": "1"}},
		"too long":             {Code: strings.Repeat("a", 9<<20)},
	} {
		if _, err := run(t, s, req); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := s.Create(t.Context(), interpreter.CreateRequest{Language: "go"}); !errs.Is(err, errs.InvalidArgument) {
		t.Errorf("a context of Go: %v", err)
	}
}
