package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/testsupport/attachtest"
	"miren.dev/runtime/testsupport/wait"
)

// post sends a body to an app.
func (s *server) post(t *testing.T, app, body string) {
	t.Helper()
	if err := s.tryPost(t.Context(), app, body); err != nil {
		t.Fatal(err)
	}
}

// tryPost sends a body to an app, and returns why the app did not take it.
func (s *server) tryPost(ctx context.Context, app, body string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("http://127.0.0.1:%d/", s.port), strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Host = app + ".localhost"
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if answer, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("POST to %s: %d %s %w", app, resp.StatusCode, answer, err)
	}
	return nil
}

// TestAppKeepsItsDisk deploys an app that writes to its disk. The data are there
// after a new version, a version that fails, a restart, a rollback, the loss of its
// block device, the stop of a sandbox and the deletion of the app. Requests that come
// between two versions are answered.
func TestAppKeepsItsDisk(t *testing.T) {
	t.Parallel()
	const name, disk = "notes", "go-notes-data"
	s, dir := own(t, "appdisk"), copyExample(t, "go-notes")
	main := filepath.Join(dir, "main.go")
	edit(t, filepath.Join(dir, ".runtime", "app.toml"), "path = ", "snapshots = { cron = \"@daily\", keep = 5 }\npath = ")
	s.r(t, dir, "app", "deploy", "--app", name)
	s.post(t, name, "first")
	s.answers(t, name, "/", "v1\nfirst")
	if out := s.r(t, "", "disk", "show", disk); !strings.Contains(out, `at "@daily" UTC, the newest 5 are kept`) {
		t.Errorf("the snapshots that app.toml declares: %s", out)
	}

	stop := s.watchApp(name)
	edit(t, main, `"v1"`, `"v2"`)
	s.r(t, dir, "app", "deploy", "--app", name)
	s.answers(t, name, "/", "v2\nfirst")
	s.post(t, name, "second")

	edit(t, main, "mux := http.NewServeMux()", "mux := http.NewServeMux()\n\tif version != \"\" {\n\t\tpanic(\"broken\")\n\t}")
	if res := s.try(t, dir, "app", "deploy", "--app", name); res.Code == 0 {
		t.Fatalf("a version that crashes: %s", res)
	}
	s.answers(t, name, "/", "v2\nfirst\nsecond")

	s.r(t, "", "app", "restart", name)
	s.answers(t, name, "/", "v2\nfirst\nsecond")
	s.r(t, "", "app", "rollback", name, "--to", "v1")
	s.answers(t, name, "/", "v1\nfirst\nsecond")
	if failed, all := stop(); failed > 0 || all == 0 {
		t.Errorf("%d of %d requests failed", failed, all)
	}

	in, err := instance.Find(s.state, config.DefaultRunDir())
	if err != nil {
		t.Fatal(err)
	}
	attachtest.EndDevices(t, in)
	wait.NoError(t, "an app that lost its block device writes again", func() error { return s.tryPost(t.Context(), name, "third") }, wait.Within(2*time.Minute))
	s.answers(t, name, "/", "v1\nfirst\nsecond\nthird")

	var sandboxes []struct{ ID string }
	if s.json(t, &sandboxes, "sandbox", "list", "--app", name); len(sandboxes) != 1 {
		t.Fatalf("%d sandboxes", len(sandboxes))
	}
	s.r(t, "", "sandbox", "stop", sandboxes[0].ID)
	s.answers(t, name, "/", "v1\nfirst\nsecond\nthird")

	if out := s.r(t, "", "disk", "list"); !strings.Contains(out, disk) || !strings.Contains(out, name) {
		t.Errorf("disk list: %s", out)
	}
	if res := s.try(t, "", "disk", "delete", disk, "--yes"); res.Code == 0 || !strings.Contains(res.Stderr, "used by app "+name) {
		t.Errorf("deletion of a disk that an app uses: %s", res)
	}
	if out := s.r(t, "", "app", "delete", name, "--yes"); !strings.Contains(out, "disk "+disk+" stays") {
		t.Errorf("app delete: %s", out)
	}
	s.r(t, dir, "app", "deploy", "--app", "again", "--dir", copyExample(t, "go-notes"))
	s.answers(t, "again", "/", "v1\nfirst\nsecond\nthird")
	s.r(t, "", "app", "delete", "again", "--yes")
	s.r(t, "", "disk", "delete", disk, "--yes")
}
