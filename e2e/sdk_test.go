package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/wait"
)

// TestSDKs builds the packages of the SDKs, installs them with the commands of
// docs/sdk.md, and runs its examples against a server: in Python, with those of
// docs/workspace.md, in Go, and that of TypeScript in Node.js, Deno, Bun and
// a browser.
func TestSDKs(t *testing.T) {
	t.Parallel()
	p := newSDKs(t)
	runtimes := sdkScript(t, "runtimes")
	s, url := withAPI(t, "sdk")
	p.url, p.key = url, strings.TrimSpace(s.r(t, "", "key", "create", "sdk"))
	p.examples(append(guideBlocks(t, "sdk.md", "python", 2), guideBlocks(t, "workspace.md", "python", 2)...))
	p.run(onlyFile(t, runtimes, "node_modules/@oven/*/bin/bun"), "example.mjs")
	p.run(onlyFile(t, runtimes, "node_modules/@deno/*/deno"), "run", "--no-remote", "--node-modules-dir=manual", "--allow-env", "--allow-net", "example.mjs")
	p.browser()
	wait.NoError(t, "the examples have ended their sandboxes", func() error {
		var left []map[string]any
		if s.json(t, &left, "session", "list"); len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	})
}

// sdks is a directory in which the packages of the SDKs are installed, with the
// examples of docs/sdk.md.
type sdks struct {
	t        *testing.T
	dir      string
	checkout string
	url, key string // of the server that the examples use
}

// newSDKs builds and installs the packages.
func newSDKs(t *testing.T) *sdks {
	t.Helper()
	need.Tools(t, "python3", "node", "npm", "bash", "go")
	checkout, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	p := &sdks{t: t, dir: t.TempDir(), checkout: checkout}
	tools := sdkScript(t, "tools")
	// The dependencies are those with which the code was checked.
	write(t, filepath.Join(p.dir, "constraints.txt"), strings.Join(pinned(t, "../sdk/generate/requirements.txt"), "\n"))
	write(t, filepath.Join(p.dir, "main.go"), guideBlocks(t, "sdk.md", "go", 1)[0])
	p.run("bash", "-euxo", "pipefail", "-c", guideBlocks(t, "sdk.md", "sh", 1)[0])
	write(t, filepath.Join(p.dir, "example.mts"), guideBlocks(t, "sdk.md", "ts", 1)[0])
	write(t, filepath.Join(p.dir, "tsconfig.json"), `{"compilerOptions": {
		"strict": true, "target": "ES2022", "module": "NodeNext", "lib": ["ES2023", "ESNext.Disposable", "DOM"], "types": []
	}, "files": ["example.mts"]}`)
	p.run(filepath.Join(tools, "node_modules/.bin/tsc"))
	if t.Failed() {
		t.FailNow()
	}
	return p
}

// run runs a program in the directory.
func (p *sdks) run(name string, args ...string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = p.dir
	cmd.Env = append(os.Environ(), "CHECKOUT="+p.checkout, "MIREN_API_URL="+p.url, "MIREN_API_KEY="+p.key,
		"PIP_CONSTRAINT="+filepath.Join(p.dir, "constraints.txt"), "PIP_DISABLE_PIP_VERSION_CHECK=1", "DENO_NO_UPDATE_CHECK=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		text := string(out)
		if p.key != "" {
			text = strings.ReplaceAll(text, p.key, "KEY")
		}
		p.t.Errorf("%s %s: %v\n%s", name, strings.Join(args, " "), err, text)
	}
}

// examples runs those of Python that are given, that of Go, and in Node.js that of
// TypeScript.
func (p *sdks) examples(python []string) {
	p.t.Helper()
	for i, example := range python {
		name := fmt.Sprintf("example%d.py", i)
		write(p.t, filepath.Join(p.dir, name), example)
		p.run("venv/bin/python", name)
	}
	p.run("go", "run", ".")
	p.run("node", "example.mjs")
}

// guideBlocks returns the examples of a guide in a language.
func guideBlocks(t *testing.T, guide, language string, want int) []string {
	t.Helper()
	text, err := os.ReadFile("../docs/" + guide)
	if err != nil {
		t.Fatal(err)
	}
	found := codeBlocks(string(text), language)
	if len(found) != want {
		t.Fatalf("%s has %d examples of %s, want %d", guide, len(found), language, want)
	}
	return found
}

// sdkScript returns the directory that a command of hack/sdk.sh prints.
func sdkScript(t *testing.T, command string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "../hack/sdk.sh", command)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		need.Missing(t, "hack/sdk.sh ", command, ": ", err, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

// pinned returns the versions in a list of requirements of pip, without hashes.
func pinned(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var versions []string
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutSuffix(strings.TrimSpace(line), " \\"); ok && strings.Contains(v, "==") {
			versions = append(versions, v)
		}
	}
	return versions
}

// onlyFile returns the one file below a directory that a pattern matches.
func onlyFile(t *testing.T, dir, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(found) != 1 {
		need.Missing(t, "no ", pattern, " for this machine in ", dir)
	}
	return found[0]
}
