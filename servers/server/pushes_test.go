package server

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gossh "golang.org/x/crypto/ssh"

	"miren.dev/runtime/api/server"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/wait"
)

// said runs a command as a user and returns what it prints. Its input ends when the
// command has answered with a first line.
func (e *sshEnv) said(user, command string, key gossh.Signer) (out, problems string, code int) {
	e.t.Helper()
	c, err := e.login(user, key)
	if err != nil {
		e.t.Fatal(err)
	}
	defer c.Close()
	s, err := c.NewSession()
	if err != nil {
		e.t.Fatal(err)
	}
	var stderr strings.Builder
	s.Stderr = &stderr
	in, err := s.StdinPipe()
	if err != nil {
		e.t.Fatal(err)
	}
	stdout, err := s.StdoutPipe()
	if err != nil {
		e.t.Fatal(err)
	}
	if err := s.Start(command); err != nil {
		e.t.Fatal(err)
	}
	first := make([]byte, 4)
	n, _ := io.ReadFull(stdout, first)
	if _, err := io.WriteString(in, "0000"); err == nil { // git has nothing to push
		_ = in.Close()
	}
	rest, _ := io.ReadAll(stdout)
	if err := s.Wait(); err != nil {
		exit, ok := err.(*gossh.ExitError)
		if !ok {
			e.t.Fatal(err)
		}
		code = exit.ExitStatus()
	}
	return string(first[:n]) + string(rest), stderr.String(), code
}

// TestSSHPushes: the user git reaches the apps of projects in which the key may deploy, and
// nothing else.
func TestSSHPushes(t *testing.T) {
	need.Tools(t, "git")
	e := newSSHEnv(t)
	// git runs as another user.
	for _, dir := range []string{e.c.m.in.StateDir, filepath.Dir(e.c.m.in.StateDir)} {
		if err := os.Chmod(dir, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []string{"own", "foreign"} {
		if err := projects.Ensure(t.Context(), e.c.store, p); err != nil {
			t.Fatal(err)
		}
	}
	deployer, viewer := newSigner(t), newSigner(t)
	e.add(deployer, "ann", time.Hour, "deployer@own")
	e.add(viewer, "eve", time.Hour, "viewer@own")
	raw := newSigner(t)
	cl := server.NewSSHClient(e.holder(e.issue(e.root(), "bob", "deployer@own")))
	resp, err := cl.IssuePushCertificate(t.Context(), &server.IssuePushCertificateRequest{PublicKey: publicLine(raw)})
	if err != nil {
		t.Fatal(err)
	}
	certified := e.certified(raw, resp.Certificate)
	if _, err := e.login("box", certified); err == nil {
		t.Error("the certificate of a push logs in to a sandbox")
	}
	if _, err := server.NewSSHClient(e.holder(e.issue(e.root(), "eve", "viewer@own"))).IssuePushCertificate(t.Context(), &server.IssuePushCertificateRequest{PublicKey: publicLine(raw)}); !errs.Is(err, errs.PermissionDenied) {
		t.Errorf("a viewer gets a certificate for pushes: %v", err)
	}

	for _, key := range []gossh.Signer{deployer, certified} {
		for _, command := range []string{"git-receive-pack '/own/shop.git'", "git receive-pack 'own/shop'"} {
			out, problems, code := e.said("git", command, key)
			if code != 0 || !strings.Contains(out, "report-status") || problems != "" {
				t.Errorf("%s: code %d, %q %q", command, code, out, problems)
			}
		}
	}
	for want, x := range map[string]struct {
		command string
		key     gossh.Signer
	}{
		"cannot be fetched":        {"git-upload-pack '/own/shop.git'", deployer},
		"is for git push":          {"cat /etc/passwd", deployer},
		"no path of an app":        {"git-receive-pack '/own/../../etc'", deployer},
		"app name":                 {"git-receive-pack '/own/..'", deployer},
		"only in the projects own": {"git-receive-pack '/foreign/shop.git'", deployer},
		"it needs the permission":  {"git-receive-pack '/own/shop.git'", viewer},
	} {
		out, problems, code := e.said("git", x.command, x.key)
		if code != 255 || out != "" || !strings.Contains(problems, want) {
			t.Errorf("%s: code %d, %q %q, want %q", x.command, code, out, problems, want)
		}
	}
	for name, request := range sshRequests {
		if name == "a command" {
			continue // above
		}
		c, err := e.login("git", deployer)
		if err != nil {
			t.Fatal(err)
		}
		if request(c) == nil {
			t.Errorf("the user git: %s succeeds", name)
		}
		_ = c.Close()
	}
	wait.For(t, "the push is recorded", func() bool {
		for _, r := range e.records(entity.HistoryQuery{}) {
			if r.Action == "app.Deploys/Push" && r.Actor == "ann" && r.Project == "own" {
				return true
			}
		}
		return false
	})
}
