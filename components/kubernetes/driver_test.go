package kubernetes_test

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/components/kubernetes"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/testsupport/checkout"
	"miren.dev/runtime/testsupport/executiontest"
	"miren.dev/runtime/testsupport/kubernetestest"
)

// env is a cluster with a driver.
type env struct {
	cluster  *kubernetestest.Cluster
	instance *instance.Instance
	bin      string
	driver   *kubernetes.Driver
	end      func()
}

// images knows the image of the conformance suite.
type images struct{ ref string }

func (i images) Config(_ context.Context, ref string) (ocispec.ImageConfig, error) {
	if ref != i.ref {
		return ocispec.ImageConfig{}, errs.New(errs.NotFound, "image %s does not exist", ref)
	}
	return executiontest.Config(), nil
}

// toolchain returns a directory with the toolchain and a fresh agent.
func toolchain(t testing.TB) string {
	t.Helper()
	from := checkout.Toolchain(t, "containerd-shim-runsc-v1", "runsc", "cni")
	dir := t.TempDir()
	for _, name := range []string{"containerd-shim-runsc-v1", "runsc", "cni"} {
		if err := os.Symlink(filepath.Join(from, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", dir, "./cmd/runtime-agent")
	build.Dir = checkout.Root(t)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the agent: %v\n%s", err, out)
	}
	return dir
}

func newEnv(t *testing.T) *env {
	t.Helper()
	e := &env{bin: toolchain(t)}
	e.cluster = kubernetestest.Start(t, e.bin)
	dir, err := os.MkdirTemp("", "rti") // short, since the paths of sockets are limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if e.instance, err = instance.Open(filepath.Join(dir, "state"), filepath.Join(dir, "run")); err != nil {
		t.Fatal(err)
	}
	e.start(t)
	t.Cleanup(func() {
		if err := e.driver.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		e.end()
	})
	return e
}

// start makes a driver, as a server that starts does.
func (e *env) start(t testing.TB) {
	t.Helper()
	level := slog.LevelWarn
	if testing.Verbose() {
		level = slog.LevelDebug
	}
	d, err := kubernetes.New(kubernetes.Config{
		Instance: e.instance, BinDir: e.bin, Cluster: e.cluster.Config, Namespace: kubernetestest.Namespace,
		RuntimeClass: kubernetestest.RuntimeClass, AgentImage: kubernetestest.AgentImage, Images: images{e.cluster.Node.Image},
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	if err := d.Start(ctx); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := d.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	e.driver = d
	e.end = func() {
		cancel()
		wg.Wait()
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

func (e *env) restart(t testing.TB) execution.Driver {
	t.Helper()
	e.end()
	e.start(t)
	return e.driver
}

func TestDriverConforms(t *testing.T) {
	e := newEnv(t)
	executiontest.Run(t, &executiontest.Env{Driver: e.driver, Image: e.cluster.Node.Image, Renew: e.restart, Lacks: executiontest.Lacks{Policies: true, Snapshots: true, SoftDisk: true, Stats: true, ClaimLimits: true}})
}
