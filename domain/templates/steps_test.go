package templates

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/stack"
)

func step(kind sandbox.BuildStepKind, args ...string) sandbox.BuildStep {
	return sandbox.BuildStep{Kind: kind, Args: args}
}

// shipped are templates as from_template finds them.
func shipped(name string) (*sandbox.TemplateVersion, error) {
	v := sandbox.NewTemplateVersion()
	switch name {
	case "base":
		v.Spec.Base, v.Spec.User, v.Spec.Workdir = "runtime/sandbox:base", "user", "/home/user"
	case "broken":
		v.Status.Phase = sandbox.TemplatePhaseFailed
	default:
		return nil, errs.New(errs.NotFound, "template %q does not exist", name)
	}
	return v, nil
}

func TestDockerfileOfSteps(t *testing.T) {
	got, err := dockerfile([]sandbox.BuildStep{
		step("env", "A", `quote " dollar $HOME back \`, "B", "2"),
		step("workdir", "/srv/my app"),
		step("copy", "src/", "/srv/x"), step("copy", "a", "b", "user:user", "755"),
		step("run", "echo \"$HOME\" &&\n ls <x"), step("run", "apt-get update", "root"),
		step("user", "nobody"), step("run", "id"),
	}, shipped)
	if err != nil {
		t.Fatal(err)
	}
	const want = `FROM runtime/sandbox:base
USER user
WORKDIR /home/user
ENV A="quote \" dollar \$HOME back \\"
ENV B="2"
WORKDIR /srv/my app
COPY ["src/","/srv/x"]
COPY --chown=user:user --chmod=755 ["a","b"]
RUN ["/bin/sh","-c","echo \"$HOME\" &&\n ls <x"]
USER root
RUN ["/bin/sh","-c","apt-get update"]
USER user
USER nobody
RUN ["/bin/sh","-c","id"]
`
	if got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	bases, _, err := stack.Inputs(got)
	if err != nil || len(bases) != 1 {
		t.Errorf("%q, %v", bases, err)
	}
}

func TestStepsThatAreRefused(t *testing.T) {
	for what, c := range map[string]struct {
		steps []sandbox.BuildStep
		says  string
	}{
		"from in the middle":    {[]sandbox.BuildStep{step("run", "a"), step("from", "b")}, "step 3 (from): it is the first"},
		"an unknown kind":       {[]sandbox.BuildStep{step("from", "a"), step("add", "b")}, "step 2 (add): such a step"},
		"no arguments":          {[]sandbox.BuildStep{step("from")}, "it has 0 arguments"},
		"too many":              {[]sandbox.BuildStep{step("from", "a", "b")}, "it has 2 arguments"},
		"a line break in from":  {[]sandbox.BuildStep{step("from", "a\nRUN x")}, "characters other than plain"},
		"a line break in env":   {[]sandbox.BuildStep{step("from", "a"), step("env", "A", "x\nRUN y")}, "line break"},
		"a bad variable":        {[]sandbox.BuildStep{step("from", "a"), step("env", "A B", "x")}, "not the name of a variable"},
		"half a variable":       {[]sandbox.BuildStep{step("from", "a"), step("env", "A", "x", "B")}, "are not names and values"},
		"a quote in a path":     {[]sandbox.BuildStep{step("from", "a"), step("copy", `a"b`, "c")}, "characters other than plain"},
		"an owner with options": {[]sandbox.BuildStep{step("from", "a"), step("copy", "a", "b", "x --from=y")}, "not a user"},
		"a bad mode":            {[]sandbox.BuildStep{step("from", "a"), step("copy", "a", "b", "", "u+x")}, "not a mode"},
		"a user of a run":       {[]sandbox.BuildStep{step("from", "a"), step("run", "a", "root")}, "needs a user step before"},
		"a broken template":     {[]sandbox.BuildStep{step("from_template", "broken")}, "has no image: it is failed"},
		"too many steps":        {make([]sandbox.BuildStep, 201), "201 steps, at most 200"},
		"a NUL in a command":    {[]sandbox.BuildStep{step("from", "a"), step("run", "x\x00")}, "NUL"},
		"too long":              {[]sandbox.BuildStep{step("from", "a"), step("run", strings.Repeat("x", 300<<10))}, "at most 256"},
	} {
		t.Run(what, func(t *testing.T) {
			_, err := dockerfile(c.steps, shipped)
			if err == nil || !strings.Contains(err.Error(), c.says) || errs.Is(err, errs.Internal) {
				t.Errorf("%v, want %q", err, c.says)
			}
		})
	}
}

// FuzzSteps: whatever the arguments of steps are, the Dockerfile has the
// instructions of these steps, with these arguments, and no other; or the steps
// are refused.
func FuzzSteps(f *testing.F) {
	for _, a := range []string{"ls", "a\nRUN b", "cat <<EOF\nx\nEOF", `echo "a" <<X`, `\`, `"`, "`id`", "$HOME ${", "# escape=`", "--mount=type=bind", "x\\\n", "\x00", "[", `["a"]`} {
		f.Add(a, a, a)
	}
	f.Fuzz(func(t *testing.T, a, b, c string) {
		for _, s := range []sandbox.BuildStep{
			step("run", a), step("run", a, b), step("copy", a, b), step("copy", a, b, "x"+c), step("env", "A", a, "B", b), step("user", a), step("workdir", a), step("from", a),
		} {
			steps := []sandbox.BuildStep{step("from", "debian"), step("user", "me"), s}
			if s.Kind == sandbox.BuildStepKindFrom {
				steps = []sandbox.BuildStep{s}
			}
			text, err := dockerfile(steps, shipped)
			if err != nil {
				continue
			}
			got, err := instructionsOf(text)
			if err != nil {
				continue // such as WORKDIR --x: Build refuses it
			}
			want := [][]string{{"from", "debian"}, {"user", "me"}}
			switch {
			case s.Kind == sandbox.BuildStepKindFrom:
				want = [][]string{{"from", a}}
			case s.Kind == sandbox.BuildStepKindRun && len(s.Args) == 2 && b != "me":
				want = append(want, []string{"user", b}, []string{"run", "/bin/sh", "-c", a}, []string{"user", "me"})
			case s.Kind == sandbox.BuildStepKindRun:
				want = append(want, []string{"run", "/bin/sh", "-c", a})
			case s.Kind == sandbox.BuildStepKindEnv:
				want = append(want, []string{"env", "A", a}, []string{"env", "B", b})
			case s.Kind == sandbox.BuildStepKindWorkdir:
				want = append(want, []string{"workdir", strings.TrimSpace(a)})
			default:
				want = append(want, append([]string{string(s.Kind)}, s.Args...))
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%q: %q is\n%q, want\n%q", s.Args, text, got, want)
			}
		}
	})
}

// instructionsOf parses a Dockerfile. Values of ENV are unquoted as BuildKit
// does it.
func instructionsOf(text string) ([][]string, error) {
	ast, err := parser.Parse(strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	stages, _, err := instructions.Parse(ast.AST, nil)
	if err != nil {
		return nil, err
	}
	var out [][]string
	lex := shell.NewLex(ast.EscapeToken)
	for _, st := range stages {
		out = append(out, []string{"from", st.BaseName})
		for _, c := range st.Commands {
			line := []string{strings.ToLower(c.Name())}
			switch c := c.(type) {
			case *instructions.RunCommand:
				if c.PrependShell || len(c.Files) > 0 || len(c.FlagsUsed) > 0 {
					line = append(line, fmt.Sprintf("with a shell, files or flags: %v", c))
				}
				line = append(line, c.CmdLine...)
			case *instructions.CopyCommand:
				if c.From != "" || len(c.SourceContents) > 0 {
					line = append(line, fmt.Sprintf("from elsewhere: %v", c))
				}
				line = append(append(line, c.SourcePaths...), c.DestPath)
				if c.Chown != "" {
					line = append(line, c.Chown)
				}
			case *instructions.EnvCommand:
				for _, kv := range c.Env {
					v, _, err := lex.ProcessWord(kv.Value, shell.EnvsFromSlice(nil))
					if err != nil {
						return nil, err
					}
					line = append(line, kv.Key, v)
				}
			case *instructions.UserCommand:
				line = append(line, c.User)
			case *instructions.WorkdirCommand:
				line = append(line, c.Path)
			}
			out = append(out, line)
		}
	}
	return out, nil
}
