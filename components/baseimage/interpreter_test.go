package baseimage_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image/png"
	"slices"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/id"
	api "miren.dev/runtime/api/interpreter"
	sandboxapi "miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/domain/interpreter"
	"miren.dev/runtime/domain/languages"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/runsctest"
	"miren.dev/runtime/testsupport/wait"
)

// node is the machine of a test for the interpreter.
type node struct{ driver execution.Driver }

func (n node) Dial(ctx context.Context, sid id.Sandbox, port int) (sandboxes.Conn, error) {
	return n.driver.Dial(ctx, string(sid), port)
}

func (n node) Exec(ctx context.Context, sid id.Sandbox, s sandboxes.ExecSpec) (sandboxes.Process, error) {
	p, err := n.driver.Exec(ctx, string(sid), execution.ExecSpec{Command: s.Command, Env: s.Env, WorkDir: s.WorkDir, NoInput: s.NoInput})
	return plainProcess{p}, err
}

// plainProcess is a process of which nothing is known but its exit code.
type plainProcess struct{ execution.Process }

func (plainProcess) Reason() sandboxapi.EndReason { return "" }

// interpreted is a sandbox with contexts.
type interpreted struct {
	*interpreter.Service
	*sandbox
}

// newInterpreted makes a sandbox that waited with its interpreter started, and
// was claimed with CLAIMED=yes.
func newInterpreted(t *testing.T, m *runsctest.Machine) interpreted {
	t.Helper()
	templates := languages.Templates()
	box := newSandbox(t, m, templates[slices.IndexFunc(templates, func(s languages.Template) bool { return s.Name == "code-interpreter-v1" })])
	box.exec(t, execution.ExecSpec{Command: []string{"runtime-interpreter"}}, "")
	if err := box.driver.Configure(t.Context(), box.id, execution.Identity{Claim: "claim-1", Env: []string{"CLAIMED=yes"}}); err != nil {
		t.Fatal(err)
	}
	return interpreted{&interpreter.Service{
		Node: node{box.driver},
		Running: func(context.Context, id.Sandbox) (*sandboxapi.Sandbox, error) {
			sb := sandboxapi.NewSandbox()
			sb.ID, sb.Spec.Template.Env, sb.Spec.Template.Workdir = "code-interpreter-v1", map[string]string{"CLAIMED": "yes"}, box.home
			return sb, nil
		},
	}, box}
}

// said is what an execution did.
type said struct {
	stdout, stderr string
	results        []*api.Result
	err            *api.CodeError
	end            *api.RunEnd
}

// text returns the plain text of the last result.
func (s said) text() string {
	if len(s.results) == 0 {
		return ""
	}
	return s.results[len(s.results)-1].Formats["text/plain"]
}

func (s said) String() string {
	return fmt.Sprintf("stdout %q, stderr %q, result %q, error %+v, end %+v", s.stdout, s.stderr, s.text(), s.err, s.end)
}

func (b interpreted) run(t *testing.T, language, code string, set ...func(*interpreter.RunRequest)) said {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	req := interpreter.RunRequest{Language: language, Code: code}
	for _, f := range set {
		f(&req)
	}
	var s said
	err := b.Run(ctx, req, func(e *api.RunEvent) error {
		s.stdout += e.Stdout
		s.stderr += e.Stderr
		if e.Result != nil {
			s.results = append(s.results, e.Result)
		}
		if e.Error != nil {
			s.err = e.Error
		}
		s.end = e.End
		return nil
	})
	if err != nil {
		t.Fatalf("%s: %v", code, err)
	}
	return s
}

func in(c string) func(*interpreter.RunRequest) {
	return func(r *interpreter.RunRequest) { r.Context = c }
}

func within(d time.Duration) func(*interpreter.RunRequest) {
	return func(r *interpreter.RunRequest) { r.Timeout = d }
}

// TestInterpreter executes code in contexts of a sandbox.
func TestInterpreter(t *testing.T) {
	m := newMachine(t)
	b := newInterpreted(t, m)
	t.Run("1+1 is quick", func(t *testing.T) {
		start := time.Now()
		b.run(t, "python", "1+1")
		first := time.Since(start)
		for _, l := range []string{"python", "javascript"} {
			var times []time.Duration
			for range 100 {
				start := time.Now()
				if s := b.run(t, l, "1+1"); s.text() != "2" {
					t.Fatal(s)
				}
				times = append(times, time.Since(start))
			}
			slices.Sort(times)
			t.Logf("%s: first %v, p50 %v, p99 %v", l, first.Round(time.Microsecond), times[50].Round(time.Microsecond), times[98].Round(time.Microsecond))
		}
	})
	// Each line is executed after those before it, in the context of its language.
	for _, c := range []struct{ language, code, stdout, text, err string }{
		{"python", "x = 41\ndef f(): return x + 1", "", "", ""},
		{"python", "print('says'); f()", "says\n", "42", ""},
		{"python", "import os; os.environ['CLAIMED'], os.getcwd()", "", "('yes', '/home/user')", ""},
		{"python", "import asyncio\nawait asyncio.sleep(0.01)\n'awaited'", "", "'awaited'", ""},
		{"python", "asyncio.run(asyncio.sleep(0, 'ran'))", "", "'ran'", ""},
		{"python", "!echo shell", "shell\r\n", "", ""},
		{"python", "import subprocess; _ = subprocess.run(['echo', 'child'])", "child\n", "", ""},
		{"python", "def g():\n    1/0\ng()", "", "", "ZeroDivisionError"},
		{"python", "def h(:", "", "", "SyntaxError"},
		{"python", "import sys; sys.exit(3)", "", "", "SystemExit"},
		{"python", "f()", "", "42", ""},
		{"javascript", "const a = 1; let n = a + 1; function f() { return n }", "", "", ""},
		{"js", "const a = 41; console.log('says'); a + 1", "says\n", "42", ""},
		{"javascript", "f()", "", "2", ""},
		{"javascript", "const r = await new Promise((r) => setTimeout(() => r(7), 5)); r", "", "7", ""},
		{"javascript", "import { EOL } from 'os'\nimport path from 'node:path'\n[EOL, path.sep]", "", "[ '\\n', '/' ]", ""},
		{"javascript", "[process.env.CLAIMED, process.cwd()]", "", "[ 'yes', '/home/user' ]", ""},
		{"javascript", "throw new TypeError('no')", "", "", "TypeError"},
		{"javascript", "async function main() { return 'awaited' }\nmain()", "", "'awaited'", ""},
		{"typescript", "const n: number = 41; interface I { a: string }\nn + 1 as number", "", "42", ""},
		{"shell", "cd /tmp; X=5; f() { echo f$X; }", "", "", ""},
		{"bash", "pwd; f; echo $CLAIMED", "/tmp\nf5\nyes\n", "", ""},
		{"shell", "false", "", "", "ExitStatus"},
	} {
		s := b.run(t, c.language, c.code)
		name := ""
		if s.err != nil {
			name = s.err.Name
		}
		want := api.OutcomeCompleted
		if c.err != "" {
			want = api.OutcomeFailed
		}
		if s.stdout != c.stdout || s.text() != c.text || name != c.err || s.end.Outcome != want {
			t.Errorf("%s %q: %v, want stdout %q, result %q, error %q", c.language, c.code, s, c.stdout, c.text, c.err)
		}
	}
	t.Run("an error has its place", func(t *testing.T) {
		if s := b.run(t, "python", "def g():\n    1/0\ng()"); !strings.Contains(s.err.Traceback, "----> 2     1/0") || strings.Contains(s.err.Traceback, "\x1b") || s.err.Value != "division by zero" {
			t.Errorf("%+v", s.err)
		}
		if s := b.run(t, "javascript", "function g() { null.x }\ng()"); !strings.Contains(s.err.Traceback, "at g (") || strings.Contains(s.err.Traceback, "inspector") {
			t.Errorf("%+v", s.err)
		}
	})
	t.Run("variables of an execution", func(t *testing.T) {
		env := func(r *interpreter.RunRequest) { r.Env = map[string]string{"ONCE": "a b'c"} }
		for language, code := range map[string]string{"python": "print(os.environ.get('ONCE'))", "javascript": "console.log(process.env.ONCE)", "shell": "echo \"$ONCE\""} {
			if s := b.run(t, language, code, env); s.stdout != "a b'c\n" {
				t.Errorf("%s: %v", language, s)
			}
			if s := b.run(t, language, code); strings.Contains(s.stdout, "a b") {
				t.Errorf("%s: the variable stays: %v", language, s)
			}
		}
	})
	t.Run("rich results", func(t *testing.T) { richResults(t, b) })
	t.Run("time", func(t *testing.T) {
		for language, loop := range map[string]string{"python": "while True: pass", "javascript": "while (true) {}", "shell": "while :; do :; done"} {
			if s := b.run(t, language, loop, within(300*time.Millisecond)); s.end.Outcome != api.OutcomeTimeout || *s.end.StateLost {
				t.Errorf("%s: %v", language, s)
			}
		}
		if s := b.run(t, "python", "await asyncio.sleep(1000)", within(300*time.Millisecond)); s.end.Outcome != api.OutcomeTimeout || *s.end.StateLost {
			t.Error(s)
		}
		stubborn := "while True:\n  try:\n    while True: pass\n  except KeyboardInterrupt: pass"
		if s := b.run(t, "python", stubborn, within(300*time.Millisecond)); s.end.Outcome != api.OutcomeTimeout || !*s.end.StateLost {
			t.Errorf("code that cannot be interrupted: %v", s)
		}
		if s := b.run(t, "javascript", "f()"); s.text() != "2" {
			t.Error(s)
		}
	})
	t.Run("contexts", func(t *testing.T) { contexts(t, b) })
	t.Run("a process that ends", func(t *testing.T) {
		for language, code := range map[string]string{"python": "import os; os._exit(3)", "javascript": "process.exit(3)", "shell": "exit 3"} {
			if s := b.run(t, language, code); s.end.Outcome != api.OutcomeEnded || !*s.end.StateLost {
				t.Errorf("%s: %v", language, s)
			}
			if s := b.run(t, language, "1"); s.end.Outcome == api.OutcomeEnded || s.end.Count != 1 {
				t.Errorf("%s, the next execution: %v", language, s)
			}
		}
	})
	t.Run("pause", func(t *testing.T) {
		b.run(t, "python", "kept = 'over a pause'")
		b.run(t, "javascript", "const kept = 'over a pause'")
		if _, err := m.Driver.Snapshot(t.Context(), b.id, "paused", execution.SnapshotOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Driver.Ensure(t.Context(), execution.Spec{ID: b.id, Restore: "paused", Network: execution.NetworkBridge, CPUMillis: 2000, MemoryBytes: 1 << 30}); err != nil {
			t.Fatal(err)
		}
		if err := m.Driver.DeleteSnapshot(t.Context(), "paused"); err != nil {
			t.Fatal(err)
		}
		for _, l := range []string{"python", "javascript"} {
			if s := b.run(t, l, "kept"); s.text() != "'over a pause'" {
				t.Errorf("%s: %v", l, s)
			}
		}
	})
}

// richResults shows values of every format.
func richResults(t *testing.T, b interpreted) {
	show := func(language, code string) map[string]string {
		t.Helper()
		s := b.run(t, language, code)
		if len(s.results) != 1 {
			t.Fatalf("%s: %v", code, s)
		}
		return s.results[0].Formats
	}
	figure := show("python", "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3]); plt.title('Growth')\nplt.show()")
	picture, err := base64.StdEncoding.DecodeString(figure["image/png"])
	if err == nil {
		_, err = png.Decode(bytes.NewReader(picture))
	}
	if err != nil {
		t.Errorf("the figure is no PNG: %v", err)
	}
	var chart struct {
		Type  string `json:"type"`
		Title string `json:"title"`
	}
	if err := json.Unmarshal([]byte(figure["application/vnd.runtime.chart+json"]), &chart); err != nil || chart.Type != "line" || chart.Title != "Growth" {
		t.Errorf("chart %+v, %v", chart, err)
	}
	frame := show("python", "import pandas as pd\npd.DataFrame({'a': [1, None], 't': pd.to_datetime(['2020-01-01', '2020-01-02'])})")
	if !strings.Contains(frame["text/html"], "<table") || !strings.Contains(frame["text/plain"], "2020-01-02") ||
		frame["application/vnd.runtime.data+json"] != `{"a": [1.0, null], "t": ["2020-01-01T00:00:00.000", "2020-01-02T00:00:00.000"]}` {
		t.Errorf("table %v", frame)
	}
	for format, value := range map[string]string{
		"text/html": "HTML('<b>')", "text/markdown": "Markdown('<b>')", "text/latex": "Latex('<b>')", "application/javascript": "Javascript('<b>')",
	} {
		if got := show("python", "from IPython.display import *\n"+value)[format]; got != "<b>" {
			t.Errorf("%s is %q as %s", value, got, format)
		}
	}
	if got := show("python", "import sympy; sympy.Symbol('x')**2")["text/latex"]; !strings.Contains(got, "x^{2}") {
		t.Errorf("latex %q", got)
	}
	if got := show("python", "display(JSON({'a': 1}))")["application/json"]; got != `{"a": 1}` {
		t.Errorf("json %q", got)
	}
	if got := show("python", "display(SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"></svg>'))")["image/svg+xml"]; !strings.HasPrefix(got, "<svg") {
		t.Errorf("svg %q", got)
	}
	for format, magic := range map[string]string{"jpeg": "/9j/", "pdf": "JVBE"} {
		mime := map[string]string{"jpeg": "image/jpeg", "pdf": "application/pdf"}[format]
		code := fmt.Sprintf("import io; o = io.BytesIO(); plt.figure().savefig(o, format=%q); plt.close('all')\ndisplay({%q: o.getvalue()}, raw=True)", format, mime)
		if got := show("python", code)[mime]; !strings.HasPrefix(got, magic) {
			t.Errorf("%s begins with %.20q", format, got)
		}
	}
	if got := show("javascript", "({a: [1]})"); got["application/json"] != `{"a":[1]}` || got["text/plain"] != "{ a: [ 1 ] }" {
		t.Errorf("object %v", got)
	}
	if got := show("javascript", "display({'text/html': '<b>'})"); got["text/html"] != "<b>" {
		t.Errorf("display %v", got)
	}
	if s := b.run(t, "python", "'x' * 9_000_000"); len(s.results) != 0 || !strings.Contains(s.stderr, "larger than 8 MiB") {
		t.Errorf("a large result: %v", s)
	}
}

// contexts makes, uses and deletes contexts.
func contexts(t *testing.T, b interpreted) {
	create := func(req interpreter.CreateRequest) string {
		t.Helper()
		start := time.Now()
		c, err := b.Create(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s in %v", c.Language, time.Since(start).Round(time.Microsecond))
		return c.ID
	}
	one := create(interpreter.CreateRequest{Workdir: "/tmp", Env: map[string]string{"OWN": "1"}})
	two := create(interpreter.CreateRequest{Language: "python"})
	if s := b.run(t, "", "import os; v = 1; os.getcwd(), os.environ['OWN'], os.environ['CLAIMED']", in(one)); s.text() != "('/tmp', '1', 'yes')" {
		t.Error(s)
	}
	if s := b.run(t, "", "v", in(two)); s.err == nil || s.err.Name != "NameError" {
		t.Errorf("contexts share a variable: %v", s)
	}
	busy := func(do func()) said {
		t.Helper()
		done := make(chan said, 1)
		go func() { done <- b.run(t, "", "v = 2\nwhile True: pass", in(one)) }()
		wait.NoError(t, "the context is busy", func() error {
			list, err := b.List(t.Context(), "")
			if err != nil {
				return err
			}
			i := slices.IndexFunc(list, func(c api.CodeContext) bool { return c.ID == one })
			if i < 0 || !*list[i].Busy {
				return fmt.Errorf("contexts %+v", list)
			}
			return nil
		})
		do()
		return <-done
	}
	s := busy(func() {
		if _, err := b.Interrupt(t.Context(), "", one); err != nil {
			t.Error(err)
		}
	})
	if s.end.Outcome != api.OutcomeInterrupted || *s.end.StateLost || s.err == nil || s.err.Name != "KeyboardInterrupt" {
		t.Error(s)
	}
	if s := b.run(t, "", "v", in(one)); s.text() != "2" {
		t.Errorf("after an interrupt: %v", s)
	}
	s = busy(func() {
		if c, err := b.Restart(t.Context(), "", one); err != nil || c.Executions != 0 {
			t.Errorf("%+v, %v", c, err)
		}
	})
	if s.end.Outcome != api.OutcomeEnded || !*s.end.StateLost {
		t.Error(s)
	}
	if s := b.run(t, "", "import os; os.getcwd(), 'v' in globals(), os.environ['OWN']", in(one)); s.text() != "('/tmp', False, '1')" {
		t.Errorf("after a restart: %v", s)
	}
	ctx, leave := context.WithCancel(t.Context())
	err := b.Run(ctx, interpreter.RunRequest{Context: one, Code: "left = 1\nprint('runs')\nwhile True: pass"}, func(*api.RunEvent) error {
		leave()
		return nil
	})
	if !errs.Is(err, errs.Canceled) {
		t.Error(err)
	}
	if s := b.run(t, "", "left", in(one)); s.text() != "1" {
		t.Errorf("after a caller that left: %v", s)
	}
	if _, err := b.Create(t.Context(), interpreter.CreateRequest{Workdir: "/nowhere"}); !errs.Is(err, errs.InvalidArgument) {
		t.Errorf("a directory that does not exist: %v", err)
	}
	if err := b.Delete(t.Context(), "", one); err != nil {
		t.Error(err)
	}
	if err := b.Delete(t.Context(), "", two); err != nil {
		t.Error(err)
	}
	if _, err := b.Restart(t.Context(), "", one); !errs.Is(err, errs.NotFound) {
		t.Errorf("a deleted context: %v", err)
	}
}
