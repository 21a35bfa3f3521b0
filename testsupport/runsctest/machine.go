// Package runsctest creates installations with a real driver for tests: a
// private containerd, network and sandboxes in gVisor. It needs root and the
// toolchain (make toolchain); tests skip without them.
package runsctest

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"miren.dev/runtime/components/containerd"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/components/network"
	"miren.dev/runtime/components/runsc"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/testsupport/checkout"
	"miren.dev/runtime/testsupport/executiontest"
	"miren.dev/runtime/testsupport/leakcheck"
	"miren.dev/runtime/testsupport/need"
)

// Machine is an installation for tests.
type Machine struct {
	Instance   *instance.Instance
	Bin        string // the directory of the toolchain
	Logger     *slog.Logger
	Containerd *containerd.Daemon
	Image      string // reference of executiontest.Image
	Driver     *runsc.Driver
	CABundle   string // of the next Driver
	Backend    string // of the next Driver
	Stop       func() // ends what the server runs: the driver's and containerd's Run
}

// Toolchain returns a directory with the toolchain, a fresh agent and a fresh launcher.
func Toolchain(t testing.TB) string {
	t.Helper()
	binaries := []string{"containerd", "containerd-shim-runsc-v1", "containerd-shim-runsc-launch-v1", "runsc"}
	from := checkout.Toolchain(t, binaries...)
	dir := t.TempDir()
	for _, name := range binaries {
		if err := os.Symlink(filepath.Join(from, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", dir, "./cmd/runtime-agent", "./cmd/runtime-launch")
	build.Dir = checkout.Root(t)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the agent and the launcher: %v\n%s", err, out)
	}
	return dir
}

// New creates an installation that is removed, and checked for leaks, when the
// test ends.
func New(t testing.TB) *Machine {
	t.Helper()
	return NewWith(t, runsc.BackendDirect)
}

// NewWith is New with another backend of the driver.
func NewWith(t testing.TB, backend string) *Machine {
	t.Helper()
	need.Root(t)
	bin := Toolchain(t)
	in := leakcheck.Installation(t)
	level := slog.LevelWarn
	if testing.Verbose() {
		level = slog.LevelDebug
	}
	m := &Machine{Instance: in, Bin: bin, Backend: backend, Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))}
	m.Containerd = containerd.New(containerd.Config{Instance: in, BinDir: bin, Logger: m.Logger})
	ctx := context.Background()
	if err := m.Containerd.Start(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Containerd.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	var err error
	m.Image, err = containerd.NewImages(m.Containerd).Import(ctx, bytes.NewReader(executiontest.Image(t)), "test/guest", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := m.Driver.Shutdown(ctx)
		m.Stop()
		if err = errors.Join(err, m.Driver.Close()); err != nil {
			t.Error(err)
		}
	})
	m.Start(t)
	return m
}

// Start creates a driver and runs the parts that the server runs.
func (m *Machine) Start(t testing.TB) {
	t.Helper()
	m.Driver = runsc.New(runsc.Config{
		Instance:   m.Instance,
		BinDir:     m.Bin,
		Containerd: m.Containerd,
		Images:     containerd.NewImages(m.Containerd),
		Network:    network.New(network.Config{Instance: m.Instance, Logger: m.Logger}),
		CABundle:   m.CABundle,
		Backend:    m.Backend,
		Logger:     m.Logger,
	})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	m.Stop = func() { cancel(); wg.Wait() }
	if err := m.Driver.Start(ctx); err != nil {
		t.Fatal(err)
	}
	for _, run := range []func(context.Context) error{m.Driver.Run, m.Containerd.Run} {
		wg.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

// Restart behaves as a restart of the server.
func (m *Machine) Restart(t testing.TB) execution.Driver {
	t.Helper()
	m.Stop()
	if err := m.Driver.Close(); err != nil {
		t.Error(err)
	}
	m.Start(t)
	return m.Driver
}

// Env returns the environment for the conformance suite.
func (m *Machine) Env() *executiontest.Env {
	lacks := executiontest.Lacks{Snapshots: m.Backend == runsc.BackendContainerd}
	return &executiontest.Env{Driver: m.Driver, Image: m.Image, Renew: m.Restart, Lacks: lacks}
}
