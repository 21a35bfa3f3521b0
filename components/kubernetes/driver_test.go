//go:build kubernetes

package kubernetes_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/components/kubernetes"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/testsupport/checkout"
	"miren.dev/runtime/testsupport/executiontest"
	"miren.dev/runtime/testsupport/kubernetestest"
	"miren.dev/runtime/testsupport/wait"
)

// env is a cluster with a driver.
type env struct {
	cluster  *kubernetestest.Cluster
	instance *instance.Instance
	bin      string
	images   *images
	driver   *kubernetes.Driver
	end      func()
}

// images knows the image of the conformance suite, which the node has.
type images struct {
	ref string

	mu        sync.Mutex
	pushed    string // by which pods pull it; empty: ref
	agent     int    // calls of Agent
	forgotten []string
}

func (i *images) Image(_ context.Context, ref string) (kubernetes.Image, error) {
	if ref != i.ref {
		return kubernetes.Image{}, errs.New(errs.NotFound, "image %s does not exist", ref)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return kubernetes.Image{Ref: cmp.Or(i.pushed, ref), Config: executiontest.Config()}, nil
}

// Agent returns the image that the cluster has.
func (i *images) Agent(context.Context) (string, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.agent++
	return kubernetestest.AgentImage, nil
}

func (i *images) Forget(ref string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.forgotten, i.pushed = append(i.forgotten, ref), ""
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
	e.images = &images{ref: e.cluster.Node.Image}
	dir, err := os.MkdirTemp("", "k8i") // short, since the paths of sockets are limited
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
	d, err := kubernetes.New(e.config())
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

// config is that of a driver whose account has no more rights than it needs.
func (e *env) config() kubernetes.Config {
	level := slog.LevelWarn
	if testing.Verbose() {
		level = slog.LevelDebug
	}
	return kubernetes.Config{
		Instance: e.instance, BinDir: e.bin, Cluster: e.cluster.Account, Namespace: kubernetestest.Namespace,
		RuntimeClass: kubernetestest.RuntimeClass, Images: e.images,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})),
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

// A pod cannot refuse a write beyond its limit; the kubelet ends it.
func TestTooLargeDiskEndsTheSandbox(t *testing.T) {
	e := newEnv(t)
	s := e.spec("disk")
	s.DiskBytes = 16 << 20
	e.ensure(t, s)
	e.exec(t, "disk", "/bin/guest", "write", "/home/big", "160")
	wait.NoError(t, "the sandbox ends", func() error {
		in, err := e.driver.Get(t.Context(), "disk")
		if err == nil && (in.Exit == nil || in.Exit.Cause != execution.CauseCrash || !strings.Contains(in.Exit.Message, "Evicted")) {
			err = fmt.Errorf("it is %+v, %+v", in, in.Exit)
		}
		return err
	}, wait.Within(3*time.Minute))
}

// Start says why sandboxes could not run, before one is made.
func TestStartExplains(t *testing.T) {
	e := newEnv(t)
	for name, c := range map[string]struct {
		change func(*kubernetes.Config)
		class  errs.Class
		words  string
	}{
		"no rights":        {func(c *kubernetes.Config) { c.Namespace = "default" }, errs.FailedPrecondition, "get pods, list pods, watch pods, create pods, delete pods, get pods/exec"},
		"no namespace":     {func(c *kubernetes.Config) { c.Cluster, c.Namespace = e.cluster.Config, "other" }, errs.FailedPrecondition, "has no namespace other"},
		"no runtime class": {func(c *kubernetes.Config) { c.RuntimeClass = "other" }, errs.FailedPrecondition, `runtime class "other"`},
		"wrong token": {func(c *kubernetes.Config) {
			c.Cluster = rest.CopyConfig(c.Cluster)
			c.Cluster.BearerToken = "wrong"
		}, errs.FailedPrecondition, "Unauthorized"},
		"no API server": {func(c *kubernetes.Config) { c.Cluster = &rest.Config{Host: "https://127.0.0.1:1"} }, errs.Unavailable, "https://127.0.0.1:1"},
	} {
		cfg := e.config()
		c.change(&cfg)
		d, err := kubernetes.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Start(t.Context()); !errs.Is(err, c.class) || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: got %s %v, want %s with %q", name, errs.ClassOf(err), err, c.class, c.words)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// An image that the nodes cannot pull is looked for in the registry again.
func TestImageThatCannotBePulled(t *testing.T) {
	e := newEnv(t)
	lost := "127.0.0.1:1/lost@sha256:" + strings.Repeat("0", 64)
	e.images.pushed = lost
	if _, err := e.driver.Ensure(t.Context(), e.spec("lost")); !errs.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), "cannot pull the image "+lost) {
		t.Errorf("Ensure = %v", err)
	}
	if want := []string{lost, kubernetestest.AgentImage}; !slices.Equal(e.images.forgotten, want) {
		t.Errorf("forgotten are %v, want %v", e.images.forgotten, want)
	}
	e.ensure(t, e.spec("lost"))
	if e.images.agent != 2 { // by Start, and again
		t.Errorf("the agent's image was pushed %d times", e.images.agent)
	}
}

// What others delete has ended; what others own stays.
func TestOtherHandsOnPods(t *testing.T) {
	e := newEnv(t)
	pods := e.cluster.Core.Pods(kubernetestest.Namespace)
	prefix := "rt-" + e.instance.ID + "-"
	e.ensure(t, e.spec("deleted"))
	now := int64(0)
	if err := pods.Delete(t.Context(), prefix+"deleted", metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
	in, err := e.driver.Get(t.Context(), "deleted")
	if err != nil || in.Phase != execution.Exited || in.Exit.Cause != execution.CauseCrash {
		t.Errorf("a pod that somebody deleted: %+v %+v, %v", in, in.Exit, err)
	}
	if in, err = e.driver.Ensure(t.Context(), e.spec("deleted")); err != nil || in.Phase != execution.Exited {
		t.Errorf("Ensure started it again: %+v, %v", in, err)
	}
	foreign := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: prefix + "foreign", Labels: map[string]string{kubernetes.LabelInstance: "other"}},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "test.invalid/none:1", ImagePullPolicy: v1.PullNever}}},
	}
	if _, err := pods.Create(t.Context(), foreign, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := e.driver.Delete(t.Context(), "foreign"); !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("Delete of a pod with other labels: %v", err)
	}
	if err := e.driver.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	list, err := pods.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].Name != foreign.Name {
		t.Errorf("after Shutdown: %d pods, %v", len(list.Items), err)
	}
	if err := pods.Delete(t.Context(), foreign.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Error(err)
	}
}

// What the API server and the node know of a sandbox has no secret.
func TestPodHasNoSecrets(t *testing.T) {
	e := newEnv(t)
	s := e.spec("secret")
	s.Env = []string{"PASSWORD=s3cret-words"}
	e.ensure(t, s)
	pod, err := e.cluster.Core.Pods(kubernetestest.Namespace).Get(t.Context(), "rt-"+e.instance.ID+"-secret", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if b, err := json.Marshal(pod); err != nil || strings.Contains(string(b), "s3cret") {
		t.Errorf("the pod has the secret, %v", err)
	}
	if out := e.exec(t, "secret", "/bin/guest", "env"); !strings.Contains(out, "PASSWORD=s3cret-words\n") {
		t.Errorf("the sandbox has %q", out)
	}
	if out := e.exec(t, "secret", "/bin/guest", "caps"); !strings.Contains(out, "CapBnd:\t0000000000000000\n") || !strings.Contains(out, "NoNewPrivs:\t1") {
		t.Errorf("a process of root has privileges:\n%s", out)
	}
	for _, path := range []string{"/run/runtime/agent/config", "/run/runtime/agent/agent.sock", "/run/runtime/log/exit"} {
		if out, ok := e.try(t, "secret", "/bin/guest", "read", path); ok || !strings.Contains(out, "permission denied") {
			t.Errorf("root of the sandbox reads %s: %s", path, out)
		}
	}
}

func (e *env) spec(id string) execution.Spec {
	return execution.Spec{
		ID: id, Image: e.cluster.Node.Image, Idle: true, Network: execution.NetworkNone, CPUMillis: 1000, MemoryBytes: 128 << 20, PIDs: 64,
	}
}

func (e *env) ensure(t *testing.T, s execution.Spec) {
	t.Helper()
	if in, err := e.driver.Ensure(t.Context(), s); err != nil || in.Phase != execution.Running {
		t.Fatalf("Ensure = %+v, %v", in, err)
	}
}

func (e *env) exec(t *testing.T, id string, command ...string) string {
	t.Helper()
	out, ok := e.try(t, id, command...)
	if !ok {
		t.Fatalf("%v: %s", command, out)
	}
	return out
}

func (e *env) try(t *testing.T, id string, command ...string) (string, bool) {
	t.Helper()
	return (&executiontest.Env{Driver: e.driver}).Try(t, id, execution.ExecSpec{Command: command})
}
