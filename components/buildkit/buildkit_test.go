package buildkit

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/components/baseimage"
	"miren.dev/runtime/components/containerd"
	"miren.dev/runtime/components/network"
	"miren.dev/runtime/pkg/appconfig"
	"miren.dev/runtime/pkg/buildlog"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/stack"
	"miren.dev/runtime/testsupport/baseimages"
	"miren.dev/runtime/testsupport/checkout"
	"miren.dev/runtime/testsupport/leakcheck"
	"miren.dev/runtime/testsupport/need"
)

// binDir is the directory of the toolchain. The test is skipped where it cannot run.
func binDir(t *testing.T) string {
	t.Helper()
	need.Root(t)
	return checkout.Toolchain(t, "containerd", "buildkitd", "runsc", "containerd-shim-runsc-v1", "cni/bridge", "cni/host-local")
}

const caBundle = "/etc/ssl/certs/ca-certificates.crt"

type env struct {
	instance   *instance.Instance
	containerd *containerd.Daemon
	buildkit   *Daemon
	bases      *baseimage.Store
	bin        string
}

// newEnv starts a containerd and a buildkitd of the test's own, the latter with what edits make of its configuration.
func newEnv(t *testing.T, edits ...func(*Config)) *env {
	t.Helper()
	bin := binDir(t)
	in := leakcheck.Installation(t)
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	e := &env{instance: in, bin: bin, bases: baseimage.New(baseimage.Config{Dir: baseimages.Dir(t), BinDir: bin, Registry: baseimage.RegistryNever, Logger: log})}
	e.containerd = containerd.New(containerd.Config{Instance: in, BinDir: bin, Logger: log})
	cfg := Config{Instance: in, Containerd: e.containerd, BinDir: bin, CABundle: caBundle, Logger: log}
	for _, edit := range edits {
		edit(&cfg)
	}
	e.buildkit = New(cfg)
	// Tests of other packages run at the same time, each as many threads: beside them a quarter is next to nothing.
	e.buildkit.cpuPercent = 1000
	net := network.New(network.Config{Instance: in, Logger: log})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		// Steps are removed through containerd, which a test may have killed.
		if err := e.containerd.Start(ctx); err != nil {
			t.Error(err)
		}
		if err := e.buildkit.Stop(ctx); err != nil {
			t.Error(err)
		}
		if err := e.containerd.Stop(ctx); err != nil {
			t.Error(err)
		}
		if err := net.Stop(ctx); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			for _, f := range []string{"buildkitd.log", "containerd.log"} {
				b, _ := os.ReadFile(in.State("logs", f))
				t.Logf("%s:\n%s", f, b[max(0, len(b)-8192):])
			}
		}
	})
	if err := net.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := e.containerd.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := e.buildkit.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return e
}

// TestBuilds runs the tests that build apps in one installation: base images are unpacked once, and each finds
// what package managers and compilers kept of the ones before.
func TestBuilds(t *testing.T) {
	e := newEnv(t)
	for _, tt := range []struct {
		name string
		test func(*testing.T, *env)
	}{
		{"images", testImages},
		{"examples", testExamples},
		{"sources", testSources},
		{"public", testPublic},
		{"links", testLinks},
		{"parallel installs", testParallelInstalls},
		{"secrets", testSecrets},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.test(t, e) })
	}
}

// request makes a request as the build controller does.
func (e *env) request(t *testing.T, dir, name string) (Request, *stack.Plan) {
	t.Helper()
	src := os.DirFS(dir)
	cfg, err := appconfig.Load(src)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := stack.Detect(src, cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, why := range plan.Reasons {
		t.Log("plan:", why)
	}
	return Request{ContextDir: dir, Dockerfile: plan.Dockerfile, ImageName: "runtime.local/test/" + name,
		Bases: e.resolve(t, plan.Bases), CacheScope: "test", ContextKey: name, Args: cfg.Build.Args}, plan
}

func (e *env) resolve(t *testing.T, names []string) map[string]Base {
	t.Helper()
	baseimages.Make(t, names...)
	images, notes, err := e.bases.Resolve(t.Context(), names, func(l string) { t.Log(l) })
	if err != nil {
		t.Fatal(err, errs.HintOf(err))
	}
	for _, n := range notes {
		t.Log("note:", n)
	}
	bases := map[string]Base{}
	for name, img := range images {
		bases[name] = Base{Dir: img.Dir, Digest: img.Digest}
	}
	return bases
}

func (e *env) build(t *testing.T, req Request) (*Result, []buildlog.Event, error) {
	t.Helper()
	var events []buildlog.Event
	start := time.Now()
	res, err := e.buildkit.Build(t.Context(), req, func(e buildlog.Event) { events = append(events, e) })
	t.Logf("build of %s: %s", req.ImageName, time.Since(start).Round(time.Millisecond))
	if testing.Verbose() || err != nil && !errs.Is(err, errs.FailedPrecondition) {
		for _, e := range events {
			t.Logf("%-8s %2d %s %s (%s) %d/%d", e.Kind, e.Step, e.Name, e.Text, e.Took.Round(time.Millisecond), e.Current, e.Total)
		}
	}
	return res, events, err
}

func example(t *testing.T, name string) string {
	t.Helper()
	dir, err := filepath.Abs("../../examples/" + name)
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), name)
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

// change replaces a text in a file.
func change(t *testing.T, file, old, new string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(b, []byte(old)) {
		t.Fatalf("%s has no %s", file, old)
	}
	if err := os.WriteFile(file, bytes.Replace(b, []byte(old), []byte(new), 1), 0o644); err != nil {
		t.Fatal(err)
	}
}

func failureLog(err error) string {
	var f *Failure
	if errors.As(err, &f) {
		return strings.Join(f.Log, "\n")
	}
	return ""
}
