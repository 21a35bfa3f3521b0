package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/wait"
)

// testAppPreviewsGuide runs the commands of docs/apppreviews.md: a preview answers at its own host beside the active version,
// sleeps and wakes, is gated, promoted and deleted.
func testAppPreviewsGuide(t *testing.T, g *guide) {
	const app = "previewed"
	g.words["shop"] = app
	text := func(s string) {
		t.Helper()
		g.file("index.html", "<p>"+s+"</p>\n")
	}
	answers := func(host string, status int, body string) {
		t.Helper()
		wait.NoError(t, fmt.Sprintf("%s answers %d %q", host, status, body), func() error {
			code, got, err := g.s.getHost(host, "/")
			if err == nil && (code != status || !strings.Contains(got, body)) {
				err = fmt.Errorf("%d %q", code, got)
			}
			return err
		}, wait.Within(converge))
	}
	text("one")
	g.file("app.toml", "name = \""+app+"\"\n[services.web]\nscale = { min = 1, max = 1, idle = \"1s\" }\n")
	g.run("r deploy ", app+" v1 serves")
	answers(app+".localhost", http.StatusOK, "one")

	stop := g.s.watchApp(app)
	text("two")
	host := "pr-12--" + app + ".localhost"
	g.run("r deploy --preview pr-12", "v2 serves as preview pr-12", fmt.Sprintf("http://%s:%d/", host, g.s.port))
	answers(host, http.StatusOK, "two")
	answers(app+".localhost", http.StatusOK, "one")
	wait.For(t, "the preview sleeps", func() bool {
		var out struct {
			Sandboxes []struct{ Status struct{ Phase string } }
		}
		g.s.json(t, &out, "app", "show", app, "--project", "guide-apppreviews")
		running := 0
		for _, sb := range out.Sandboxes {
			if sb.Status.Phase == "running" {
				running++
			}
		}
		return running == 1 // of the active version
	}, wait.Within(time.Minute))
	answers(host, http.StatusOK, "two")
	g.run("r preview list", "pr-12", app+" v2", host)
	g.run("r app status", "v1 100%, v2 preview pr-12", "pr-12 at "+host)
	g.run("PASSWORD=", "configured "+host+"/")
	answers(host, http.StatusUnauthorized, "")

	text("three")
	other := "pr-13." + app + ".example.com"
	g.run("r deploy --preview pr-13", "v3 serves as preview pr-13", other)
	answers(other, http.StatusOK, "three")
	answers(app+".localhost", http.StatusOK, "one")

	g.run("r app promote --preview pr-12", app+" v4 serves")
	answers(app+".localhost", http.StatusOK, "two")
	if failed, all := stop(); failed > 0 {
		t.Errorf("%d of %d requests to the app failed", failed, all)
	}
	g.run("r preview delete pr-12 pr-13", "deleted pr-12 of "+app, "deleted pr-13 of "+app)
	answers(host, http.StatusNotFound, "")
	answers(other, http.StatusNotFound, "")
	answers(app+".localhost", http.StatusOK, "two")
}
