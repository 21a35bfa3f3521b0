package e2e

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/wait"
)

// receiver is a receiver of webhooks. It accepts every second request for an event,
// and the others once it is patient.
type receiver struct {
	*httptest.Server
	mu       sync.Mutex
	secret   string
	patient  bool
	seen     map[string]int    // requests by event
	accepted map[string]string // type and entity by event
	problems []string
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{seen: map[string]int{}, accepted: map[string]string{}}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	id, at := req.Header.Get("webhook-id"), req.Header.Get("webhook-timestamp")
	r.mu.Lock()
	defer r.mu.Unlock()
	key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(r.secret, "whsec_"))
	h := hmac.New(sha256.New, key)
	fmt.Fprintf(h, "%s.%s.%s", id, at, body)
	if r.secret != "" && !slices.Contains(strings.Fields(req.Header.Get("webhook-signature")), "v1,"+base64.StdEncoding.EncodeToString(h.Sum(nil))) {
		r.problems = append(r.problems, "a wrong signature of "+string(body))
	}
	var event struct {
		Type string
		Data struct{ ID string }
	}
	if err := json.Unmarshal(body, &event); err != nil || strings.Contains(string(body), "hunter2") {
		r.problems = append(r.problems, string(body))
	}
	if r.seen[id]++; r.seen[id]%2 == 1 && !r.patient {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	r.accepted[id] = event.Type + " " + event.Data.ID
}

// has waits until the receiver accepted an event of an entity.
func (r *receiver) has(t *testing.T, eventType, id string) {
	t.Helper()
	wait.NoError(t, eventType+" of "+id, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, a := range r.accepted {
			if a == eventType+" "+id {
				return nil
			}
		}
		return fmt.Errorf("accepted %v", r.accepted)
	}, wait.Within(90*time.Second))
}

// TestWebhooks: what sandboxes do reaches a receiver that fails half of the time, also
// when the server is killed; the commands of docs/webhooks.md; receivers on this machine
// are refused unless they are allowed.
func TestWebhooks(t *testing.T) {
	t.Parallel()
	recv := newReceiver(t)
	s := own(t, "webhooks", "--webhooks-allow", "127.0.0.0/8")
	secret := strings.TrimSpace(s.r(t, "", "webhook", "create", "all", recv.URL))
	recv.mu.Lock()
	recv.secret = secret
	recv.mu.Unlock()

	first := s.run(t, "--env", "TOKEN=hunter2", "--", "sleep", "600")
	recv.has(t, "sandbox.running", first)
	s.r(t, "", "sandbox", "pause", first)
	recv.has(t, "sandbox.paused", first)
	s.r(t, "", "sandbox", "stop", first)
	second := s.run(t, "--", "sleep", "600")
	kill(t, s.pid(t, "server"))
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	s.healthy(t)
	wait.For(t, "the sandbox that was being made runs", func() bool {
		return strings.Contains(s.r(t, "", "sandbox", "show", second, "--json"), `"phase": "running"`)
	}, wait.Within(time.Minute))
	s.r(t, "", "sandbox", "delete", second)
	x := strings.TrimSpace(s.r(t, "", "execution", "submit", "--template", "base", "--", "true"))
	s.r(t, "", "execution", "wait", x)
	recv.has(t, "sandbox.ended", first)
	recv.has(t, "sandbox.running", second)
	recv.has(t, "sandbox.ended", second)
	recv.has(t, "execution.succeeded", x)
	var list []struct {
		Spec struct{ Event string }
	}
	s.json(t, &list, "webhook", "deliveries", "all", "--limit", "1000")
	events := map[string]int{}
	for _, d := range list {
		if events[d.Spec.Event]++; events[d.Spec.Event] > 1 {
			t.Errorf("two deliveries of %s", d.Spec.Event)
		}
	}
	s.r(t, "", "webhook", "delete", "all")
	recv.mu.Lock()
	recv.patient, recv.secret = true, ""
	for _, p := range recv.problems {
		t.Error(p)
	}
	recv.mu.Unlock()

	doc, err := os.ReadFile("../docs/webhooks.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := codeBlocks(string(doc), "sh")
	if len(blocks) != 2 {
		t.Fatalf("%d examples", len(blocks))
	}
	run := func(script string, env ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "bash", "-c", "set -euo pipefail\n"+script)
		cmd.Env = append(append(s.command(t.Context(), "").Env, "PATH="+bin+":"+os.Getenv("PATH"), "RECEIVER="+recv.URL), env...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out)
		}
	}
	run(blocks[0])
	var test string
	wait.NoError(t, "the test is delivered", func() error {
		var list []struct {
			ID     string
			Spec   struct{ Type string }
			Status struct{ Phase string }
		}
		s.json(t, &list, "webhook", "deliveries", "ci")
		for _, d := range list { // the sandbox of the execution above may end as late as now
			if d.Spec.Type == "webhook.test" && d.Status.Phase != "pending" {
				test = d.ID
				return nil
			}
		}
		return fmt.Errorf("%+v", list)
	}, wait.Within(time.Minute))
	run(blocks[1], "DELIVERY="+test)
	wait.NoError(t, "the replay", func() error {
		recv.mu.Lock()
		defer recv.mu.Unlock()
		for id, a := range recv.accepted {
			if strings.HasPrefix(a, "webhook.test") && recv.seen[id] >= 2 {
				return nil
			}
		}
		return errors.New("not yet")
	}, wait.Within(time.Minute))

	// The server that all tests share allows nothing.
	shared.r(t, "", "webhook", "create", "refused", strings.Replace(recv.URL, "127.0.0.1", "localhost", 1))
	defer shared.r(t, "", "webhook", "delete", "refused")
	shared.r(t, "", "webhook", "test", "refused")
	wait.NoError(t, "the refusal", func() error {
		if out := shared.r(t, "", "webhook", "deliveries", "refused"); !strings.Contains(out, "may not reach") {
			return errors.New(out)
		}
		return nil
	}, wait.Within(time.Minute))
}
