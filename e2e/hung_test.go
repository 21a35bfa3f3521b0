package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/wait"
)

// hungSandbox holds the parts of a sandbox that the test of hung ones needs.
type hungSandbox struct {
	ID     string `json:"id"`
	Status struct {
		Phase   string     `json:"phase"`
		Ready   bool       `json:"ready"`
		LiveAt  *time.Time `json:"live_at"`
		Reason  string     `json:"reason"`
		Message string     `json:"message"`
	} `json:"status"`
}

// TestHungProcessIsReplaced: a sandbox whose processes are stopped by a signal is replaced within a minute, though its
// kernel still takes connections; also when the server is killed meanwhile. One that stood still for 15 s stays, and
// so does the other one of its pool.
func TestHungProcessIsReplaced(t *testing.T) {
	t.Parallel()
	s := own(t, "hung")
	dir := copyExample(t, "go-http")
	write(t, filepath.Join(dir, ".runtime", "app.toml"), "[services.web]\nreplicas = 2\n")
	s.r(t, dir, "app", "deploy", "--app", "app")
	list := func() (all []hungSandbox) {
		s.json(t, &all, "sandbox", "list", "--app", "app", "--all")
		return all
	}
	find := func(id string) (sb hungSandbox) {
		all := list()
		if i := slices.IndexFunc(all, func(sb hungSandbox) bool { return sb.ID == id }); i >= 0 {
			sb = all[i]
		}
		return sb
	}
	checked := func(id string) {
		t.Helper()
		wait.NoError(t, "its liveness check has passed", func() error {
			if sb := find(id); !sb.Status.Ready || sb.Status.LiveAt == nil {
				return fmt.Errorf("%+v", sb)
			}
			return nil
		}, wait.Within(converge))
	}
	ids := s.sandboxes(t, "app")
	if len(ids) != 2 {
		t.Fatalf("ready: %v", ids)
	}
	checked(ids[0])
	checked(ids[1])
	s.r(t, "", "sandbox", "exec", ids[1], "--", "/bin/sh", "-c", "kill -STOP -1; sleep 15; kill -CONT -1")

	replaced := func(id string, meanwhile func()) {
		t.Helper()
		began := time.Now()
		s.r(t, "", "sandbox", "exec", id, "--", "/bin/sh", "-c", "kill -STOP -1")
		meanwhile()
		wait.NoError(t, "the hung sandbox is replaced", func() error {
			ready, old := s.sandboxes(t, "app"), find(id)
			if len(ready) != 2 || slices.Contains(ready, id) || old.Status.Reason != "hung" {
				return fmt.Errorf("ready %v; the hung one %+v", ready, old)
			}
			return nil
		}, wait.Within(90*time.Second))
		took := time.Since(began)
		t.Logf("replaced after %s", took)
		if took > time.Minute {
			t.Errorf("replaced after %s", took)
		}
		if old := find(id); !strings.Contains(old.Status.Message, "it hangs: 3 liveness checks in a row failed") {
			t.Errorf("the message of its end: %+v", old.Status)
		}
	}
	replaced(ids[0], func() {})
	if now := s.sandboxes(t, "app"); !slices.Contains(now, ids[1]) {
		t.Errorf("the one that was not hung was replaced too: %v", now)
	}
	s.answers(t, "app", "/", "v1")
	replaced(ids[1], func() {
		kill(t, s.pid(t, "server"))
		if err := s.start(); err != nil {
			t.Fatal(err)
		}
	})
	for range 4 {
		s.answers(t, "app", "/", "v1")
	}
}
