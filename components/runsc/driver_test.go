package runsc

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
	"miren.dev/runtime/components/execution/executiontest"
	"miren.dev/runtime/components/leakcheck"
	"miren.dev/runtime/components/network"
	"miren.dev/runtime/pkg/instance"
)

// machine is an installation for tests.
type machine struct {
	instance   *instance.Instance
	bin        string
	log        *slog.Logger
	containerd *containerd.Daemon
	image      string
	driver     *Driver
	stop       func() // ends what the server would run
}

// toolchain returns a directory with the toolchain and a fresh agent.
func toolchain(t testing.TB) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	from := os.Getenv("RUNTIME_BIN")
	if from == "" {
		from = filepath.Join(root, "bin")
	}
	dir := t.TempDir()
	for _, name := range []string{"containerd", "containerd-shim-runsc-v1", "runsc"} {
		path := filepath.Join(from, name)
		if _, err := os.Stat(path); err != nil {
			t.Skipf("needs the toolchain (make toolchain): %v", err)
		}
		if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(dir, "runtime-agent"), "./cmd/runtime-agent")
	build.Dir = root
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the agent: %v\n%s", err, out)
	}
	return dir
}

// newMachine makes an installation that is removed, and checked for leaks, at the end.
func newMachine(t testing.TB) *machine {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	bin := toolchain(t)
	dir, err := os.MkdirTemp("", "rt") // short: sockets have little room
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	in, err := instance.Open(filepath.Join(dir, "state"), filepath.Join(dir, "run"))
	if err != nil {
		t.Fatal(err)
	}
	leakcheck.Check(t, in)
	level := slog.LevelWarn
	if testing.Verbose() {
		level = slog.LevelDebug
	}
	m := &machine{instance: in, bin: bin, log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))}
	m.containerd = containerd.New(containerd.Config{Instance: in, BinDir: bin, Logger: m.log})
	ctx := context.Background()
	if err := m.containerd.Start(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.containerd.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	m.image, err = containerd.NewImages(m.containerd).Import(ctx, bytes.NewReader(executiontest.Image(t)), "test/guest", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := m.driver.Shutdown(ctx)
		m.stop()
		if err = errors.Join(err, m.driver.Close()); err != nil {
			t.Error(err)
		}
	})
	m.start(t)
	return m
}

// start makes a driver and runs what the server runs.
func (m *machine) start(t testing.TB) {
	t.Helper()
	m.driver = New(Config{
		Instance:   m.instance,
		BinDir:     m.bin,
		Containerd: m.containerd,
		Images:     containerd.NewImages(m.containerd),
		Network:    network.New(network.Config{Instance: m.instance, Logger: m.log}),
		Logger:     m.log,
	})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	m.stop = func() { cancel(); wg.Wait() }
	if err := m.driver.Start(ctx); err != nil {
		t.Fatal(err)
	}
	for _, run := range []func(context.Context) error{m.driver.Run, m.containerd.Run} {
		wg.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

// restart is what happens when the server is restarted.
func (m *machine) restart(t testing.TB) execution.Driver {
	t.Helper()
	m.stop()
	if err := m.driver.Close(); err != nil {
		t.Error(err)
	}
	m.start(t)
	return m.driver
}

func (m *machine) env() *executiontest.Env {
	return &executiontest.Env{Driver: m.driver, Image: m.image, Renew: m.restart}
}

func TestDriver(t *testing.T) {
	m := newMachine(t)
	executiontest.Run(t, m.env())
}
