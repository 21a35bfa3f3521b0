package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"miren.dev/runtime/testsupport/wait"
)

// placedOn deploys an app of one sandbox that answers with its host name, and returns the sandbox.
// Only the runner gets it, or only the server.
func (e *edge) placedOn(app string, runner bool, more string) string {
	t, s := e.t, e.of
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "app.toml"), more+"[services.web]\nport = 8080\nhealth_path = \"/healthz\"\ncommand = '''perl -e '"+hostServer+"' '''\n")
	s.r(t, dir, "deploy", "--image", "debian", "--app", app)
	ready := s.sandboxes(t, app)
	var all []servingSandbox
	s.json(t, &all, "sandbox", "list", "--app", app)
	for _, sb := range all {
		if len(ready) == 1 && sb.ID == ready[0] && sb.Spec.Runner == runner {
			return sb.ID
		}
	}
	t.Fatalf("%s: ready %v of %+v, want one with runner %v", app, ready, all, runner)
	return ""
}

// bash runs a script in a sandbox, and returns what it prints, with its errors.
func (e *edge) bash(sandbox, script string) string {
	e.t.Helper()
	res := e.of.try(e.t, "", "sandbox", "exec", sandbox, "--", "timeout", "20", "bash", "-c", script)
	return res.Stdout + res.Stderr
}

// fetch is a script that asks a host at port 8080.
func webRequest(host string) string {
	return fmt.Sprintf(`exec 3<>/dev/tcp/%s/8080 && printf "GET /quick HTTP/1.0\r\n\r\n" >&3 && cat <&3`, host)
}

// setInCache is a script that writes and reads a value of a Valkey with the variable of its addon.
const setInCache = `u=${REDIS_URL#redis://}; c=${u%%@*}; h=${u#*@}; h=${h%%/*}
exec 3<>/dev/tcp/${h%:*}/${h#*:} && printf "AUTH %s %s\r\nSET k from-the-edge\r\nGET k\r\nQUIT\r\n" "${c%%:*}" "${c#*:}" >&3 && cat <&3`

// joinsNetwork has an app on the runner, one on the server and an addon reach each other by their names,
// and not the one that permits nobody: also after the runner and the server were killed.
func (e *edge) joinsNetwork(node string) {
	t, s := e.t, e.of
	t.Helper()
	for _, app := range []string{"front", "back", "shut"} {
		s.r(t, "", "app", "create", app)
	}
	s.r(t, "", "addon", "create", "valkey", "cache")
	s.r(t, "", "addon", "attach", "cache", "--app", "front")
	s.r(t, "", "runner", "allow", "edge-1", "front")
	back := e.placedOn("back", false, "")
	shut := e.placedOn("shut", false, "[network]\nallow_from = []\n\n")
	s.r(t, "", "node", "cordon", node)
	front := e.placedOn("front", true, "")
	s.r(t, "", "node", "uncordon", node)

	reach := func() {
		t.Helper()
		for _, c := range []struct{ what, from, script, want string }{
			{"the runner's sandbox reaches one on the server", front, webRequest("back.internal"), "200 OK"},
			{"by the name of the service", front, webRequest("web.back.internal"), "200 OK"},
			{"it reaches its addon", front, setInCache, "from-the-edge"},
			{"a sandbox on the server reaches that on the runner", back, webRequest("front.internal"), "200 OK"},
		} {
			wait.NoError(t, c.what, func() error {
				if got := e.bash(c.from, c.script); !strings.Contains(got, c.want) {
					return fmt.Errorf("%q", got)
				}
				return nil
			}, wait.Within(2*time.Minute))
		}
		for _, c := range []struct{ what, from string }{{"the runner's sandbox", front}, {"a sandbox on the server", back}} {
			if got := e.bash(c.from, webRequest("shut.internal")); strings.Contains(got, "200 OK") {
				t.Errorf("%s reaches an app that permits nobody: %q", c.what, got)
			}
		}
		if got := e.bash(front, "getent hosts shut.internal || echo unknown"); !strings.Contains(got, "unknown") {
			t.Errorf("a name of an app that permits no app of the runner: %q", got)
		}
		if got := e.bash(shut, webRequest("front.internal")); !strings.Contains(got, "200 OK") {
			t.Errorf("what permits nobody may connect itself: %q", got)
		}
	}
	reach()
	e.end(syscall.SIGKILL)
	if got := e.bash(back, webRequest("front.internal")); strings.Contains(got, "200 OK") {
		t.Errorf("without its process the runner answers: %q", got)
	}
	e.start()
	reach()
	kill(t, s.pid(t, "server"))
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	reach()
	if now := s.sandboxes(t, "front"); !slices.Equal(now, []string{front}) {
		t.Errorf("sandboxes of front: %v, it was %s", now, front)
	}
	for _, app := range []string{"front", "back", "shut"} {
		s.r(t, "", "app", "delete", app, "--yes")
	}
	s.r(t, "", "addon", "delete", "cache", "--yes")
}
