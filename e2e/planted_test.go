package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/trace/tracetest"
	"miren.dev/runtime/testsupport/tlstest"
	"miren.dev/runtime/testsupport/wait"
)

// TestPlantedSecrets gives a server secrets in every way it takes them, in requests
// that succeed and in ones that fail, and looks for them in all that it tells: answers,
// errors and lists of each face, entities, history, audit, events, webhooks, traces, and
// the files and logs of the installation.
func TestPlantedSecrets(t *testing.T) {
	const planted = "hunter2-7c1e-planted"
	spans := tracetest.New(t)
	var mu sync.Mutex
	var told strings.Builder // bodies of webhooks
	recv := newWebhookSink(t, func(body string) {
		mu.Lock()
		defer mu.Unlock()
		told.WriteString(body)
	})
	s := own(t, "planted", "--log-level", "debug", "--traces-endpoint", spans.URL, "--webhooks-allow", "127.0.0.0/8")
	in, err := instance.Find(s.state, config.DefaultRunDir())
	if err != nil {
		t.Fatal(err)
	}
	base := fmt.Sprintf("http://127.0.0.1:%d", s.api)
	key := strings.TrimSpace(s.r(t, "", "key", "create", "agent", "--role", "admin"))
	whsec := strings.TrimSpace(s.r(t, "", "webhook", "create", "all", recv))
	t.Setenv("PLANTED", planted)
	s.r(t, "", "secret", "set", "api", "--from-env", "PLANTED", "--hosts", "example.com")
	chain, private := tlstest.New(t).Issue(t, "planted.example.com")
	dir := t.TempDir()
	write(t, filepath.Join(dir, "cert.pem"), chain)
	write(t, filepath.Join(dir, "key.pem"), private)
	s.r(t, dir, "certificate", "set", "planted", "--cert", "cert.pem", "--key", "key.pem")
	inFiles := []string{planted, strings.TrimPrefix(whsec, "whsec_"), strings.TrimPrefix(key, "e2b_")}
	secrets := append(inFiles, strings.Split(private, "\n")[1]) // which the ingress keeps in a file
	hidden := func(what, text string) {
		t.Helper()
		for i, secret := range secrets {
			if strings.Contains(text, secret) {
				t.Errorf("secret %d is in %s: %s", i, what, strings.ReplaceAll(text, secret, "SECRET"))
			}
		}
	}
	request := func(method, path, body string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, base+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-API-Key", key)
		req.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		hidden(method+" "+path, string(b))
		return resp.StatusCode, string(b)
	}

	// What succeeds.
	const rest = "/api/v1"
	status, text := request(http.MethodPost, rest+"/sessions?wait=300", `{"template": "base", "name": "planted", "env_secret": {"TOKEN": "`+planted+`"}}`)
	var box, x struct{ ID string }
	if err := json.Unmarshal([]byte(text), &box); err != nil || status >= 300 {
		t.Fatalf("%d %s", status, text)
	}
	const uses = `"command": ["sh", "-c", "test \"$TOKEN\" = ` + "hunter2-7c1e-plan" + `\"ted\""]`
	if status, text = request(http.MethodPost, rest+"/executions?wait=300", `{"template": "base", "env_secret": {"TOKEN": "`+planted+`"}, `+uses+`}`); status != http.StatusCreated || !strings.Contains(text, `"succeeded"`) {
		t.Errorf("an execution that has the secret: %d %s", status, text)
	}
	if err := json.Unmarshal([]byte(text), &x); err != nil {
		t.Fatal(err)
	}
	if status, text = request(http.MethodPost, rest+"/sessions/"+box.ID+"/commands", `{`+uses+`}`); !strings.Contains(text, `"exit_code":0`) {
		t.Errorf("a session that has the secret: %d %s", status, text)
	}
	secret := `{"template": "none", "env_secret": {"TOKEN": "` + planted + `"}}`
	// What fails, before and after it was decoded.
	for _, path := range []string{"/sessions", "/executions", "/sessions/" + box.ID + "/execute"} {
		for _, body := range []string{secret, secret[:len(secret)-1], `{"env_secret": {"TOKEN": ["` + planted + `"]}}`, `{"env_secret": ["` + planted + `"]}`} {
			if status, text := request(http.MethodPost, rest+path, body); status < 400 || status >= 500 {
				t.Errorf("POST %s of a wrong request: %d %s", path, status, text)
			}
		}
	}
	hidden("an error of r", s.try(t, "", "sandbox", "run", "--template", "none", "--secret", "PLANTED", "--", "true").String())
	hidden("an error of r", s.try(t, "", "execution", "submit", "--template", "none", "--secret", "TOKEN="+planted, "--", "true").String())
	request(http.MethodPost, "/sandboxes", `{"templateID": "none", "envVars": {"TOKEN": "`+planted+`"}}`)
	request(http.MethodPost, "/mcp", `{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "none", "arguments": {"secret": "`+planted+`"}}}`)

	// What is told.
	var doc struct {
		Paths map[string]map[string]any
	}
	_, text = request(http.MethodGet, rest+"/openapi.json", "")
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	lists := 0
	for path, ops := range doc.Paths {
		if ops["get"] == nil || strings.HasSuffix(path, "/stream") {
			continue
		}
		lists++
		id := box.ID
		if strings.HasPrefix(path, "/executions/") {
			id = x.ID
		}
		request(http.MethodGet, rest+strings.NewReplacer("{id}", id, "{name}", "all").Replace(path), "")
	}
	if lists < 20 {
		t.Errorf("only %d operations that read", lists)
	}
	request(http.MethodGet, "/v2/sandboxes", "")
	for _, args := range [][]string{
		{"sandbox", "show", box.ID}, {"sandbox", "list"}, {"execution", "show", x.ID}, {"execution", "list"}, {"execution", "result", x.ID}, {"secret", "list"},
		{"webhook", "list"}, {"webhook", "deliveries", "all"}, {"key", "list"}, {"audit", "list", "--limit", "1000"}, {"event", "list"}, {"server", "status"},
		{"entity", "list", "sandbox"}, {"entity", "list", "execution"}, {"entity", "list", "secret"}, {"entity", "list", "webhook"}, {"entity", "list", "api_key"},
		{"certificate", "list"}, {"certificate", "show", "planted"}, {"entity", "list", "certificate"}, {"entity", "list", "certificate_order"},
		{"debug", "controllers"},
	} {
		res := s.try(t, "", append(args, "--json")...)
		hidden("r "+strings.Join(args, " "), res.String())
		if res.Code != 0 {
			t.Errorf("r %q: %s", args, res)
		}
	}
	s.r(t, "", "sandbox", "delete", box.ID)
	wait.NoError(t, "webhooks and traces", func() error {
		mu.Lock()
		defer mu.Unlock()
		for _, what := range []string{"sandbox.running", "sandbox.ended", "execution.succeeded", x.ID} {
			if !strings.Contains(told.String(), what) {
				return fmt.Errorf("no %s in %s", what, told.String())
			}
		}
		for _, what := range []string{"HTTP rest", "HTTP e2b", "sandbox set up", "execution attempt"} {
			if !spans.Contains(what) {
				return fmt.Errorf("no span %s", what)
			}
		}
		return nil
	}, wait.Within(time.Minute), wait.Every(200*time.Millisecond))
	mu.Lock()
	hidden("a webhook", told.String())
	mu.Unlock()
	for i, secret := range secrets {
		if spans.Contains(secret) {
			t.Errorf("secret %d is in a trace", i)
		}
	}
	for _, secret := range inFiles {
		noFileHas(t, secret, in.State(), in.RunDir)
	}
	noFileHas(t, secrets[len(inFiles)], in.State("logs"), in.State("pg"), in.RunDir)
}

// newWebhookSink receives webhooks, accepts all and hands their bodies on.
func newWebhookSink(t *testing.T, take func(body string)) (url string) {
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if b, err := io.ReadAll(r.Body); err == nil {
			take(fmt.Sprint(r.Header) + string(b))
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}
