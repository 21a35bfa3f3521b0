package e2e

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/tlstest"
	"miren.dev/runtime/testsupport/wait"
)

var (
	loadTime = flag.Duration("load.time", 0, "how long TestConstantLoad lasts at least; 0: each event takes place once")
	loadDead = flag.Duration("load.dead", 5*time.Second, "how long no process of the control plane runs")
	loadOnly = flag.String("load.events", "", "events of TestConstantLoad, separated by commas; empty: all")
)

// What TestConstantLoad does in short and, with -load.time, in long.
const (
	shortSettle = 2 * time.Second // after an event
	longSettle  = 10 * time.Second
	longLoad    = 100_000 // requests
	loadDrain   = 10 * time.Second
)

// The services of the app, and the host of the one that speaks gRPC.
const (
	loadApp  = "load"
	sleeper  = "sleeper" // an app that sleeps
	grpcHost = ".grpc.example.com"
)

// drainNode is the event that stops sandboxes at once, as r node drain says.
const drainNode = "drain-node"

// loadEvents are what happens to the server and the app under load.
var loadEvents = []struct {
	name string
	do   func(*constantLoad)
}{
	{"deploy", (*constantLoad).deploy},
	{"canary", (*constantLoad).canary},
	{"rollback", func(l *constantLoad) { l.r(l.t, "", "app", "rollback", loadApp) }},
	{"restart-app", func(l *constantLoad) { l.r(l.t, "", "app", "restart", loadApp) }},
	{"scale", (*constantLoad).scale},
	{"wake", (*constantLoad).wake},
	{drainNode, (*constantLoad).drainNode},
	{"route", (*constantLoad).route},
	{"env", func(l *constantLoad) {
		l.r(l.t, "", "app", "env", "set", "--app", loadApp, "AT="+time.Now().Format(time.RFC3339Nano))
	}},
	{"ingress-config", (*constantLoad).configure},
	{"restart-server", func(l *constantLoad) { l.restart(syscall.SIGTERM) }},
	{"kill-server", func(l *constantLoad) { l.restart(syscall.SIGKILL) }},
	{"upgrade", (*constantLoad).upgrade},
	{"kill-containerd", func(l *constantLoad) { kill(l.t, l.server.pid(l.t, "containerd")); l.healthy(l.t) }},
	{"kill-postgres", func(l *constantLoad) { kill(l.t, l.server.pid(l.t, "postgres")); l.healthy(l.t) }},
	{"dead", (*constantLoad).dead},
	{"restart-postgres", func(l *constantLoad) { signal(l.t, l.server.pid(l.t, "postgres"), syscall.SIGINT); l.healthy(l.t) }},
}

// constantLoad is an app under load.
type constantLoad struct {
	*server
	*loadRecord
	t     *testing.T
	ca    *tlstest.Authority
	https string // address of the ingress
	dir   string // source of the app
	round int    // events so far
}

// TestConstantLoad: clients of HTTP/1.1, HTTP/2, WebSockets, event streams and gRPC use an
// app, and nothing that happens to the app, the control plane or the ingress's
// configuration fails one of their requests. A stream that its app ends in an orderly way
// is no failure if the client is served again at once and no message is missing.
func TestConstantLoad(t *testing.T) {
	names := eventsOfLoad(t)
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	l := &constantLoad{t: t, loadRecord: &loadRecord{}, ca: tlstest.New(t), https: fmt.Sprintf("127.0.0.1:%d", port), dir: t.TempDir()}
	l.server = own(t, "constant-load", "--ingress-https-address", l.https, "--ingress-drain-timeout", loadDrain.String())
	l.enter("no event")
	l.prepare()

	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	defer clients.Wait()
	defer cancel()
	l.startClients(ctx, &clients)
	l.settles(shortSettle)
	began := time.Now()
	for {
		for _, e := range loadEvents {
			if !slices.Contains(names, e.name) {
				continue
			}
			l.round++
			l.enter(e.name)
			e.do(l)
			l.settles(shortSettle)
			if *loadTime > 0 {
				l.settles(longSettle)
			}
		}
		if over := time.Since(began) >= *loadTime; over && (*loadTime == 0 || *loadOnly != "" || l.requests() >= longLoad) || l.failed() > 100 {
			break
		}
	}
	cancel()
	clients.Wait()
	t.Logf("%d requests in %s\n%s", l.requests(), time.Since(began).Round(time.Second), l.table())
	for i, f := range l.failures {
		if i == 20 {
			break
		}
		t.Error(f)
	}
	if n := l.failed(); n > 0 {
		t.Errorf("%d of %d requests failed", n, l.requests())
	}
	for _, p := range protocols {
		if l.of(p) == 0 {
			t.Errorf("no request by %s", p)
		}
	}
}

// eventsOfLoad returns the names of the events that take place.
func eventsOfLoad(t *testing.T) (names []string) {
	t.Helper()
	for _, e := range loadEvents {
		names = append(names, e.name)
	}
	if *loadOnly != "" {
		some := strings.Split(*loadOnly, ",")
		for _, n := range some {
			if !slices.Contains(names, n) {
				t.Fatalf("-load.events has %q; there are %s", n, strings.Join(names, ", "))
			}
		}
		return some
	}
	return names
}

// copyLoadApp writes the source of the app into a directory: its program, built, and the
// file by which the image is made.
func copyLoadApp(t *testing.T, dir string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	if err := os.CopyFS(dir, os.DirFS("testdata/load")); err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(dir, "load"), "./testdata/load")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the app: %v: %s", err, out)
	}
	if err := os.Remove(filepath.Join(dir, "main.go")); err != nil { // the image has the program alone
		t.Fatal(err)
	}
}

// prepare deploys the apps and gives them hosts with a certificate.
func (l *constantLoad) prepare() {
	t := l.t
	copyLoadApp(t, l.dir)
	certs := t.TempDir()
	chain, key := l.ca.Issue(t, "*.example.com", "*.grpc.example.com")
	write(t, filepath.Join(certs, "cert.pem"), chain)
	write(t, filepath.Join(certs, "key.pem"), key)
	l.r(t, certs, "certificate", "set", "load", "--cert", "cert.pem", "--key", "key.pem")
	l.r(t, l.dir, "app", "deploy", "--app", loadApp)
	asleep := filepath.Join(t.TempDir(), "app")
	if err := os.CopyFS(asleep, os.DirFS(l.dir)); err != nil {
		t.Fatal(err)
	}
	for _, service := range []string{"web", "grpc"} {
		scale := "scale = { min = 0, max = 1, idle = \"1s\" }"
		edit(t, filepath.Join(asleep, ".runtime", "app.toml"), "[services."+service+"]", "[services."+service+"]\n"+scale)
	}
	l.r(t, asleep, "app", "deploy", "--app", sleeper)
	for _, app := range []string{loadApp, sleeper} {
		l.r(t, "", "route", "set", app+".example.com", "--app", app)
		l.r(t, "", "route", "set", app+grpcHost, "--app", app, "--service", "grpc")
	}
	c := l.newClients(loadApp)
	defer c.close()
	wait.NoError(t, "each protocol reaches the app", func() error {
		for _, p := range protocols {
			if err := c.once(t.Context(), p); err != nil {
				return fmt.Errorf("%s: %w", p, err)
			}
		}
		return nil
	})
}

// settles waits a time, in which the effects of an event show.
func (l *constantLoad) settles(d time.Duration) {
	l.t.Helper()
	if err := pause(l.t.Context(), d); err != nil {
		l.t.Fatal(err)
	}
}

// nextVersion changes the source.
func (l *constantLoad) nextVersion() {
	write(l.t, filepath.Join(l.dir, "Dockerfile"), fmt.Sprintf("FROM scratch\nCOPY load /load\nENV VERSION=r%d\nCMD [\"/load\"]\n", l.round))
}

func (l *constantLoad) deploy() {
	l.nextVersion()
	l.r(l.t, l.dir, "app", "deploy", "--app", loadApp)
}

func (l *constantLoad) canary() {
	l.nextVersion()
	l.r(l.t, l.dir, "app", "deploy", "--app", loadApp, "--canary", "20")
	l.settles(shortSettle)
	l.r(l.t, "", "app", "promote", loadApp)
}

func (l *constantLoad) scale() {
	for _, n := range []int64{3, 1} {
		l.r(l.t, "", "app", "scale", "--app", loadApp, fmt.Sprintf("web=%d", n), fmt.Sprintf("grpc=%d", n))
		l.becomes(loadApp, n)
	}
	l.r(l.t, "", "app", "scale", "--app", loadApp, "web=default", "grpc=default")
}

// becomes waits until each service of an app wants and has a number of sandboxes.
func (l *constantLoad) becomes(app string, n int64) {
	l.t.Helper()
	wait.NoError(l.t, fmt.Sprintf("%s has %d sandboxes of each service", app, n), func() error {
		var out struct{ Services []scaledService }
		l.json(l.t, &out, "app", "scale", "--app", app)
		for _, s := range out.Services {
			if s.Wanted != n || s.Ready != n {
				return fmt.Errorf("%+v", out.Services)
			}
		}
		return nil
	}, wait.Within(3*time.Minute), wait.Every(200*time.Millisecond))
}

// wake has each protocol wake the app that sleeps.
func (l *constantLoad) wake() {
	c := l.newClients(sleeper)
	defer c.close()
	for _, p := range protocols {
		l.becomes(sleeper, 0)
		began := time.Now()
		if err := c.once(l.t.Context(), p); err != nil || !slices.Contains(streamed, p) { // messages are counted
			l.add(p, time.Since(began), err)
		}
		c.idle()
	}
}

// drainNode drains the only node. What is requested waits until it may be used again.
func (l *constantLoad) drainNode() {
	var nodes []struct{ Name string }
	l.json(l.t, &nodes, "node", "list")
	l.r(l.t, "", "node", "drain", nodes[0].Name, "--wait", "0")
	l.r(l.t, "", "node", "uncordon", nodes[0].Name)
	wait.For(l.t, "the app answers", func() bool {
		code, _, err := l.get(loadApp, "/")
		return err == nil && code == http.StatusOK
	})
}

// route changes what the ingress does with requests, and takes other hosts in and out.
func (l *constantLoad) route() {
	l.r(l.t, "", "route", "configure", loadApp+".example.com", "--compress", "--timeout", "9m", "--sticky")
	l.r(l.t, "", "route", "set", "other.example.com", "--app", loadApp)
	l.settles(shortSettle)
	l.r(l.t, "", "route", "delete", "other.example.com")
	l.r(l.t, "", "route", "configure", loadApp+".example.com", "--reset", "compress,timeout,sticky")
}

// restart ends the server by a signal and starts it again.
func (l *constantLoad) restart(s syscall.Signal) {
	l.mayTakeOver(func() {
		signal(l.t, l.server.pid(l.t, "server"), s)
		if err := l.start(); err != nil {
			l.t.Fatal(err)
		}
		l.healthy(l.t)
	})
}

// dead kills every process of the control plane. The ingress and the sandboxes serve alone until the server starts again.
func (l *constantLoad) dead() {
	st := l.server.status(l.t)
	l.mayTakeOver(func() {
		kill(l.t, l.server.pid(l.t, "server")) // first: it would start the others again
		for _, c := range st.Components {
			if c.PID > 0 && c.Name != "server" && c.Name != "ingress" {
				kill(l.t, c.PID)
			}
		}
		l.settles(*loadDead)
		if err := l.start(); err != nil {
			l.t.Fatal(err)
		}
		l.healthy(l.t)
	})
}

// upgrade replaces the server. The ingress is replaced too if the program is another one.
func (l *constantLoad) upgrade() {
	l.mayTakeOver(func() {
		l.r(l.t, "", "server", "upgrade")
		l.healthy(l.t)
	})
}

// mayTakeOver notes whether another ingress process serves after do.
func (l *constantLoad) mayTakeOver(do func()) (replaced bool) {
	process, began := l.server.pid(l.t, "ingress"), time.Now()
	do()
	if replaced = l.server.pid(l.t, "ingress") != process; replaced {
		l.tookOver(began)
	}
	return replaced
}

// configure restarts the server with another configuration of the ingress, so that a new
// ingress process takes over.
func (l *constantLoad) configure() {
	l.extra = append(l.extra, "--ingress-hold-timeout", fmt.Sprintf("%ds", 60+l.round))
	before := l.server.pid(l.t, "ingress")
	l.restart(syscall.SIGTERM)
	if l.server.pid(l.t, "ingress") == before {
		l.t.Error("no other ingress process serves")
	}
}
