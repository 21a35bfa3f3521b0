package trust

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/oidctest"
	"miren.dev/runtime/testsupport/wait"
)

// TestRulesChange: a changed file is in force without a restart, once two reads of it agree;
// a broken one, or none, changes nothing.
func TestRulesChange(t *testing.T) {
	p := oidctest.New(t)
	r := forShop(t, p.URL)
	good, err := os.ReadFile(r.path)
	if err != nil {
		t.Fatal(err)
	}
	token := p.Token(t, audience, time.Minute, map[string]any{"sub": "s", "repository": "acme/shop", "ref": "refs/heads/main"})
	takes := func(want bool) {
		t.Helper()
		if _, err := r.Authenticate(t.Context(), token); (err == nil) != want {
			t.Errorf("%v, want %v", err, want)
		}
	}
	change := func(text string) {
		t.Helper()
		if err := os.WriteFile(r.path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	takes(true)
	asked := r.now.Load().issuers[p.URL]
	other := strings.ReplaceAll(string(good), "acme/shop", "acme/plop")
	change(other)
	if r.poll() {
		t.Error("a file is taken that may be half written")
	}
	takes(true)
	if !r.poll() || r.Err() != nil || r.poll() {
		t.Errorf("the change: %v", r.Err())
	}
	takes(false)
	if r.now.Load().issuers[p.URL] != asked {
		t.Error("the issuer is asked again for its keys")
	}
	for _, broken := range []string{"- issuer: [", strings.ReplaceAll(string(good), "deployer", "captain"), strings.Repeat("#", maxFile+1)} {
		change(broken)
		r.poll()
		r.poll()
		if err := r.Err(); !errs.Is(err, errs.FailedPrecondition) || !strings.Contains(err.Error(), "api.trust_file") {
			t.Errorf("%.20s: %v", broken, err)
		}
		takes(false)
	}
	change(string(good))
	r.poll()
	r.poll()
	takes(true)
	if err := os.Remove(r.path); err != nil {
		t.Fatal(err)
	}
	r.poll()
	if !errs.Is(r.Err(), errs.FailedPrecondition) {
		t.Errorf("without the file: %v", r.Err())
	}
	takes(true)
	change(string(good))
	r.poll()
	r.poll()
	if r.Err() != nil {
		t.Error(r.Err())
	}
	change("")
	r.poll()
	r.poll()
	takes(false)
}

// log is a log that a test reads.
type log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestRunSaysWhatChanged: a broken file is logged once, and the next good one too.
func TestRunSaysWhatChanged(t *testing.T) {
	r := forShop(t, "https://issuer.example.com")
	var l log
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx, slog.New(slog.NewTextHandler(&l, nil))) }()
	good, err := os.ReadFile(r.path)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ text, says string }{{"- issuer: [", "were not changed"}, {string(good) + "\n", "rules=2"}} {
		if err := os.WriteFile(r.path, []byte(x.text), 0o600); err != nil {
			t.Fatal(err)
		}
		wait.For(t, x.says, func() bool { return strings.Contains(l.String(), x.says) })
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := strings.Count(l.String(), "were not changed"); n != 1 {
		t.Errorf("%d lines about the broken file:\n%s", n, l.String())
	}
}
