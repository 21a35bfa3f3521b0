package lsvd_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"miren.dev/runtime/cli"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/cli/machine"
	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/wait"
)

// TestMain makes the test binary the program that commands start as daemon.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "lsvd" {
		os.Exit(cli.Main(os.Args[1:], console.Std(), machine.Commands))
	}
	os.Exit(m.Run())
}

type attached struct {
	volume
	Attached *struct {
		State     string
		Message   string
		SizeBytes int64 `json:"size_bytes"`
		Frontends []struct{ Kind, Address string }
		Figures   struct {
			Written int64 `json:"written_bytes"`
			Ops     []struct {
				Op    string
				Count int64
			}
		}
	}
}

// withDaemon gives the test a host whose daemon ends with the test.
func withDaemon(t *testing.T) string {
	dir := newState(t)
	t.Cleanup(func() {
		if r := run(t, "daemon", "--stop"); r.code != 0 {
			t.Errorf("stop the daemon: %+v", r)
		}
	})
	return dir
}

type status struct {
	PID     int
	Disks   int
	Metrics []string

	LogSpace     int64 `json:"log_space_bytes"`
	LogSpaceUsed int64 `json:"log_space_used_bytes"`
	Memory       int64 `json:"memory_bytes"`
}

func kill(t *testing.T) {
	t.Helper()
	s := decode[status](t, ok(t, "daemon", "--status", "--json"))
	if err := syscall.Kill(s.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the daemon is gone", func() bool { return syscall.Kill(s.PID, 0) != nil || zombie(s.PID) })
}

// zombie reports a child of this process that has ended.
func zombie(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || strings.Contains(string(b), ") Z ")
}

func nbdcopy(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("nbdcopy", args...).CombinedOutput(); err != nil {
		t.Fatalf("nbdcopy %v: %v\n%s", args, err, out)
	}
}

func random(t *testing.T, file string, n int64) []byte {
	t.Helper()
	b := make([]byte, n)
	rand.Read(b)
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return b
}

func uriOf(t *testing.T, volume string) string {
	t.Helper()
	a := decode[attached](t, ok(t, "info", volume, "--json"))
	if a.Attached == nil || len(a.Attached.Frontends) == 0 {
		t.Fatalf("%s is not served: %+v", volume, a)
	}
	return a.Attached.Frontends[0].Address
}

// TestKill kills the daemon while one disk is written and another is idle: the
// next daemon has both, with every acknowledged write.
func TestKill(t *testing.T) {
	need.Tools(t, "nbdcopy")
	dir := withDaemon(t)
	const size = 32 << 20
	one, two := random(t, filepath.Join(dir, "one"), size), random(t, filepath.Join(dir, "two"), size)
	ok(t, "create", "data", "--size", "32M")
	ok(t, "create", "idle", "--size", "32M")
	ok(t, "serve", "data")
	ok(t, "serve", "idle", "--listen", "127.0.0.1:0", "--plain")
	uri := uriOf(t, "data")
	nbdcopy(t, "--flush", filepath.Join(dir, "one"), uri)
	for round := range 3 {
		file := []string{"two", "one", "two"}[round]
		before := decode[attached](t, ok(t, "info", "data", "--json")).Attached.Figures.Written
		copying := exec.Command("nbdcopy", filepath.Join(dir, file), uri)
		if err := copying.Start(); err != nil {
			t.Fatal(err)
		}
		wait.For(t, "something is written", func() bool {
			return decode[attached](t, ok(t, "info", "data", "--json")).Attached.Figures.Written > before
		})
		kill(t)
		_ = copying.Wait()
		if list := decode[[]attached](t, ok(t, "list", "--json")); list[0].State != "open" {
			t.Errorf("without a daemon: %+v", list)
		}
		ok(t, "serve", "data") // starts the daemon, which also opens the other
		wait.For(t, "both are open", func() bool {
			list := decode[[]attached](t, ok(t, "list", "--json"))
			return list[0].State == "attached" && list[1].State == "attached" && list[1].Attached.State == "open"
		})
		back := filepath.Join(dir, "back")
		nbdcopy(t, uri, back)
		got, err := os.ReadFile(back)
		if err != nil {
			t.Fatal(err)
		}
		for at := 0; at < size; at += 4096 {
			if b := got[at : at+4096]; !bytes.Equal(b, one[at:at+4096]) && !bytes.Equal(b, two[at:at+4096]) {
				t.Fatalf("round %d: block at %d is neither", round, at)
			}
		}
	}
	ok(t, "detach", "--all")
	ok(t, "check", "data")
	for _, v := range decode[[]volume](t, ok(t, "list", "--json")) {
		if v.State != "detached" {
			t.Errorf("after detach: %+v", v)
		}
	}
}

func TestDaemon(t *testing.T) {
	dir := withDaemon(t)
	fails(t, exit.Failed, []string{"daemon", "--status"}, "no disk daemon runs")
	fails(t, exit.Failed, []string{"detach", "data"}, "no disk daemon runs")
	ok(t, "create", "data", "--size", "64M")
	ok(t, "serve", "data", "--socket", filepath.Join(dir, "s"))
	ok(t, "serve", "data", "--socket", filepath.Join(dir, "s")) // it is so already
	ok(t, "serve", "data")
	a := decode[attached](t, ok(t, "info", "data", "--json"))
	if a.State != "attached" || len(a.Attached.Frontends) != 2 || a.Attached.SizeBytes != 64<<20 {
		t.Errorf("%+v", a)
	}
	// The volume is in use for every other command.
	fails(t, exit.Failed, []string{"serve", "data", "--foreground", "--socket", filepath.Join(dir, "f")}, "in use by process", "r lsvd detach data")
	fails(t, exit.Failed, []string{"delete", "data", "--yes"}, "is open by process", "r lsvd detach data")
	fails(t, exit.Failed, []string{"daemon"}, "another disk daemon runs")
	fails(t, exit.Failed, []string{"detach", "other"}, "not attached")
	fails(t, exit.Usage, []string{"serve", "data", "--listen", "127.0.0.1:0"}, "--tls", "--plain")
	fails(t, exit.Failed, []string{"serve", "dta"}, `did you mean "data"`)
	if out := ok(t, "info", "data"); !strings.Contains(out, "unsent\t0 B") {
		t.Errorf("info: %s", out)
	}
	// After a stop and a start the daemon serves it again.
	ok(t, "daemon", "--stop")
	ok(t, "daemon", "--stop")
	if v := decode[volume](t, ok(t, "info", "data", "--json")); v.State != "detached" {
		t.Errorf("after a stop: %+v", v)
	}
	ok(t, "create", "other", "--size", "64M")
	t.Setenv("RUNTIME_LSVD_LOG_SPACE", "1GiB") // for a daemon that starts by itself
	ok(t, "serve", "other")
	wait.For(t, "data is attached again", func() bool {
		a := decode[attached](t, ok(t, "info", "data", "--json"))
		return a.Attached != nil && a.Attached.State == "open" && len(a.Attached.Frontends) == 2
	})
	s := decode[status](t, ok(t, "daemon", "--status", "--json"))
	if s.Disks != 2 || len(s.Metrics) != 1 || s.LogSpace != 1<<30 || s.Memory <= 0 || s.LogSpaceUsed < 2*32<<20 {
		t.Errorf("%+v", s)
	}
	web := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", strings.TrimPrefix(s.Metrics[0], "unix://"))
	}}}
	defer web.CloseIdleConnections()
	resp, err := web.Get("http://daemon/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`lsvd_up{volume="data"} 1`, `lsvd_unsent_bytes{volume="other"} 0`, `lsvd_lag_seconds{volume="data"} 0`, "lsvd_log_space_limit_bytes 1.073741824e+09", "lsvd_memory_limit_bytes ", "lsvd_memory_used_bytes ", `lsvd_log_full{volume="data"} 0`,
		`lsvd_operation_seconds_count{frontend="nbd",op="flush",volume="data"} 0`, `lsvd_store_requests_total{op="replace",result="ok",volume="data"}`} {
		if !strings.Contains(string(b), want) {
			t.Errorf("%q is missing in the metrics:\n%s", want, b)
		}
	}
	ok(t, "detach", "other")
	ok(t, "detach", "data")
	ok(t, "delete", "data", "--yes")
}

// TestTwoDaemons attaches a volume on two machines.
func TestTwoDaemons(t *testing.T) {
	dir := withDaemon(t)
	t.Setenv("RUNTIME_LSVD_STORE", filepath.Join(dir, "store"))
	ok(t, "create", "data", "--size", "64M")
	ok(t, "serve", "data")
	first := os.Getenv("RUNTIME_STATE_DIR")
	t.Setenv("RUNTIME_STATE_DIR", filepath.Join(dir, "state2"))
	fails(t, exit.Failed, []string{"serve", "data"}, "open elsewhere: by process", "--take-over")
	ok(t, "serve", "data", "--take-over")
	t.Setenv("RUNTIME_STATE_DIR", first)
	// The loser notices with its next write to the store, and stays the loser.
	fails(t, exit.Failed, []string{"snapshot", "create", "data@x"}, "opened by another process")
	a := decode[attached](t, ok(t, "info", "data", "--json"))
	if a.State != "failed" || !strings.Contains(a.Attached.Message, "opened by another process") {
		t.Errorf("the loser: %+v %+v", a, a.Attached)
	}
	fails(t, exit.Failed, []string{"detach", "data"}, "opened by another process")
	fails(t, exit.Failed, []string{"serve", "data"}, "open elsewhere")
	t.Setenv("RUNTIME_STATE_DIR", filepath.Join(dir, "state2"))
	if a := decode[attached](t, ok(t, "info", "data", "--json")); a.State != "attached" || a.Attached.State != "open" {
		t.Errorf("the winner: %+v", a)
	}
	ok(t, "detach", "data")
	ok(t, "daemon", "--stop")
	t.Setenv("RUNTIME_STATE_DIR", first)
	ok(t, "serve", "data")
	ok(t, "detach", "data")
}
