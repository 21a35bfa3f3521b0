package e2e

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/wait"
)

// TestGuides runs the commands of guides in docs on the shared server, each guide in
// a project of its own. Other tests run those that need another server.
func TestGuides(t *testing.T) {
	t.Parallel()
	need.Tools(t, "bash", "tar")
	for name, test := range map[string]func(*testing.T, *guide){
		"apppreviews": testAppPreviewsGuide, "build-secrets": testBuildSecretsGuide, "e2b": testE2BGuide, "executions": testExecutionsGuide,
		"git-push": testGitPushGuide, "interpreter": testInterpreterGuide, "mcp": testMCPGuide, "moving": testMovingGuide, "previews": testPreviewsGuide,
		"quotas": testQuotasGuide, "sandbox-run": testSandboxRunGuide,
		"sandboxes": testSandboxesGuide, "templates": testTemplatesGuide, "traces": testTracesGuide,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGuide(t, shared, name)
			g.inProject("guide-" + name)
			test(t, g)
		})
	}
}

func testExecutionsGuide(t *testing.T, g *guide) {
	g.file("train.py", "print('trained')\n")
	g.file("greet.py", "import sys\nprint('hello', sys.argv[1])\n")
	g.file("names.txt", "ada\ngrace\n")
	if out := g.run("r execution submit --wait -l python"); out != "42" {
		t.Errorf("it prints %q", out)
	}
	id := g.run("r execution submit --priority 10")
	g.words["exec-4k2j"] = id
	g.run("r execution submit --template base")
	g.run("r execution list", id)
	g.run("r execution show", id)
	g.run("r execution logs", "trained")
	g.run("r execution result", `"stdout": "trained\n"`, `"metrics"`)
	g.run("r execution wait", "succeeded")
	g.run("r execution cancel", id) // has ended, and stays as it is
	batch := g.run("r execution submit --each")
	g.words["batch-4k2j"] = batch
	g.run("r execution wait")
	if out := g.run("r execution list --batch"); strings.Count(out, "succeeded") != 2 {
		t.Errorf("the batch: %s", out)
	}
	g.run("r execution cancel")
}

func testPreviewsGuide(t *testing.T, g *guide) {
	box := g.run("r sandbox run --detach")
	label := strings.Replace(box, "-", "", 1)
	g.words["sb4k2j0123456789ab"] = label
	p := &previewed{g.s, "box", "3000-" + label + ".localhost"}
	_, token, _ := strings.Cut(g.run("r sandbox preview box 3000 ", p.host), "token")
	p.up(t, "Authorization", "Bearer "+strings.TrimSpace(token))
	_, uri, _ := strings.Cut(g.run("r preview url", p.host), fmt.Sprintf(":%d", g.s.port))
	if code, _, header := p.do(t, http.MethodGet, uri, ""); code != http.StatusSeeOther || header.Get("Set-Cookie") == "" {
		t.Errorf("the link answers %d", code)
	}
	g.run("r sandbox preview box 3000 --public")
	p.up(t)
	g.run("r sandbox preview box all")
	g.run("r preview list", p.host[:4], "all")
	g.run("r preview delete")
	// The preview of all ports is left, which needs its token.
	wait.For(t, "the preview is deleted", func() bool { code, _, _ := p.do(t, http.MethodGet, "/", ""); return code == http.StatusUnauthorized })
}

func testQuotasGuide(t *testing.T, g *guide) {
	g.file("research.yaml", "kind: project\nname: research\n")
	g.s.r(t, g.dir, "entity", "put", "research.yaml")
	g.run("r quota show", "unlimited")
	g.run("r quota set --project research --sandboxes 50")
	g.run("r quota set --project research --executions unlimited")
	g.run("r key create ci")
	g.run("r key show ci", "0 of 5 in use", "0 of 20 in use")
	contains(t, "the quota", g.s.r(t, "", "quota", "show", "--project", "research"), "sandboxes\t0\t50", "64")
}

func testSandboxRunGuide(t *testing.T, g *guide) {
	g.file("handler.py", "def handler(event, context):\n    return 'hello ' + event.get('name', 'nobody')\n")
	g.file("index.mjs", "export const handler = async (event) => event;\n")
	g.file("event.json", `{"name": "Ada"}`)
	g.file("main.go", "package main\n\nfunc Handler() (string, error) { return \"hello\", nil }\n")
	g.run("r sandbox-run handler.py", "hello Ada")
	g.run("r sandbox-run index.mjs", `"name": "Ada"`)
	g.run("r sandbox-run main.go --profile", "hello", "memory")
	g.run("sandbox-run handler.py --json", "hello nobody")
	g.elsewhere("sandbox-run --local", "TestSandboxRunWithoutServer")
	g.elsewhere("r sandbox list --state-dir", "TestSandboxRunWithoutServer")
	g.elsewhere("r server stop --state-dir", "TestSandboxRunWithoutServer")
}

func testSandboxesGuide(t *testing.T, g *guide) {
	g.file("main.go", "package main\n\nfunc main() { println(\"by Go\") }\n")
	g.file("data.json", `{"read": "by JavaScript"}`)
	g.file("plot.py", "open('plot.png', 'w').write('a plot')\n")
	g.file("data/in", "the data")
	g.run("r run -l python", "42")
	g.run("r run main.go", "by Go")
	g.run("r run -l js", "by JavaScript")
	g.run("r run --out plot.png")
	if b, err := os.ReadFile(filepath.Join(g.dir, "plot.png")); err != nil || string(b) != "a plot" {
		t.Errorf("%q, %v", b, err)
	}
	g.run("echo 'echo hello' | r run", "hello")

	g.file("main.py", "open('result.csv', 'w').write(open('/tmp/data/in').read())\n")
	box := g.run("r sandbox create --template python --name box")
	g.words["sb-4k2j"] = box
	g.run("r sandbox cp main.py box:")
	g.run("r sandbox cp ./data")
	g.run("r sandbox exec box")
	g.run("r sandbox ls", "in")
	g.run("r sandbox cp box:result.csv")
	if b, err := os.ReadFile(filepath.Join(g.dir, "result.csv")); err != nil || string(b) != "the data" {
		t.Errorf("%q, %v", b, err)
	}
	g.run("r sandbox cp box:/tmp/data -", "in")

	x := g.terminal("r sandbox connect")
	x.keys(t, "echo $((6*7))\n")
	x.wait(t, "42")
	x.keys(t, "\x1d\x1d\x1d") // Ctrl-] three times
	x.wait(t, "detached from process")
	x.end(t)
	x = g.terminal("r sandbox attach")
	x.wait(t, "42")
	x.keys(t, "exit\n")
	x.end(t)
	g.run("r sandbox exec --detach")
	g.run("r sandbox ps", "http.server")
	wait.For(t, "the server listens", func() bool { return strings.Contains(g.s.r(t, "", "sandbox", "ports", box), "8000") })
	g.run("r sandbox ports", "8000")
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	g.words["8080:8000"] = fmt.Sprintf("%d:8000", port)
	g.during("r sandbox forward", func(func() string) {
		wait.For(t, "the port is forwarded", func() bool {
			code, text, err := fetch(fmt.Sprintf("http://127.0.0.1:%d/result.csv", port))
			return err == nil && code == http.StatusOK && text == "the data"
		}, wait.Within(converge))
	})
	g.during("r sandbox metrics", func(prints func() string) {
		wait.For(t, "the use of memory", func() bool { return strings.Contains(prints(), "of 512 MiB") })
	})
	g.run("r top", box)

	g.run("r template list", "code-interpreter-v1")
	g.run("r template show python", "/home/user")
	g.run("r sandbox run --template python -- python3 --version", "Python 3")
	g.run("r pool list", "python")
	g.run("r pool set python", "2 to 10")
	g.run("r pool delete python")

	g.run("r sandbox run --template python --allow pypi.org", "Successfully installed")
	g.run("r sandbox egress set")
	g.run("r disk create data")
	g.run("r sandbox run --volume")

	g.file("key.txt", "sk-of-the-guide")
	g.file("maps.txt", "another key")
	g.file("agent.py", "import os\nprint('sk-of-the-guide' in str(os.environ))\n")
	g.file("main.py", "print('mapped')\n")
	g.run("r secret set openai")
	g.run("r secret set maps")
	g.run("r run --inject-secret openai", "False")
	g.run("r run --inject-secret maps", "mapped")
	g.run("r sandbox egress set")
	g.run("r secret delete openai")

	g.run("r sandbox pause", "paused")
	g.run("r sandbox exec", "UTC") // which wakes it
	g.run("r sandbox snapshot")
	forks := strings.Fields(g.run("r sandbox fork"))
	if len(forks) != 3 {
		t.Errorf("forks: %q", forks)
	}
	g.run("r snapshot list", "ready")
	g.run("r snapshot delete")
	for _, id := range append(forks, box) {
		g.s.r(t, "", "sandbox", "delete", id)
	}
}

func testTemplatesGuide(t *testing.T, g *guide) {
	doc, err := os.ReadFile("../docs/templates.md")
	if err != nil {
		t.Fatal(err)
	}
	steps := codeBlocks(string(doc), "yaml")
	if len(steps) != 1 {
		t.Fatalf("%d examples of steps", len(steps))
	}
	g.file("steps.yml", steps[0])
	g.file("requirements.txt", "six==1.17.0\n")
	g.file("Dockerfile", "FROM runtime/sandbox:base\nRUN echo first > /home/user/version\n")
	g.file("images/shop/Dockerfile.dev", "FROM runtime/sandbox:base\nRUN echo second > /home/user/version\n")
	version := func(want string) {
		t.Helper()
		if out := g.s.r(t, "", "sandbox", "run", "--project", "guide-templates", "--template", "shop", "--", "cat", "version"); out != want+"\n" {
			t.Errorf("the template has version %q, want %q", out, want)
		}
	}
	g.run("r template build shop ", "shop:1 is ready")
	g.run("r template build shop ./images/shop", "shop:2 is ready")
	g.run("r template build tools", "tools:1 is ready")
	g.run("r template build plain", "plain:1 is ready")
	g.run("r template logs shop")
	g.file("pip-token", "pip-s3cret")
	g.file("private.yml", "- run: printf %s $PIP_TOKEN | sha256sum > /home/user/seen; chown user /home/user/seen\n")
	g.run("PIP_TOKEN=$(cat pip-token) r template build private", "private:1 is ready")
	if out := g.s.r(t, "", "sandbox", "run", "--project", "guide-templates", "--template", "private", "--", "sh", "-c", "cat seen; env"); !strings.HasPrefix(out, fmt.Sprintf("%x", sha256.Sum256([]byte("pip-s3cret")))) || strings.Contains(out, "pip-s3cret") {
		t.Errorf("the build read another secret, or sandboxes have it: %s", out)
	}
	g.run("r template build web", "web:1 is ready")
	g.run("r pool set web --min 1", "1 to")
	g.run("r template tag shop:beta latest")
	version("second")
	g.run("r template tag shop:1 latest")
	version("first")
	g.run("r template tag --remove shop beta")
	g.run("r template delete shop:2", "deleted")
	g.run("r template delete shop --yes", "deleted")
	for _, name := range []string{"tools", "plain", "web", "private"} {
		g.s.r(t, "", "template", "delete", name, "--yes", "--project", "guide-templates")
	}
}

// testTracesGuide: the section of the configuration is one.
func testTracesGuide(t *testing.T, g *guide) {
	doc, err := os.ReadFile("../docs/traces.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := codeBlocks(string(doc), "yaml")
	if len(blocks) != 1 {
		t.Fatalf("%d examples", len(blocks))
	}
	g.file("server.yaml", blocks[0])
	g.s.r(t, g.dir, "config", "validate", "server.yaml")
}
