package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/wait"
)

// ids collects the ids of events that somebody follows.
type ids struct {
	mu  sync.Mutex
	all []string
}

func (i *ids) add(id string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.all = append(i.all, id)
}

func (i *ids) list() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.all)
}

// last returns the last id, "" if there is none.
func (i *ids) last() string {
	if all := i.list(); len(all) > 0 {
		return all[len(all)-1]
	}
	return ""
}

// followByCLI follows the events of a server with r until the test ends.
func followByCLI(t *testing.T, s *server) *ids {
	t.Helper()
	got := &ids{}
	ctx, cancel := context.WithCancel(t.Context())
	cmd := s.command(ctx, "", "event", "list", "--follow", "--json")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var e struct{ ID string }
			if json.Unmarshal(lines.Bytes(), &e) == nil {
				got.add(e.ID)
			}
		}
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		cancel()
		wait.Receive(t, "the end of r event list", done)
	})
	return got
}

// followByREST follows the events with server-sent events, and connects again as a
// browser does, until the test ends.
func followByREST(t *testing.T, url, key string) *ids {
	t.Helper()
	got := &ids{}
	ctx, cancel := context.WithCancel(t.Context())
	once := func() {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/api/v1/events/stream?since=2026-01-01T00:00:00Z", nil)
		if err != nil {
			return
		}
		req.Header.Set("X-API-Key", key)
		if id := got.last(); id != "" {
			req.Header.Set("Last-Event-ID", id)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return
		}
		defer resp.Body.Close()
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			if id, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
				got.add(id)
			}
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			once()
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		wait.Receive(t, "the end of the stream", done)
	})
	return got
}

// TestEvents: what happens is in the history once and in order, and comes once and in
// order to those who follow it, while the server is killed again and again. Deliveries of
// webhooks have the same events. The commands of docs/events.md.
func TestEvents(t *testing.T) {
	t.Parallel()
	s, url := withAPI(t, "events")
	key := strings.TrimSpace(s.r(t, "", "key", "create", "reader", "--role", "viewer"))
	s.r(t, "", "webhook", "create", "all", "http://127.0.0.1:9/refused")
	byCLI, byREST := followByCLI(t, s), followByREST(t, url, key)

	var want []string
	first := s.run(t, "--", "sleep", "600")
	s.r(t, "", "sandbox", "pause", first)
	want = append(want, "sandbox.running "+first, "sandbox.paused "+first)
	for range 3 {
		box := s.run(t, "--", "sleep", "600")
		kill(t, s.pid(t, "server"))
		if err := s.start(); err != nil {
			t.Fatal(err)
		}
		s.healthy(t)
		wait.For(t, "the sandbox that was being made runs", func() bool {
			return strings.Contains(s.r(t, "", "sandbox", "show", box, "--json"), `"phase": "running"`)
		}, wait.Within(time.Minute))
		s.r(t, "", "sandbox", "delete", box)
		want = append(want, "sandbox.running "+box, "sandbox.ended "+box)
	}
	kill(t, s.pid(t, "server"))
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	s.healthy(t)
	x := strings.TrimSpace(s.r(t, "", "execution", "submit", "--template", "base", "--", "true"))
	s.r(t, "", "execution", "wait", x)
	s.r(t, "", "sandbox", "delete", first)
	want = append(want, "execution.running "+x, "execution.succeeded "+x, "sandbox.ended "+first)

	var all []string
	wait.NoError(t, "the history has what happened", func() error {
		var list []struct {
			ID, Type string
			Data     struct{ ID string }
		}
		s.json(t, &list, "event", "list", "--limit", "1000")
		slices.Reverse(list)
		have := map[string]int{}
		all = nil
		for _, e := range list {
			have[e.Type+" "+e.Data.ID]++
			all = append(all, e.ID)
		}
		for _, w := range want {
			if have[w] != 1 {
				return fmt.Errorf("%s is there %d times: %v", w, have[w], have)
			}
		}
		return nil
	}, wait.Within(time.Minute))
	for name, got := range map[string]*ids{"r event list --follow": byCLI, "the stream": byREST} {
		wait.NoError(t, name+" has all of it", func() error {
			if list := got.list(); !slices.Equal(list, all) {
				return fmt.Errorf("%q, want %q", list, all)
			}
			return nil
		}, wait.Within(time.Minute))
	}
	var deliveries []struct {
		Spec struct{ Event string }
	}
	s.json(t, &deliveries, "webhook", "deliveries", "all", "--limit", "1000")
	delivered := map[string]int{}
	for _, d := range deliveries {
		delivered[d.Spec.Event]++
	}
	for _, id := range all {
		if delivered[id] != 1 {
			t.Errorf("event %s is delivered %d times", id, delivered[id])
		}
	}
	if len(deliveries) != len(all) {
		t.Errorf("%d deliveries of %d events", len(deliveries), len(all))
	}

	doc, err := os.ReadFile("../docs/events.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range codeBlocks(string(doc), "sh") {
		cmd := exec.CommandContext(t.Context(), "bash", "-c", "set -euo pipefail\n"+block)
		cmd.Env = append(s.command(t.Context(), "").Env, "PATH="+bin+":"+os.Getenv("PATH"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", block, err, out)
		}
	}
}

// TestKeyBounds: a key has its sandboxes and executions at the same time and no more, by
// each face, also after the server was killed; what ends frees its room.
func TestKeyBounds(t *testing.T) {
	t.Parallel()
	s, url := withAPI(t, "keybounds")
	key := strings.TrimSpace(s.r(t, "", "key", "create", "ci", "--max-sandboxes", "2", "--max-executions", "1"))
	post := func(path, body string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-API-Key", key)
		req.Header.Set("Content-Type", "application/json")
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
	const session, e2b, execution = `{"template": "base"}`, `{"templateID": "base"}`, `{"template": "base", "command": ["sleep", "600"]}`
	made := func(path, body, id string) string {
		t.Helper()
		code, text := post(path, body)
		var answer map[string]any
		if err := json.Unmarshal([]byte(text), &answer); err != nil || code/100 != 2 {
			t.Fatalf("%s: %d, %s, %v", path, code, text, err)
		}
		out, _ := answer[id].(string)
		return out
	}
	refused := func(path, body string) {
		t.Helper()
		if code, text := post(path, body); code != http.StatusTooManyRequests || !strings.Contains(text, "API key ci") {
			t.Errorf("%s: %d, %s", path, code, text)
		}
	}
	shows := func(what, sandboxes, executions string) {
		t.Helper()
		wait.NoError(t, what, func() error {
			if out := s.r(t, "", "key", "show", "ci"); !strings.Contains(out, "sandboxes\t"+sandboxes+" of 2 in use") || !strings.Contains(out, "executions\t"+executions+" of 1 in use") {
				return errors.New(out)
			}
			return nil
		}, wait.Within(time.Minute))
	}
	boxes := []string{made("/api/v1/sessions", session, "id"), made("/sandboxes", e2b, "sandboxID")}
	x := made("/api/v1/executions", execution, "id") // waits for a sandbox
	for range 2 {
		shows("all is used", "2", "1")
		refused("/api/v1/sessions", session)
		refused("/sandboxes", e2b)
		refused("/api/v1/sessions/"+boxes[0]+"/forks", `{}`)
		refused("/api/v1/executions", execution)
		kill(t, s.pid(t, "server"))
		if err := s.start(); err != nil {
			t.Fatal(err)
		}
		s.healthy(t)
	}
	s.r(t, "", "sandbox", "run", "--image", "debian", "--", "true") // without the key
	s.r(t, "", "sandbox", "delete", boxes[0])
	wait.For(t, "the execution runs", func() bool {
		return strings.Contains(s.r(t, "", "execution", "show", x, "--json"), `"phase": "running"`)
	}, wait.Within(time.Minute))
	shows("the sandbox of the execution counts", "2", "1")
	refused("/api/v1/sessions", session)
	s.r(t, "", "execution", "cancel", x)
	shows("what ended is free", "1", "0")
	made("/api/v1/sessions", session, "id")
	refused("/sandboxes", e2b)
}
