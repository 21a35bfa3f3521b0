//go:build image

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/testsupport/dockertest"
	"miren.dev/runtime/testsupport/private"
	"miren.dev/runtime/testsupport/wait"
)

// capabilities are those of a container with --privileged that the machine of the test has.
var capabilities = []string{
	"audit_write", "chown", "dac_override", "dac_read_search", "fowner", "fsetid", "kill", "mknod", "net_admin", "net_bind_service", "net_raw",
	"setfcap", "setgid", "setpcap", "setuid", "sys_admin", "sys_chroot", "sys_ptrace",
}

// TestImage starts the image of make image with Docker: the server finds nothing wrong
// with its machine and runs a sandbox, and another container goes on with the volume.
func TestImage(t *testing.T) {
	if !private.Inside() {
		// Here a network exists, for the packages of the image and those of a sandbox.
		shared.r(t, "", "sandbox", "run", "--image", "debian", "--", "true")
		build := exec.Command("hack/image.sh")
		build.Dir = ".."
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("hack/image.sh: %v\n%s", err, out)
		}
	}
	if !private.Run(t) {
		return
	}
	images, err := filepath.Glob(filepath.Join(bin, "package", "*-image-*.tar"))
	if err != nil || len(images) != 1 {
		t.Fatalf("images %v, %v", images, err)
	}
	engine := dockertest.Start(t, bin)
	docker := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("docker", args...)
		cmd.Env = append(os.Environ(), "DOCKER_HOST="+engine.Host)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("docker %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	version, err := os.ReadFile("../VERSION")
	if err != nil {
		t.Fatal(err)
	}
	docker("load", "--quiet", "--input", images[0])
	t.Cleanup(func() { docker("volume", "rm", "--force", "state") })
	begin := func(name string) {
		t.Helper()
		args := []string{"run", "--detach", "--name", name, "--network", "host", "--cgroupns", "host", "--volume", "/sys/fs/cgroup:/sys/fs/cgroup",
			"--volume", "state:/var/lib/runtime", "--volume", os.Getenv("RUNTIME_CACHE_DIR") + ":/var/cache/runtime",
			"--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined", "--security-opt", "systempaths=unconfined", "--cap-drop", "ALL"}
		for _, c := range capabilities {
			args = append(args, "--cap-add", c)
		}
		docker(append(args, "runtime:"+strings.TrimSpace(string(version)))...)
		t.Cleanup(func() { docker("rm", "--force", name) })
		wait.NoError(t, "the server of the image answers", func() error {
			cmd := exec.Command("docker", "exec", name, "r", "server", "status")
			cmd.Env = append(os.Environ(), "DOCKER_HOST="+engine.Host)
			return cmd.Run()
		})
	}
	begin("first")
	contains(t, "r doctor", docker("exec", "first", "r", "doctor"), " 0 failed")
	contains(t, "r sandbox run", docker("exec", "first", "r", "sandbox", "run", "--image", "debian", "--", "echo", "hello"), "hello")
	docker("exec", "first", "r", "user", "create", "kept")
	docker("stop", "first")
	begin("second")
	contains(t, "r user list", docker("exec", "second", "r", "user", "list"), "kept")
	docker("stop", "second")
}
