package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/testsupport/gittest"
	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/wait"
)

// testGitPushGuide runs the commands of docs/git-push.md: pushes are deployed, refused
// with what the app printed, become previews, and are made with a certificate and with a
// registered key.
func testGitPushGuide(t *testing.T, g *guide) {
	need.Tools(t, "git", "ssh", "ssh-keygen")
	const app = "pushed"
	c := newSSHClient(t, g.s)
	home := t.TempDir()
	if err := os.Mkdir(filepath.Join(home, ".ssh"), 0o700); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(home, ".ssh", "config")
	(&sshClient{dir: filepath.Join(home, ".ssh")}).keygen(t, "id_ed25519")
	// OpenSSH takes the home of the user, not the variable HOME, so the test names the files.
	write(t, config, "Host "+c.host+"\n IdentityFile "+filepath.Join(home, ".ssh", "id_ed25519")+"\n IdentitiesOnly yes\n UserKnownHostsFile "+
		filepath.Join(home, "known_hosts")+"\n StrictHostKeyChecking accept-new\n LogLevel ERROR\n")
	g.env = append(g.env, "HOME="+home, "GIT_SSH_COMMAND=ssh -F "+config+" -o BatchMode=yes -o IdentityAgent=none", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@example.com", "GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@example.com")
	g.words["shop.git"], g.words["host:2222"], g.words["ssh://runtime/"] = app+".git", c.host+":"+c.port, "ssh://runtime/guide-git-push/"
	repo := gittest.New(t, g.dir)
	commit := func(files map[string]string) {
		t.Helper()
		for name, text := range files {
			g.file(name, text)
		}
		repo.Git("add", ".")
		repo.Git("commit", "--quiet", "--message", "new page")
	}
	answers := func(host, body string) {
		t.Helper()
		wait.For(t, host+" answers "+body, func() bool {
			code, got, err := g.s.getHost(host, "/")
			return err == nil && code == http.StatusOK && strings.Contains(got, body)
		}, wait.Within(converge))
	}
	commit(map[string]string{"index.html": "<p>one</p>\n", "app.toml": "name = \"ignored\"\n"})

	g.elsewhere("r server start", "TestSSHGateway")
	g.run("r ssh-config --git")
	g.run("git remote add")
	res := g.try("git push runtime main")
	if res.Code != 0 || !strings.Contains(res.Stderr, "remote: "+app+" serves") || !strings.Contains(res.Stderr, "[new branch]") {
		t.Fatalf("the first push: %s", res)
	}
	answers(app+".localhost", "one")

	// The push is refused for what the app does, and the old version serves.
	commit(map[string]string{"Procfile": "web: echo broken here; exit 7\n", "Dockerfile": "FROM scratch\nCOPY index.html /\n"})
	res = g.try("git push runtime main")
	if res.Code != 1 || !strings.Contains(res.Stderr, "remote: error: ") || !strings.Contains(res.Stderr, "[remote rejected]") {
		t.Errorf("a push that fails: %s", res)
	}
	answers(app+".localhost", "one")

	repo.Git("rm", "--quiet", "Procfile", "Dockerfile")
	repo.Git("checkout", "--quiet", "-b", "production")
	commit(map[string]string{"index.html": "<p>two</p>\n", "app.toml": "[git]\nbranch = \"production\"\npreviews = true\n"})
	g.run("git push runtime production", app+" serves")
	answers(app+".localhost", "two")
	repo.Git("checkout", "--quiet", "-b", "feature/cart")
	commit(map[string]string{"index.html": "<p>three</p>\n"})
	g.run("git push runtime feature/cart ", app+" serves")
	answers("feature-cart--"+app+".localhost", "three")
	answers(app+".localhost", "two")
	g.run("git push runtime feature/cart:production", app+" serves")
	answers(app+".localhost", "three")

	// By options a push is a canary, which is promoted, or a preview.
	repo.Git("checkout", "--quiet", "-B", "production")
	commit(map[string]string{"index.html": "<p>canary</p>\n"})
	g.run("git push -o canary=10", app+" serves")
	if out := g.s.r(t, "", "app", "status", app, "--project", "guide-git-push"); !strings.Contains(out, " 10%") {
		t.Errorf("status of the app with a canary: %s", out)
	}
	g.s.r(t, "", "app", "promote", app, "--project", "guide-git-push")
	answers(app+".localhost", "canary")
	g.run("git push -o preview=pr-12", app+" serves")
	answers("pr-12--"+app+".localhost", "canary")

	// Of a monorepo the folder of the app is deployed.
	repo.Git("rm", "--quiet", "app.toml")
	commit(map[string]string{
		"app.toml": "[git]\nfolders = { " + app + " = \"apps/shop\" }\n", "apps/shop/index.html": "<p>folder</p>\n", "apps/next/index.html": "<p>next</p>\n",
	})
	repo.Git("branch", "--force", "main")
	g.run("git push ssh://runtime/shop.git main", app+" serves")
	answers(app+".localhost", "folder")
	commit(map[string]string{"README": "next\n"})
	repo.Git("branch", "--force", "main")
	g.run("git push -o folder=apps/next", app+" serves")
	answers(app+".localhost", "next")

	g.run("r ssh key add")
	repo.Git("checkout", "--quiet", "production")
	repo.Git("reset", "--quiet", "--hard", "feature/cart")
	commit(map[string]string{"index.html": "<p>four</p>\n"})
	g.run("git push ssh://git@", app+" serves")
	answers(app+".localhost", "four")
}

// testPushKilled: a push whose server is killed fails; the deployment that it began has an
// end, and the same push succeeds then.
func (c *sshClient) testPushKilled(t *testing.T, s *server) {
	repo := gittest.New(t, t.TempDir())
	repo.Commit("index.html", "<p>killed once</p>\n")
	command := func(args ...string) *exec.Cmd {
		cmd := repo.Command(args...)
		cmd.Env = append(cmd.Env, "GIT_SSH_COMMAND=ssh -F "+filepath.Join(c.dir, "config"))
		return cmd
	}
	url := "ssh://git@sandbox/killed.git"
	cmd := command("push", url, "main")
	problems, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	lines := bufio.NewScanner(io.TeeReader(problems, &said))
	for lines.Scan() && !strings.Contains(lines.Text(), "remote: build") {
		continue
	}
	if lines.Err() != nil || !strings.Contains(said.String(), "remote: build") {
		t.Fatalf("the build does not begin: %v %s", lines.Err(), said.String())
	}
	kill(t, s.pid(t, "server"))
	for lines.Scan() {
		continue
	}
	if err := cmd.Wait(); err == nil {
		t.Errorf("a push succeeds without its server: %s", said.String())
	}
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	s.healthy(t)
	wait.NoError(t, "the same push succeeds", func() error {
		out, err := command("push", url, "main").CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	}, wait.Within(converge))
	wait.For(t, "what was pushed is served", func() bool {
		code, text, err := s.getHost("killed.localhost", "/")
		return err == nil && code == http.StatusOK && strings.Contains(text, "killed once")
	}, wait.Within(converge))
}
