package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// nobody is a user and group without rights on this machine.
const nobody = 65534

// remoteClient is the program r alone, as on another machine: no other program
// beside it or in PATH, no rights on this machine, and only the rights of a
// file from `r auth generate`.
type remoteClient struct{ dir, home string }

func newRemoteClient(t *testing.T) *remoteClient {
	t.Helper()
	// The directories of t.TempDir are root's alone.
	dir, err := os.MkdirTemp("", "rt-e2e-client-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := &remoteClient{dir: dir, home: filepath.Join(dir, "home")}
	b, err := os.ReadFile(filepath.Join(bin, "r"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "r"), b, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(c.home, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{dir, c.home} {
		if err := os.Chown(d, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// receive puts a file of the server into the client's directory.
func (c *remoteClient) receive(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(c.home, filepath.Base(file))
	if err := os.WriteFile(to, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(to, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	return to
}

func (c *remoteClient) try(t *testing.T, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(c.dir, "r"), args...)
	cmd.Dir = c.home
	cmd.Env = []string{"HOME=" + c.home, "PATH=" + c.home}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

func (c *remoteClient) r(t *testing.T, args ...string) string {
	t.Helper()
	res := c.try(t, args...)
	if res.Code != 0 {
		t.Fatalf("r %s: %s", strings.Join(args, " "), res)
	}
	return res.Stdout
}

// TestRemoteClientNeedsNoServerBinary uses a server over the network with
// nothing but the program r and a client certificate.
func TestRemoteClientNeedsNoServerBinary(t *testing.T) {
	t.Parallel()
	s := own(t, "remote", "--rpc-address", "127.0.0.1:0")
	app := filepath.Join(t.TempDir(), "app.yaml")
	write(t, app, "kind: app\nname: faraway\n")
	s.r(t, "", "entity", "put", app)
	file := filepath.Join(t.TempDir(), "alice.yaml")
	s.r(t, "", "auth", "generate", "--name", "alice", "--role", "viewer", "--file", file)

	c := newRemoteClient(t)
	if res := c.try(t, "app", "list"); res.Code != 1 || !strings.Contains(res.Stderr, "r cluster add") {
		t.Errorf("before a cluster is added: %s", res)
	}
	contains(t, "cluster add", c.r(t, "cluster", "add", "prod", "--from", c.receive(t, file), "--use"), "added prod at 127.0.0.1:")
	if st, err := os.Stat(filepath.Join(c.home, ".config", "runtime", "clientconfig.yaml")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the client configuration has mode %v, %v", st.Mode(), err)
	}
	contains(t, "app list", c.r(t, "app", "list"), "faraway")
	var apps []struct {
		Name string `json:"name"`
	}
	if err := json.Unmarshal([]byte(c.r(t, "app", "list", "--json")), &apps); err != nil || len(apps) != 1 || apps[0].Name != "faraway" {
		t.Errorf("app list --json: %+v, %v", apps, err)
	}
	contains(t, "server status", c.r(t, "server", "status"), "ready")
	contains(t, "cluster list", c.r(t, "cluster", "list"), "prod", "alice")
	contains(t, "doctor", c.try(t, "doctor").Stdout, "not checked", "containerd")

	if res := c.try(t, "app", "delete", "faraway", "--yes"); res.Code != 1 || !strings.Contains(res.Stderr, "may not") {
		t.Errorf("a viewer deletes an app: %s", res)
	}
	if res := c.try(t, "server", "start"); res.Code != 6 || !strings.Contains(res.Stderr, filepath.Join(c.dir, "runtime")) {
		t.Errorf("a command for the machine of a server: %s", res)
	}
	bound := filepath.Join(t.TempDir(), "carol.yaml")
	s.r(t, "", "auth", "generate", "--name", "carol", "--role", "viewer@default", "--file", bound)
	c.r(t, "cluster", "add", "team", "--from", c.receive(t, bound))
	contains(t, "app list in a project", c.r(t, "app", "list", "--cluster", "team"), "faraway")
	if res := c.try(t, "node", "list", "--cluster", "team"); res.Code != 1 || !strings.Contains(res.Stderr, "belongs to no project") {
		t.Errorf("a role of a project lists nodes: %s", res)
	}
	contains(t, "auth list", s.r(t, "", "auth", "list"), "alice", "carol", "viewer@default")
	s.r(t, "", "auth", "revoke", "alice")
	if res := c.try(t, "app", "list"); res.Code != 1 || !strings.Contains(res.Stderr, "revoked") {
		t.Errorf("after the certificate was revoked: %s", res)
	}
	contains(t, "another certificate", c.r(t, "app", "list", "--cluster", "team"), "faraway")
	c.r(t, "cluster", "remove", "prod")
	if res := c.try(t, "app", "list"); res.Code != 1 {
		t.Errorf("after the cluster is removed: %s", res)
	}
}
