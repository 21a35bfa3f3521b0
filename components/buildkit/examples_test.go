package buildkit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/opencontainers/image-spec/identity"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/buildlog"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/stack"
	"miren.dev/runtime/testsupport/wait"
)

// testExamples builds the examples, changes them and builds them again.
func testExamples(t *testing.T, e *env) {
	for _, tt := range []struct{ name, file, stack string }{
		{"go-http", "main.go", "go"},
		{"static-site", "index.html", "static"},
		{"node-express", "server.js", "node"},
		{"python-flask", "app.py", "python"},
		{"dockerfile-websocket", "main.go", "dockerfile"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := example(t, tt.name)
			start := time.Now()
			req, plan := e.request(t, dir, tt.name)
			if plan.Stack != tt.stack {
				t.Errorf("detected as %s", plan.Stack)
			}
			res, _, err := e.build(t, req)
			if err != nil {
				t.Fatal(err, errs.HintOf(err), failureLog(err))
			}
			cold := time.Since(start)
			e.serves(t, res, plan, tt.name+" v1")

			change(t, filepath.Join(dir, tt.file), "v1", "v2")
			start = time.Now()
			res, events, err := e.build(t, req)
			if err != nil {
				t.Fatal(err)
			}
			warm := time.Since(start)
			e.serves(t, res, plan, tt.name+" v2")
			cached := 0
			for _, e := range events {
				if e.Kind == buildlog.StepCached {
					cached++
				}
				// Dependencies are not installed again for a change of source.
				if e.Kind == buildlog.StepDone && (strings.Contains(e.Name, "go mod download") || strings.Contains(e.Name, "npm ci") || strings.Contains(e.Name, "pip install")) {
					t.Errorf("was run again: %s", e.Name)
				}
			}
			if cached == 0 && tt.stack != "static" {
				t.Error("nothing was taken from the cache")
			}
			t.Logf("cold %s, warm %s, %d steps cached", cold.Round(time.Millisecond), warm.Round(time.Millisecond), cached)

			start = time.Now()
			same, _, err := e.build(t, req)
			if err != nil || same.Digest != res.Digest {
				t.Errorf("the same source gives %+v, %v", same, err)
			}
			t.Logf("nothing changed: %s", time.Since(start).Round(time.Millisecond))
		})
	}
}

// serves runs an image and checks what it answers at /. The image is run as a
// plain process in its root: how sandboxes run it is not the builder's business.
func (e *env) serves(t *testing.T, res *Result, plan *stack.Plan, want string) {
	t.Helper()
	e.servesAt(t, e.rootfs(t, res), res, plan, "/", want)
}

// servesAt is serves for another path, in a root that is mounted already.
func (e *env) servesAt(t *testing.T, root string, res *Result, plan *stack.Plan, path, want string) {
	t.Helper()
	port := freePort(t)
	argv := append(append([]string{}, res.Config.Entrypoint...), res.Config.Cmd...)
	for _, s := range plan.Services {
		if s.Name == "web" && len(s.Command) > 0 {
			argv = s.Command
		}
	}
	if len(argv) == 0 {
		t.Fatal("the image runs nothing")
	}
	cmd := exec.Command("/usr/sbin/chroot", append([]string{"--userspec=10001:10001", root, "/bin/sh", "-c", `cd "$1" && shift && exec "$@"`, "sh", res.Config.WorkDir}, argv...)...)
	if _, err := os.Stat(filepath.Join(root, "bin/sh")); err != nil {
		cmd = exec.Command("/usr/sbin/chroot", append([]string{"--userspec=10001:10001", root}, argv...)...)
	}
	// Sandboxes have the name of the loopback, these devices, and /proc.
	hosts := filepath.Join(root, "etc", "hosts")
	if err := os.MkdirAll(filepath.Dir(hosts), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(hosts, []byte("127.0.0.1 localhost\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, minor := range map[string]uint32{"null": 3, "urandom": 9} {
		file := filepath.Join(root, "dev", name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mknod(file, unix.S_IFCHR|0o666, int(unix.Mkdev(1, minor))); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
		if err := os.Chmod(file, 0o666); err != nil { // whatever the umask
			t.Fatal(err)
		}
	}
	// Java finds its libraries by it.
	proc := filepath.Join(root, "proc")
	if err := os.MkdirAll(proc, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("proc", proc, "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(proc, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	cmd.Env = append(append([]string{}, res.Config.Env...), fmt.Sprintf("PORT=%d", port), "HOME=/tmp")
	for k, v := range plan.Env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("it wrote:\n%s", out.String())
		}
	}()
	var body string
	wait.NoError(t, "it answers", func() (err error) {
		body, err = fetch(t.Context(), port, path)
		return err
	}, wait.Within(2*time.Minute))
	if !strings.Contains(body, want) {
		t.Errorf("answers %q, want %q in it", body, want)
	}
}

func fetch(ctx context.Context, port int, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", port, path), nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// rootfs mounts a copy of the image's root until the test ends.
func (e *env) rootfs(t *testing.T, res *Result) string {
	t.Helper()
	c, err := e.containerd.Client()
	if err != nil {
		t.Fatal(err)
	}
	img, err := c.GetImage(t.Context(), res.Image)
	if err != nil {
		t.Fatal(err)
	}
	ids, err := img.RootFS(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sn := c.SnapshotService("overlayfs")
	key := "test-" + strings.ReplaceAll(t.Name(), "/", "-") + fmt.Sprint(time.Now().UnixNano())
	mounts, err := sn.Prepare(t.Context(), key, identity.ChainID(ids).String(),
		snapshots.WithLabels(map[string]string{"containerd.io/gc.root": "test"}))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := mount.All(mounts, dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mount.UnmountAll(dir, 0); err != nil {
			t.Error(err)
		}
		if err := sn.Remove(context.WithoutCancel(t.Context()), key); err != nil {
			t.Error(err)
		}
	})
	return dir
}
