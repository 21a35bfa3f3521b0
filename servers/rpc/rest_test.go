package rpcserver_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/servers/api"
	"miren.dev/runtime/servers/rest"
	"miren.dev/runtime/testsupport/wait"
)

// restEnv is the REST API over the handlers of this package and the simulated
// machine.
type restEnv struct {
	*env
	url string
}

func newRESTEnv(t *testing.T) *restEnv {
	t.Helper()
	e := newEnv(t)
	s := api.New(api.Config{
		Authenticate: func(_ context.Context, key string) (rpc.Identity, error) {
			return rpc.Identity{Name: key, Roles: []string{rpc.RoleAdmin, "agent@default"}, How: rpc.HowKey, Key: key}, nil
		},
		Local: e.rpc.Local, Ready: func() error { return nil }, Logger: slog.New(slog.DiscardHandler),
	})
	rest.Mount(s)
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	return &restEnv{e, srv.URL + rest.Prefix}
}

// call makes a request, whose answer must have the status, and decodes the
// answer into out.
func (e *restEnv) call(method, path, body string, status int, out any) {
	e.Helper()
	e.callWith(nil, method, path, body, status, out)
}

// callWith is call with more headers.
func (e *restEnv) callWith(header http.Header, method, path, body string, status int, out any) {
	e.Helper()
	req, err := http.NewRequestWithContext(e.ctx(), method, e.url+path, strings.NewReader(body))
	e.must(err)
	req.Header.Set("X-API-Key", "key")
	req.Header.Set("Content-Type", "application/json")
	maps.Copy(req.Header, header)
	resp, err := http.DefaultClient.Do(req)
	e.must(err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	e.must(err)
	if resp.StatusCode != status {
		e.Fatalf("%s %s: %d, %s", method, path, resp.StatusCode, text)
	}
	if out != nil {
		if err := json.Unmarshal(text, out); err != nil {
			e.Fatalf("%s %s: %v: %s", method, path, err, text)
		}
	}
}

// TestRESTLogs: the log of a container comes in pages, or its end alone.
func TestRESTLogs(t *testing.T) {
	e := newRESTEnv(t)
	sb := e.run("lines", "6")
	e.until(sb, sandbox.WaitUntilEnded)
	get := func(query string) rest.LogPage {
		t.Helper()
		var p rest.LogPage
		e.call(http.MethodGet, "/containers/"+string(sb.ID)+"/logs"+query, "", http.StatusOK, &p)
		return p
	}
	first := get("?limit=4")
	if len(first.Lines) != 4 || !first.More || first.Lines[0].Text != "line 0" || first.Lines[0].Stream != "stdout" || first.Lines[1].Stream != "stderr" {
		t.Errorf("%+v", first)
	}
	if p := get(fmt.Sprintf("?after=%d", first.Next)); len(p.Lines) != 2 || p.More || p.Lines[0].Text != "line 4" {
		t.Errorf("%+v", p)
	} else if p = get(fmt.Sprintf("?after=%d", p.Next)); len(p.Lines) != 0 || p.Next == 0 {
		t.Errorf("after the end: %+v", p)
	}
	if p := get("?tail=1"); len(p.Lines) != 1 || p.Lines[0].Text != "line 5" {
		t.Errorf("%+v", p)
	}
}

// TestRESTIdle: a session that gets an idle time is paused after it, and goes on
// when it is resumed without one.
func TestRESTIdle(t *testing.T) {
	e := newRESTEnv(t)
	sb := e.run("sleep")
	var s rest.Session
	path := "/sessions/" + string(sb.ID)
	e.call(http.MethodPut, path+"/idle", `{"idle_timeout_seconds": 1, "on_idle": "pause"}`, http.StatusOK, &s)
	if s.IdleTimeoutSeconds == nil || *s.IdleTimeoutSeconds != 1 || s.OnIdle != "pause" {
		t.Errorf("%+v", s)
	}
	e.until(sb, sandbox.WaitUntilPaused)
	e.call(http.MethodPut, path+"/idle", `{}`, http.StatusOK, &s)
	s = rest.Session{}
	e.call(http.MethodPost, path+"/resume", "", http.StatusOK, &s)
	if s.IdleTimeoutSeconds != nil || s.State != "running" {
		t.Errorf("%+v", s)
	}
}

// TestRESTSnapshotsAndForks: sessions go on from a snapshot, and from a session.
func TestRESTSnapshotsAndForks(t *testing.T) {
	e := newRESTEnv(t)
	sb := e.run("sleep")
	var snap rest.Snapshot
	e.call(http.MethodPost, "/sessions/"+string(sb.ID)+"/snapshots", `{"name": "before", "labels": {"step": "1"}}`, http.StatusCreated, &snap)
	if snap.Name != "before" || snap.State != "ready" || snap.Session != string(sb.ID) || snap.Bytes == 0 || snap.Labels["step"] != "1" {
		t.Errorf("%+v", snap)
	}
	e.call(http.MethodPost, "/sessions/"+string(sb.ID)+"/snapshots", `{"name": "before"}`, http.StatusConflict, nil)
	for path, count := range map[string]int{"/snapshots/" + snap.ID: 2, "/sessions/" + string(sb.ID): 1} {
		placed := e.placeForks(count)
		var forks rest.ForkResult
		e.call(http.MethodPost, path+"/forks", fmt.Sprintf(`{"count": %d, "labels": {"fork": "1"}, "ttl_seconds": 60}`, count), http.StatusCreated, &forks)
		<-placed
		if len(forks.Sessions) != count {
			t.Fatalf("%s: %+v", path, forks)
		}
		for _, s := range forks.Sessions {
			if s.State != "running" || s.ID == string(sb.ID) || s.Labels["fork"] != "1" || s.ExpiresAt == nil {
				t.Errorf("%s: %+v", path, s)
			}
		}
	}
	e.call(http.MethodDelete, "/snapshots/"+snap.ID, "", http.StatusNoContent, nil)
	e.call(http.MethodPost, "/snapshots/"+snap.ID+"/forks", `{}`, http.StatusNotFound, nil)

	var stored rest.Snapshot
	e.call(http.MethodPost, "/sessions/"+string(sb.ID)+"/snapshots", `{"store": "/copies"}`, http.StatusCreated, &stored)
	if stored.Store != "/copies" || stored.CopyBytes == 0 || len(e.copied()) == 0 {
		t.Errorf("%+v, the store has %v", stored, e.copied())
	}
}

// TestRESTVolumesOfSessions: the volumes of a session are those that RPC gets.
func TestRESTVolumesOfSessions(t *testing.T) {
	e := newRESTEnv(t)
	e.call(http.MethodPost, "/sessions", `{"image": "image", "volumes": [{"volume": "data", "path": "/data"}]}`, http.StatusNotFound, nil)
	e.call(http.MethodPost, "/sessions", `{"image": "image", "volumes": [{"volume": "data", "path": "/a/../b"}]}`, http.StatusBadRequest, nil)
}

// TestRESTPorts: a request to a port of a session reaches its process without
// the caller's key, WebSockets too.
func TestRESTPorts(t *testing.T) {
	e := newRESTEnv(t)
	sb := e.run("serve", "8082")
	path := "/sessions/" + string(sb.ID) + "/ports"
	wait.For(t, "it listens", func() bool {
		var p rest.Ports
		e.call(http.MethodGet, path, "", http.StatusOK, &p)
		return slices.Equal(p.Ports, []int64{8082})
	})
	send := func(method, path string, header ...string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(e.ctx(), method, e.url+path, strings.NewReader("body"))
		e.must(err)
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := http.DefaultClient.Do(req)
		e.must(err)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		e.must(err)
		return resp.StatusCode, string(b)
	}
	for _, header := range [][]string{{"X-API-Key", "key"}, {"Authorization", "Bearer key"}, {"X-API-Key", "key", "Authorization", "Basic own"}} {
		status, text := send(http.MethodPut, path+"/8082/request?a=1%202", header...)
		if status != http.StatusOK || !strings.HasPrefix(text, "PUT /request?a=1%202 HTTP/1.1") || !strings.HasSuffix(text, "body") ||
			strings.Contains(text, "key") || strings.Contains(text, "Basic own") != (len(header) == 4) || !strings.Contains(text, "X-Forwarded-Prefix: "+rest.Prefix+path+"/8082") {
			t.Errorf("%v: %d, %s", header, status, text)
		}
	}
	for p, want := range map[string]string{"": "hello /", "/": "hello /", "/a%2Fb/c": "hello /a/b/c"} {
		if status, text := send(http.MethodGet, path+"/8082"+p, "X-API-Key", "key"); status != http.StatusOK || text != want+"\n" {
			t.Errorf("%q: %d, %s", p, status, text)
		}
	}
	if status, text := send(http.MethodGet, path+"/8083/", "X-API-Key", "key"); status != http.StatusConflict || !strings.Contains(text, "nothing listens") {
		t.Errorf("a port on which nothing listens: %d, %s", status, text)
	}
	for _, p := range []string{"/0/", "/x/", "/65536/"} {
		if status, text := send(http.MethodGet, path+p, "X-API-Key", "key"); status != http.StatusBadRequest {
			t.Errorf("%s: %d, %s", p, status, text)
		}
	}
	ws, _, err := websocket.Dial(e.ctx(), "ws"+strings.TrimPrefix(e.url, "http")+path+"/8082/socket", &websocket.DialOptions{HTTPHeader: http.Header{"X-Api-Key": {"key"}}})
	e.must(err)
	defer ws.CloseNow()
	for i := range 20 {
		msg := strings.Repeat("x", 1+i*500)
		e.must(ws.Write(e.ctx(), websocket.MessageText, []byte(msg)))
		if _, b, err := ws.Read(e.ctx()); err != nil || string(b) != msg {
			t.Fatalf("%d: %q, %v", i, b, err)
		}
	}
	e.must(ws.Close(websocket.StatusNormalClosure, ""))
}

// TestRESTIdempotency: a repeated request with the same key gets the session of
// the first one, also at the same time; another body is refused.
func TestRESTIdempotency(t *testing.T) {
	e := newRESTEnv(t)
	header := func(key string) http.Header { return http.Header{"Idempotency-Key": {key}} }
	const body = `{"image": "image", "labels": {"team": "data"}}`
	post := func(key, body string) string {
		t.Helper()
		var s rest.Session
		e.callWith(header(key), http.MethodPost, "/sessions?wait=0", body, http.StatusCreated, &s)
		if len(s.Labels) != 1 {
			t.Errorf("the labels of the key are shown: %v", s.Labels)
		}
		return s.ID
	}
	ids := make([]string, 8)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() { ids[i] = post("order-17", body) })
	}
	wg.Wait()
	if slices.Sort(ids); ids[0] == "" || ids[0] != ids[len(ids)-1] {
		t.Fatalf("several sessions: %v", ids)
	}
	// Spaces and the order of fields are no difference.
	if again := post("order-17", `{"labels": {"team":"data"},   "image": "image"}`); again != ids[0] {
		t.Errorf("%s, want %s", again, ids[0])
	}
	var p rest.Problem
	e.callWith(header("order-17"), http.MethodPost, "/sessions?wait=0", `{"image": "other", "labels": {"team": "data"}}`, http.StatusConflict, &p)
	if p.Class != "conflict" || !strings.Contains(p.Detail, "Idempotency-Key") || p.Hint == "" {
		t.Errorf("%+v", p)
	}
	if other := post("order-18", body); other == ids[0] {
		t.Error("another key got the same session")
	}
	named := post("order-19", `{"image": "image", "name": "shop", "labels": {"team": "data"}}`)
	if again := post("order-19", `{"image": "image", "name": "shop", "labels": {"team": "data"}}`); again != named {
		t.Errorf("%s, want %s", again, named)
	}
	e.callWith(header("order-20"), http.MethodPost, "/sessions?wait=0", `{"image": "image", "name": "shop"}`, http.StatusConflict, &p)
	if p.Class != "already_exists" {
		t.Errorf("a name of another request: %+v", p)
	}
	var page rest.SessionPage
	if e.call(http.MethodGet, "/sessions", "", http.StatusOK, &page); len(page.Sessions) != 3 {
		t.Errorf("%d sessions", len(page.Sessions))
	}
	// Also when no other session may exist: a client that lost the answer holds that room itself.
	e.limit(core.QuotaResourceSandboxes, 3)
	if again := post("order-17", body); again != ids[0] {
		t.Errorf("%s, want %s", again, ids[0])
	}
	e.callWith(header("order-21"), http.MethodPost, "/sessions?wait=0", body, http.StatusTooManyRequests, &p)
	if p.Class != "resource_exhausted" {
		t.Errorf("one session too much: %+v", p)
	}
}

// TestRESTWait: a session is returned when it runs, unless the request says how
// long it waits.
func TestRESTWait(t *testing.T) {
	e := newRESTEnv(t)
	var s rest.Session
	if e.call(http.MethodPost, "/sessions?wait=0", `{"image": "image"}`, http.StatusCreated, &s); s.State != "creating" {
		t.Errorf("with wait=0: %s", s.State)
	}
	placed := make(chan struct{})
	go func() { // the scheduler's part
		defer close(placed)
		wait.For(t, "both are placed", func() bool {
			list, _, err := entity.List[sandbox.Sandbox](e.ctx(), e.store.Store, entity.Query{})
			for _, sb := range list {
				if sb.Spec.Node == "" {
					sb.Spec.Node = e.node
					err = cmp.Or(err, entity.UpdateSpec(e.ctx(), e.store.Store, sb))
				}
			}
			return err == nil && len(list) == 2
		})
	}()
	if e.call(http.MethodPost, "/sessions", `{"image": "image"}`, http.StatusCreated, &s); s.State != "running" {
		t.Errorf("without wait: %s", s.State)
	}
	<-placed
}

// TestRESTEgressAndStats: the network policy of a running session is changed, and
// its use is read.
func TestRESTEgressAndStats(t *testing.T) {
	e := newRESTEnv(t)
	sb := e.run("sleep")
	path := "/sessions/" + string(sb.ID) + "/egress"
	e.call(http.MethodPut, path, `{"mode": "list", "allow": ["example.com"]}`, http.StatusOK, nil)
	now, err := entity.Get[sandbox.Sandbox](e.ctx(), e.store.Store, sb.ID)
	e.must(err)
	if p := now.Spec.Template.Egress; p == nil || p.Mode != sandbox.EgressModeList || !slices.Equal(p.Allow, []string{"example.com"}) {
		t.Errorf("%+v", p)
	}
	e.call(http.MethodPut, path, `{"mode": "list", "allow": ["not a domain"]}`, http.StatusBadRequest, nil)
	var l rest.EgressLog
	if e.call(http.MethodGet, path, "", http.StatusOK, &l); l.Records == nil {
		t.Error("no list of records")
	}
	var s rest.Stats
	if e.call(http.MethodGet, "/containers/"+string(sb.ID)+"/stats", "", http.StatusOK, &s); s.At.IsZero() || s.Processes == 0 {
		t.Errorf("%+v", s)
	}
	e.call(http.MethodGet, "/containers/"+string(e.sandbox("sleep").ID)+"/stats", "", http.StatusConflict, nil)
}
