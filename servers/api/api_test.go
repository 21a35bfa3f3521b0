package api

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/testsupport/badrequest"
)

// env is a Server over a real RPC server; every key but "bad" is that of an
// identity with its name.
type env struct {
	*Server
	url   string
	ready error
	stop  context.CancelFunc
	done  chan error
}

func newEnv(t *testing.T, mount func(*Server)) *env {
	t.Helper()
	srv, err := rpc.NewServer(rpc.ServerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	e := &env{done: make(chan error, 1)}
	e.Server = New(Config{
		Authenticate: func(_ context.Context, key string) (rpc.Identity, error) {
			if key == "bad" {
				return rpc.Identity{}, errs.New(errs.Unauthenticated, "it is not known")
			}
			return rpc.Identity{Name: key, Roles: []string{"agent@shop"}, How: rpc.HowKey, Key: key}, nil
		},
		Local: srv.Local, Ready: func() error { return e.ready }, Logger: slog.New(slog.DiscardHandler),
	})
	if mount != nil {
		mount(e.Server)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e.url = "http://" + l.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	e.stop = cancel
	go func() { e.done <- e.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-e.done; err != nil {
			t.Error(err)
		}
		srv.Close()
	})
	return e
}

func (e *env) get(t *testing.T, path string, header ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, e.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestMalformedRequestIsAnswered(t *testing.T) {
	badrequest.Answered(t, strings.TrimPrefix(newEnv(t, nil).url, "http://"))
}

// TestHealthAndReadiness: the server is healthy while it serves, and ready when
// it can do its work.
func TestHealthAndReadiness(t *testing.T) {
	e := newEnv(t, nil)
	for _, c := range []struct {
		path   string
		err    error
		status int
	}{{"/healthz", errs.New(errs.Unavailable, "no store"), 200}, {"/readyz", errs.New(errs.Unavailable, "no store"), 503}, {"/readyz", nil, 200}, {"/", nil, 404}} {
		e.ready = c.err
		if status, _ := e.get(t, c.path); status != c.status {
			t.Errorf("%s with %v: %d", c.path, c.err, status)
		}
	}
}

// TestRequestsReachTheirFace: by path, or by a property that comes before it.
func TestRequestsReachTheirFace(t *testing.T) {
	say := func(s string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { plain(w, 200, s) })
	}
	e := newEnv(t, func(s *Server) {
		s.Handle("control", "GET /sandboxes", say("control plane"))
		s.Intercept("sandbox", func(r *http.Request) bool { return r.Header.Get("E2b-Sandbox-Id") != "" }, say("sandbox"))
	})
	if _, got := e.get(t, "/sandboxes"); got != "control plane" {
		t.Error(got)
	}
	if _, got := e.get(t, "/healthz", "E2b-Sandbox-Id", "sb-1"); got != "sandbox" {
		t.Error(got)
	}
}

// TestCallersWithAKeyShareAClient: it stays for the next request, and is closed
// when others need its place.
func TestCallersWithAKeyShareAClient(t *testing.T) {
	e := newEnv(t, nil)
	a, err := e.Authenticate(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	again, err := e.Authenticate(t.Context(), "a")
	if err != nil || again.Client != a.Client || a.Project() != "shop" {
		t.Error(err, a.Project())
	}
	again.Release()
	var held []*Caller
	for i := 1; i < maxClients; i++ {
		c, err := e.Authenticate(t.Context(), string(rune('b'+i)))
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
	}
	if _, err := e.Authenticate(t.Context(), "one more"); !errs.Is(err, errs.ResourceExhausted) {
		t.Errorf("one more than the limit: %v", err)
	}
	held[0].Release()
	c, err := e.Authenticate(t.Context(), "one more")
	if err != nil {
		t.Fatal(err)
	}
	if err := held[0].Client.Call(t.Context(), &rpc.MethodInfo{Full: "x.Y/Z"}, &rpc.None{}, &rpc.None{}); !errs.Is(err, errs.Canceled) {
		t.Errorf("the client whose place another has: %v", err)
	}
	for _, h := range append(held[1:], a, c) {
		h.Release()
	}
	for key, want := range map[string]errs.Class{"": errs.Unauthenticated, "bad": errs.Unauthenticated} {
		if _, err := e.Authenticate(t.Context(), key); !errs.Is(err, want) {
			t.Errorf("%q: %v", key, err)
		}
	}
}

// TestKeyOfARequest: two headers, and no other scheme.
func TestKeyOfARequest(t *testing.T) {
	for _, c := range []struct{ name, value, want string }{
		{"X-API-Key", "k", "k"}, {"Authorization", "Bearer k", "k"}, {"Authorization", "bearer  k ", "k"},
		{"Authorization", "Basic k", ""}, {"Authorization", "k", ""}, {"X-Other", "k", ""},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(c.name, c.value)
		if got := Key(r); got != c.want {
			t.Errorf("%s: %s: %q", c.name, c.value, got)
		}
	}
}

// TestRequestsUnderWayEndAtTheStop: one that is quick is answered, one that waits
// for ever is cancelled.
func TestRequestsUnderWayEndAtTheStop(t *testing.T) {
	entered, release, cancelled := make(chan struct{}, 2), make(chan struct{}), make(chan struct{})
	e := newEnv(t, func(s *Server) {
		s.Handle("test", "/quick", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			entered <- struct{}{}
			<-release
			plain(w, 200, "done")
		}))
		s.Handle("test", "/endless", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			entered <- struct{}{}
			<-r.Context().Done()
			close(cancelled)
		}))
	})
	answer := make(chan string, 1)
	go func() {
		_, text := e.get(t, "/quick")
		answer <- text
	}()
	go func() {
		resp, err := http.Get(e.url + "/endless")
		if err == nil {
			resp.Body.Close()
		}
	}()
	<-entered
	<-entered
	e.stop()
	close(release)
	if got := <-answer; got != "done" {
		t.Error(got)
	}
	select {
	case <-cancelled:
	case <-time.After(time.Minute):
		t.Error("the request goes on")
	}
}
