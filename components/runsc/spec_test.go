package runsc_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

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

// TestSandboxSeesNothingOfHost checks from inside that private parts of the host are out of sight and reach.
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
	// A process of the sandbox can neither read nor change the messages between agent and node.
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

// TestGuestCannotFillTheHost writes as the guest's root wherever it can, until the disk of the sandbox is full.
func TestGuestCannotFillTheHost(t *testing.T) {
	m := runsctest.New(t)
	m.CABundle = filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(m.CABundle, []byte("certificates of the host\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	m.Restart(t)
	e := m.Env()
	const disk = 16 << 20
	e.Start(t, execution.Spec{
		ID: "filler", Image: m.Image, Command: []string{"/bin/guest", "sleep"}, Network: execution.NetworkBridge,
		MemoryBytes: 128 << 20, PIDs: 64, DiskBytes: disk,
	})
	before := size(t, m.Instance.RunDir)
	write := func(path string, megabytes int) bool {
		x := execution.ExecSpec{Command: []string{"/bin/guest", "write", path, strconv.Itoa(megabytes)}, User: "root"}
		_, ok := e.Try(t, "filler", x)
		return ok
	}
	for _, path := range []string{"/etc/hosts", "/etc/hostname", "/etc/resolv.conf"} {
		if !write(path, 1) {
			t.Errorf("the sandbox cannot change its own %s", path)
		}
		if write(path, 200) {
			t.Errorf("200 MB of %d were written to %s", disk, path)
		}
		if !write(path, 0) {
			t.Errorf("%s cannot be made empty again", path)
		}
	}
	for _, path := range []string{"/run/runtime/log/x", "/run/runtime/log/exit", "/run/runtime/agent/x", "/run/runtime/bin/agent", "/run/runtime/ca-certificates.crt"} {
		if write(path, 0) {
			t.Errorf("root of the guest writes %s", path)
		}
	}
	if grown := size(t, m.Instance.RunDir) - before; grown > 1<<20 {
		t.Errorf("the run directory has %d bytes more", grown)
	}
}

// size returns the space that the files below dir use on their file system.
func size(t *testing.T, dir string) (sum int64) {
	t.Helper()
	var top unix.Stat_t
	if err := unix.Lstat(dir, &top); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		var st unix.Stat_t
		if unix.Lstat(path, &st) != nil {
			return nil // removed meanwhile
		}
		if st.Dev != top.Dev {
			if st.Mode&unix.S_IFMT == unix.S_IFDIR {
				return fs.SkipDir
			}
			return nil
		}
		sum += st.Blocks * 512
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return sum
}
