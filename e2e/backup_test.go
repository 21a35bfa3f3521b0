package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/testsupport/leakcheck"
	"miren.dev/runtime/testsupport/wait"
)

// TestBackup: a server with an app, its secret and its disk is saved, encrypted, and
// destroyed. A restore that is killed leaves a directory that is refused; a whole one
// brings everything back in another directory.
func TestBackup(t *testing.T) {
	t.Parallel()
	s, dir := own(t, "backup"), copyExample(t, "go-notes")
	app := "notes"
	edit(t, filepath.Join(dir, "main.go"), `"v1"`, `"v1 "+os.Getenv("TOKEN")`)
	edit(t, filepath.Join(dir, "main.go"), "const (", "var (")
	s.r(t, dir, "app", "deploy", "--app", app)
	s.r(t, "", "app", "env", "set", "--app", app, "--secret", "TOKEN=hunter2")
	s.post(t, app, "first")
	s.answers(t, app, "/", "hunter2\nfirst")

	g := newGuide(t, s, "operations")
	g.file("passphrase", "correct horse\n")
	file, pass := filepath.Join(g.dir, "saved.backup"), filepath.Join(g.dir, "passphrase")
	save := []string{"server", "backup", file, "--passphrase-file", pass}
	if res := s.try(t, "", save...); res.Code == 0 || !strings.Contains(res.Stderr, "is running") {
		t.Errorf("while the server runs: %s", res)
	}
	s.r(t, "", "server", "stop", "--keep-running")
	if res := s.try(t, "", save...); res.Code == 0 || !strings.Contains(res.Stderr, "disks are attached") {
		t.Errorf("while the disk is attached: %s", res)
	}
	s.r(t, "", "server", "backup", file+"-without", "--without-disks")
	s.answers(t, app, "/", "hunter2\nfirst")
	g.run("r server stop")
	g.run("r server backup", "revision")
	g.run("r server restore", "whole")
	if res := s.try(t, "", save...); res.Code == 0 || !strings.Contains(res.Stderr, "exists") {
		t.Errorf("a backup replaced another: %s", res)
	}
	if res := s.try(t, "", "server", "restore", file, "--passphrase-file", pass); res.Code == 0 || !strings.Contains(res.Stderr, "is not empty") {
		t.Errorf("restore over an installation: %s", res)
	}
	if err := os.RemoveAll(s.state); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(whole, []byte("hunter2")) {
		t.Error("the secret is in the backup")
	}
	if res := s.try(t, "", "server", "restore", file, "--check"); res.Code == 0 || !strings.Contains(res.Stderr, "encrypted") {
		t.Errorf("without the key: %s", res)
	}
	s.state += "-killed"
	s.killedRestore(t, whole, pass)
	for _, args := range [][]string{{"server", "start"}, {"server", "restore", file, "--passphrase-file", pass}, {"server", "backup", file + "-half"}} {
		if res := s.try(t, "", args...); res.Code == 0 || !strings.Contains(res.Stderr, "restore did not end") {
			t.Errorf("r %s on a part of a backup: %s", strings.Join(args, " "), res)
		}
	}
	s.r(t, "", "server", "stop")
	if err := os.RemoveAll(s.state); err != nil {
		t.Fatal(err)
	}

	s.state = filepath.Join(stateRoot, "backup-restored")
	g.words["/var/lib/runtime"] = s.state
	g.run("r server restore", "restored")
	g.run("r server start")
	s.healthy(t)
	wait.NoError(t, "the app answers", func() error {
		code, body, err := s.get(app, "/")
		if err == nil && !strings.Contains(body, "hunter2\nfirst") {
			err = fmt.Errorf("%d %s", code, body)
		}
		return err
	}, wait.Within(converge))
	if out := s.r(t, "", "audit", "list"); !strings.Contains(out, "app.Deploys/Deploy") {
		t.Errorf("the history: %s", out)
	}
	g.run("r doctor", "answers")
	g.run("r debug bundle", "files")
	s.bundled(t, filepath.Join(g.dir, "server.tar.gz"), "hunter2")
	g.elsewhere("r doctor --fix", "TestPackageServesWhereItIsUnpacked")
}

// killAll kills every process of the server, as a crash of the machine would, and
// leaves the rest.
func (s *server) killAll(t *testing.T) {
	t.Helper()
	in, err := instance.Find(s.state, config.DefaultRunDir())
	if err != nil {
		t.Fatal(err)
	}
	wait.NoError(t, "no process of the server is left", func() error {
		left, err := leakcheck.List(in)
		if err != nil {
			return err
		}
		var running error
		for _, i := range left {
			if pid, _, _ := strings.Cut(i.Name, " "); i.Kind == "process" {
				running = errors.Join(running, fmt.Errorf("%s runs", i))
				if n, err := strconv.Atoi(pid); err == nil {
					_ = syscall.Kill(n, syscall.SIGKILL) // it may have ended
				}
			}
		}
		return running
	}, wait.Within(converge))
}

// bundled fails the test unless an archive of r debug bundle has every part, and no
// part a secret.
func (s *server) bundled(t *testing.T, file, secret string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"version.json": "kernel", "status.json": "components", "controllers.json": "informers", "doctor.json": "cgroups", "config.yaml": "state_dir",
		"entities/app.json": `"notes"`, "goroutines.txt": "goroutine profile", "metrics.txt": "go_goroutines", "logs/server.log": "server runs",
		"logs/postgres.log": "", "logs/containerd.log": "", "errors.txt": "",
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(h.Name, "runtime-debug/")
		if !strings.Contains(string(text), want[name]) {
			t.Errorf("%s lacks %q: %.2000s", name, want[name], text)
		}
		if strings.Contains(string(text), secret) {
			t.Errorf("%s has the secret", name)
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("the bundle lacks %v", want)
	}
}

// killedRestore kills a restore that has got half of the backup.
func (s *server) killedRestore(t *testing.T, whole []byte, pass string) {
	t.Helper()
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := s.command(t.Context(), "", "server", "restore", pipe, "--passphrase-file", pass)
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(pipe, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(whole[:len(whole)/2]); err != nil {
		_ = cmd.Wait() // it ended, or nothing would refuse the pipe
		t.Fatalf("%v\n%s", err, &said)
	}
	for _, name := range []string{"restoring", "instance-id"} {
		wait.NoError(t, "the restore has begun", func() error {
			_, err := os.Stat(filepath.Join(s.state, name))
			return err
		})
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
}
