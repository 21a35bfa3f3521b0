package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/lsvd/store/s3/s3test"
	"miren.dev/runtime/testsupport/wait"
)

// executionShown is an execution as `r execution show --json` prints it.
type executionShown struct {
	ID     string
	Status struct {
		Phase, Outcome, Sandbox string
		StartedAt               string `json:"started_at"`
		ExitCode                *int   `json:"exit_code"`
		Attempt                 int
		Attempts                []attemptShown
	}
}

type attemptShown struct{ Outcome, Result string }

// resultRead is what another client read of an execution.
type resultRead struct{ Stdout, Stderr, Result string }

// readResult has boto3 read what an attempt left, by the key that r prints.
func readResult(t *testing.T, bucket *s3test.Server, key string) (out resultRead, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(pythonTools(t, "s3"), "python"), "testdata/s3/read.py", bucket.URL, "bucket", "results/", key)
	cmd.Env = append(os.Environ(), "AWS_SHARED_CREDENTIALS_FILE="+bucket.Credentials)
	text, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	return out, err
}

// TestExecutions submits programs and commands, waits for them, cancels them, and
// kills the server while they run. What they leave is in a bucket, where another
// client reads it.
func TestExecutions(t *testing.T) {
	t.Parallel()
	bucket := s3test.Start(t, "minio")
	s := own(t, "executions", "--executions-store", fmt.Sprintf("s3://bucket/results?endpoint=%s&credentials=%s", bucket.URL, bucket.Credentials))
	submit := func(args ...string) string {
		t.Helper()
		return strings.TrimSpace(s.r(t, "", append([]string{"execution", "submit"}, args...)...))
	}
	show := func(id string) (x executionShown) {
		t.Helper()
		s.json(t, &x, "execution", "show", id)
		return x
	}
	started := func(id string) {
		t.Helper()
		wait.For(t, id+" runs", func() bool { return show(id).Status.StartedAt != "" }, wait.State(func() any { return show(id) }))
	}

	// To its end, with input and output.
	if out := submit("-l", "python", "--wait", "print(6*7)"); out != "42" {
		t.Errorf("print: %q", out)
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "main.py"), `import os, sys, json
print(sys.argv[1:], os.environ["SECRET"], open("data.txt").read())
print("wrong", file=sys.stderr)
json.dump({"answer": 42}, open(os.environ["EXECUTION_RESULT"], "w"))
sys.exit(3)
`)
	write(t, filepath.Join(dir, "data.txt"), "text")
	res := s.try(t, dir, "execution", "submit", "--wait", "--file", "data.txt", "--secret", "SECRET=hush", "main.py", "one", "-two")
	if res.Code != 3 || res.Stdout != "['one', '-two'] hush text\n" || !strings.Contains(res.Stderr, "wrong") {
		t.Errorf("a program that fails: %s", res)
	}
	first := s.try(t, dir, "execution", "submit", "--file", "data.txt", "--secret", "SECRET=hush", "main.py", "x")
	id := strings.TrimSpace(first.Stdout)
	if res := s.try(t, "", "execution", "wait", id); res.Code != 3 || !strings.Contains(res.Stdout, "failed") {
		t.Errorf("wait: %s", res)
	}
	var result struct {
		ExitCode               int `json:"exit_code"`
		Stdout, Stderr, Result string
		Metrics                struct {
			Wall        string
			CPU         string `json:"cpu"`
			MemoryBytes int64  `json:"memory_bytes"`
		}
	}
	s.json(t, &result, "execution", "result", id)
	if result.ExitCode != 3 || result.Stdout != "['x'] hush text\n" || result.Stderr != "wrong\n" || result.Result != `{"answer": 42}` || result.Metrics.Wall == "" {
		t.Errorf("result: %+v", result)
	}
	key := show(id).Status.Attempts[0].Result
	if out, err := readResult(t, bucket, key); err != nil || out != (resultRead{Stdout: result.Stdout, Stderr: result.Stderr, Result: result.Result}) {
		t.Errorf("boto3 reads %+v, %v", out, err)
	}
	if _, err := readResult(t, bucket, key+"0"); err == nil {
		t.Error("boto3 reads what does not exist")
	}
	if out := s.r(t, "", "execution", "logs", id); out != "['x'] hush text\n" {
		t.Errorf("logs: %q", out)
	}
	if out := s.r(t, "", "execution", "result", id); out != `{"answer": 42}` {
		t.Errorf("result: %q", out)
	}
	if res := s.try(t, "", "execution", "submit", "--template", "base", "--wait", "--timeout", "1s", "--", "sleep", "100"); res.Code != 124 {
		t.Errorf("timeout: %s", res)
	}
	failing := submit("--template", "base", "--attempts", "3", "--retry-delay", "10ms", "--retry-on", "failed", "--", "sh", "-c", "echo wrong >&2; exit 5")
	s.try(t, "", "execution", "wait", failing)
	if out := s.r(t, "", "execution", "result", failing, "--attempt", "1", "--json"); !strings.Contains(out, `"stderr": "wrong\n"`) {
		t.Errorf("first attempt: %s", out)
	}
	if x := show(failing); x.Status.Outcome != "failed" || *x.Status.ExitCode != 5 || x.Status.Attempt != 3 || len(x.Status.Attempts) != 3 {
		t.Errorf("retried: %+v", x)
	}

	confined := submit("-l", "python", "--confine", "import os; open(os.environ['EXECUTION_RESULT'], 'w').write(open('/proc/1/comm').read())")
	s.r(t, "", "execution", "wait", confined)
	if out := s.r(t, "", "execution", "result", confined); out != "bwrap\n" {
		t.Errorf("confined: process 1 is %q", out)
	}

	// In a sandbox that exists, and in that of an agent.
	box := strings.TrimSpace(s.r(t, "", "sandbox", "run", "--template", "python", "--detach", "--ttl", "10m"))
	for _, where := range [][]string{{"--sandbox", box}, {"--agent", "ada"}} {
		submit(append(where, "-l", "python", "--wait", "-e", "A=1", "import os; open('kept', 'w').write(os.environ['A'])")...)
		if out := submit(append(where, "-l", "python", "--wait", "print(open('kept').read())")...); out != "1" {
			t.Errorf("in %v: %q", where, out)
		}
	}
	if out := submit("--sandbox", box, "--wait", "--", "sh", "-c", "ls -A .executions; cat kept"); out != "1" {
		t.Errorf("files that remain in the sandbox: %q", out)
	}

	// Idempotency keys.
	if a, b := submit("--key", "k", "-l", "python", "print(1)"), submit("--key", "k", "-l", "python", "print(1)"); a != b {
		t.Errorf("the same key and request: %s and %s", a, b)
	}
	if res := s.try(t, "", "execution", "submit", "--key", "k", "-l", "python", "print(2)"); res.Code == 0 || !strings.Contains(res.Stderr, "another request") {
		t.Errorf("the same key, another request: %s", res)
	}

	// A batch.
	write(t, filepath.Join(dir, "names.txt"), "ada\ngrace\nbarbara\n")
	batch := strings.TrimSpace(s.r(t, dir, "execution", "submit", "--each", "names.txt", "-l", "python", "import sys; print(sys.argv[1])"))
	s.r(t, "", "execution", "wait", batch)
	var members []executionShown
	s.json(t, &members, "execution", "list", "--batch", batch)
	var printed []string
	for _, x := range members {
		printed = append(printed, strings.TrimSpace(s.r(t, "", "execution", "logs", x.ID)))
	}
	if !slices.Equal(printed, []string{"ada", "grace", "barbara"}) {
		t.Errorf("the batch printed %v", printed)
	}

	// Cancelled: a batch, one that runs, and one whose time has not come.
	sleepers := strings.TrimSpace(s.r(t, dir, "execution", "submit", "--each", "names.txt", "--template", "base", "--", "sh", "-c", "sleep 1000"))
	if out := s.r(t, "", "execution", "cancel", sleepers); strings.Count(out, "cancelled") != 3 {
		t.Errorf("cancel of a batch: %s", out)
	}
	running := submit("--template", "base", "--", "sleep", "1000")
	started(running)
	later := submit("--template", "base", "--after", "1h", "--", "true")
	for _, x := range []string{running, later} {
		contains(t, "cancel", s.r(t, "", "execution", "cancel", x), "cancelled")
	}
	if res := s.try(t, "", "execution", "wait", running); res.Code != 1 {
		t.Errorf("wait for a cancelled one: %s", res)
	}

	// The server is killed in the middle.
	again := submit("--template", "base", "--", "sh", "-c", "echo begin; sleep 60; echo end")
	once := submit("--template", "base", "--attempts", "1", "--", "sleep", "1000")
	started(again)
	started(once)
	kill(t, s.pid(t, "server"))
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	s.try(t, "", "execution", "wait", once, again)
	if x := show(once); x.Status.Outcome != "interrupted" || x.Status.Attempt != 1 {
		t.Errorf("one attempt: %+v", x)
	}
	if x := show(again); x.Status.Outcome != "succeeded" || x.Status.Attempt != 2 || x.Status.Attempts[0].Outcome != "interrupted" {
		t.Errorf("again: %+v", x)
	}
	if out := s.r(t, "", "execution", "logs", again); out != "begin\nend\n" {
		t.Errorf("output of the last attempt: %q", out)
	}

	// Nothing is left but the history.
	s.r(t, "", "sandbox", "delete", box)
	wait.NoError(t, "the executions are in the history, without sandboxes", func() error {
		if out := s.r(t, "", "entity", "list", "execution", "--json"); strings.Contains(out, "exec-") {
			return fmt.Errorf("in the store: %s", out)
		}
		var left []struct{ Spec struct{ Execution string } }
		s.json(t, &left, "sandbox", "list")
		for _, sb := range left {
			if sb.Spec.Execution != "" {
				return fmt.Errorf("a sandbox of %s is left", sb.Spec.Execution)
			}
		}
		return nil
	}, wait.Within(2*time.Minute), wait.Every(time.Second))
	if x := show(again); x.Status.Outcome != "succeeded" {
		t.Errorf("in the history: %+v", x)
	}
	if out := s.r(t, "", "execution", "logs", again); out != "begin\nend\n" {
		t.Errorf("output, from the history: %q", out)
	}
	contains(t, "list", s.r(t, "", "execution", "list"), again, running, later, members[0].ID)
}
