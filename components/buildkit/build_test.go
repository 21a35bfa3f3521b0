package buildkit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"miren.dev/runtime/components/network/netdump"
	"miren.dev/runtime/pkg/buildlog"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/proc"
	"miren.dev/runtime/testsupport/deadline"
	"miren.dev/runtime/testsupport/wait"
)

// dockerfile makes a request from a text whose only base is debian.
func (e *env) dockerfile(t *testing.T, text string) Request {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file.txt"), []byte("text\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return Request{ContextDir: dir, Dockerfile: text, ImageName: "runtime.local/test/dockerfile",
		Bases: e.resolve(t, []string{"debian"}), CacheScope: "test", ContextKey: t.Name()}
}

func logOf(events []buildlog.Event) string {
	var b strings.Builder
	for _, e := range events {
		if e.Kind == buildlog.StepLog {
			b.WriteString(e.Text + "\n")
		}
	}
	return b.String()
}

// testImages finds what a build makes of a Dockerfile.
func testImages(t *testing.T, e *env) {
	t.Run("steps run in gVisor with the network and the host's certificates", func(t *testing.T) {
		_, events, err := e.build(t, e.dockerfile(t, `# syntax=docker/dockerfile:1
FROM debian
RUN uname -r && cat /proc/version
RUN test -s "$SSL_CERT_FILE" && test -s /run/runtime/ca-certificates.crt
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends tiny-initramfs-core >/dev/null && echo installed
RUN test ! -e /run/runtime && echo never || echo mounted
`))
		if err != nil {
			t.Fatal(err, errs.HintOf(err), failureLog(err))
		}
		for _, want := range []string{"gvisor", "installed"} {
			if !strings.Contains(logOf(events), want) {
				t.Errorf("%q is not in:\n%s", want, logOf(events))
			}
		}
	})

	t.Run("certificates do not get into the image", func(t *testing.T) {
		res, _, err := e.build(t, e.dockerfile(t, "FROM debian\nRUN echo x > /x\n"))
		if err != nil {
			t.Fatal(err)
		}
		root := e.rootfs(t, res)
		if _, err := os.Stat(filepath.Join(root, "run/runtime")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("/run/runtime: %v", err)
		}
		for _, v := range res.Config.Env {
			if strings.Contains(v, "/run/runtime") {
				t.Errorf("environment: %s", v)
			}
		}
	})

	t.Run("steps reach no address of the host", func(t *testing.T) {
		l, err := net.Listen("tcp", "0.0.0.0:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		accepted := make(chan struct{}, 8)
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				c.Close()
				accepted <- struct{}{}
			}
		}()
		bridge, err := netlink.LinkByName(e.buildkit.bridge())
		if err != nil {
			t.Fatal(err)
		}
		addrs, err := netdump.Addresses(bridge, netlink.FAMILY_V4)
		if err != nil || len(addrs) != 1 {
			t.Fatal(addrs, err)
		}
		_, port, _ := net.SplitHostPort(l.Addr().String())
		_, events, err := e.build(t, e.dockerfile(t, "FROM debian\nSHELL [\"/bin/bash\", \"-c\"]\nRUN timeout 3 bash -c 'echo > /dev/tcp/"+addrs[0].IP.String()+"/"+port+"' && echo reached || echo refused\n"))
		if err != nil {
			t.Fatal(err)
		}
		if log := logOf(events); !strings.Contains(log, "refused") || len(accepted) > 0 {
			t.Errorf("the host was reached: %s", log)
		}
	})

	t.Run("a step that fails is explained", func(t *testing.T) {
		_, events, err := e.build(t, e.dockerfile(t, "FROM debian\nRUN echo fine\nRUN echo before && echo trouble >&2 && exit 7\nRUN echo never\n"))
		var f *Failure
		if !errors.As(err, &f) || !errs.Is(err, errs.FailedPrecondition) {
			t.Fatalf("got %v", err)
		}
		if f.ExitCode != 7 || !strings.Contains(f.Step, "exit 7") || f.Line != 3 ||
			// Two streams: which line comes first is not said.
			!slices.Contains(f.Log, "before") || !slices.Contains(f.Log, "trouble") {
			t.Errorf("got %+v", f)
		}
		if errs.Detail(err, "exit_code") != "7" {
			t.Errorf("details: %v", err)
		}
		var failed, stderr bool
		for _, e := range events {
			failed = failed || e.Kind == buildlog.StepFailed && strings.Contains(e.Name, "exit 7")
			stderr = stderr || e.Kind == buildlog.StepLog && e.Text == "trouble" && e.Stderr
			if strings.Contains(e.Name, "echo never") && e.Kind == buildlog.StepDone {
				t.Error("the step after it was run")
			}
		}
		if !failed || !stderr {
			t.Errorf("events: failed %v, stderr %v", failed, stderr)
		}
	})

	for name, tt := range map[string]struct{ text, message, hint string }{
		"an unknown command":       {"FROM debian\nRUN nonsense --now\n", "exit code 127", "a command was not found"},
		"a file that is not there": {"FROM debian\nCOPY no.txt /\n", "no.txt", "ignored"},
		"a mistake in the text":    {"FROM debian\nRUNN x\n", "unknown instruction: RUNN", ""},
		"no registry":              {"FROM alpine:3.20\nRUN true\n", "alpine", "no registry"},
	} {
		t.Run(name+" is explained", func(t *testing.T) {
			_, _, err := e.build(t, e.dockerfile(t, tt.text))
			if !errs.Is(err, errs.FailedPrecondition) || !strings.Contains(err.Error(), tt.message) || !strings.Contains(errs.HintOf(err), tt.hint) {
				t.Errorf("got %v\nhint %q\nlog %s", err, errs.HintOf(err), failureLog(err))
			}
		})
	}

	t.Run("an unchanged build is taken from the cache, and made anew on request", func(t *testing.T) {
		req := e.dockerfile(t, "FROM debian\nCOPY file.txt /\nRUN echo slow && cat /proc/sys/kernel/random/uuid > /uuid\n")
		first, _, err := e.build(t, req)
		if err != nil {
			t.Fatal(err)
		}
		second, events, err := e.build(t, req)
		if err != nil || second.Digest != first.Digest {
			t.Errorf("again: %+v, %v", second, err)
		}
		for _, e := range events {
			if e.Kind == buildlog.StepDone && strings.Contains(e.Name, "echo slow") {
				t.Error("the step was run again")
			}
		}
		req.NoCache = true
		third, _, err := e.build(t, req)
		if err != nil || third.Digest == first.Digest {
			t.Errorf("without cache: %+v, %v", third, err)
		}
	})

	t.Run("arguments, targets and configuration", func(t *testing.T) {
		req := e.dockerfile(t, "FROM debian AS a\nARG WORD\nENV GOT=$WORD\nEXPOSE 99\nWORKDIR /w\nUSER 7:8\nENTRYPOINT [\"e\"]\nCMD [\"c\"]\nFROM a AS b\nRUN false\n")
		req.Args, req.Target = map[string]string{"WORD": "hello"}, "a"
		res, _, err := e.build(t, req)
		if err != nil {
			t.Fatal(err)
		}
		c := res.Config
		if len(c.Env) == 0 || c.Env[len(c.Env)-1] != "GOT=hello" || c.WorkDir != "/w" || c.User != "7:8" || c.Entrypoint[0] != "e" || c.Cmd[0] != "c" || c.Ports[0] != "99/tcp" {
			t.Errorf("got %+v", c)
		}
	})

	t.Run("nothing but what is wrong with a request is checked", func(t *testing.T) {
		for _, req := range []Request{{}, {ContextDir: "relative"}, {ContextDir: t.TempDir()}, {ContextDir: t.TempDir(), ImageName: "a@b"}, {ContextDir: "/does/not/exist", ImageName: "x"}} {
			if _, err := e.buildkit.Build(t.Context(), req, nil); !errs.Is(err, errs.InvalidArgument) {
				t.Errorf("%+v: %v", req, err)
			}
		}
	})
}

// running starts a build that does not end by itself and returns when its step runs.
func (e *env) running(t *testing.T, ctx context.Context) (result <-chan error) {
	t.Helper()
	req := e.dockerfile(t, "FROM debian\nRUN echo begun && sleep 600\n")
	begun, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := e.buildkit.Build(ctx, req, func(e buildlog.Event) {
			if e.Kind == buildlog.StepLog && e.Text == "begun" {
				close(begun)
			}
		})
		ended <- err
	}()
	select {
	case <-begun:
	case err := <-ended:
		t.Fatal(err)
	case <-time.After(5 * time.Minute):
		t.Fatal("the step does not begin")
	}
	return ended
}

// steps are the containers in the instance's namespace.
func (e *env) steps(t *testing.T) int {
	t.Helper()
	c, err := e.containerd.Client()
	if err != nil {
		t.Fatal(err)
	}
	all, err := c.Containers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

func (e *env) awaitNoSteps(t *testing.T) {
	t.Helper()
	wait.NoError(t, "no steps are left", func() error {
		if n := e.steps(t); n > 0 {
			return fmt.Errorf("%d containers of steps are left", n)
		}
		return nil
	}, wait.Within(2*time.Minute))
}

func TestEndedBuildsLeaveNothing(t *testing.T) {
	e := newEnv(t)

	t.Run("cancel", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		ended := e.running(t, ctx)
		if n := e.steps(t); n != 1 {
			t.Errorf("%d containers run", n)
		}
		cancel()
		if err := wait.Receive(t, "the end of the build", ended, wait.Within(2*time.Minute)); !errs.Is(err, errs.Canceled) {
			t.Errorf("got %v", err)
		}
		e.awaitNoSteps(t)
	})

	t.Run("deadline", func(t *testing.T) {
		ctx := deadline.New(t.Context())
		ended := e.running(t, ctx)
		ctx.Lapse()
		if err := wait.Receive(t, "the end of the build", ended, wait.Within(2*time.Minute)); !errs.Is(err, errs.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		e.awaitNoSteps(t)
	})

	t.Run("another server adopts it", func(t *testing.T) {
		other := New(e.buildkit.cfg)
		defer other.Close()
		if err := other.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !other.process.Adopted || other.process.PID() != e.buildkit.process.PID() {
			t.Errorf("adopted %v, pid %d, was %d", other.process.Adopted, other.process.PID(), e.buildkit.process.PID())
		}
	})

	t.Run("kill", func(t *testing.T) {
		ended := e.running(t, t.Context())
		old := e.buildkit.process.PID()
		if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := wait.Receive(t, "the end of the build", ended, wait.Within(2*time.Minute)); !errs.Is(err, errs.Unavailable) || errs.HintOf(err) == "" {
			t.Errorf("got %v, hint %q", err, errs.HintOf(err))
		}
		if _, _, err := e.build(t, e.dockerfile(t, "FROM debian\nRUN echo again\n")); err != nil {
			t.Fatal(err, failureLog(err))
		}
		if pid := e.buildkit.process.PID(); pid == old {
			t.Error("it was not started again")
		}
		if n := e.steps(t); n != 0 {
			t.Errorf("%d containers of the killed build are left", n)
		}
	})

	t.Run("containerd is killed", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- e.containerd.Run(ctx) }()
		defer func() { cancel(); <-done }()
		ended := e.running(t, t.Context())
		record, err := os.ReadFile(e.instance.Socket("containerd", "containerd.pid"))
		if err != nil {
			t.Fatal(err)
		}
		var id proc.Record
		if err := json.Unmarshal(record, &id); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(id.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		err = wait.Receive(t, "the end of the build", ended, wait.Within(2*time.Minute))
		if !errs.Is(err, errs.Unavailable) {
			t.Errorf("got %v (%s)", err, errs.ClassOf(err))
		}
		wait.NoError(t, "a build succeeds", func() error {
			_, _, err := e.build(t, e.dockerfile(t, "FROM debian\nRUN echo after containerd\n"))
			if err != nil && !errs.Is(err, errs.Unavailable) {
				t.Fatalf("afterwards: %v (%s)\n%s", err, errs.ClassOf(err), failureLog(err))
			}
			return err
		}, wait.Within(2*time.Minute))
		e.awaitNoSteps(t)
	})

	t.Run("supervised", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- e.buildkit.Run(ctx) }()
		pid := func() int {
			_, p, err := e.buildkit.ensure(ctx)
			if err != nil {
				t.Fatal(err)
			}
			return p.PID()
		}
		old := pid()
		if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		wait.For(t, "it is started again", func() bool { return pid() != old }, wait.Within(2*time.Minute))
		alive := pid()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := syscall.Kill(alive, 0); err != nil {
			t.Errorf("it did not outlive its supervisor: %v", err)
		}
	})

	t.Run("stop leaves nothing", func(t *testing.T) {
		ended := e.running(t, t.Context())
		if err := e.buildkit.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := wait.Receive(t, "the end of the build", ended, wait.Within(2*time.Minute)); err == nil {
			t.Error("the build succeeded")
		}
		e.awaitNoSteps(t)
		if _, err := netlink.LinkByName(e.buildkit.bridge()); !errors.As(err, &netlink.LinkNotFoundError{}) {
			t.Errorf("bridge: %v", err)
		}
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(mounts)) {
			if strings.Contains(line, e.buildkit.root()+"/") || strings.Contains(line, e.buildkit.runFile("")) {
				t.Errorf("mount: %s", line)
			}
		}
		found, err := filepath.Glob("/sys/fs/cgroup/*/" + e.buildkit.cgroup())
		if err != nil || len(found) > 0 {
			t.Errorf("cgroups: %v, %v", found, err)
		}
		if err := e.buildkit.Stop(t.Context()); err != nil {
			t.Errorf("again: %v", err)
		}
	})
}
