package registry_test

import (
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	ggcr "github.com/google/go-containerregistry/pkg/registry"

	"miren.dev/runtime/components/registry"
	"miren.dev/runtime/pkg/errs"
)

// server is a registry with TLS that asks for a password.
type server struct {
	*httptest.Server
	cfg   registry.Config
	puts  atomic.Int64 // of manifests
	bytes atomic.Int64 // received
}

func start(t *testing.T) *server {
	t.Helper()
	s := &server{}
	handler := ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0)))
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "push" || password != "secret" {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/manifests/") {
			s.puts.Add(1)
		}
		s.bytes.Add(max(0, r.ContentLength))
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	host := strings.TrimPrefix(s.URL, "https://")
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	s.cfg = registry.Config{
		Repository: host + "/team/runtime", CAFile: write(t, "ca.pem", string(ca)),
		CredentialsFile: write(t, "config.json", fmt.Sprintf(`{"auths": {%q: {"auth": "cHVzaDpzZWNyZXQ="}}}`, host)),
	}
	return s
}

func write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func open(t *testing.T, cfg registry.Config) *registry.Registry {
	t.Helper()
	r, err := registry.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func push(t *testing.T, r *registry.Registry, program string) (string, error) {
	t.Helper()
	store, manifest, err := registry.ProgramImage(program, "program")
	if err != nil {
		t.Fatal(err)
	}
	return r.Push(t.Context(), store, manifest)
}

func TestPushesAnImageOnce(t *testing.T) {
	s := start(t)
	program := write(t, "program", "content")
	r := open(t, s.cfg)
	name, err := push(t, r, program)
	if err != nil || !strings.HasPrefix(name, s.cfg.Repository+"@sha256:") {
		t.Fatalf("Push = %q, %v", name, err)
	}
	for _, path := range []string{strings.Split(name, "@")[1], strings.Replace(strings.Split(name, "@")[1], ":", "-", 1)} {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/v2/team/runtime/manifests/"+path, nil)
		req.SetBasicAuth("push", "secret")
		resp, err := s.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("manifest %s: %s", path, resp.Status)
		}
	}
	sent := s.bytes.Load()
	again := open(t, s.cfg) // another process
	for range 2 {
		if second, err := push(t, again, program); err != nil || second != name {
			t.Errorf("Push again = %q, %v, want %q", second, err, name)
		}
	}
	if s.puts.Load() != 1 || s.bytes.Load() != sent {
		t.Errorf("%d manifests, %d bytes were sent again", s.puts.Load(), s.bytes.Load()-sent)
	}
}

// An image that the registry lost is pushed again when it could not be pulled.
func TestPushesAgainAfterForget(t *testing.T) {
	s := start(t)
	program := write(t, "program", "content")
	r := open(t, s.cfg)
	if _, err := push(t, r, program); err != nil {
		t.Fatal(err)
	}
	_, manifest, err := registry.ProgramImage(program, "program")
	if err != nil {
		t.Fatal(err)
	}
	tag := strings.Replace(manifest.Digest.String(), ":", "-", 1)
	for _, name := range []string{tag, manifest.Digest.String()} {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodDelete, s.URL+"/v2/team/runtime/manifests/"+name, nil)
		req.SetBasicAuth("push", "secret")
		resp, err := s.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	if _, err := push(t, r, program); err != nil || s.puts.Load() != 1 {
		t.Fatalf("before Forget: %d manifests, %v", s.puts.Load(), err)
	}
	r.Forget(manifest.Digest)
	if _, err := push(t, r, program); err != nil || s.puts.Load() != 2 {
		t.Errorf("after Forget: %d manifests, %v", s.puts.Load(), err)
	}
}

func TestSaysWhyItCannotPush(t *testing.T) {
	s := start(t)
	program := write(t, "program", "content")
	with := func(change func(*registry.Config)) registry.Config {
		cfg := s.cfg
		change(&cfg)
		return cfg
	}
	host := strings.TrimPrefix(s.URL, "https://")
	for name, c := range map[string]struct {
		cfg   registry.Config
		class errs.Class
		words string
	}{
		"no credentials": {with(func(c *registry.Config) { c.CredentialsFile = "" }), errs.FailedPrecondition, "401"},
		"wrong password": {with(func(c *registry.Config) {
			c.CredentialsFile = write(t, "config.json", fmt.Sprintf(`{"auths": {%q: {"username": "push", "password": "wrong"}}}`, host))
		}), errs.FailedPrecondition, "401"},
		"credentials are no JSON": {with(func(c *registry.Config) { c.CredentialsFile = write(t, "config.json", "user:password") }), errs.FailedPrecondition, "docker login"},
		"no file of credentials":  {with(func(c *registry.Config) { c.CredentialsFile = "/nonexistent" }), errs.FailedPrecondition, "/nonexistent"},
		"other authority":         {with(func(c *registry.Config) { c.CAFile = "" }), errs.Unavailable, "certificate"},
		"no certificate":          {with(func(c *registry.Config) { c.CAFile = program }), errs.FailedPrecondition, "no certificate"},
		"nobody listens":          {with(func(c *registry.Config) { c.Repository = "127.0.0.1:1/x" }), errs.Unavailable, "refused"},
		"plain HTTP":              {with(func(c *registry.Config) { c.PlainHTTP, c.CAFile = true, "" }), errs.Unavailable, "400"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := push(t, open(t, c.cfg), program)
			text := fmt.Sprint(err)
			var e *errs.Error
			if errors.As(err, &e) {
				text += e.Hint
			}
			if !errs.Is(err, c.class) || !strings.Contains(text, c.words) {
				t.Errorf("got %v %s, want class %s and %q", errs.ClassOf(err), text, c.class, c.words)
			}
		})
	}
	if _, err := registry.New(with(func(c *registry.Config) { c.PlainHTTP = true })); !errs.Is(err, errs.InvalidArgument) {
		t.Errorf("New with plain HTTP and an authority: %v", err)
	}
	for _, bad := range []string{"", "runtime", "registry.example.com/Runtime", "registry.example.com/runtime:tag", "https://registry.example.com/runtime"} {
		if _, err := registry.New(registry.Config{Repository: bad}); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("New(%q): %v", bad, err)
		}
	}
}
