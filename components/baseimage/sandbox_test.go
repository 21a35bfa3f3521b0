package baseimage_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/components/baseimage"
	"miren.dev/runtime/components/containerd"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/domain/languages"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/baseimages"
	"miren.dev/runtime/testsupport/runsctest"
)

// programs are code that prints "hello", and a package with code that prints "7200000" by it.
var programs = map[string]struct{ hello, pkg, uses string }{
	"python": {
		`print("hello")`,
		"humanfriendly==10.0", "from humanfriendly import parse_timespan\nprint(int(parse_timespan('2h') * 1000))",
	},
	"javascript": {
		`console.log("hello")`,
		"ms@2.1.3", `import ms from "ms"; console.log(ms("2h"))`,
	},
	"typescript": {
		`enum E { Hello = "hello" }; class C { constructor(public e: E) {} }; console.log(new C(E.Hello).e as string)`,
		"ms@2.1.3", `import ms from "ms"; const n: number = ms("2h"); console.log(n)`,
	},
	"go": {
		"package main\n\nimport \"fmt\"\n\nfunc main() { fmt.Println(\"hello\") }\n",
		"golang.org/x/mod@v0.20.0",
		"package main\n\nimport (\n\"fmt\"\n\n\"golang.org/x/mod/semver\"\n)\n\nfunc main() { fmt.Println(semver.Major(\"v7200000.1.0\")[1:]) }\n",
	},
	"rust": {
		`fn main() { println!("hello") }`,
		"itoa@1.0.11", `fn main() { println!("{}", itoa::Buffer::new().format(7_200_000)) }`,
	},
	"java": {
		`public class Main { public static void main(String[] a) { System.out.println("hello"); } }`,
		"org.apache.commons:commons-lang3:3.14.0",
		`import org.apache.commons.lang3.StringUtils;
		 public class Main { public static void main(String[] a) { System.out.println(StringUtils.reverse("0000027")); } }`,
	},
	"cpp": {
		"#include <print>\n#include <iostream>\nint main() { std::cout << \"hello\\n\"; }",
		"nlohmann-json3-dev",
		"#include <nlohmann/json.hpp>\n#include <iostream>\nint main() { std::cout << nlohmann::json::parse(\"[7200000]\")[0] << '\\n'; }",
	},
	"csharp": {
		`using System; using System.Linq; class P { static void Main() { Console.WriteLine(string.Concat("olleh".Reverse())); } }`, "", "",
	},
	"shell": {
		`echo hello`,
		"hello", `hello --greeting=7200000`,
	},
}

// TestLanguagesRunInSandboxes runs, for each language of the table, its commands as the user of its template.
func TestLanguagesRunInSandboxes(t *testing.T) {
	m := newMachine(t)
	templates := map[string]languages.Template{}
	for _, s := range languages.Templates() {
		templates[s.Name] = s
	}
	for _, l := range languages.All() {
		t.Run(l.Name, func(t *testing.T) {
			box := newSandbox(t, m, templates[l.Template])
			program, ok := programs[l.Name]
			if !ok {
				t.Fatal("the test has no program")
			}
			version := box.run(t, l, "", l.Version)
			version, _, _ = strings.Cut(version, "\n")
			t.Log(version)

			dir := box.home + "/run/1"
			if got := box.execute(t, l, dir, program.hello); got != "hello\n" {
				t.Errorf("it prints %q", got)
			}
			if len(l.Install) == 0 {
				return
			}
			dir = box.home + "/run/2"
			box.write(t, l, dir, "")
			start := time.Now()
			box.run(t, l, dir, append(l.Expand(l.Install, dir), program.pkg))
			t.Logf("%s installed in %s", program.pkg, time.Since(start).Round(time.Millisecond))
			if got := box.execute(t, l, dir, program.uses); got != "7200000\n" {
				t.Errorf("with %s it prints %q", program.pkg, got)
			}
		})
	}
}

// TestTemplatesHaveTheToolsOfAgents runs the tools of agents, as the user of the template.
func TestTemplatesHaveTheToolsOfAgents(t *testing.T) {
	m := newMachine(t)
	const base, code = "base", "code-interpreter-v1"
	boxes := map[string]*sandbox{}
	for _, s := range languages.Templates() {
		if s.Name == base || s.Name == code {
			boxes[s.Name] = newSandbox(t, m, s)
		}
	}
	for _, c := range []struct{ template, name, command, want string }{
		{base, "user", "id -un; pwd; echo $HOME; touch ~/x && echo writes", "user\n/home/user\n/home/user\nwrites\n"},
		{base, "tools", "for c in bash git curl wget jq rg fd node npm npx python python3 pip bwrap ssh unzip zip tree less nano sqlite3 rsync apt-install; do command -v $c >/dev/null || echo no $c; done", ""},
		{base, "login shell finds what the user installs", `bash -lc 'printf "#!/bin/sh\necho mine\n" >~/.local/bin/mine; chmod +x ~/.local/bin/mine'; bash -lc mine; sh -c mine`, "mine\nmine\n"},
		{base, "pip installs commands", "pip install --quiet tabulate==0.9.0 2>&1 && printf '1 2' | tabulate -f plain", "1  2\n"},
		{base, "virtual environment", "python -m venv v && v/bin/pip install --quiet tabulate==0.9.0 && v/bin/python -c 'import tabulate; print(tabulate.__version__)'", "0.9.0\n"},
		{base, "npm installs commands", "npm install --global --silent semver@7.6.3 >/dev/null && semver -i minor 1.2.3", "1.3.0\n"},
		{base, "curl", "curl --fail --silent https://registry.npmjs.org/ms/2.1.3 | jq -r .version", "2.1.3\n"},
		{base, "modules of the standard library are compiled", `python3 -v -c 'import json' 2>&1 | grep -c 'code object from .*\.py$' || true`, "0\n"},
		{code, "libraries", "python3 -c 'import numpy, pandas, scipy, sklearn, matplotlib.pyplot, seaborn, plotly, PIL, requests, bs4, openpyxl, networkx, sympy; print(pandas.DataFrame({\"a\": [1, 2]}).a.sum())'", "3\n"},
		{code, "kernel", `python3 -c '
from jupyter_client.manager import start_new_kernel
m, c = start_new_kernel(kernel_name="python3")
def show(x):
    if x["msg_type"] == "execute_result": print(x["content"]["data"]["text/plain"])
c.execute_interactive("6 * 7", output_hook=show); m.shutdown_kernel(now=True)'`, "42\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			start := time.Now()
			got := boxes[c.template].exec(t, execution.ExecSpec{Command: []string{"sh", "-c", c.command}}, "")
			if got != c.want {
				t.Errorf("it prints %q, want %q", got, c.want)
			}
			t.Logf("took %s", time.Since(start).Round(time.Millisecond))
		})
	}
}

// TestNodeRunsInItsImage holds that the image has the libraries of the newest Node.js.
func TestNodeRunsInItsImage(t *testing.T) {
	m := newMachine(t)
	box := newSandbox(t, m, languages.Template{Name: "node", Image: "runtime/node:26", CPUMillis: 1000, MemoryMiB: 256, DiskMiB: 64})
	if got := box.exec(t, execution.ExecSpec{Command: []string{"node", "--version"}}, ""); !strings.HasPrefix(got, "v26.") {
		t.Errorf("it is %q", got)
	}
}

func TestTemplatesHaveImages(t *testing.T) {
	images := baseimage.SandboxImages()
	used := map[string]bool{}
	for _, s := range languages.Templates() {
		used[s.Image] = true
		if !slices.Contains(images, s.Image) {
			t.Errorf("template %s has the image %s, which is none of %q", s.Name, s.Image, images)
		}
	}
	for _, name := range images {
		if !used[name] {
			t.Errorf("no template has the image %s", name)
		}
	}
}

// newMachine is an installation whose sandboxes trust the certificates that the host does.
func newMachine(t *testing.T) *runsctest.Machine {
	t.Helper()
	m := runsctest.New(t)
	m.CABundle = "/etc/ssl/certs/ca-certificates.crt"
	m.Restart(t)
	return m
}

// sandbox is one of a shipped template.
type sandbox struct {
	driver execution.Driver
	id     string
	home   string
}

func newSandbox(t *testing.T, m *runsctest.Machine, s languages.Template) *sandbox {
	t.Helper()
	box := &sandbox{m.Driver, s.Name, s.WorkDir}
	t.Cleanup(func() {
		err := m.Driver.Delete(context.Background(), box.id)
		if err = errors.Join(err, m.Driver.DeleteLogs(context.Background(), box.id)); err != nil {
			t.Error(err)
		}
	})
	_, err := m.Driver.Ensure(t.Context(), execution.Spec{
		ID: box.id, Image: importImage(t, m, s.Image), Idle: true, Network: execution.NetworkBridge, StopTimeout: time.Second,
		CPUMillis: 2 * s.CPUMillis, MemoryBytes: s.MemoryMiB << 20, DiskBytes: s.DiskMiB << 20, PIDs: 512,
	})
	if err != nil {
		t.Fatal(err)
	}
	return box
}

// importImage puts an image for sandboxes into an installation.
func importImage(t *testing.T, m *runsctest.Machine, name string) string {
	t.Helper()
	baseimages.Make(t, name)
	ref, err := baseimage.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	img, err := baseimage.New(baseimage.Config{Dir: baseimages.Dir(t)}).Ensure(t.Context(), ref, nil)
	if err != nil {
		t.Fatal(err, errs.HintOf(err))
	}
	r, w := io.Pipe()
	go func() { w.CloseWithError(img.WriteArchive(w)) }()
	stored, err := containerd.NewImages(m.Containerd).Import(t.Context(), r, "test/"+img.Name, nil)
	r.Close()
	if err != nil {
		t.Fatal(err)
	}
	return stored
}

// execute writes code, compiles it and runs it. It returns the program's output.
func (b *sandbox) execute(t *testing.T, l languages.Language, dir, code string) string {
	t.Helper()
	b.write(t, l, dir, code)
	start := time.Now()
	if len(l.Compile) > 0 {
		b.run(t, l, dir, l.Expand(l.Compile, dir))
	}
	compiled := time.Now()
	out := b.run(t, l, dir, l.Expand(l.Run, dir))
	t.Logf("compiled in %s, ran in %s", compiled.Sub(start).Round(time.Millisecond), time.Since(compiled).Round(time.Millisecond))
	return out
}

// write puts code where the commands of the language expect it.
func (b *sandbox) write(t *testing.T, l languages.Language, dir, code string) {
	t.Helper()
	b.exec(t, execution.ExecSpec{Command: []string{"sh", "-c", `mkdir -p "$1" && cat >"$1/$2"`, "write", dir, l.File}}, code)
}

// run runs a command of the language, which succeeds.
func (b *sandbox) run(t *testing.T, l languages.Language, dir string, command []string) string {
	t.Helper()
	var env []string
	for _, name := range slices.Sorted(maps.Keys(l.Env)) {
		env = append(env, name+"="+l.Env[name])
	}
	return b.exec(t, execution.ExecSpec{Command: command, WorkDir: dir, Env: env}, "")
}

// exec runs a command, which succeeds, and returns its standard output.
func (b *sandbox) exec(t *testing.T, x execution.ExecSpec, input string) string {
	t.Helper()
	out, err := b.try(t, x, input)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// try is exec for a command that may fail. The error has its output.
func (b *sandbox) try(t *testing.T, x execution.ExecSpec, input string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	p, err := b.driver.Exec(ctx, b.id, x)
	if err != nil {
		return "", err
	}
	defer p.Close()
	if _, err := io.WriteString(p.Stdin(), input); err != nil {
		return "", err
	}
	if err := p.Stdin().Close(); err != nil {
		return "", err
	}
	var out, errOut bytes.Buffer
	done := make(chan error, 1)
	go func() {
		_, err := io.Copy(&errOut, p.Stderr())
		done <- err
	}()
	_, err = io.Copy(&out, p.Stdout())
	if err = errors.Join(err, <-done); err != nil {
		return "", err
	}
	code, err := p.Wait(ctx)
	if err == nil && code != 0 {
		err = fmt.Errorf("%q: exit code %d\n%s%s", x.Command, code, out.String(), errOut.String())
	}
	return out.String(), err
}
