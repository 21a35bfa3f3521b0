package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/wait"
)

// converge is how long the system may take to repair itself, as documented.
const converge = 10 * time.Second

// own starts a server for one test and removes it at its end.
func own(t *testing.T, name string, flags ...string) *server {
	t.Helper()
	s, err := newServer(name, flags...)
	if err != nil {
		t.Fatal(err)
	}
	s.begin(t)
	return s
}

// begin starts the server and removes it at the end of the test.
func (s *server) begin(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			s.dump(t)
		}
		if err := s.remove(); err != nil {
			t.Error(err)
		}
	})
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
}

// dump logs the end of the server's logs.
func (s *server) dump(t *testing.T) {
	for _, name := range []string{"server.log", "ingress.log"} {
		b, err := os.ReadFile(filepath.Join(s.state, "logs", name))
		if err == nil {
			t.Logf("end of %s:\n%s", name, b[max(0, len(b)-6000):])
		}
	}
}

// status holds the parts of `r server status --json` that the tests need.
type status struct {
	Ready      bool `json:"ready"`
	Components []struct {
		Name   string `json:"name"`
		Health string `json:"health"`
		PID    int    `json:"pid"`
	} `json:"components"`
}

func (s *server) status(t *testing.T) status {
	t.Helper()
	var st status
	s.json(t, &st, "server", "status")
	return st
}

func (s *server) pid(t *testing.T, component string) (pid int) {
	t.Helper()
	wait.NoError(t, component+" runs", func() error {
		res := s.try(t, "", "server", "status", "--json")
		var st status
		if err := json.Unmarshal([]byte(res.Stdout), &st); err != nil { // the server is being restarted
			return fmt.Errorf("%w: %s", err, res)
		}
		for _, c := range st.Components {
			if pid = c.PID; c.Name == component && pid > 0 {
				return nil
			}
		}
		return fmt.Errorf("no component %s with a process in %+v", component, st)
	}, wait.Within(converge))
	return pid
}

// healthy waits until the server and all its parts work.
func (s *server) healthy(t *testing.T) {
	t.Helper()
	wait.NoError(t, "the server and all its parts work", func() error {
		res := s.try(t, "", "server", "status", "--json")
		if res.Code != 0 || !strings.Contains(res.Stdout, `"ready": true`) {
			return fmt.Errorf("%s", res)
		}
		return nil
	}, wait.Within(converge))
}

func kill(t *testing.T, pid int) {
	t.Helper()
	signal(t, pid, syscall.SIGKILL)
}

// signal sends a process a signal and waits until it has ended.
func signal(t *testing.T, pid int, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, s); err != nil {
		t.Fatalf("signal %d to %d: %v", s, pid, err)
	}
	wait.NoError(t, fmt.Sprintf("process %d is gone", pid), func() error {
		if !ended(pid) {
			return fmt.Errorf("process %d is still there", pid)
		}
		return nil
	})
}

// watchApp requests a path of an app all the time until the returned function
// is called, which returns how many requests failed of how many.
func (s *server) watchApp(app string) (stop func() (failed, all int64)) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	var failed, all atomic.Int64
	go func() {
		defer close(done)
		// With pauses: the machine has other work in these tests.
		tick := time.NewTicker(3 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			<-tick.C
			code, _, err := s.get(app, "/")
			all.Add(1)
			if err != nil || code != http.StatusOK {
				failed.Add(1)
			}
		}
	}()
	return func() (int64, int64) {
		cancel()
		<-done
		return failed.Load(), all.Load()
	}
}

// phase returns the phase of the newest deployment.
func (s *server) phase(t *testing.T) string {
	t.Helper()
	var list []struct {
		CreateRevision int64 `json:"create_revision"`
		Status         struct {
			Phase string `json:"phase"`
		} `json:"status"`
	}
	s.json(t, &list, "entity", "list", "deployment")
	newest, phase := int64(0), ""
	for _, d := range list {
		if d.CreateRevision > newest {
			newest, phase = d.CreateRevision, d.Status.Phase
		}
	}
	return phase
}

// drained returns how long the newest deployment drained.
func (s *server) drained(t *testing.T) time.Duration {
	t.Helper()
	var list []struct {
		CreateRevision int64 `json:"create_revision"`
		Status         struct {
			Steps []struct {
				Name      string    `json:"name"`
				StartedAt time.Time `json:"started_at"`
				EndedAt   time.Time `json:"ended_at"`
			} `json:"steps"`
		} `json:"status"`
	}
	s.json(t, &list, "entity", "list", "deployment")
	newest, took := int64(0), time.Duration(0)
	for _, d := range list {
		for _, step := range d.Status.Steps {
			if step.Name == "drain" && d.CreateRevision > newest {
				newest, took = d.CreateRevision, step.EndedAt.Sub(step.StartedAt)
			}
		}
	}
	if newest == 0 {
		t.Fatalf("no deployment has drained: %+v", list)
	}
	return took
}

// TestServerKilledDuringDeploy kills the server in each phase of a deployment:
// the app keeps answering, and the deployment succeeds after the restart.
func TestServerKilledDuringDeploy(t *testing.T) {
	t.Parallel()
	s := own(t, "server-killed")
	name, dir := "app", copyExample(t, "go-http")
	s.r(t, dir, "app", "deploy", "--app", name)
	for i, phase := range []string{"building", "starting", "draining"} {
		from, to := fmt.Sprintf("v%d", i+1), fmt.Sprintf("v%d", i+2)
		t.Run(phase, func(t *testing.T) {
			edit(t, filepath.Join(dir, "main.go"), strconv.Quote(from), strconv.Quote(to))
			pid := s.pid(t, "server")
			stop := s.watchApp(name)
			s.r(t, dir, "app", "deploy", "--app", name, "--detach")
			wait.NoError(t, "the deployment is in phase "+phase, func() error {
				if p := s.phase(t); p != phase && p != "succeeded" {
					return fmt.Errorf("in phase %s", p)
				}
				return nil
			}, wait.Within(5*time.Minute))
			kill(t, pid)
			if code, body, err := s.get(name, "/"); err != nil || code != http.StatusOK {
				t.Errorf("with the server dead the app answers %d %q %v", code, body, err)
			}
			if err := s.start(); err != nil {
				t.Fatal(err)
			}
			wait.NoError(t, "the deployment has succeeded", func() error {
				if p := s.phase(t); p != "succeeded" {
					return fmt.Errorf("in phase %s", p)
				}
				return nil
			})
			if failed, all := stop(); failed > 0 {
				t.Errorf("%d of %d requests failed", failed, all)
			}
			s.answers(t, name, "/", to)
		})
	}
}

// TestPartsKilled kills every part of an installation: apps keep answering,
// except through the killed part, and everything works again soon.
func TestPartsKilled(t *testing.T) {
	t.Parallel()
	s := own(t, "parts-killed")
	name, dir := "app", copyExample(t, "go-http")
	s.r(t, dir, "app", "deploy", "--app", name)
	if _, err := os.Stat(filepath.Join(s.state, "ingress", "table")); err != nil {
		t.Error("the ingress has not saved what it serves:", err)
	}
	for _, c := range []struct {
		part string
		keep bool // the app answers all the time
	}{{"postgres", true}, {"containerd", true}, {"buildkit", true}, {"ingress", false}} {
		t.Run(c.part, func(t *testing.T) {
			pid := s.pid(t, c.part)
			stop := s.watchApp(name)
			if c.part == "ingress" {
				s.ingressIsConfined(t)
				s.giveIngressToRoot(t)
			}
			kill(t, pid)
			s.healthy(t)
			if c.part == "ingress" {
				s.ingressIsConfined(t)
			}
			if failed, all := stop(); failed > 0 && c.keep {
				t.Errorf("%d of %d requests failed", failed, all)
			}
			if s.pid(t, c.part) == pid {
				t.Errorf("%s has the same process id", c.part)
			}
			s.answers(t, name, "/", "v1")
			edit(t, filepath.Join(dir, "main.go"), `"v1"`, `"v2"`)
			s.r(t, dir, "app", "deploy", "--app", name)
			s.answers(t, name, "/", "v2")
			edit(t, filepath.Join(dir, "main.go"), `"v2"`, `"v1"`)
			s.r(t, dir, "app", "deploy", "--app", name)
		})
	}
	for _, c := range []struct{ name, word string }{{"gofer", "runsc-gofer"}, {"sandbox", "runsc-sandbox"}} {
		t.Run(c.name, func(t *testing.T) {
			wait.For(t, "only the sandbox of the last deployment is left", func() bool { return len(s.sandboxes(t, name)) == 1 }, wait.Within(converge+stopGrace))
			sb := s.sandbox(t, name)
			pid := processOf(t, c.word, sb)
			kill(t, pid)
			wait.NoError(t, "another sandbox takes the place of the killed one", func() error {
				if now := s.sandbox(t, name); now == "" || now == sb {
					return fmt.Errorf("the sandbox is %q", now)
				}
				return nil
			}, wait.Within(converge+stopGrace))
			s.answers(t, name, "/", "v1")
			if out := s.r(t, "", "entity", "get", "sandbox", sb, "--json"); !strings.Contains(out, `"crash"`) {
				t.Errorf("the end of the killed sandbox is not recorded as a crash: %s", out)
			}
		})
	}
}

// stopGrace is the extra time that a replaced sandbox may take.
const stopGrace = 5 * time.Second

// sandbox returns the id of a ready sandbox of an app, "" if there is none.
func (s *server) sandbox(t *testing.T, app string) string {
	t.Helper()
	if ids := s.sandboxes(t, app); len(ids) > 0 {
		return ids[0]
	}
	return ""
}

// sandboxes returns the ids of the ready sandboxes of an app.
func (s *server) sandboxes(t *testing.T, app string) (ids []string) {
	t.Helper()
	var list []struct {
		ID     string            `json:"id"`
		Labels map[string]string `json:"labels"`
		Status struct {
			Ready bool `json:"ready"`
		} `json:"status"`
	}
	s.json(t, &list, "entity", "list", "sandbox")
	for _, sb := range list {
		if sb.Status.Ready && sb.Labels["app"] == app {
			ids = append(ids, sb.ID)
		}
	}
	return ids
}

// processOf finds the process whose command line has both words.
func processOf(t *testing.T, words ...string) int {
	t.Helper()
	entries, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
next:
	for _, f := range entries {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		for _, w := range words {
			if !strings.Contains(string(b), w) {
				continue next
			}
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if err == nil {
			return pid
		}
	}
	t.Fatalf("no process with %q in its command line", words)
	return 0
}

// TestCommandKilled kills the deploy command once the server has the
// deployment: the server finishes the work.
func TestCommandKilled(t *testing.T) {
	t.Parallel()
	name, dir := "orphan", copyExample(t, "go-http")
	cmd := shared.command(t.Context(), dir, "app", "deploy", "--app", name)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	wait.NoError(t, "a deployment", func() error {
		res := shared.try(t, "", "app", "history", name, "--json")
		var list []any
		if err := json.Unmarshal([]byte(res.Stdout), &list); err != nil || len(list) == 0 {
			return fmt.Errorf("no deployment yet: %v, %s", err, res)
		}
		return nil
	}, wait.Within(5*time.Minute))
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	wait.NoError(t, "the app answers", func() error {
		if code, body, err := shared.get(name, "/"); err != nil || code != http.StatusOK || !strings.Contains(body, "v1") {
			return fmt.Errorf("answers %d %q %v", code, body, err)
		}
		return nil
	}, wait.Within(15*time.Minute))
	shared.r(t, "", "app", "delete", name, "--yes")
}

// TestOneServerPerState starts a second server on a state directory.
func TestOneServerPerState(t *testing.T) {
	t.Parallel()
	res := shared.try(t, "", "server", "run", "--state-dir", shared.state)
	if res.Code != 1 || !strings.Contains(res.Stderr, "another server") || !strings.Contains(res.Stderr, "server stop") {
		t.Errorf("a second server: %s", res)
	}
}

// TestTwoInstances runs a second installation beside the shared one.
func TestTwoInstances(t *testing.T) {
	name, dir := "neighbour", copyExample(t, "static-site")
	shared.r(t, dir, "app", "deploy", "--app", name)
	second := own(t, "second")
	second.r(t, dir, "app", "deploy", "--app", name)
	second.answers(t, name, "/", "v1")
	second.r(t, "", "app", "delete", name, "--yes")
	shared.answers(t, name, "/", "v1")
	shared.r(t, "", "app", "delete", name, "--yes")
}

// TestIngressPortTaken starts a server whose ingress cannot listen: the status
// says so, deployments do not wait for it, and it works as soon as the port is
// free.
func TestIngressPortTaken(t *testing.T) {
	t.Parallel()
	s, err := newServer("port-taken")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", s.port))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Cleanup(func() {
		if err := s.remove(); err != nil {
			t.Error(err)
		}
	})
	const cause = "address already in use"
	if err := s.start(); err == nil || !strings.Contains(err.Error(), cause) {
		t.Fatalf("start: %v", err)
	}
	wait.NoError(t, "the status says why", func() error {
		if res := s.try(t, "", "server", "status"); res.Code == 0 || !strings.Contains(res.Stdout, cause) {
			return fmt.Errorf("status: %s", res)
		}
		return nil
	}, wait.Within(converge))
	dir := copyExample(t, "static-site")
	for range 2 {
		s.r(t, dir, "app", "deploy", "--app", "app")
		if took := s.drained(t); took > converge { // a request that waits takes 30 s
			t.Errorf("the drain of a deployment without ingress took %s", took)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	s.healthy(t)
	s.answers(t, "app", "/", "v1")
}
