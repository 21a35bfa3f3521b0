// Package dockertest runs a Docker engine for tests (Debian's docker.io), and an installation whose sandboxes are its
// containers. The engine would change the firewall, links and mounts of the machine: so the tests of a package that uses
// it run in namespaces of their own (Main), which also end everything that the engine started when the tests end.
package dockertest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"testing"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/testsupport/private"
)

// inside is set in the environment of the tests that run in the namespaces.
const inside = "RUNTIME_TEST_DOCKER_NAMESPACES"

// Main runs the tests of a package in network, mount and PID namespaces of their own. TestMain calls it. Without root
// it runs them as they are: need.Root skips them.
func Main(m *testing.M) {
	if os.Geteuid() != 0 {
		os.Exit(m.Run())
	}
	if os.Getenv(inside) == "" {
		os.Exit(enter())
	}
	if err := prepare(); err != nil {
		fmt.Fprintln(os.Stderr, "namespaces of the tests:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// enter runs this program again in new namespaces.
func enter() int {
	exe, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	cmd := exec.Command(exe, os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID, Pdeathsig: unix.SIGKILL}
	// A time-out of `go test` and a Ctrl-C are for the tests, which report them.
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, unix.SIGTERM, unix.SIGQUIT)
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "namespaces of the tests:", err)
		return 1
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s)
		}
	}()
	err = cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return max(cmd.ProcessState.ExitCode(), boolInt(err != nil))
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// prepare separates the mounts, and gives the namespaces what programs expect.
func prepare() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("separate the mounts: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := private.ReleaseDisks(); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return fmt.Errorf("cover /run: %w", err)
	}
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("loopback: %w: %s", err, out)
	}
	return nil
}
