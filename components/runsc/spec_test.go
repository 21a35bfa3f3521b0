package runsc_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/testsupport/runsctest"
)

func TestCABundle(t *testing.T) {
	m := runsctest.New(t)
	m.CABundle = filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(m.CABundle, []byte("certificates of the host\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	m.Restart(t)
	e := m.Env()
	e.Start(t, execution.Spec{
		ID: "ca", Image: m.Image, Command: []string{"/bin/guest", "sleep"}, Env: []string{"PIP_CERT=mine"},
		Network: execution.NetworkNone, MemoryBytes: 128 << 20, PIDs: 64,
	})
	env := strings.Split(e.Output(t, "ca", execution.ExecSpec{Command: []string{"/bin/guest", "env"}}), "\n")
	for _, want := range []string{"SSL_CERT_FILE=/run/runtime/ca-certificates.crt", "PIP_CERT=mine"} {
		if !slices.Contains(env, want) {
			t.Errorf("no %s in %q", want, env)
		}
	}
	got := e.Output(t, "ca", execution.ExecSpec{Command: []string{"/bin/guest", "read", "/run/runtime/ca-certificates.crt"}, User: "app"})
	if got != "certificates of the host\n" {
		t.Errorf("bundle: %q", got)
	}
}

// TestSandboxSeesNothingOfHost looks from inside at what must not be seen or reached.
func TestSandboxSeesNothingOfHost(t *testing.T) {
	m := runsctest.New(t)
	e := m.Env()
	e.Start(t, execution.Spec{
		ID: "isolated", Image: m.Image, Command: []string{"/bin/guest", "sleep"}, Network: execution.NetworkBridge,
		MemoryBytes: 128 << 20, PIDs: 64,
	})
	read := func(user, path string) (string, bool) {
		x := execution.ExecSpec{Command: []string{"/bin/guest", "read", path}, User: user}
		return e.Try(t, "isolated", x)
	}
	if got, ok := read("", "/proc/version"); !ok || !strings.Contains(strings.ToLower(got), "gvisor") {
		t.Errorf("/proc/version does not show gVisor: %q", got)
	}
	// What the agent and the node say to each other is neither read nor changed by what runs.
	for _, user := range []string{"root", "app"} {
		for _, path := range []string{"/run/runtime/agent/config", "/run/runtime/agent/agent.sock", "/run/runtime/log/exit"} {
			if got, ok := read(user, path); ok {
				t.Errorf("%s reads %s: %q", user, path, got)
			}
		}
		x := execution.ExecSpec{Command: []string{"/bin/guest", "write", "/run/runtime/log/exit", "1"}, User: user}
		if _, ok := e.Try(t, "isolated", x); ok {
			t.Errorf("%s writes the exit record", user)
		}
	}
	if got, ok := read("", "/etc/resolv.conf"); !ok || !strings.Contains(got, "nameserver ") {
		t.Errorf("/etc/resolv.conf: %q", got)
	}
}
