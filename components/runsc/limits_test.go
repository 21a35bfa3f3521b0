package runsc_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/sandboxfs"
	"miren.dev/runtime/testsupport/runsctest"
	"miren.dev/runtime/testsupport/wait"
)

// filled returns how many things of a kind a program could make in a sandbox, and why not more.
func (m machine) filled(t *testing.T, id, kind string, n int) (done int, why string) {
	t.Helper()
	out := m.Env().Output(t, id, guest("fill", kind, fmt.Sprint(n)))
	text, why, _ := strings.Cut(strings.TrimSpace(out), " ")
	if _, err := fmt.Sscan(text, &done); err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	return done, why
}

// TestLimitsOfFiles: a sandbox has no more files, no larger ones, and no more of them open than it may, as root either,
// and its agent outlives a file that is too large.
func TestLimitsOfFiles(t *testing.T) {
	eachBackend(t, func(t *testing.T, m machine) {
		s := m.spec("limited")
		s.Command, s.Idle = nil, true
		s.DiskFiles, s.OpenFiles, s.FileBytes = 500, 300, 8<<20
		e := m.Env()
		e.Start(t, s)
		m.hasLimits(t, s.ID)
		file := func() int64 {
			t.Helper()
			st, err := m.Driver.Files(s.ID, sandboxfs.View{}).Stat(t.Context(), "/home/big")
			if err != nil {
				t.Fatal(err)
			}
			return st.Size
		}
		for _, command := range []string{"write", "hole"} {
			if out, ok := e.Try(t, s.ID, guest(command, "/home/big", "9")); ok || file() > s.FileBytes {
				t.Errorf("%s: a file of 9 of 8 MiB: %s", command, out)
			}
			if out, ok := e.Try(t, s.ID, guest(command, "/home/big", "8")); !ok || file() != s.FileBytes {
				t.Errorf("%s: a file of 8 of 8 MiB has %d bytes: %s", command, file(), out)
			}
		}
		w, err := m.Driver.Files(s.ID, sandboxfs.View{}).Write(t.Context(), "/home/copied", sandboxfs.WriteOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		_, err = w.Write(make([]byte, 9<<20))
		if err == nil {
			_, err = w.Commit(t.Context())
		}
		if !errs.Is(err, errs.ResourceExhausted) {
			t.Errorf("a copied file of 9 of 8 MiB: %v", err)
		}
		if out := e.Output(t, s.ID, guest("echo", "alive")); out != "alive\n" {
			t.Errorf("after that: %q", out)
		}
	})
}

func (m machine) hasLimits(t *testing.T, id string) {
	t.Helper()
	if n, why := m.filled(t, id, "open", 1000); n < 200 || n >= 300 || !strings.Contains(why, "too many open files") {
		t.Errorf("%s: %d open files of 300: %s", id, n, why)
	}
	if n, why := m.filled(t, id, "files", 1000); n < 200 || n >= 500 || !strings.Contains(why, "no space left") {
		t.Errorf("%s: %d files of 500: %s", id, n, why)
	}
}

// TestForksHaveTheLimits: a sandbox that is restored has the limits of files that the snapshot's had.
func TestForksHaveTheLimits(t *testing.T) {
	m := machine{runsctest.New(t)}
	defer m.deleteSnapshots(t)
	s := m.spec("limited", "sleep")
	s.DiskFiles, s.OpenFiles = 500, 300
	m.ensure(t, s)
	m.snapshot(t, s.ID, "image", false)
	s.Restore = "image"
	m.ensure(t, s)
	m.ensure(t, execution.Spec{ID: "fork", Network: execution.NetworkBridge, MemoryBytes: s.MemoryBytes, CPUMillis: s.CPUMillis, Restore: "image"})
	for _, id := range []string{s.ID, "fork"} {
		m.hasLimits(t, id)
		m.delete(t, id)
	}
	s.OpenFiles = 301
	if _, err := m.Driver.Ensure(t.Context(), s); !errs.Is(err, errs.InvalidArgument) {
		t.Errorf("with another limit: %v", err)
	}
}

// TestBandwidth: a sandbox neither sends nor gets more than its bandwidth, also after a restart of the server and after
// a pause.
func TestBandwidth(t *testing.T) {
	eachBackend(t, func(t *testing.T, m machine) {
		s := m.spec("slow", "serve", "8080")
		s.Bandwidth = 1 << 20
		e := m.Env()
		check := func(in execution.Instance) {
			t.Helper()
			url := "http://" + in.Address + ":8080"
			wait.NoError(t, "the sandbox serves", func() error { return fetch(url + "/") })
			// A second's worth passes at once as far as bucket and queue have room.
			const least = 700 * time.Millisecond
			for what, send := range map[string]func() error{
				"sent":     func() error { return fetch(url + "/zeros") },
				"received": func() error { return post(url+"/discard", make([]byte, 1<<20)) },
			} {
				began := time.Now()
				if err := send(); err != nil {
					t.Errorf("%s: %v", what, err)
				}
				if took := time.Since(began); took < least {
					t.Errorf("a MiB was %s in %s, with a limit of one per second", what, took)
				}
			}
		}
		check(e.Start(t, s))
		e.Driver = m.Restart(t)
		in, err := m.Driver.Get(t.Context(), s.ID)
		if err != nil {
			t.Fatal(err)
		}
		check(in)
		if _, err := m.Driver.Snapshot(t.Context(), s.ID, "image", execution.SnapshotOptions{}); errs.Is(err, errs.FailedPrecondition) {
			return // this backend takes no snapshots
		} else if err != nil {
			t.Fatal(err)
		}
		defer m.deleteSnapshots(t)
		s.Restore = "image"
		check(m.ensure(t, s))
		m.delete(t, s.ID)
	})
}

func fetch(url string) error {
	return ask(func(c *http.Client) (*http.Response, error) { return c.Get(url) })
}

func post(url string, body []byte) error {
	return ask(func(c *http.Client) (*http.Response, error) {
		return c.Post(url, "application/octet-stream", bytes.NewReader(body))
	})
}

func ask(f func(*http.Client) (*http.Response, error)) error {
	c := &http.Client{Timeout: wait.Limit, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := f(c)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// TestOutOfMemory: the kernel kills the largest process of a sandbox that is out of memory. That may be one of the
// program's, after which the kernel of the sandbox and its agent go on. A program that is killed otherwise has memory.
func TestOutOfMemory(t *testing.T) {
	eachBackend(t, func(t *testing.T, m machine) {
		for _, tc := range []struct {
			id      string
			command []string
			cause   execution.Cause
		}{
			{"mapped", []string{"mapped"}, execution.CauseOOM},
			{"killed", []string{"signal", "9"}, execution.CauseExit},
		} {
			s := m.spec(tc.id, tc.command...)
			s.MemoryBytes = 64 << 20
			m.Env().Start(t, s)
			if exit := m.Env().Ended(t, s.ID); exit.Cause != tc.cause || exit.Code != 137 {
				t.Errorf("%s: %+v", tc.id, exit)
				// In one of 250 runs the kernel had counted no kill, and it is not known why.
				memory, err := exec.Command("sh", "-c", "grep -s . $(find /sys/fs/cgroup -path '*/"+tc.id+"/memory.*'); dmesg | grep -i oom | tail").CombinedOutput()
				t.Logf("%v: %s", err, memory)
			}
		}
		s := m.spec("lives", "sleep")
		s.MemoryBytes = 64 << 20
		m.Env().Start(t, s)
		for i, command := range []string{"mapped", "signal"} { // both are killed, the first for memory
			p, err := m.Driver.Exec(t.Context(), s.ID, execution.ExecSpec{Command: []string{"/bin/guest", command, "9"}})
			if err != nil {
				t.Fatal(err)
			}
			code, err := p.Wait(t.Context())
			kills, kerr := m.Driver.OOMKills(t.Context(), s.ID)
			if err != nil || code != 137 || kerr != nil || kills != 1 {
				t.Errorf("%d: exit code %d, %v; %d OOM kills, %v", i, code, err, kills, kerr)
			}
			p.Close()
		}
	})
}
