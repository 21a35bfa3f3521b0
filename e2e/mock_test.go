package e2e

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/need"
)

// maxMockStart is how long a mock server may take until it answers, on a machine
// that other tests use too.
const maxMockStart = 30 * time.Second

// TestMock runs the examples of docs/mock.md, and those of the SDKs in Python, Go
// and TypeScript, against `r dev mock`, which an unprivileged user without a home
// directory starts. The directory of the server is gone at its end.
func TestMock(t *testing.T) {
	need.Tools(t, "curl", "jq", "bash", "setpriv")
	p := newSDKs(t)
	dir, err := os.MkdirTemp("", "rt-mock-") // others may enter it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	temp := filepath.Join(dir, "tmp")
	for path, owner := range map[string]int{dir: 0, temp: 65534} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, owner, owner); err != nil {
			t.Fatal(err)
		}
	}
	answers := filepath.Join(dir, "answers.yaml")
	write(t, answers, guideBlocks(t, "mock.md", "yaml", 1)[0])
	if err := os.Chmod(answers, 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "r"), "dev", "mock", "--address", "127.0.0.1:0", "--answers", answers)
	cmd.Dir, cmd.Env = dir, []string{"TMPDIR=" + temp, "PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var script []string
	for lines := bufio.NewScanner(stdout); len(script) < 3 && lines.Scan(); {
		script = append(script, lines.Text())
	}
	took := time.Since(began)
	if len(script) != 3 || !strings.HasPrefix(script[0], "# This is a mock") {
		stop()
		t.Fatalf("%v: %q\n%s", cmd.Wait(), script, stderr.String())
	}
	t.Logf("the mock server answers after %s", took)
	if took > maxMockStart {
		t.Errorf("it starts in %s", took)
	}
	for _, word := range strings.Fields(script[1]) {
		switch name, value, _ := strings.Cut(word, "="); name {
		case "MIREN_API_URL":
			p.url = value
		case "MIREN_API_KEY":
			p.key = value
		}
	}
	p.run("bash", "-euxo", "pipefail", "-c", strings.Join(guideBlocks(t, "mock.md", "sh", 2), "\n"))
	p.examples(guideBlocks(t, "sdk.md", "python", 2))
	stop()
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 0 {
		t.Errorf("at its end: %v\n%s", err, stderr.String())
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("it left %v, %v", left, err)
	}
}
