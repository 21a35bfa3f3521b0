package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/wait"
)

// examples lists what each example answers at / before and after a change.
var examples = []struct {
	dir, file, old, new string
}{
	{"go-http", "main.go", "v1", "v2"},
	{"node-express", "server.js", "v1", "v2"},
	{"python-flask", "app.py", "v1", "v2"},
	{"static-site", "index.html", "v1", "v2"},
	{"dockerfile-websocket", "main.go", "v1", "v2"},
}

// TestExamples deploys every example, changes a line, deploys again and rolls back.
func TestExamples(t *testing.T) {
	for _, ex := range examples {
		t.Run(ex.dir, func(t *testing.T) {
			t.Parallel()
			name := "ex-" + ex.dir
			dir := copyExample(t, ex.dir)
			shared.r(t, dir, "app", "deploy", "--app", name)
			shared.answers(t, name, "/", ex.old)
			edit(t, filepath.Join(dir, ex.file), ex.old, ex.new)
			shared.r(t, dir, "app", "deploy", "--app", name)
			shared.answers(t, name, "/", ex.new)
			shared.r(t, dir, "app", "rollback", name)
			shared.answers(t, name, "/", ex.old)
			shared.r(t, "", "app", "delete", name, "--yes")
			wait.NoError(t, "the deleted app answers 404", func() error {
				if code, _, err := shared.get(name, "/"); err != nil || code != http.StatusNotFound {
					return fmt.Errorf("answers %d, %v", code, err)
				}
				return nil
			}, wait.Within(converge))
		})
	}
}

// TestDeployImage serves an image without a source, by the command of app.toml.
func TestDeployImage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := "[services.web]\ncommand = \"python3 -m http.server $PORT --directory /etc\"\n"
	if err := os.WriteFile(filepath.Join(dir, "app.toml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	shared.r(t, dir, "deploy", "--image", "python", "--app", "prebuilt")
	shared.answers(t, "prebuilt", "/debian_version", ".")
	shared.r(t, "", "app", "delete", "prebuilt", "--yes")
}

// TestRedeployUnderLoad changes the version while requests run: none may fail.
func TestRedeployUnderLoad(t *testing.T) {
	const want = 20_000
	name, dir := "load", copyExample(t, "go-http")
	shared.r(t, dir, "app", "deploy", "--app", name)
	var done, failed, v1, v2 atomic.Int64
	var first sync.Once
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				code, body, err := shared.get(name, "/")
				switch {
				case err != nil || code != http.StatusOK:
					failed.Add(1)
					first.Do(func() { t.Errorf("first failure: %d %q %v", code, body, err) })
				case strings.Contains(body, "v1"):
					v1.Add(1)
				case strings.Contains(body, "v2"):
					v2.Add(1)
				}
				done.Add(1)
			}
		})
	}
	edit(t, filepath.Join(dir, "main.go"), "v1", "v2")
	shared.r(t, dir, "app", "deploy", "--app", name)
	shared.r(t, dir, "app", "rollback", name)
	shared.r(t, dir, "app", "rollback", name, "--to", "v2")
	wait.NoError(t, fmt.Sprintf("%d requests", want), func() error {
		if n := done.Load(); n < want {
			return fmt.Errorf("%d of %d requests", n, want)
		}
		return nil
	}, wait.Within(10*time.Minute))
	close(stop)
	wg.Wait()
	t.Logf("%d requests, %d failed; %d of version 1, %d of version 2", done.Load(), failed.Load(), v1.Load(), v2.Load())
	if failed.Load() > 0 || v1.Load() == 0 || v2.Load() == 0 {
		t.Errorf("%d of %d requests failed; %d answered by version 1, %d by version 2", failed.Load(), done.Load(), v1.Load(), v2.Load())
	}
	shared.r(t, "", "app", "delete", name, "--yes")
}

// TestCanary gives a new version a part of the requests, takes it away, gives it again and promotes it, while requests run:
// none may fail.
func TestCanary(t *testing.T) {
	t.Parallel()
	name, dir := "canary", copyExample(t, "go-http")
	shared.r(t, dir, "app", "deploy", "--app", name)
	edit(t, filepath.Join(dir, "main.go"), "v1", "v2")
	stop := shared.watchApp(name)
	v2 := func() (n int) {
		for range 1000 {
			code, body, err := shared.get(name, "/")
			if err != nil || code != http.StatusOK {
				t.Fatalf("%d %v", code, err)
			}
			if strings.Contains(body, "v2") {
				n++
			}
		}
		return n
	}
	try := func() {
		t.Helper()
		shared.r(t, dir, "app", "deploy", "--app", name, "--canary", "20")
		if n := v2(); n < 120 || n > 280 {
			t.Errorf("%d of 1000 requests at 20%%", n)
		}
	}
	try()
	contains(t, "app status", shared.r(t, "", "app", "status", name), "v1 80%, v2 20%")
	contains(t, "app list", shared.r(t, "", "app", "list"), "v1 80%, v2 20%")
	shared.r(t, "", "app", "rollback", name)
	if n := v2(); n != 0 {
		t.Errorf("after the rollback %d of 1000 requests", n)
	}
	try()
	shared.r(t, "", "app", "promote", name)
	if n := v2(); n != 1000 {
		t.Errorf("after the promotion %d of 1000 requests", n)
	}
	if failed, all := stop(); failed > 0 {
		t.Errorf("%d of %d requests failed", failed, all)
	}
	shared.r(t, "", "app", "delete", name, "--yes")
}

// TestBrokenDeploysAreExplained breaks an app in every way; the old version
// keeps serving and the error names the reason.
func TestBrokenDeploysAreExplained(t *testing.T) {
	name, dir := "broken", copyExample(t, "go-http")
	shared.r(t, dir, "app", "deploy", "--app", name)
	main := filepath.Join(dir, "main.go")
	good, err := os.ReadFile(main)
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, ".runtime", "app.toml")
	goodConfig, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	// Long enough for an app to fail as intended on a busy machine.
	short := strings.Replace(string(goodConfig), "[services.web]", "[services.web]\nhealth_deadline = \"12s\"", 1)
	for _, c := range []struct {
		name   string
		source string
		config string
		code   int
		want   []string
	}{
		{"bad build", "package main\n\nfunc main() { undefined() }\n", short, 3, []string{"undefined"}},
		{"crash at start", "package main\n\nimport (\n\t\"fmt\"\n\t\"os\"\n)\n\nfunc main() { fmt.Println(\"no database\"); os.Exit(7) }\n", short, 4,
			[]string{"exit code 7", "no database"}},
		// A number in the source would be found, and taken for the port.
		{"wrong port", "package main\n\nimport (\n\t\"fmt\"\n\t\"net/http\"\n)\n\nfunc main() { http.ListenAndServe(fmt.Sprintf(\":%d\", 9990+9), nil) }\n", short, 4,
			[]string{"web: listens on port 9999, but its port is 8080: set port = 9999 under [services.web]"}},
		{"loopback", "package main\n\nimport \"net/http\"\n\nfunc main() { http.ListenAndServe(\"127.0.0.1:8080\", nil) }\n", strings.Replace(short, "12s", "5m", 1), 4,
			[]string{"listens on port 8080 of 127.0.0.1 alone", "hint: listen on 0.0.0.0"}},
		{"never healthy", "package main\n\nimport \"net/http\"\n\nfunc main() {\n\thttp.ListenAndServe(\":8080\", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(503) }))\n}\n",
			short, 4, []string{"not healthy", "503"}},
		{"out of memory", "package main\n\nvar hog [][]byte\n\nfunc main() {\n\tfor {\n\t\tb := make([]byte, 8<<20)\n\t\tfor i := range b {\n\t\t\tb[i] = byte(i)\n\t\t}\n\t\thog = append(hog, b)\n\t}\n}\n",
			strings.Replace(short, "[services.web]", "[services.web]\nmemory = \"128MB\"", 1), 4, []string{"memory"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			write(t, main, c.source)
			write(t, config, c.config)
			res := shared.try(t, dir, "app", "deploy", "--app", name)
			if res.Code != c.code {
				t.Errorf("want exit code %d: %s", c.code, res)
			}
			for _, w := range c.want {
				if !strings.Contains(res.Stdout+res.Stderr, w) {
					t.Errorf("the explanation lacks %q: %s", w, res)
				}
			}
			shared.answers(t, name, "/", "v1")
		})
	}
	write(t, main, string(good))
	write(t, config, string(goodConfig))
	shared.r(t, dir, "app", "deploy", "--app", name)
	shared.r(t, "", "app", "delete", name, "--yes")
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestEnv sets, lists and unsets environment variables; each change is rolled out.
func TestEnv(t *testing.T) {
	t.Parallel()
	name, dir := "env", copyExample(t, "go-http")
	shared.r(t, dir, "app", "deploy", "--app", name)
	shared.r(t, "", "app", "env", "set", "--app", name, "GREETING=good morning")
	shared.r(t, "", "app", "env", "set", "--app", name, "--secret", "TOKEN=hunter2")
	shared.answers(t, name, "/env/GREETING", "good morning")
	shared.answers(t, name, "/env/TOKEN", "hunter2")
	list := shared.r(t, "", "app", "env", "list", "--app", name)
	if !strings.Contains(list, "good morning") || strings.Contains(list, "hunter2") || !strings.Contains(list, "TOKEN") {
		t.Errorf("env list: %s", list)
	}
	if out := shared.r(t, "", "app", "env", "export", name); out != "GREETING=\"good morning\"\n# TOKEN is a secret\n" {
		t.Errorf("env export: %s", out)
	}
	file := filepath.Join(t.TempDir(), ".env")
	write(t, file, "# prices\nGREETING='$5 a day'\n")
	shared.r(t, "", "app", "env", "import", "--app", name, file)
	shared.answers(t, name, "/env/GREETING", "$5 a day")
	if dump := shared.r(t, "", "entity", "list", "app", "--json") + shared.r(t, "", "entity", "list", "sandbox", "--json"); strings.Contains(dump, "hunter2") {
		t.Errorf("a secret shows in the entities")
	}
	shared.r(t, "", "app", "env", "unset", "--app", name, "GREETING")
	code, body, err := shared.get(name, "/env/GREETING")
	if err != nil || code != http.StatusOK || strings.Contains(body, "a day") {
		t.Errorf("after unset: %d %q %v", code, body, err)
	}
	res := shared.try(t, "", "app", "env", "set", "--app", name, "PORT=1")
	if res.Code == 0 || !strings.Contains(res.Stderr, "PORT") {
		t.Errorf("setting PORT: %s", res)
	}
	shared.r(t, "", "app", "delete", name, "--yes")
}

// TestCancel stops a deployment midway; the app keeps serving.
func TestCancel(t *testing.T) {
	t.Parallel()
	name, dir := "cancel", copyExample(t, "go-http")
	shared.r(t, dir, "app", "deploy", "--app", name)
	// A version that never becomes ready leaves time to cancel it.
	write(t, filepath.Join(dir, "main.go"), "package main\n\nfunc main() { select {} }\n")
	shared.r(t, dir, "app", "deploy", "--app", name, "--detach")
	if res := shared.try(t, dir, "app", "deploy", "--app", name); res.Code != 5 {
		t.Errorf("a second deployment must find the lease held: %s", res)
	}
	shared.r(t, "", "app", "cancel", name)
	wait.NoError(t, "the deployment is canceled", func() error {
		out := shared.r(t, "", "app", "history", name)
		if !strings.Contains(out, "canceled") {
			return fmt.Errorf("history:\n%s", out)
		}
		return nil
	})
	shared.answers(t, name, "/", "v1")
	shared.r(t, "", "app", "delete", name, "--yes")
}

// TestBake has a version that ends when it has the traffic: the one before serves
// again by itself, and the deployment fails with exit code 4.
func TestBake(t *testing.T) {
	t.Parallel()
	s := own(t, "bake", "--deploy-bake", "20s")
	name, dir := "bake", t.TempDir()
	source := func(version string) {
		write(t, filepath.Join(dir, "app.py"), `import http.server, os, threading
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/end":
            threading.Timer(0.1, os._exit, [7]).start()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"`+version+`")
http.server.ThreadingHTTPServer(("", int(os.environ["PORT"])), H).serve_forever()
`)
		write(t, filepath.Join(dir, "requirements.txt"), "")
		write(t, filepath.Join(dir, "Procfile"), "web: python app.py\n")
	}
	serves := func(version string) {
		t.Helper()
		wait.NoError(t, version+" serves", func() error {
			code, body, err := s.get(name, "/")
			if err == nil && (code != http.StatusOK || body != version) {
				err = fmt.Errorf("%d %q", code, body)
			}
			return err
		}, wait.Within(10*time.Minute)) // a build
	}
	source("one")
	s.r(t, dir, "app", "deploy", "--app", name)
	serves("one")
	source("two")
	ended := make(chan result, 1)
	go func() { ended <- s.try(t, dir, "app", "deploy", "--app", name) }()
	serves("two")
	if code, _, err := s.get(name, "/end"); err != nil || code != http.StatusOK {
		t.Fatalf("the process is told to end: %d, %v", code, err)
	}
	if res := wait.Receive(t, "the end of the deployment", ended); res.Code != 4 || !strings.Contains(res.Stdout+res.Stderr, "the version before serves again") {
		t.Errorf("deploy: %s", res)
	}
	serves("one")
}
