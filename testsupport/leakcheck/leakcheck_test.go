package leakcheck

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/proc"
	"miren.dev/runtime/testsupport/need"
)

func TestHasWord(t *testing.T) {
	for _, tt := range []struct {
		s, w string
		want bool
	}{
		{"/run/netns/rt-abcdefgh-sb", "rt-abcdefgh", true},
		{"rt-abcdefgh", "rt-abcdefgh", true},
		{"/var/lib/runtime2/x", "/var/lib/runtime", false},
		{"/var/lib/runtime2 /var/lib/runtime/pg", "/var/lib/runtime", true},
		{"", "x", false},
	} {
		if got := hasWord(tt.s, tt.w); got != tt.want {
			t.Errorf("hasWord(%q, %q) = %v", tt.s, tt.w, got)
		}
	}
}

func TestList(t *testing.T) {
	need.Root(t)
	in := Installation(t)
	if left, err := List(in); err != nil || len(left) > 0 {
		t.Fatalf("a new installation has %v, %v", left, err)
	}
	// One of each that is cheap to make.
	sleep := exec.Command("sleep", "60")
	sleep.Dir = in.StateDir
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sleep.Process.Kill(); _ = sleep.Wait() })
	target := in.State("mounted")
	if err := os.Mkdir(target, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", target, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(target, 0); err != nil {
			t.Error(err)
		}
	})
	left, err := List(in)
	if err != nil || len(left) != 2 || left[0] != (Item{"mount", target}) || left[1].Kind != "process" || !strings.HasSuffix(left[1].Name, "sleep 60") {
		t.Errorf("List = %v, %v", left, err)
	}
}

// TestListServer: a server whose command does not name its installation is found by its record.
func TestListServer(t *testing.T) {
	need.Root(t)
	in := Installation(t)
	sleep := exec.Command("sleep", "61")
	sleep.Dir = "/"
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sleep.Process.Kill(); _ = sleep.Wait() })
	rec, err := proc.Identify(sleep.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(rec)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(in.RunDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(in.Socket("server.json"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	if left, err := List(in); err != nil || len(left) != 1 || !strings.HasSuffix(left[0].Name, "sleep 61") {
		t.Errorf("List = %v, %v", left, err)
	}
}
