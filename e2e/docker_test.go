package e2e

import (
	"context"
	"strings"
	"testing"

	engineapi "github.com/moby/moby/client"

	"miren.dev/runtime/testsupport/dockertest"
	"miren.dev/runtime/testsupport/private"
)

// TestDockerDriver: a server runs its sandboxes as containers of a Docker engine, over a crash of the server, says what
// that engine cannot do, and leaves nothing in it.
func TestDockerDriver(t *testing.T) {
	t.Parallel()
	if !private.Inside() {
		// Here a network exists, for the image.
		shared.r(t, "", "sandbox", "run", "--image", "debian", "--", "true")
	}
	if !private.Run(t) {
		return
	}
	engine := dockertest.Start(t, bin)
	containers := func() int {
		t.Helper()
		list, err := engine.Client.ContainerList(context.Background(), engineapi.ContainerListOptions{All: true})
		if err != nil {
			t.Fatal(err)
		}
		return len(list.Items)
	}
	t.Cleanup(func() { // after the server was stopped
		if n := containers(); n > 0 {
			t.Errorf("the engine has %d containers after the server was stopped", n)
		}
	})
	s, err := newServer("docker")
	if err != nil {
		t.Fatal(err)
	}
	s.env = []string{"RUNTIME_NODE_DRIVER=docker", "RUNTIME_DOCKER_HOST=" + engine.Host, "RUNTIME_DOCKER_NETWORK=" + dockertest.Network}
	s.begin(t)

	out := s.r(t, "", "sandbox", "run", "--image", "debian", "--", "sh", "-c", "dmesg | head -n 1; echo $((6*7))")
	contains(t, "a command in gVisor", out, "gVisor", "42")
	sid := s.run(t, "--", "sleep", "600")
	if n := containers(); n == 0 {
		t.Error("the sandbox is no container of the engine")
	}
	s.r(t, "", "sandbox", "exec", sid, "--", "sh", "-c", "echo kept >/tmp/file")
	kill(t, s.pid(t, "server"))
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	s.healthy(t)
	if out := s.r(t, "", "sandbox", "exec", sid, "--", "cat", "/tmp/file"); out != "kept\n" {
		t.Errorf("after a crash of the server: %q", out)
	}
	res := s.try(t, "", "sandbox", "run", "--image", "debian", "--egress", "none", "--", "true")
	if res.Code == 0 || !strings.Contains(res.Stderr, "network policies") {
		t.Errorf("a network policy: %s", res)
	}
	if out := s.r(t, "", "sandbox", "exec", sid, "--", "echo", "on"); out != "on\n" {
		t.Errorf("after what was refused: %q", out)
	}

	other := strings.TrimPrefix(s.env[0], "RUNTIME_NODE_DRIVER=")
	kill(t, s.pid(t, "server"))
	s.env[0] = "RUNTIME_NODE_DRIVER=runsc"
	if err := s.start(); err == nil || !strings.Contains(err.Error(), "sandboxes of the driver "+other) {
		t.Errorf("another driver while sandboxes exist: %v", err)
	}
	s.env[0] = "RUNTIME_NODE_DRIVER=docker"
}
