package e2e

import (
	"bufio"
	"fmt"
	"net"
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

// scaledApp is an app that TestScale adds to the example: an answer that takes its time, and an echo on an upgraded
// connection.
const scaledApp = `	r.Get("/slow", func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(200 * time.Millisecond):
			fmt.Fprintln(w, "slow")
		case <-r.Context().Done():
		}
	})
	r.Get("/echo", func(w http.ResponseWriter, _ *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		for rw.Flush() == nil {
			line, err := rw.ReadString('\n')
			if err != nil {
				return
			}
			fmt.Fprint(rw, line)
		}
	})
	r.Get("/healthz"`

// scaledService is a line of `r app scale --json`.
type scaledService struct {
	Wanted, Ready int64
	Min, Max      *int64
}

func (s *server) scaleOf(t *testing.T, app string) scaledService {
	t.Helper()
	var out struct{ Services []scaledService }
	s.json(t, &out, "app", "scale", "--app", app)
	return out.Services[0]
}

// sandboxesBecome waits until an app wants and has a number of sandboxes.
func (s *server) sandboxesBecome(t *testing.T, app string, n int64) {
	t.Helper()
	wait.NoError(t, fmt.Sprintf("%d sandboxes", n), func() error {
		if sc := s.scaleOf(t, app); sc.Wanted != n || sc.Ready != n {
			return fmt.Errorf("%d wanted, %d ready", sc.Wanted, sc.Ready)
		}
		return nil
	}, wait.Within(2*time.Minute))
}

// TestScale: an app sleeps without requests and a request wakes it; a new version is rolled out while it sleeps; under
// constant load it gets more sandboxes and then fewer, and no request fails; a connection in use keeps it awake.
func TestScale(t *testing.T) {
	t.Parallel()
	name, dir := "scaled", copyExample(t, "go-http")
	edit(t, filepath.Join(dir, "main.go"), "	r.Get(\"/healthz\"", scaledApp)
	config := filepath.Join(dir, ".runtime", "app.toml")
	b, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	b = append(b, "concurrency = 3\nscale = { min = 0, max = 3, idle = \"2s\" }\n"...)
	if err := os.WriteFile(config, b, 0o644); err != nil {
		t.Fatal(err)
	}
	shared.r(t, dir, "app", "deploy", "--app", name)
	shared.answers(t, name, "/", "v1")
	contains(t, "app scale", shared.r(t, "", "app", "scale", "--app", name), "0..3")

	shared.sandboxesBecome(t, name, 0)
	began := time.Now()
	shared.answers(t, name, "/", "v1")
	t.Logf("woken after %s", time.Since(began).Round(time.Millisecond))

	steady := shared.watchApp(name)
	stop := shared.load(name, 8)
	shared.sandboxesBecome(t, name, 3)
	failed, all := stop()
	stop = shared.load(name, 1)
	shared.sandboxesBecome(t, name, 1)
	more, rest := stop()
	t.Logf("%d requests while it grew, %d while it shrank", all, rest)
	if failed+more > 0 || all == 0 || rest == 0 {
		t.Errorf("%d of %d requests failed", failed+more, all+rest)
	}
	if failed, all := steady(); failed > 0 {
		t.Errorf("%d of %d requests of a constant load failed", failed, all)
	}

	echo := shared.openEcho(t, name)
	echo(t)
	// Another app with the same idle time falls asleep meanwhile.
	other := name + "-other"
	shared.r(t, dir, "app", "deploy", "--app", other)
	shared.sandboxesBecome(t, other, 0)
	shared.r(t, "", "app", "delete", other, "--yes")
	echo(t)
	if sc := shared.scaleOf(t, name); sc.Ready != 1 {
		t.Errorf("with a connection in use: %d ready", sc.Ready)
	}
	echo(nil)
	shared.sandboxesBecome(t, name, 0)

	edit(t, filepath.Join(dir, "main.go"), "v1", "v2")
	shared.r(t, dir, "app", "deploy", "--app", name)
	shared.answers(t, name, "/", "v2")

	g := newGuide(t, shared, "scale")
	g.words["--app shop"] = "--app " + name
	g.run("r app scale --app shop", "0..3")
	g.run("r app scale web=3", "fixed")
	shared.sandboxesBecome(t, name, 3)
	g.run("r app scale web=0..5", "0..5")
	shared.sandboxesBecome(t, name, 0)
	g.run("r app scale web=default", "0..3")
	if res := shared.try(t, "", "app", "scale", "--app", name, "web=3..2"); res.Code == 0 || !strings.Contains(res.Stderr, "not below the least") {
		t.Errorf("bounds that contradict each other: %s", res)
	}
	shared.r(t, "", "app", "delete", name, "--yes")
}

// TestWakeOutlivesTheServer: with the server dead, a request for an app that sleeps is held, and answered with the reason
// when its time is over; one that is held while the server comes back wakes the app.
func TestWakeOutlivesTheServer(t *testing.T) {
	t.Parallel()
	s := own(t, "wake", "--ingress-hold-timeout", "15s")
	name, dir := "sleeper", copyExample(t, "static-site")
	write(t, filepath.Join(dir, ".runtime", "app.toml"), "name = \"sleeper\"\n[services.web]\nscale = { min = 0, max = 1, idle = \"1s\" }\n")
	s.r(t, dir, "app", "deploy", "--app", name)
	s.sandboxesBecome(t, name, 0)
	kill(t, s.pid(t, "server"))
	code, body, err := s.get(name, "/")
	if err != nil || code != http.StatusServiceUnavailable || !strings.Contains(body, "wakes apps that sleep, does not answer") {
		t.Errorf("with the server dead: %d %s %v", code, body, err)
	}
	type answer struct {
		code int
		err  error
	}
	held := make(chan answer, 1)
	go func() {
		code, _, err := s.get(name, "/")
		held <- answer{code, err}
	}()
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	if a := <-held; a.err != nil || a.code != http.StatusOK {
		t.Errorf("held while the server came back: %d %v", a.code, a.err)
	}
}

// TestSuspend: an app that sleeps with suspend goes on where it was, also after its server was killed. Without its saved
// memory it starts anew. A new version ends the paused sandbox. No request fails.
func TestSuspend(t *testing.T) {
	t.Parallel()
	s := own(t, "suspend")
	name, dir := "suspended", copyExample(t, "go-http")
	main := filepath.Join(dir, "main.go")
	edit(t, main, "	r.Get(\"/healthz\"", `	visits := 0
	r.Get("/visits", func(w http.ResponseWriter, _ *http.Request) {
		visits++
		fmt.Fprintln(w, visits)
	})
	r.Get("/healthz"`)
	config := filepath.Join(dir, ".runtime", "app.toml")
	b, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	write(t, config, string(b)+"scale = { min = 0, max = 2, idle = \"1s\", suspend = true }\n")
	s.r(t, dir, "app", "deploy", "--app", name)
	paused := func() string {
		t.Helper()
		var list []struct {
			ID     string
			Status struct{ Phase string }
		}
		id := ""
		wait.NoError(t, "one sandbox, which is paused", func() error {
			s.json(t, &list, "sandbox", "list", "--app", name)
			n := 0
			for _, sb := range list {
				switch sb.Status.Phase {
				case "stopped", "failed":
				case "paused":
					id = sb.ID
					n++
				default:
					return fmt.Errorf("%s is %s", sb.ID, sb.Status.Phase)
				}
			}
			if n != 1 {
				return fmt.Errorf("%d are paused", n)
			}
			return nil
		}, wait.Within(2*time.Minute))
		return id
	}
	visit := func(want string) {
		t.Helper()
		began := time.Now()
		if code, body, err := s.get(name, "/visits"); err != nil || code != http.StatusOK || body != want+"\n" {
			t.Errorf("visit: %d %q %v, want %s", code, body, err, want)
		}
		t.Logf("answered after %s", time.Since(began).Round(time.Millisecond))
	}
	visit("1")
	first := paused()
	visit("2")
	if again := paused(); again != first {
		t.Errorf("%s sleeps, not %s", again, first)
	}
	kill(t, s.pid(t, "server"))
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	visit("3")
	paused()
	edit(t, main, "v1", "v2")
	s.r(t, dir, "app", "deploy", "--app", name)
	s.answers(t, name, "/", "v2")
	visit("1")
	second := paused()
	if second == first {
		t.Errorf("%s of the last version sleeps", first)
	}
	saved, err := filepath.Glob(filepath.Join(s.state, "snapshots", second+"-p*"))
	if err != nil || len(saved) != 1 {
		t.Fatalf("saved %v, %v", saved, err)
	}
	if err := os.RemoveAll(saved[0]); err != nil {
		t.Fatal(err)
	}
	visit("1")
	if third := paused(); third == second {
		t.Errorf("%s sleeps, of which nothing was saved", second)
	}
}

// load sends slow requests to an app, so many at a time, until stop is called.
func (s *server) load(app string, parallel int) (stop func() (failed, all int64)) {
	var failed, all atomic.Int64
	var wg sync.WaitGroup
	end := make(chan struct{})
	for range parallel {
		wg.Go(func() {
			for {
				select {
				case <-end:
					return
				default:
				}
				code, body, err := s.get(app, "/slow")
				if all.Add(1); err != nil || code != http.StatusOK || body != "slow\n" {
					failed.Add(1)
				}
			}
		})
	}
	return func() (int64, int64) {
		close(end)
		wg.Wait()
		return failed.Load(), all.Load()
	}
}

// openEcho upgrades a connection to an app. echo sends a line and fails the test unless it comes back; without a test it
// ends the connection.
func (s *server) openEcho(t *testing.T, app string) (echo func(t *testing.T)) {
	t.Helper()
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", s.port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	fmt.Fprintf(c, "GET /echo HTTP/1.1\r\nHost: %s.localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", app)
	br := bufio.NewReader(c)
	resp, err := http.ReadResponse(br, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("upgrade: %v %v", resp, err)
	}
	return func(t *testing.T) {
		if t == nil {
			c.Close()
			return
		}
		t.Helper()
		_ = c.SetDeadline(time.Now().Add(30 * time.Second))
		fmt.Fprintln(c, "hello")
		if line, err := br.ReadString('\n'); err != nil || line != "hello\n" {
			t.Fatalf("echo: %q %v", line, err)
		}
	}
}
