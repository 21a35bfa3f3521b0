package dockertest

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"testing"

	"github.com/moby/moby/client"

	"miren.dev/runtime/components/containerd"
	"miren.dev/runtime/components/docker"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/testsupport/executiontest"
	"miren.dev/runtime/testsupport/leakcheck"
	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/runsctest"
)

// Machine is an installation for tests, whose sandboxes are containers of an engine.
type Machine struct {
	Instance *instance.Instance
	Engine   *Engine
	Config   docker.Config // of the next Driver
	Image    string        // reference of executiontest.Image
	Driver   *docker.Driver
	stop     func()
	images   *containerd.Images
}

// New creates an installation and an engine with this runtime. The end of the test removes both, and fails if a part of them remains.
func New(t testing.TB, runtime string) *Machine {
	t.Helper()
	need.Root(t)
	bin := runsctest.Toolchain(t)
	in := leakcheck.Installation(t)
	level := slog.LevelWarn
	if testing.Verbose() {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	m := &Machine{Instance: in, Engine: Start(t, bin)}
	ctx := context.Background()
	daemon := containerd.New(containerd.Config{Instance: in, BinDir: bin, Logger: log})
	if err := daemon.Start(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := daemon.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	m.images = containerd.NewImages(daemon)
	var err error
	if m.Image, err = m.images.Import(ctx, bytes.NewReader(executiontest.Image(t)), "test/guest", nil); err != nil {
		t.Fatal(err)
	}
	m.Config = docker.Config{
		Instance: in, BinDir: bin, Images: m.images, Host: m.Engine.Host, Runtime: runtime, SharedKernel: runtime != Runsc,
		Network: Network, Logger: log,
	}
	m.Start(t)
	t.Cleanup(func() {
		err := m.Driver.Shutdown(ctx)
		m.stop()
		if err = errors.Join(err, m.Driver.Close()); err != nil {
			t.Error(err)
		}
		m.isEmpty(t)
	})
	return m
}

// isEmpty checks that the engine has nothing left of the installation.
func (m *Machine) isEmpty(t testing.TB) {
	t.Helper()
	list, err := m.Engine.Client.ContainerList(context.Background(), client.ContainerListOptions{All: true})
	if err != nil || len(list.Items) > 0 {
		t.Errorf("containers left: %+v, %v", list.Items, err)
	}
	images, err := m.Engine.Client.ImageList(context.Background(), client.ImageListOptions{})
	if err != nil || len(images.Items) > 0 {
		t.Errorf("images left: %+v, %v", images.Items, err)
	}
}

// Start creates a driver and runs it.
func (m *Machine) Start(t testing.TB) {
	t.Helper()
	var err error
	if m.Driver, err = docker.New(m.Config); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	if err := m.Driver.Start(ctx); err != nil {
		cancel()
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	m.stop = func() { cancel(); wg.Wait() }
	wg.Go(func() {
		if err := m.Driver.Run(ctx); err != nil {
			t.Error(err)
		}
	})
}

// Restart behaves as a restart of the server.
func (m *Machine) Restart(t testing.TB) execution.Driver {
	t.Helper()
	m.stop()
	if err := m.Driver.Close(); err != nil {
		t.Error(err)
	}
	m.Start(t)
	return m.Driver
}

// Env returns the environment for the conformance suite.
func (m *Machine) Env() *executiontest.Env {
	return &executiontest.Env{
		Driver: m.Driver, Image: m.Image, Renew: m.Restart,
		Lacks: executiontest.Lacks{Policies: true, Snapshots: true, DiskOf: DiskBytes},
	}
}
