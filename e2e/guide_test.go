package e2e

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// guide runs the commands of a guide in docs from its text: the lines of its code
// blocks of language sh, each once and in the order of the text. A test that leaves
// one out fails, and so does a guide with a command in a block of another language.
type guide struct {
	t     *testing.T
	s     *server
	name  string
	dir   string            // where the commands run
	env   []string          // besides that of the server
	words map[string]string // what a reader puts in, such as ids, by what the text has instead
	left  []string          // commands that have not been run
}

// commandOfGuide is a line that a reader types.
var commandOfGuide = regexp.MustCompile(`^(\w*\$ )?(r|sandbox-run|mcp-sandboxd|ssh|scp|rsync|curl) `)

// newGuide opens docs/NAME.md for commands that run with r and the environment of a
// server, in an empty directory.
func newGuide(t *testing.T, s *server, name string) *guide {
	t.Helper()
	doc, err := os.ReadFile(filepath.Join("../docs", name+".md"))
	if err != nil {
		t.Fatal(err)
	}
	g := &guide{t: t, s: s, name: name, dir: t.TempDir(), words: map[string]string{}}
	language, inside := "", false
	for line := range strings.Lines(string(doc)) {
		line = strings.TrimSuffix(line, "\n")
		switch fence, ok := strings.CutPrefix(line, "```"); {
		case ok:
			language, inside = fence, !inside
		case !inside || line == "" || strings.HasPrefix(line, "#"):
		case language != "sh":
			if commandOfGuide.MatchString(line) {
				t.Errorf("docs/%s.md: the block of %q is not of language sh, so no test runs it", name, line)
			}
		case len(g.left) > 0 && strings.HasSuffix(g.left[len(g.left)-1], "\\"):
			g.left[len(g.left)-1] += "\n" + line
		default:
			g.left = append(g.left, line)
		}
	}
	t.Cleanup(func() {
		if !t.Failed() && len(g.left) > 0 {
			t.Errorf("docs/%s.md has commands that this test does not run: %q", name, g.left)
		}
	})
	return g
}

// inProject makes a project and has the commands run in it.
func (g *guide) inProject(name string) {
	g.t.Helper()
	file := filepath.Join(g.t.TempDir(), "project.yaml")
	write(g.t, file, "kind: project\nname: "+name+"\n")
	g.s.r(g.t, "", "entity", "put", file)
	g.env = append(g.env, "RUNTIME_PROJECT="+name)
}

// file writes a file that commands use.
func (g *guide) file(name, text string) {
	g.t.Helper()
	path := filepath.Join(g.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		g.t.Fatal(err)
	}
	write(g.t, path, text)
}

// next returns the next command, which must begin with a text, as a reader types it.
func (g *guide) next(begin string) string {
	g.t.Helper()
	if len(g.left) == 0 || !strings.HasPrefix(g.left[0], begin) {
		g.t.Fatalf("docs/%s.md: the next command is not %q; left are %q", g.name, begin, g.left)
	}
	cmd := g.left[0]
	g.left = g.left[1:]
	return g.typed(cmd)
}

// args returns the arguments of the next command, which the test runs in its own
// way, after a text.
func (g *guide) args(begin string) []string {
	g.t.Helper()
	cmd, _, _ := strings.Cut(g.next(begin), " #")
	return strings.Fields(strings.TrimPrefix(cmd, begin))
}

// elsewhere takes the next command, which another test runs.
func (g *guide) elsewhere(begin, test string) {
	g.t.Helper()
	g.t.Logf("docs/%s.md: %s runs %s", g.name, test, g.next(begin))
}

// typed puts the words of the reader into a command, longest first.
func (g *guide) typed(cmd string) string {
	words := make([]string, 0, 2*len(g.words))
	for w := range g.words {
		words = append(words, w)
	}
	slices.SortFunc(words, func(a, b string) int { return len(b) - len(a) })
	var pairs []string
	for _, w := range words {
		pairs = append(pairs, w, g.words[w])
	}
	return strings.NewReplacer(pairs...).Replace(cmd)
}

// shell is a command in a shell.
func (g *guide) shell(ctx context.Context, cmd string) *exec.Cmd {
	c := exec.CommandContext(ctx, "bash", "-c", "set -euo pipefail\n"+cmd)
	c.Dir, c.WaitDelay = g.dir, time.Second
	c.Env = append(append(g.s.command(ctx, "").Env, "PATH="+bin+":"+os.Getenv("PATH"), "TERM=xterm"), g.env...)
	return c
}

// try runs the next command and returns its result.
func (g *guide) try(begin string) result {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), 15*time.Minute) // it may make the image of a template
	defer cancel()
	c := g.shell(ctx, g.next(begin))
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		g.t.Fatalf("docs/%s.md: %s: %v", g.name, begin, err)
	}
	return result{stdout.String(), stderr.String(), c.ProcessState.ExitCode()}
}

// run runs the next command, which must succeed and print some texts; it returns
// what it prints.
func (g *guide) run(begin string, prints ...string) string {
	g.t.Helper()
	res := g.try(begin)
	if res.Code != 0 {
		g.t.Fatalf("docs/%s.md: %s: %s", g.name, begin, res)
	}
	for _, p := range prints {
		if !strings.Contains(res.Stdout+res.Stderr, p) {
			g.t.Errorf("docs/%s.md: %s does not print %q: %s", g.name, begin, p, res)
		}
	}
	return strings.TrimSpace(res.Stdout)
}

// terminal runs the next command on a terminal.
func (g *guide) terminal(begin string) *terminal {
	g.t.Helper()
	return startTerminal(g.t, g.shell(g.t.Context(), "exec "+g.next(begin)))
}

// during runs the next command, which does not end by itself, until f has returned.
// f gets what the command prints.
func (g *guide) during(begin string, f func(prints func() string)) {
	g.t.Helper()
	ctx, cancel := context.WithCancel(g.t.Context())
	c := g.shell(ctx, "exec "+g.next(begin))
	out := &output{}
	c.Stdout, c.Stderr = out, out
	if err := c.Start(); err != nil {
		g.t.Fatal(err)
	}
	defer func() {
		cancel()
		_ = c.Wait() // it was killed
		if g.t.Failed() {
			g.t.Logf("docs/%s.md: %s prints %s", g.name, begin, out.text())
		}
	}()
	f(out.text)
}

// output collects what a command prints while it runs.
type output struct {
	mu sync.Mutex
	b  []byte
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.b = append(o.b, b...)
	return len(b), nil
}

func (o *output) text() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.b)
}
