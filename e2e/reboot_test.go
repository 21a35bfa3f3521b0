package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/testsupport/leakcheck"
	"miren.dev/runtime/testsupport/need"
)

// reboot takes from a server what a machine loses when its power fails and it boots
// again: every process, mount, network and control group, and what is below /run.
// Then it starts the server. The server and what it starts see another boot id than
// before, by a mount of their own.
func (s *server) reboot(t *testing.T) {
	t.Helper()
	need.Tools(t, "unshare", "mount")
	in, err := instance.Find(s.state, config.DefaultRunDir())
	if err != nil {
		t.Fatal(err)
	}
	kill(t, s.pid(t, "server"))
	if err := leakcheck.Remove(in); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(in.RunDir); err != nil {
		t.Fatal(err)
	}
	boot := filepath.Join(t.TempDir(), "boot_id")
	write(t, boot, "5f0c4c1e-6f0b-4a6b-9d55-0d3c1e0b7a11\n")
	after := func(cmd *exec.Cmd) {
		t.Helper()
		wrapped := exec.Command("unshare", append([]string{"--mount", "--propagation", "unchanged", "sh", "-c",
			`mount --make-private /proc && mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"`, boot}, cmd.Args...)...)
		wrapped.Env = cmd.Env
		if out, err := wrapped.CombinedOutput(); err != nil {
			t.Errorf("%v after the reboot: %v\n%s", cmd.Args, err, out)
		}
	}
	t.Cleanup(func() { after(s.command(context.Background(), "", "server", "stop")) })
	after(s.startCommand())
}

// TestReboot: after a reboot apps are there again with their disks, sandboxes that
// ran have ended with a reason, and paused ones continue with their memory.
func TestReboot(t *testing.T) {
	t.Parallel()
	s := own(t, "reboot")
	app, dir := "app", copyExample(t, "go-http")
	s.r(t, dir, "app", "deploy", "--app", app)
	s.r(t, "", "sandbox", "create", "--name", "runs", "--template", "shell")
	s.r(t, "", "sandbox", "create", "--name", "sleeps", "--template", "shell")
	s.r(t, "", "sandbox", "exec", "sleeps", "--", "sh", "-c", "echo kept >/tmp/file")
	s.r(t, "", "sandbox", "exec", "--detach", "sleeps", "--", "sleep", "86400")
	s.r(t, "", "sandbox", "pause", "sleeps")
	old := s.sandbox(t, app)

	s.reboot(t)
	s.answers(t, app, "/", "v1")
	if now := s.sandbox(t, app); now == old {
		t.Errorf("the app has the sandbox %s of before the reboot", now)
	}
	if out := s.ended(t, "runs"); !strings.Contains(out, `"crash"`) || !strings.Contains(out, "the machine was restarted") {
		t.Errorf("the sandbox that ran: %s", out)
	}
	if out := s.r(t, "", "sandbox", "exec", "sleeps", "--", "cat", "/tmp/file"); strings.TrimSpace(out) != "kept" {
		t.Errorf("the file of the paused sandbox: %q", out)
	}
	if out := s.r(t, "", "sandbox", "ps", "sleeps"); !strings.Contains(out, "sleep 86400") {
		t.Errorf("the processes of the paused sandbox: %s", out)
	}
}
