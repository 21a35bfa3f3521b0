package e2e

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/testsupport/wait"
)

// testSSHGuide runs the commands of docs/ssh.md after the one that starts the server,
// with a sandbox named box.
func (c *sshClient) testSSHGuide(t *testing.T, g *guide) {
	s := g.s
	home := filepath.Join(s.state+"-home", ".ssh")
	if err := os.MkdirAll(home, 0o700); err != nil {
		t.Fatal(err)
	}
	g.file("project.yaml", "kind: project\nname: shop\n")
	s.r(t, g.dir, "entity", "put", "project.yaml")
	s.r(t, "", "sandbox", "create", "--template", "python", "--name", "box", "--project", "shop", "--ttl", "1h")
	g.file("Makefile", "test:\n\t@echo tested\n")
	for _, project := range []string{"default", "shop"} {
		s.r(t, g.dir, "sandbox", "cp", "--project", project, "Makefile", "box:")
	}
	s.r(t, "", "sandbox", "exec", "--detach", "box", "--", "python3", "-m", "http.server", "8000")

	g.run("r server status", net.JoinHostPort(c.host, c.port))
	x := g.terminal("r ssh box ")
	x.keys(t, "echo $((6*7)); exit\n")
	x.wait(t, "42")
	x.end(t)
	g.run("r ssh box -- 'make test", "tested")
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	g.words["8080:localhost"] = fmt.Sprintf("%d:localhost", port)
	g.during("r ssh box -N -L", func(func() string) {
		wait.For(t, "the port of the sandbox is here", func() bool {
			_, text, err := fetch(fmt.Sprintf("http://127.0.0.1:%d/", port))
			return err == nil && strings.Contains(text, "Makefile")
		}, wait.Within(converge))
	})
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("from here")) }))
	defer service.Close()
	g.words["localhost:5432"] = service.Listener.Addr().String()
	g.during("r ssh box -N -R", func(func() string) {
		wait.For(t, "the port here is in the sandbox", func() bool {
			return s.try(t, "", "sandbox", "exec", "box", "--", "curl", "-sS", "http://127.0.0.1:5432/").Stdout == "from here"
		}, wait.Within(converge))
	})
	g.run("r ssh-config box")
	if res := finish(t, exec.CommandContext(t.Context(), "ssh", "-F", filepath.Join(home, "config"), "-o", "BatchMode=yes", "work", "echo here")); res.Stdout != "here\n" {
		t.Errorf("ssh work: %s", res)
	}

	key := &sshClient{dir: home}
	key.keygen(t, "id_ed25519")
	(&sshClient{dir: g.dir}).keygen(t, "ci")
	g.run("r ssh key add ~/.ssh/id_ed25519.pub")
	g.run("r ssh key add ci.pub")
	// OpenSSH takes the home of the user, not the variable HOME, so the test names the files.
	g.file("config", "Host host\n HostName "+c.host+"\n IdentityFile "+filepath.Join(home, "id_ed25519")+"\n IdentitiesOnly yes\n IdentityAgent none\n BatchMode yes\n"+
		" UserKnownHostsFile "+filepath.Join(g.dir, "known_hosts")+"\n StrictHostKeyChecking accept-new\n LogLevel ERROR\n")
	g.words["ssh box@"], g.words["ssh -i"], g.words["-p 2222"] = "echo 'echo here' | ssh -F config box@", "ssh -F config -i", "-p "+c.port
	g.run("ssh box@host", "here")
	g.run("ssh -i ci", "tested")
	g.run("r ssh key list", "alice", "ci")
	out, err := exec.Command("ssh-keygen", "-lf", filepath.Join(home, "id_ed25519.pub")).Output()
	if err != nil {
		t.Fatal(err)
	}
	g.words["SHA256:Zm9v..."] = strings.Fields(string(out))[1]
	g.run("r ssh key delete")
	g.run("r ssh host-key list", "next")
	g.run("r ssh host-key rotate")
}
