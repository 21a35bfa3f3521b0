package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/wait"
)

// mcpRun is the result of a tool that runs something.
type mcpRun struct {
	Sandbox   string `json:"sandbox"`
	ExitCode  int    `json:"exit_code"`
	Stdout    string `json:"stdout"`
	Stderr    string `json:"stderr"`
	TimedOut  bool   `json:"timed_out"`
	Truncated bool   `json:"truncated"`
}

// mcpSandbox is a sandbox as tools describe it.
type mcpSandbox struct {
	ID, Name, State, Phase, Network, Workdir, Template string
	Session                                            bool
	Processes                                          []struct{ Command []string }
}

// TestMCP uses a sandbox by the tools of `r mcp`.
func TestMCP(t *testing.T) {
	t.Parallel()
	c := shared.newMCP(t)
	var list struct {
		Tools []struct {
			Name                      string
			InputSchema, OutputSchema json.RawMessage
		}
	}
	c.must(&list, "tools", nil)
	for _, tool := range list.Tools {
		if len(tool.OutputSchema) == 0 || len(tool.InputSchema) == 0 {
			t.Errorf("tool %s has no schemas", tool.Name)
		}
	}
	var sb, other mcpSandbox
	c.call(&sb, "create_sandbox", map[string]any{"language": "python"})
	if sb.State != "ready" || sb.Network != "none" || !sb.Session || sb.Workdir != "/home/user" || sb.Template != "python:1" {
		t.Errorf("a new sandbox: %+v", sb)
	}
	var run mcpRun
	if c.call(&run, "run_code", map[string]any{"language": "python", "code": "print(6*7)", "sandbox": sb.ID}); run.Stdout != "42\n" || run.ExitCode != 0 || run.Sandbox != sb.ID {
		t.Errorf("run_code in a sandbox: %+v", run)
	}
	if c.call(&run, "run_code", map[string]any{"language": "shell", "code": "echo $1 $A; cat; exit 3", "args": []string{"one"}, "env": map[string]any{"A": "b"}, "stdin": "input"}); run.Stdout != "one b\ninput" || run.ExitCode != 3 {
		t.Errorf("run_code: %+v", run)
	}
	if res := c.call(&run, "run_command", map[string]any{"sandbox": sb.ID, "command": "pwd; echo wrong >&2; exit 4"}); run.Stdout != "/home/user\n" || run.Stderr != "wrong\n" ||
		run.ExitCode != 4 || res.text() != "/home/user\n[stderr]\nwrong\n[exit code 4]" {
		t.Errorf("run_command: %+v, %q", run, res.text())
	}
	if c.call(&run, "run_command", map[string]any{"sandbox": sb.ID, "command": "sleep 1000 & wait", "timeout_seconds": 1}); !run.TimedOut || run.ExitCode != 124 {
		t.Errorf("a time-out: %+v", run)
	}
	if c.call(&run, "run_command", map[string]any{"sandbox": sb.ID, "command": "echo begin; yes 0123456789 | head -c 10000000; echo end"}); !run.Truncated || len(run.Stdout) > 70_000 ||
		!strings.HasPrefix(run.Stdout, "begin\n") || !strings.HasSuffix(run.Stdout, "end\n") || !strings.Contains(run.Stdout, "bytes were cut here") {
		t.Errorf("much output: %d bytes", len(run.Stdout))
	}
	c.call(nil, "write_file", map[string]any{"sandbox": sb.ID, "path": "data/a.txt", "content": "text\n"})
	var file struct {
		Content, Encoding string
		Size              int `json:"size_bytes"`
		Next              int `json:"next_offset"`
	}
	if c.call(&file, "read_file", map[string]any{"sandbox": sb.ID, "path": "data/a.txt"}); file.Content != "text\n" || file.Encoding != "text" {
		t.Errorf("read_file: %+v", file)
	}
	binary := base64.StdEncoding.EncodeToString([]byte{0, 1, 255})
	c.call(nil, "write_file", map[string]any{"sandbox": sb.ID, "path": "/home/user/data/b.bin", "content": binary, "encoding": "base64"})
	if c.call(&file, "read_file", map[string]any{"sandbox": sb.ID, "path": "data/b.bin"}); file.Content != binary || file.Encoding != "base64" || file.Size != 3 {
		t.Errorf("read_file of bytes: %+v", file)
	}
	var files struct {
		Files []struct{ Path, Type string }
		More  bool
	}
	if c.call(&files, "list_files", map[string]any{"sandbox": sb.ID, "path": "data"}); len(files.Files) != 2 || files.Files[0].Path != "a.txt" || files.More {
		t.Errorf("list_files: %+v", files)
	}
	if res := c.try("read_file", map[string]any{"sandbox": "sb-none", "path": "x"}); !res.IsError || !strings.Contains(res.text(), "list_sandboxes") {
		t.Errorf("a sandbox that does not exist: %+v", res)
	}
	if res := c.try("run_code", map[string]any{"language": "cobol", "code": "x"}); !res.IsError || !strings.Contains(res.text(), "language") {
		t.Errorf("an unknown language: %+v", res)
	}
	// A client that cancels a call ends its processes.
	id, ch := c.begin("call", map[string]any{"name": "run_command", "args": map[string]any{"sandbox": sb.ID, "command": "sleep 2000 & wait"}, "progress": true})
	if a := <-ch; a.Progress == nil || !strings.Contains(a.Progress.Message, "running") {
		t.Errorf("progress: %+v", a)
	}
	if c.call(&other, "describe_sandbox", map[string]any{"sandbox": sb.ID}); other.State != "running" || len(other.Processes) != 1 {
		t.Errorf("while a command runs: %+v", other)
	}
	c.must(nil, "cancel", map[string]any{"call": id})
	if _, err := c.end(ch); err == nil {
		t.Error("the call was not cancelled")
	}
	wait.NoError(t, "the processes have ended", func() error {
		c.call(&run, "run_command", map[string]any{"sandbox": sb.ID, "command": "ps -eo args | grep '[s]leep [12]000'"})
		if run.Stdout != "" {
			return fmt.Errorf("%s", run.Stdout)
		}
		return nil
	}, wait.Within(converge))
	c.call(&other, "create_sandbox", map[string]any{"name": "mcp-other"})
	if c.call(&other, "stop_sandbox", map[string]any{"sandbox": "mcp-other"}); other.State != "terminated" {
		t.Errorf("a stopped sandbox: %+v", other)
	}
	var all struct{ Sandboxes []mcpSandbox }
	c.call(&all, "list_sandboxes", nil)
	for _, s := range all.Sandboxes {
		if s.ID == other.ID || s.ID == sb.ID && s.State != "ready" {
			t.Errorf("in the list: %+v", s)
		}
	}
	// The end of the session is that of its sandboxes.
	c.must(nil, "close", nil)
	wait.NoError(t, "the sandboxes of the session are deleted", func() error {
		if res := shared.try(t, "", "sandbox", "show", sb.ID); res.Code == 0 {
			return fmt.Errorf("%s", res)
		}
		return nil
	}, wait.Within(converge))
}

// TestMCPTools: the flags of `r mcp` say which tools and networks there are.
func TestMCPTools(t *testing.T) {
	t.Parallel()
	c := shared.newMCP(t, "--tools", "code,create_sandbox", "--no-network")
	var list struct{ Tools []struct{ Name string } }
	c.must(&list, "tools", nil)
	names := map[string]bool{}
	for _, tool := range list.Tools {
		names[tool.Name] = true
	}
	if !names["run_code"] || !names["create_sandbox"] || names["read_file"] || names["stop_sandbox"] {
		t.Errorf("tools %v", names)
	}
	if res := c.try("create_sandbox", map[string]any{"network": "all"}); !res.IsError || !strings.Contains(res.text(), "no network") {
		t.Errorf("a sandbox with a network: %+v", res)
	}
	c.must(nil, "close", nil)
	if res := shared.try(t, "", "mcp", "--tools", "run_cod"); res.Code != 2 || !strings.Contains(res.Stderr, "run_code") {
		t.Errorf("an unknown tool: %s", res)
	}
}

// TestMCPKilled: the sandboxes of a session that is lost end when they are idle,
// those of one with --keep are paused then.
func TestMCPKilled(t *testing.T) {
	t.Parallel()
	begin := func(args ...string) (*mcpClient, string) {
		t.Helper()
		c := shared.newMCP(t, append([]string{"--idle", "5s"}, args...)...)
		var sb mcpSandbox
		c.call(&sb, "create_sandbox", map[string]any{"language": "shell"})
		return c, sb.ID
	}
	lost, ended := begin()
	if err := syscall.Kill(lost.about.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	kept, paused := begin("--keep")
	kept.must(nil, "close", nil)
	contains(t, "a sandbox of a session that was killed", shared.ended(t, ended), `"idle"`)
	wait.NoError(t, "the kept sandbox is paused", func() error {
		if out := shared.r(t, "", "sandbox", "show", paused, "--json"); !strings.Contains(out, `"paused"`) {
			return fmt.Errorf("%s", out)
		}
		return nil
	}, wait.Within(5*time.Minute))
	for _, id := range []string{ended, paused} {
		shared.r(t, "", "sandbox", "delete", id)
	}
}

// TestMCPWork uses cells, packages, snapshots, files of this machine, resources
// and prompts.
func TestMCPWork(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "in.csv"), "a,b\n1,2\n")
	c := shared.newMCP(t, "--files", dir)
	var sb mcpSandbox
	var run mcpRun
	c.call(&sb, "create_sandbox", map[string]any{"template": "code-interpreter-v1", "memory_mib": 1024})
	in := func(args map[string]any) map[string]any { args["sandbox"] = sb.ID; return args }

	// Cells keep variables, and show plots.
	var cell struct {
		Outcome string
		Values  []struct{ Text string }
		Error   *struct{ Name string }
	}
	c.call(nil, "run_cell", in(map[string]any{"code": "x = 41"}))
	if res := c.call(&cell, "run_cell", in(map[string]any{"code": "x + 1"})); cell.Outcome != "completed" || res.text() != "42" {
		t.Errorf("a cell: %+v, %q", cell, res.text())
	}
	if c.call(&cell, "run_cell", in(map[string]any{"code": "1/0"})); cell.Outcome != "failed" || cell.Error == nil || cell.Error.Name != "ZeroDivisionError" {
		t.Errorf("a cell that fails: %+v", cell)
	}
	res := c.call(nil, "run_cell", in(map[string]any{"code": "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()"}))
	if i := slices.IndexFunc(res.Content, func(c mcpContent) bool { return c.Type == "image" && c.MIMEType == "image/png" && len(c.Data) > 1000 }); i < 0 {
		t.Errorf("a plot: %+v", res)
	}

	// Files of this machine go in and out, those of --files and no others.
	c.call(nil, "upload_file", in(map[string]any{"local": "in.csv", "path": "data/in.csv"}))
	if c.call(&run, "run_command", in(map[string]any{"command": "cat data/in.csv"})); run.Stdout != "a,b\n1,2\n" {
		t.Errorf("upload_file: %+v", run)
	}
	c.call(nil, "download_file", in(map[string]any{"path": "data/in.csv", "local": "out/copy.csv"}))
	if b, err := os.ReadFile(filepath.Join(dir, "out", "copy.csv")); err != nil || string(b) != "a,b\n1,2\n" {
		t.Errorf("download_file: %q, %v", b, err)
	}
	for _, local := range []string{"/etc/passwd", "../passwd", "out/copy.csv"} {
		if res := c.try("download_file", in(map[string]any{"path": "data/in.csv", "local": local})); !res.IsError {
			t.Errorf("download_file to %s: %+v", local, res)
		}
	}
	if res := c.try("upload_file", in(map[string]any{"local": "/etc/passwd", "path": "passwd"})); !res.IsError {
		t.Errorf("upload_file of /etc/passwd: %+v", res)
	}
	c.call(nil, "remove_file", in(map[string]any{"path": "data/in.csv"}))

	// Packages need a network, which the sandbox gets when it is asked for.
	install := in(map[string]any{"language": "python", "packages": []string{"six==1.16.0"}})
	if res := c.try("install_packages", install); !res.IsError || !strings.Contains(res.text(), "set_network") {
		t.Errorf("install_packages without a network: %+v", res)
	}
	if c.call(&sb, "set_network", in(map[string]any{"network": "all"})); sb.Network != "all" {
		t.Errorf("set_network: %+v", sb)
	}
	if c.call(&run, "install_packages", install); run.ExitCode != 0 {
		t.Errorf("install_packages: %+v", run)
	}
	if c.call(&run, "run_code", in(map[string]any{"language": "python", "code": "import six; print(six.__version__)", "file": "six_version.py"})); run.Stdout != "1.16.0\n" {
		t.Errorf("a program with a package: %+v", run)
	}

	// A process goes on without its call.
	var proc struct {
		Process, Stdout string
		Running         bool
		ExitCode        *int `json:"exit_code"`
	}
	c.call(&proc, "start_process", in(map[string]any{"command": "echo begun; sleep 4000"}))
	process := in(map[string]any{"process": proc.Process})
	if c.call(&proc, "read_process", process); !proc.Running || proc.Stdout != "begun\n" {
		t.Errorf("read_process: %+v", proc)
	}
	if c.call(&proc, "stop_process", process); proc.Running || proc.ExitCode == nil || *proc.ExitCode != 128+15 {
		t.Errorf("stop_process: %+v", proc)
	}
	if res := c.try("read_process", process); !res.IsError {
		t.Errorf("a process that was stopped: %+v", res)
	}

	// A fork of a snapshot goes on from there.
	c.call(nil, "run_command", in(map[string]any{"command": "echo then > now"}))
	var snap struct{ ID, State string }
	if c.call(&snap, "snapshot_sandbox", in(map[string]any{"name": "mcp-work"})); snap.State != "ready" {
		t.Errorf("snapshot_sandbox: %+v", snap)
	}
	c.call(nil, "run_command", in(map[string]any{"command": "echo later > now"}))
	var forks struct{ Sandboxes []mcpSandbox }
	c.call(&forks, "fork_sandbox", map[string]any{"snapshot": "mcp-work"})
	if len(forks.Sandboxes) != 1 {
		t.Fatalf("fork_sandbox: %+v", forks)
	}
	fork := forks.Sandboxes[0].ID
	if c.call(&run, "run_command", map[string]any{"sandbox": fork, "command": "cat now"}); run.Stdout != "then\n" {
		t.Errorf("the fork: %+v", run)
	}
	var snaps struct{ Snapshots []struct{ ID string } }
	c.call(&snaps, "list_snapshots", nil)
	if !slices.ContainsFunc(snaps.Snapshots, func(s struct{ ID string }) bool { return s.ID == snap.ID }) {
		t.Errorf("list_snapshots: %+v", snaps)
	}
	c.call(nil, "delete_snapshot", map[string]any{"snapshot": "mcp-work"})
	if c.call(&sb, "pause_sandbox", map[string]any{"sandbox": sb.ID}); sb.State != "paused" {
		t.Errorf("pause_sandbox: %+v", sb)
	}
	if c.call(&sb, "resume_sandbox", map[string]any{"sandbox": sb.ID}); sb.State != "ready" && sb.State != "running" {
		t.Errorf("resume_sandbox: %+v", sb)
	}

	// Resources show the same.
	var read struct {
		Contents []struct{ Text, MIMEType string }
	}
	c.must(&read, "read", map[string]any{"uri": "sandboxes:///"})
	contains(t, "the list as resource", read.Contents[0].Text, sb.ID, fork)
	c.must(&read, "read", map[string]any{"uri": "sandboxes:///" + sb.ID})
	contains(t, "a sandbox as resource", read.Contents[0].Text, sb.ID, `"phase"`)
	c.must(&read, "read", map[string]any{"uri": "sandboxes:///" + sb.ID + "/files/home/user/now"})
	if read.Contents[0].Text != "later\n" {
		t.Errorf("a file as resource: %+v", read)
	}
	testMCPFollow(t, c, sb.ID)
	if _, ch := c.begin("read", map[string]any{"uri": "sandboxes:///" + sb.ID + "/files/none"}); true {
		if _, err := c.end(ch); err == nil {
			t.Error("a file that does not exist was read as resource")
		}
	}
	var prompt struct {
		Messages []struct{ Content struct{ Text string } }
	}
	c.must(&prompt, "prompt", map[string]any{"name": "solve_with_code", "arguments": map[string]any{"task": "count to three"}})
	contains(t, "a prompt", prompt.Messages[0].Content.Text, "count to three", "run_code")
	c.must(nil, "close", nil)
	wait.NoError(t, "the sandboxes of the session are deleted", func() error {
		for _, id := range []string{sb.ID, fork} {
			if res := shared.try(t, "", "sandbox", "show", id); res.Code == 0 {
				return fmt.Errorf("%s", res)
			}
		}
		return nil
	}, wait.Within(converge))
}

// testMCPFollow completes the path of a file, subscribes to it and is told of its
// changes, and of the sandboxes that the session makes.
func testMCPFollow(t *testing.T, c *mcpClient, sandbox string) {
	t.Helper()
	var done struct{ Completion struct{ Values []string } }
	complete := func(argument, typed string) []string {
		t.Helper()
		c.must(&done, "complete", map[string]any{
			"ref":      map[string]any{"type": "ref/resource", "uri": "sandboxes:///{sandbox}/files{+path}"},
			"argument": map[string]any{"name": argument, "value": typed}, "context": map[string]any{"arguments": map[string]any{"sandbox": sandbox}},
		})
		return done.Completion.Values
	}
	if got := complete("sandbox", sandbox); !slices.Contains(got, sandbox) {
		t.Errorf("ids of sandboxes: %q", got)
	}
	if got := complete("path", "/home/user/no"); !slices.Equal(got, []string{"/home/user/now"}) {
		t.Errorf("paths: %q", got)
	}
	var seen []string
	told := func(uri, command string) {
		t.Helper()
		c.call(nil, "run_command", map[string]any{"sandbox": sandbox, "command": command})
		wait.NoError(t, "the client is told of "+uri, func() error {
			var updated struct{ URIs []string }
			c.must(&updated, "updated", nil)
			if seen = append(seen, updated.URIs...); !slices.Contains(updated.URIs, uri) {
				return fmt.Errorf("told of %q", seen)
			}
			return nil
		}, wait.Within(converge))
	}
	for _, file := range []string{"/home/user/now", "/home/user/watched/deep/file"} {
		uri := "sandboxes:///" + sandbox + "/files" + file
		c.must(nil, "subscribe", map[string]any{"uri": uri})
		told(uri, "mkdir -p $(dirname "+file+"); echo again >> "+file)
		told(uri, "rm "+file)
		c.must(nil, "unsubscribe", map[string]any{"uri": uri})
	}
	c.call(nil, "run_command", map[string]any{"sandbox": sandbox, "command": "echo later > /home/user/now"})
	var list struct{ Resources []struct{ URI string } }
	if c.must(&list, "resources", nil); !slices.Contains(list.Resources, struct{ URI string }{"sandboxes:///" + sandbox}) {
		t.Errorf("resources: %+v", list)
	}
	if !slices.Contains(seen, "") {
		t.Errorf("no change of the list in %q", seen)
	}
}
