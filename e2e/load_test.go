package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/testsupport/private"
	"miren.dev/runtime/testsupport/wait"
)

// loadSize is how much TestLoad does. `make test` does some, hack/soak.sh load much.
type loadSize struct {
	sessions   int // sandboxes of a client, made over time
	atOnce     int // of these, at most, since the client's key permits no more
	executions int // in the queue at the same time, or nearly
	clients    int // by SSH
}

func loadSizeFromEnv(t *testing.T) loadSize {
	t.Helper()
	number := func(name string, otherwise int) int {
		text := os.Getenv(name)
		if text == "" {
			return otherwise
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < otherwise {
			t.Fatalf("%s is %q, want a number of at least %d", name, text, otherwise)
		}
		return n
	}
	return loadSize{
		sessions: number("LOAD_SESSIONS", 40), atOnce: number("LOAD_AT_ONCE", 8),
		executions: number("LOAD_EXECUTIONS", 150), clients: number("LOAD_CLIENTS", 10),
	}
}

// effects is the address that executions call. It is public, since sandboxes reach
// nothing of their machine.
const effects = "203.0.113.80:80"

// Bounds of the server's memory under any load of this test, and of what stays of it.
const (
	maxResident = 768 << 20 // bytes
	maxStaying  = 256 << 20 // bytes above those before the load
	maxRoutines = 100       // goroutines above those before the load
)

// loadTest is a server under load and what its clients know.
type loadTest struct {
	*server
	t       *testing.T
	size    loadSize
	receive *loadReceiver
	events  *eventLog
	agent   *restClient // makes the sessions; its key bounds them
	user    *restClient // submits the executions
	boxes   []*box      // sandboxes that stay

	mu       sync.Mutex
	sessions map[string]string // end that each had, by id; see end
	submits  map[string]int    // executions: their number, by id
	givenUp  map[string]bool   // executions of which each attempt was interrupted by a kill

	serving  sync.Mutex // held while the server is killed and started
	pid      int        // its process
	kills    []time.Time
	resident int64 // most memory of any of its processes, in bytes

	made, submitted atomic.Int64 // sessions, executions
}

// TestLoad: sessions, executions, SSH clients and a receiver of webhooks that fails half
// of the time, all at once, and the server killed in the middle of each. Nothing is lost,
// nothing happens twice, what was refused says when to come again, memory is bounded, and
// nothing is left on the host.
func TestLoad(t *testing.T) {
	if !private.Inside() {
		// Here a network exists, for the image.
		shared.r(t, "", "sandbox", "run", "--template", "base", "--", "true")
	}
	if !private.Run(t) {
		return
	}
	l := &loadTest{t: t, size: loadSizeFromEnv(t), sessions: map[string]string{}, submits: map[string]int{}, givenUp: map[string]bool{}}
	l.receive = newLoadReceiver(t, elsewhere(t, effects))
	sshPort, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	l.server = own(t, "load", "--ssh-address", fmt.Sprintf("127.0.0.1:%d", sshPort), "--webhooks-allow", "127.0.0.0/8",
		"--metrics-address", fmt.Sprintf("127.0.0.1:%d", metrics))
	in, err := instance.Find(l.state, config.DefaultRunDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := l.findProcess(); err != nil {
		t.Fatal(err)
	}
	base := fmt.Sprintf("http://127.0.0.1:%d/api/v1", l.api)
	l.agent = newRESTClient(base, l.key("agent", "--max-sandboxes", strconv.Itoa(l.size.atOnce)))
	l.user = newRESTClient(base, l.key("user"))

	// What the host has before, when everything was in use once.
	warm := l.r(t, "", "sandbox", "create", "--template", "base")
	l.r(t, "", "sandbox", "delete", strings.TrimSpace(warm))
	l.r(t, "", "execution", "submit", "--template", "base", "--wait", "--", "true")
	f := &faulty{server: l.server, in: in}
	l.idle(f)
	before, _ := f.host(t)
	state := l.measure(metrics)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l.receive.secret.Store(strings.TrimSpace(l.r(t, "", "webhook", "create", "all", l.receive.url)))
	l.events = followEvents(t, l.user)
	l.makeBoxes()
	began := time.Now()
	var load sync.WaitGroup
	load.Go(func() { l.makeSessions(ctx) })
	load.Go(func() { l.submit(ctx) })
	load.Go(func() { l.during(ctx, "the executions", l.events.executionsEnded, l.size.executions) })
	// Four events for an execution and its sandbox, two for a session.
	load.Go(func() { l.during(ctx, "the webhooks", l.receive.count, 4*l.size.executions+2*l.size.sessions) })
	ssh := l.openSSH(ctx)
	load.Wait()
	t.Logf("made, submitted, and killed %d times after %s", len(l.kills), time.Since(began).Round(time.Second))
	if t.Failed() {
		t.FailNow()
	}
	ssh.eachWorks(t)
	wait.NoError(t, "every execution has ended", func() error {
		if n := l.events.executionsEnded(); n < l.size.executions {
			return fmt.Errorf("%d of %d", n, l.size.executions)
		}
		return nil
	}, wait.Within(time.Hour))
	t.Logf("executed after %s", time.Since(began).Round(time.Second))
	ssh.eachWorks(t)
	cancel()
	ssh.wait()

	l.checkExecutions()
	l.checkBoxes()
	l.checkSessions()
	l.checkEvents()
	t.Logf("everything after %s", time.Since(began).Round(time.Second))
	l.idle(f)
	l.settles(metrics, state)
	wait.NoError(t, "the machine has what it had before", func() error {
		if got, _ := f.host(t); !slices.Equal(got, before) {
			return errors.New(difference(got, before))
		}
		return nil
	}, wait.Within(converge))
}

// key makes an API key.
func (l *loadTest) key(name string, args ...string) string {
	return strings.TrimSpace(l.r(l.t, "", append([]string{"key", "create", name}, args...)...))
}

// during kills the server when half of something is done.
func (l *loadTest) during(ctx context.Context, what string, done func() int, all int) {
	for n := done(); !l.t.Failed(); n = done() {
		if 2*n >= all {
			if err := l.crash(what, n, all); err != nil {
				l.t.Error(err)
			}
			return
		}
		if pause(ctx, 20*time.Millisecond) != nil {
			return
		}
	}
}

// crash kills the server, when n of all of something are done, and starts it again.
func (l *loadTest) crash(what string, n, all int) error {
	l.serving.Lock()
	defer l.serving.Unlock()
	if err := l.note(); err != nil {
		return err
	}
	began := time.Now()
	l.kills = append(l.kills, began)
	if err := syscall.Kill(l.pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill the server: %w", err)
	}
	for !ended(l.pid) {
		if err := pause(l.t.Context(), time.Millisecond); err != nil {
			return err
		}
	}
	if err := l.start(); err != nil {
		return err
	}
	l.t.Logf("killed at %d of %d of %s, ready after %s", n, all, what, time.Since(began).Round(10*time.Millisecond))
	return l.findProcess()
}

// findProcess notes the server's process; a part that does not work yet is no error.
func (l *loadTest) findProcess() error {
	out, err := l.command(l.t.Context(), "", "server", "status", "--json").Output()
	var st status
	if e := json.Unmarshal(out, &st); e != nil {
		return fmt.Errorf("server status: %w, %w", e, err)
	}
	for _, c := range st.Components {
		if c.Name == "server" && c.PID > 0 {
			l.pid = c.PID
			return nil
		}
	}
	return fmt.Errorf("server status names no process: %s", out)
}

// note has the memory of the server's process counted.
func (l *loadTest) note() error {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", l.pid))
	if err != nil {
		return err
	}
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	var kib int64
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		return fmt.Errorf("memory of the server: %w", err)
	}
	l.resident = max(l.resident, kib<<10)
	return nil
}

// serverState is what the server's process has.
type serverState struct {
	resident int64 // bytes
	routines int
	files    int
}

func (l *loadTest) measure(port int) (s serverState) {
	l.t.Helper()
	s.resident = resident(l.t, l.pid)
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", l.pid))
	if err != nil {
		l.t.Fatal(err)
	}
	s.files = len(files)
	status, text, err := fetch(fmt.Sprintf("http://127.0.0.1:%d/metrics", port))
	if err != nil || status != http.StatusOK {
		l.t.Fatal(status, err)
	}
	_, rest, _ := strings.Cut(text, "\ngo_goroutines ")
	if _, err := fmt.Sscan(rest, &s.routines); err != nil {
		l.t.Fatal(err)
	}
	return s
}

// settles waits until the server has hardly more than before the load.
func (l *loadTest) settles(port int, before serverState) {
	l.t.Helper()
	if err := l.note(); err != nil {
		l.t.Fatal(err)
	}
	var now serverState
	wait.NoError(l.t, "the server has what it had before", func() error {
		now = l.measure(port)
		if now.routines > before.routines+maxRoutines || now.files > before.files+maxRoutines || now.resident > before.resident+maxStaying {
			return fmt.Errorf("%+v, before %+v", now, before)
		}
		return nil
	}, wait.Within(2*time.Minute), wait.Every(time.Second))
	l.t.Logf("the server: most %d MiB; %d, before %d MiB; %d, before %d goroutines; %d, before %d files",
		l.resident>>20, now.resident>>20, before.resident>>20, now.routines, before.routines, now.files, before.files)
	if l.resident > maxResident {
		l.t.Errorf("the server had %d bytes", l.resident)
	}
}

// idle deletes the sandboxes of the load, warm ones too, and waits until no sandbox runs.
func (l *loadTest) idle(f *faulty) {
	l.t.Helper()
	for _, b := range l.boxes {
		l.r(l.t, "", "sandbox", "delete", b.id)
	}
	l.r(l.t, "", "pool", "delete", "base")
	wait.NoError(l.t, "no sandbox is left on the host", func() error {
		if _, ids := f.host(l.t); len(ids) > 0 {
			return fmt.Errorf("%d sandboxes: %v", len(ids), ids)
		}
		return nil
	}, wait.Within(3*time.Minute), wait.Every(time.Second))
}

// loadReceiver receives webhooks on this machine, and what executions send to another
// machine. It fails half of the webhooks in several ways.
type loadReceiver struct {
	url    string
	secret atomic.Value // string

	mu       sync.Mutex
	seen     map[string]int         // webhook requests, by event
	accepted map[string][]time.Time // accepted ones
	bodies   map[string]string      // their body
	problems []string
	effects  map[string]int // requests of executions, by id
	failed   int            // webhook requests that were failed
}

func newLoadReceiver(t *testing.T, elsewhere net.Listener) *loadReceiver {
	t.Helper()
	r := &loadReceiver{seen: map[string]int{}, accepted: map[string][]time.Time{}, bodies: map[string]string{}, effects: map[string]int{}}
	here, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.url = "http://" + here.Addr().String()
	for l, h := range map[net.Listener]http.HandlerFunc{here: r.webhook, elsewhere: r.effect} {
		srv := &http.Server{Handler: h}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = srv.Serve(l)
		}()
		t.Cleanup(func() {
			_ = srv.Close()
			<-done
		})
	}
	return r
}

func (r *loadReceiver) effect(_ http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.effects[req.URL.Query().Get("id")]++
}

// count returns how many events were accepted.
func (r *loadReceiver) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.accepted)
}
