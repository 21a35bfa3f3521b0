package server

import (
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/components/execution/traced"
	ctlsandbox "miren.dev/runtime/controllers/sandbox"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/trace/tracetest"
	"miren.dev/runtime/servers/rest"
	"miren.dev/runtime/testsupport/executiontest/fake"
	"miren.dev/runtime/testsupport/wait"
)

// tracedEnv is the real HTTP API over the real store, with a machine of the test,
// whose traces go to a receiver.
type tracedEnv struct {
	*restEnv
	got     *tracetest.Receiver
	sandbox *sandbox.Sandbox
}

func newTracedEnv(t *testing.T, sample string) *tracedEnv {
	t.Helper()
	e := &tracedEnv{got: tracetest.New(t)}
	headers := t.TempDir() + "/headers"
	if err := os.WriteFile(headers, []byte("X-Collector: of the test\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := &config.Config{}
	cfg.Store.KeepRevisions = 100_000
	cfg.Traces.Endpoint, cfg.Traces.Sample, cfg.Traces.HeadersFile = e.got.URL, sample, headers
	store, err := openStore(t.Context(), cfg, "sqlite://"+t.TempDir()+"/store.db", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	e.restEnv = newRestEnvOn(t, newFrontEnvOn(t, store, func(c *config.Config) { c.Traces = cfg.Traces }))
	machine := fake.NewMachine()
	e.c.deps.Sandboxes.Node = ctlsandbox.LocalNode{Driver: traced.New(machine.Driver(), nil)}
	if err := projects.Ensure(t.Context(), store, "p"); err != nil {
		t.Fatal(err)
	}
	pid, err := projects.Find(t.Context(), store, "p")
	if err != nil {
		t.Fatal(err)
	}
	sb := sandbox.NewSandbox()
	sb.Project, sb.Spec.Template.Image, sb.Spec.Template.Idle, sb.Status.Phase = pid, "img", true, sandbox.SandboxPhaseRunning
	if err := entity.Create(t.Context(), store, sb); err != nil {
		t.Fatal(err)
	}
	if _, err := machine.Driver().Ensure(t.Context(), execution.Spec{ID: string(sb.ID), Image: "img", Idle: true, Network: execution.NetworkNone}); err != nil {
		t.Fatal(err)
	}
	e.sandbox = sb
	running := make(chan error, 1)
	go func() { running <- e.c.informers.Run(t.Context()) }()
	t.Cleanup(func() { <-running })
	if err := e.c.informers.WaitSynced(t.Context()); err != nil {
		t.Fatal(err)
	}
	return e
}

// exec runs a command by REST, and returns the answer.
func (e *tracedEnv) exec(key, traceparent, body string) (*http.Response, string) {
	e.t.Helper()
	req, err := http.NewRequestWithContext(e.t.Context(), http.MethodPost, e.url+rest.Prefix+"/sessions/"+string(e.sandbox.ID)+"/commands", strings.NewReader(body))
	if err != nil {
		e.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-API-Key", key)
	if traceparent != "" {
		req.Header.Set("traceparent", traceparent)
	}
	return e.send(req)
}

// spans returns the spans of a trace that have ended.
func (e *tracedEnv) spans(trace string) []tracetest.Span {
	e.t.Helper()
	if err := e.traces.Flush(e.t.Context()); err != nil {
		e.t.Fatal(err)
	}
	return e.got.Spans(trace)
}

// awaitSpans returns the spans of a trace once those with the names have ended:
// those of a server end after its answer.
func (e *tracedEnv) awaitSpans(trace string, names ...string) (all []tracetest.Span) {
	e.t.Helper()
	wait.For(e.t, "the spans", func() bool {
		all = e.spans(trace)
		for _, n := range names {
			if !slices.ContainsFunc(all, func(s tracetest.Span) bool { return s.Name == n }) {
				return false
			}
		}
		return true
	}, wait.State(func() any { return all }))
	return all
}

const (
	callersTrace = "0af7651916cd43dd8448eb211c80319c"
	callersSpan  = "b7ad6b7169203331"
)

func TestOneExecIsOneTreeOfSpans(t *testing.T) {
	e := newTracedEnv(t, "1")
	key := e.key("p", "admin")
	resp, text := e.exec(key, "00-"+callersTrace+"-"+callersSpan+"-01", `{"command": ["/bin/guest", "echo", "hello"]}`)
	if resp.StatusCode != http.StatusOK || !strings.Contains(text, "hello") {
		t.Fatalf("%d, %s", resp.StatusCode, text)
	}
	back := resp.Header.Get("traceparent")
	if !strings.HasPrefix(back, "00-"+callersTrace+"-") || strings.Contains(back, callersSpan) {
		t.Errorf("the answer has the traceparent %q", back)
	}
	all := e.awaitSpans(callersTrace, "HTTP rest", "sandbox.Sandboxes/Exec", "store get", "sandbox exec")
	byID := map[string]tracetest.Span{}
	for _, s := range all {
		byID[s.ID] = s
	}
	for _, s := range all {
		root := s
		for root.Parent != callersSpan {
			above, ok := byID[root.Parent]
			if !ok {
				t.Fatalf("%q hangs in the air below %q", s.Name, root.Parent)
			}
			root = above
		}
		if root.Name != "HTTP rest" {
			t.Errorf("%q is below %q", s.Name, root.Name)
		}
		if s.Name == "sandbox exec" && s.Attributes["runtime.sandbox"] != string(e.sandbox.ID) {
			t.Errorf("exec has the attributes %v", s.Attributes)
		}
	}
	for _, h := range e.got.Headers("X-Collector") {
		if h != "of the test" {
			t.Errorf("the collector got the header %q", h)
		}
	}
}

// TestSpansHaveNothingOfUsers plants a secret wherever a request has room for one.
func TestSpansHaveNothingOfUsers(t *testing.T) {
	e := newTracedEnv(t, "1")
	key := e.key("p", "admin")
	const secret = "hunter2-5f0c"
	for _, body := range []string{
		`{"command": ["/bin/guest", "echo", "` + secret + `"], "env": {"TOKEN": "` + secret + `"}, "stdin": "` + secret + `"}`,
		`{"command": ["/none/` + secret + `"], "workdir": "/` + secret + `"}`,
		`{"command": ["/bin/guest", "echo"], "user": "` + secret + `", "` + secret + `": 1}`,
	} {
		e.exec(key, "", body)
	}
	for _, path := range []string{"/sessions/" + secret, "/sessions/" + string(e.sandbox.ID) + "/files?path=/" + secret, "/" + secret + "?key=" + secret} {
		e.do(http.MethodGet, rest.Prefix+path, key, "")
	}
	e.do(secret, rest.Prefix+"/sessions", key, "")
	e.awaitSpans("", "HTTP rest", "sandbox exec")
	for _, s := range []string{secret, key} {
		if e.got.Contains(s) {
			t.Errorf("%q was sent to the collector", s)
		}
	}
}

func TestSampleOfTraces(t *testing.T) {
	e := newTracedEnv(t, "0")
	key := e.key("p", "admin")
	const body = `{"command": ["/bin/guest", "echo", "hello"]}`
	e.exec(key, "", body)
	e.exec(key, "00-"+strings.Repeat("1", 32)+"-"+callersSpan+"-00", body)
	e.exec(key, "no traceparent", body)
	if all := e.spans(""); len(all) > 0 {
		t.Errorf("with a share of 0 there are %v", all)
	}
	e.exec(key, "00-"+callersTrace+"-"+callersSpan+"-01", body)
	e.awaitSpans(callersTrace, "HTTP rest", "sandbox exec")
}

func TestWithoutEndpointNothingIsTraced(t *testing.T) {
	e := newRestEnv(t)
	if e.c.traces != nil {
		t.Error("there is a tracer")
	}
	if resp, _ := e.do(http.MethodGet, rest.Prefix+"/sessions", "", ""); resp.Header.Get("traceparent") != "" {
		t.Errorf("the answer has a traceparent")
	}
}
