package dockertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/private"
	"miren.dev/runtime/testsupport/wait"
)

// Runtimes of an Engine.
const (
	Runsc = "runsc"
	Runc  = "runc"
)

// Network is the name of the engine's network for sandboxes.
const Network = "sandboxes"

// DiskBytes is what a container of Runsc can write to its root file system.
const DiskBytes = 16 << 20

// path is where the distribution has the engine and its parts: the toolchain's containerd is too new for it.
const path = "/usr/sbin:/usr/bin:/sbin:/bin"

// Engine is a Docker engine of a test.
type Engine struct {
	Host   string // unix://...
	Client *client.Client
}

// Start starts an engine that is stopped when the test ends. bin is the directory of runsc.
func Start(t testing.TB, bin string) *Engine {
	t.Helper()
	need.Root(t)
	for _, program := range []string{"/usr/sbin/dockerd", "/usr/bin/containerd", "/usr/sbin/runc"} {
		if _, err := os.Stat(program); err != nil {
			need.Missing(t, "needs Debian's docker.io (hack/packages.sh test):", err)
		}
	}
	if os.Getenv(inside) == "" && !private.Inside() {
		t.Fatal("an engine is started in namespaces only: TestMain calls dockertest.Main, or the test calls private.Run")
	}
	// The engine writes to it, whatever it is told.
	if err := unix.Mount("tmpfs", "/etc/docker", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		t.Fatal("cover /etc/docker:", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount("/etc/docker", 0); err != nil {
			t.Error("uncover /etc/docker:", err)
		}
	})
	dir, err := os.MkdirTemp("", "rtd") // short, since the paths of sockets are limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// runsc leaves one, for all sandboxes without a network of a machine, and the engine that of containers with the
		// machine's network.
		left, _ := filepath.Glob(filepath.Join(dir, "exec", "*", "*", "null-netns"))
		engines, _ := filepath.Glob(filepath.Join(dir, "exec", "netns", "*"))
		for _, mount := range append(left, engines...) {
			_ = unix.Unmount(mount, unix.MNT_DETACH)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	config, err := json.Marshal(map[string]any{"runtimes": map[string]any{Runsc: map[string]any{
		"path": filepath.Join(bin, "runsc"),
		"runtimeArgs": []string{
			"--host-uds=open", "--in-sandbox-cgroup=v2", "--cpu-num-from-quota=true", "--platform=systrap",
			fmt.Sprintf("--overlay2=root:self,size=%d", DiskBytes),
		},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "daemon.json")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	e := &Engine{Host: "unix://" + filepath.Join(dir, "docker.sock")}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	parent := filepath.Base(dir)
	t.Cleanup(func() { removeCgroups(t, parent) })
	cmd := exec.Command("/usr/sbin/dockerd", "--config-file", file, "--host", e.Host,
		"--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"), "--pidfile", filepath.Join(dir, "pid"),
		"--bridge=none", "--iptables=false", "--ip-masq=false", "--userland-proxy=false", "--storage-driver=overlay2",
		"--oom-score-adjust=0", "--cgroup-parent=/"+parent)
	cmd.Env = []string{"PATH=" + path}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		if t.Failed() && testing.Verbose() {
			b, _ := os.ReadFile(log.Name())
			t.Logf("log of the engine:\n%s", b[max(0, len(b)-8<<10):])
		}
		_ = cmd.Process.Signal(unix.SIGTERM)
		wait.Receive(t, "the end of the engine", ended)
	})
	if e.Client, err = client.New(client.WithHost(e.Host)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Client.Close() })
	wait.NoError(t, "the engine answers", func() error {
		_, err := e.Client.Ping(t.Context(), client.PingOptions{})
		return err
	})
	if _, err := e.Client.NetworkCreate(context.Background(), Network, client.NetworkCreateOptions{Driver: "bridge"}); err != nil {
		t.Fatal(err)
	}
	return e
}

// removeCgroups removes the empty control groups that the engine leaves.
func removeCgroups(t testing.TB, parent string) {
	dirs, err := filepath.Glob("/sys/fs/cgroup/*/" + parent)
	if v2, e := filepath.Glob("/sys/fs/cgroup/" + parent); e == nil {
		dirs = append(dirs, v2...)
	}
	for _, dir := range dirs {
		var groups []string
		err = errors.Join(err, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				groups = append(groups, path)
			}
			return err
		}))
		for i := len(groups) - 1; i >= 0; i-- {
			wait.NoError(t, "control group "+groups[i]+" is removed", func() error { return os.Remove(groups[i]) })
		}
	}
	if err != nil {
		t.Error(err)
	}
}
