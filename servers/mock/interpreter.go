package mock

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/components/mock"
	"miren.dev/runtime/domain/interpreter"
	"miren.dev/runtime/pkg/errs"
)

// interpreters answer in place of the servers of contexts that sandboxes have; see
// interpreter.Port for the protocol.
type interpreters struct {
	answers *mock.Answers

	mu       sync.Mutex
	last     int
	contexts map[string][]*codeContext // of each sandbox, the oldest first
}

type codeContext struct {
	ID         string  `json:"id"`
	Language   string  `json:"language"`
	Workdir    string  `json:"workdir"`
	Busy       bool    `json:"busy"`
	Executions int64   `json:"executions"`
	Created    float64 `json:"created"`

	own bool // of its language, for code that names no context
}

type codeRequest struct {
	Op       string  `json:"op"`
	Code     string  `json:"code"`
	Language string  `json:"language"`
	Context  string  `json:"context"`
	Workdir  string  `json:"workdir"`
	Timeout  float64 `json:"timeout"` // seconds
}

// conn is one side of a pipe within the process.
type conn struct{ net.Conn }

// CloseWrite implements execution.Conn; the other side does not wait for it.
func (conn) CloseWrite() error { return nil }

// dial is a mock.Config.Dial.
func (i *interpreters) dial(_ context.Context, id string, port int) (execution.Conn, error) {
	if port != interpreter.Port {
		return nil, errs.New(errs.FailedPrecondition, "nothing listens on port %d of sandbox %s: the server is a mock", port, id)
	}
	ours, theirs := net.Pipe()
	go i.serve(id, theirs) // ends with the connection
	return conn{ours}, nil
}

// serve answers the one request of a connection.
func (i *interpreters) serve(id string, c net.Conn) {
	defer c.Close()
	in := bufio.NewReader(c)
	line, err := in.ReadBytes('\n')
	var q codeRequest
	if err != nil || json.Unmarshal(line, &q) != nil {
		return // the caller has gone
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = in.ReadByte() // when the caller has gone
		cancel()
	}()
	out := json.NewEncoder(c)
	say := func(kind string, v any) bool { return out.Encode(map[string]any{kind: v}) == nil }
	x, err := i.find(id, q)
	switch {
	case err != nil:
		say("failed", map[string]any{"class": errs.ClassOf(err), "message": err.Error()})
	case q.Op == "run":
		i.run(ctx, x, q, say)
	case q.Op == "list":
		i.mu.Lock()
		list := slices.Clone(i.contexts[id])
		i.mu.Unlock()
		say("contexts", list)
	default:
		say("context", x)
	}
}

// find returns a copy of the context of a request, which it makes or removes if
// that is what is asked for.
func (i *interpreters) find(id string, q codeRequest) (*codeContext, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	list := i.contexts[id]
	at := slices.IndexFunc(list, func(x *codeContext) bool {
		return x.ID == q.Context || q.Context == "" && x.own && x.Language == languageOr(q.Language)
	})
	switch {
	case q.Op == "list":
		return nil, nil
	case q.Op == "create" || q.Op == "run" && q.Context == "" && at < 0:
		i.last++
		x := &codeContext{
			ID: fmt.Sprintf("ctx-%d", i.last), Language: languageOr(q.Language), Workdir: q.Workdir, own: q.Op == "run",
			Created: float64(time.Now().UnixMilli()) / 1000,
		}
		i.contexts[id] = append(list, x)
		at = len(list)
	case at < 0:
		return nil, errs.New(errs.NotFound, "there is no context %q", q.Context)
	case q.Op == "remove":
		x := *list[at]
		i.contexts[id] = slices.Delete(slices.Clone(list), at, at+1)
		return &x, nil
	}
	x := i.contexts[id][at]
	if q.Op == "run" {
		x = &codeContext{}
		*x = *i.contexts[id][at]
		x.Executions++
		i.contexts[id][at] = x
	}
	cp := *x
	return &cp, nil
}

func languageOr(language string) string {
	if language == "" {
		return "python"
	}
	return language
}

// run sends the events of an execution.
func (i *interpreters) run(ctx context.Context, x *codeContext, q codeRequest, say func(string, any) bool) {
	if q.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(q.Timeout*float64(time.Second)))
		defer cancel()
	}
	r, err := i.answers.Run(ctx, q.Code)
	outcome := "completed"
	switch {
	case errs.Is(err, errs.DeadlineExceeded):
		outcome = "timeout"
	case err != nil:
		say("failed", map[string]any{"class": errs.ClassOf(err), "message": err.Error()})
		return
	}
	for _, o := range []struct{ kind, text string }{{"stdout", r.Stdout}, {"stderr", r.Stderr}} {
		if o.text != "" && !say(o.kind, o.text) {
			return
		}
	}
	if r.ExitCode != 0 {
		value := strings.TrimSpace(r.Stderr)
		say("error", map[string]string{"name": "MockError", "value": value, "traceback": value})
		outcome = "failed"
	}
	say("end", map[string]any{"outcome": outcome, "count": x.Executions, "state_lost": false})
}
