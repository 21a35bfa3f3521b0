package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/testsupport/wait"
)

// TestKernelIsGVisor checks the kernel that a sandbox sees.
func TestKernelIsGVisor(t *testing.T) {
	t.Parallel()
	if out := shared.r(t, "", "sandbox", "run", "--image", "debian", "--", "dmesg"); !strings.Contains(out, "gVisor") {
		t.Errorf("dmesg: %s", out)
	}
	if out := shared.r(t, "", "sandbox", "run", "--image", "debian", "--", "uname", "-a"); !strings.Contains(out, "4.19.0-gvisor") {
		t.Errorf("uname: %s", out)
	}
}

// run starts a detached sandbox and returns its id.
func (s *server) run(t *testing.T, args ...string) string {
	t.Helper()
	out := s.r(t, "", append([]string{"sandbox", "run", "--detach", "--json", "--image", "debian"}, args...)...)
	var sb struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal([]byte(out), &sb); err != nil || sb.ID == "" {
		t.Fatalf("sandbox run --detach --json: %v in %s", err, out)
	}
	return sb.ID
}

// ended waits for the end of a sandbox and returns it as JSON.
func (s *server) ended(t *testing.T, id string) string {
	t.Helper()
	var out string
	wait.NoError(t, "sandbox "+id+" has ended", func() error {
		out = s.r(t, "", "sandbox", "show", id, "--json")
		if !strings.Contains(out, `"ended_at"`) {
			return fmt.Errorf("%s", out)
		}
		return nil
	}, wait.Within(5*time.Minute))
	return out
}

// TestMemoryLimit uses more memory than the limit.
func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	id := shared.run(t, "--memory", "128MB", "--", "sh", "-c", "tail /dev/zero; sleep 60")
	if out := shared.ended(t, id); !strings.Contains(out, `"oom"`) {
		t.Errorf("ended without reason oom: %s", out)
	}
	shared.r(t, "", "sandbox", "delete", id)
}

// TestProcessLimit starts more processes than the limit.
func TestProcessLimit(t *testing.T) {
	t.Parallel()
	res := shared.try(t, "", "sandbox", "run", "--image", "debian", "--pids", "20", "--", "sh", "-c",
		"for i in $(seq 60); do sleep 20 & done; echo not limited")
	if strings.Contains(res.Stdout, "not limited") || !strings.Contains(res.Stderr+res.Stdout, "fork") {
		t.Errorf("60 processes with a limit of 20: %s", res)
	}
}

// TestCPULimit keeps a sandbox with a quarter of a CPU busy and measures its
// CPU time. A busy machine may give it less, never more.
func TestCPULimit(t *testing.T) {
	t.Parallel()
	sid := shared.run(t, "--cpu", "0.25", "--", "sleep", "600")
	shared.r(t, "", "sandbox", "exec", sid, "--", "true")
	before := shared.stats(t, sid)
	shared.r(t, "", "sandbox", "exec", sid, "--", "sh", "-c", "timeout 4 sh -c 'while :; do :; done' || true")
	after := shared.stats(t, sid)
	used, wall := after.CPU-before.CPU, after.At.Sub(before.At)
	if share := float64(used) / float64(wall); share > 0.25*1.3 || used == 0 {
		t.Errorf("used %s of CPU in %s, with a limit of a quarter", used, wall)
	}
	shared.r(t, "", "sandbox", "delete", sid)
}

// stats reads the resource use of a sandbox.
func (s *server) stats(t *testing.T, sid string) *sandbox.Stats {
	t.Helper()
	in, err := instance.Find(s.state, config.DefaultRunDir())
	if err != nil {
		t.Fatal(err)
	}
	c, err := rpc.Dial(t.Context(), "unix://"+in.Socket("server.sock"), rpc.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	st, err := sandbox.NewSandboxesClient(c).Stats(t.Context(), &sandbox.SandboxRequest{Sandbox: id.Sandbox(sid)})
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// TestTTL ends a sandbox when its time is up.
func TestTTL(t *testing.T) {
	t.Parallel()
	id := shared.run(t, "--ttl", "2s", "--", "sleep", "600")
	if out := shared.ended(t, id); !strings.Contains(out, `"ttl"`) {
		t.Errorf("ended without reason ttl: %s", out)
	}
	shared.r(t, "", "sandbox", "delete", id)
}

// TestExecReturnsTheCode runs commands in a sandbox.
func TestExecReturnsTheCode(t *testing.T) {
	t.Parallel()
	id := shared.run(t, "--", "sleep", "600")
	if out := shared.r(t, "", "sandbox", "exec", id, "--", "echo", "hello"); out != "hello\n" {
		t.Errorf("echo printed %q", out)
	}
	if res := shared.try(t, "", "sandbox", "exec", id, "--", "sh", "-c", "echo oops >&2; exit 7"); res.Code != 7 || res.Stderr != "oops\n" {
		t.Errorf("exit 7: %s", res)
	}
	if res := shared.try(t, "", "sandbox", "exec", id, "--", "no-such-command"); res.Code != 127 {
		t.Errorf("a missing command: %s", res)
	}
	shared.r(t, "", "sandbox", "stop", id)
	if out := shared.ended(t, id); !strings.Contains(out, `"user"`) {
		t.Errorf("ended without reason user: %s", out)
	}
	shared.r(t, "", "sandbox", "delete", id)
}

// TestNetworkNone: a sandbox without network reaches no address.
func TestNetworkNone(t *testing.T) {
	t.Parallel()
	out := shared.r(t, "", "sandbox", "run", "--image", "debian", "--network", "none", "--", "cat", "/proc/net/dev")
	if strings.Contains(out, "eth0") || !strings.Contains(out, "lo") {
		t.Errorf("interfaces of a sandbox without network: %s", out)
	}
}
