package mock_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"os"
	"reflect"
	"testing"
	"time"

	driver "miren.dev/runtime/components/mock"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/servers/mock"
	"miren.dev/runtime/servers/rest"
)

// env is a mock server.
type env struct {
	*testing.T
	s *mock.Server
}

// start starts a server, which ends with the test.
func start(t *testing.T, answers string, change ...func(*mock.Config)) *env {
	t.Helper()
	a, err := driver.ParseAnswers([]byte(answers))
	if err != nil {
		t.Fatal(err)
	}
	cfg := mock.Config{Address: "127.0.0.1:0", Answers: a, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}
	for _, f := range change {
		f(&cfg)
	}
	s, err := mock.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- s.Run(ctx, func() error { close(ready); return nil }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-ready:
	case <-time.After(time.Minute):
		t.Fatal("the server is not ready")
	}
	return &env{t, s}
}

// do makes a request and decodes the answer into v, unless that is nil.
func (e *env) do(method, path string, body any, v any) *http.Response {
	e.Helper()
	return e.ask(method, path, body, e.header(), v)
}

// ask is do with a header.
func (e *env) ask(method, path string, body any, h http.Header, v any) *http.Response {
	e.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		e.Fatal(err)
	}
	req, err := http.NewRequestWithContext(e.Context(), method, e.s.URL()+path, bytes.NewReader(b))
	if err != nil {
		e.Fatal(err)
	}
	req.Header = h
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		e.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		e.Fatal(err)
	}
	if resp.Header.Get(mock.Header) != "true" {
		e.Errorf("%s %s: the answer does not say that the server is a mock: %v", method, path, resp.Header)
	}
	if v == nil {
		return resp
	}
	if err := json.Unmarshal(text, v); err != nil || resp.StatusCode/100 != 2 {
		e.Fatalf("%s %s: %d, %v: %s", method, path, resp.StatusCode, err, text)
	}
	return resp
}

type session struct{ ID, State string }

type result struct {
	Stdout, Stderr string
	ExitCode       *int `json:"exit_code"`
}

// problem makes a request that is refused.
func (e *env) problem(method, path string, body any, header http.Header) (*http.Response, rest.Problem) {
	e.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		e.Fatal(err)
	}
	req, err := http.NewRequestWithContext(e.Context(), method, e.s.URL()+path, bytes.NewReader(b))
	if err != nil {
		e.Fatal(err)
	}
	req.Header = header
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		e.Fatal(err)
	}
	defer resp.Body.Close()
	var p rest.Problem
	if err := json.NewDecoder(resp.Body).Decode(&p); err != nil || resp.Header.Get("Content-Type") != "application/problem+json" || resp.Header.Get(mock.Header) != "true" {
		e.Errorf("%s %s: %d, %v, %v", method, path, resp.StatusCode, err, resp.Header)
	}
	return resp, p
}

// header has the key of the server and what is added.
func (e *env) header(more ...string) http.Header {
	h := http.Header{"X-Api-Key": {e.s.Key()}, "Content-Type": {"application/json"}}
	for i := 0; i < len(more); i += 2 {
		h.Set(more[i], more[i+1])
	}
	return h
}

// TestSession: commands, code and files of a session are answered as stated.
func TestSession(t *testing.T) {
	e := start(t, `answers:
- {command: "^echo (.*)$", stdout: "{1}\n"}
- {code: "6 \\* 7", stdout: "42\n"}
- {command: "^false$", stderr: "no\n", exit_code: 3}
- {command: "^make$", files: {out.txt: made}}
- {command: "^cat$", stdout: "{input}"}
- {command: "^away$", error: {class: unavailable, message: gone}}
- {command: "^none$", error: {exit_code: 127}}
`)
	var s session
	began := time.Now()
	e.do("POST", rest.Prefix+"/sessions?wait=10", map[string]any{"template": "python"}, &s)
	t.Logf("a session after %s", time.Since(began))
	path := rest.Prefix + "/sessions/" + s.ID
	if s.State != "running" {
		t.Fatalf("%+v", s)
	}
	for _, c := range []struct {
		command        []string
		stdout, stderr string
		code           int
	}{
		{[]string{"sh", "-c", "echo hello"}, "hello\n", "", 0},
		{[]string{"false"}, "", "no\n", 3},
		{[]string{"make"}, "", "", 0},
		{[]string{"true"}, driver.Said, "", 0},
	} {
		var r result
		e.do("POST", path+"/commands", map[string]any{"command": c.command}, &r)
		if r.ExitCode == nil || *r.ExitCode != c.code || r.Stdout != c.stdout || r.Stderr != c.stderr {
			t.Errorf("%v: %+v", c.command, r)
		}
	}
	var files struct{ Files []struct{ Name string } }
	e.do("GET", path+"/files", nil, &files)
	if len(files.Files) != 1 || files.Files[0].Name != "out.txt" {
		t.Errorf("files %+v", files)
	}
	if resp, p := e.problem("POST", path+"/commands", map[string]any{"command": []string{"away"}}, e.header()); resp.StatusCode != http.StatusServiceUnavailable || p.Detail == "" {
		t.Errorf("%d, %+v", resp.StatusCode, p)
	}
	var x struct{ ID, Outcome string }
	e.do("POST", path+"/execute?wait=10", map[string]any{"language": "python", "code": "print(6 * 7)"}, &x)
	var r result
	if e.do("GET", rest.Prefix+"/executions/"+x.ID+"/result", nil, &r); x.Outcome != "succeeded" || r.Stdout != "42\n" {
		t.Errorf("%+v, %+v", x, r)
	}
	e.do("DELETE", path, nil, nil)
	if resp, p := e.problem("GET", rest.Prefix+"/sessions/sb-none", nil, e.header()); resp.StatusCode != http.StatusNotFound || p.Class != "not_found" {
		t.Errorf("%d, %+v", resp.StatusCode, p)
	}
}

// TestItIsTheRealAPI: the document is the one that the SDKs are made of, and
// requests are refused as the real server does.
func TestItIsTheRealAPI(t *testing.T) {
	e := start(t, "", func(c *mock.Config) { c.Rate, c.Burst = 1, 6 })
	var got, want any
	e.do("GET", rest.Prefix+"/openapi.json", nil, &got)
	text, err := os.ReadFile("../../sdk/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	for _, doc := range []any{got, want} { // the version is stamped into programs, not into tests
		delete(doc.(map[string]any)["info"].(map[string]any), "version")
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the OpenAPI document is not that of the real server")
	}
	var about mock.About
	if e.do("GET", "/mock", nil, &about); !about.Mock || about.Message != mock.Message || about.Version == "" {
		t.Errorf("%+v", about)
	}
	if resp, _ := e.problem("GET", rest.Prefix+"/sessions", nil, http.Header{}); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a key: %d", resp.StatusCode)
	}
	if resp, p := e.problem("POST", rest.Prefix+"/sessions", map[string]any{"template": 1}, e.header()); resp.StatusCode != http.StatusUnprocessableEntity || len(p.Errors) == 0 {
		t.Errorf("a body that is not valid: %d, %+v", resp.StatusCode, p)
	}
	again := e.header("Idempotency-Key", "order-17")
	ids := map[string]bool{}
	for range 2 {
		var s session
		e.ask("POST", rest.Prefix+"/sessions", map[string]any{"template": "python"}, again, &s)
		ids[s.ID] = true
	}
	if len(ids) != 1 {
		t.Errorf("a request with an idempotency key made %v", ids)
	}
	if resp, p := e.problem("POST", rest.Prefix+"/sessions", map[string]any{"template": "base"}, again); resp.StatusCode != http.StatusConflict {
		t.Errorf("the key with another body: %d, %+v", resp.StatusCode, p)
	}
	for range 10 {
		if resp := e.do("GET", rest.Prefix+"/sessions", nil, nil); resp.StatusCode == http.StatusTooManyRequests {
			if resp.Header.Get("Retry-After") == "" {
				t.Error("no Retry-After")
			}
			return
		}
	}
	t.Error("there is no rate limit")
}

// TestSeed: ids and the key follow from the seed.
func TestSeed(t *testing.T) {
	seen := map[string]bool{}
	for range 2 {
		t.Run("server", func(t *testing.T) {
			e := start(t, "", func(c *mock.Config) { c.Seed = 7 })
			for range 3 {
				var s session
				e.do("POST", rest.Prefix+"/sessions", map[string]any{"template": "python"}, &s)
				seen[s.ID] = true
			}
			seen[e.s.Key()] = true
		})
	}
	if len(seen) != 4 {
		t.Errorf("two servers with one seed made %v", seen)
	}
}

// TestNothingIsLeft: the directory of a server is removed at its end, and when it
// cannot start.
func TestNothingIsLeft(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	t.Run("server", func(t *testing.T) {
		e := start(t, "")
		if all, err := os.ReadDir(dir); err != nil || len(all) != 1 {
			t.Errorf("%v, %v", all, err)
		}
		cfg := mock.Config{Address: e.s.URL()[len("http://"):], Answers: &driver.Answers{}, Logger: slog.New(slog.DiscardHandler)}
		if _, err := mock.New(t.Context(), cfg); !errs.Is(err, errs.FailedPrecondition) {
			t.Errorf("an address that is taken: %v", err)
		}
	})
	if all, err := os.ReadDir(dir); err != nil || len(all) > 0 {
		t.Errorf("left: %v, %v", all, err)
	}
}
