package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// testInterpreterGuide: the variables of one command are there for the next.
func testInterpreterGuide(t *testing.T, g *guide) {
	g.run("r sandbox run --template code-interpreter-v1")
	g.run("r sandbox code lab 'x = 41'")
	if out := g.run("r sandbox code lab 'x + 1'"); out != "42" {
		t.Errorf("it prints %q", out)
	}
	if out := g.run("r sandbox code lab -l js"); out != "42" {
		t.Errorf("JavaScript prints %q", out)
	}
	g.run("r sandbox code lab -l sh", "/tmp")
	if res := g.try("r sandbox code lab --timeout 1s"); res.Code != 124 {
		t.Errorf("the time is over: %s", res)
	}
	g.run("r sandbox code lab --json", "vnd.runtime.data+json")
	made := g.run("r sandbox context create")
	g.run("r sandbox context list", "javascript", made)
	g.run("r sandbox context interrupt")
	g.run("r sandbox context restart")
	g.run("r sandbox context delete")
	if out := g.run("r sandbox code lab --context javascript"); out != "42" {
		t.Errorf("the constant of an earlier command is %q", out)
	}
	g.s.r(t, "", "sandbox", "delete", "lab", "--project", "guide-interpreter")
}

// mcpServers is a configuration of a client, as docs/mcp.md has it.
type mcpServers struct {
	Servers map[string]struct {
		Command, URL string
		Args         []string
		Headers      map[string]string
	} `json:"mcpServers"`
}

// testMCPGuide connects the client by each configuration of the guide. Each offers
// tools of the guide's table and no others.
func testMCPGuide(t *testing.T, g *guide) {
	doc, err := os.ReadFile("../docs/mcp.md")
	if err != nil {
		t.Fatal(err)
	}
	var config mcpServers
	blocks := codeBlocks(string(doc), "json")
	if len(blocks) != 3 {
		t.Fatalf("%d configurations", len(blocks))
	}
	read := func(block string) {
		t.Helper()
		config = mcpServers{}
		if err := json.Unmarshal([]byte(block), &config); err != nil {
			t.Fatalf("%v in %s", err, block)
		}
	}
	documented := func(c *mcpClient) {
		t.Helper()
		var list struct{ Tools []struct{ Name string } }
		c.must(&list, "tools", nil)
		if len(list.Tools) == 0 {
			t.Error("no tools")
		}
		for _, tool := range list.Tools {
			if !strings.Contains(string(doc), "`"+tool.Name+"`") {
				t.Errorf("docs/mcp.md lacks tool %s", tool.Name)
			}
		}
		c.must(nil, "close", nil)
	}

	read(blocks[0])
	if config.Servers["sandboxes"].Command != "r" || len(config.Servers["sandboxes"].Args) != 1 {
		t.Fatalf("%+v", config)
	}
	documented(g.s.newMCP(t))
	for range 4 {
		documented(g.s.newMCP(t, g.args("r mcp")...))
	}

	g.elsewhere("r server start --api-address", "TestMCPOverHTTP")
	g.words["127.0.0.1:7070"], g.words["KEY"] = fmt.Sprintf("127.0.0.1:%d", g.s.api), g.run("r key create agent")
	read(g.typed(blocks[1]))
	http := config.Servers["sandboxes"]
	key, ok := strings.CutPrefix(http.Headers["Authorization"], "Bearer ")
	if !ok {
		t.Fatalf("%+v", config)
	}
	documented(startMCP(t, append(os.Environ(), "MCP_KEY="+key), http.URL))

	read(blocks[2])
	if config.Servers["sandboxes"].Command != "mcp-sandboxd" {
		t.Fatalf("%+v", config)
	}
	g.run("mcp-sandboxd --print-config")
	g.run("mcp-sandboxd --check-config")
	example := codeBlocks(string(doc), "yaml")
	if len(example) != 1 {
		t.Fatalf("%d examples of mcp-sandboxd.yaml", len(example))
	}
	g.file("mcp-sandboxd.yaml", example[0])
	if out, err := g.shell(t.Context(), "mcp-sandboxd --check-config --config mcp-sandboxd.yaml").CombinedOutput(); err != nil {
		t.Errorf("the example: %v: %s", err, out)
	}
	g.elsewhere("mcp-sandboxd --config", "TestMCPSandboxd")
}

// testE2BGuide: with the variables of the guide a client of E2B works.
func testE2BGuide(t *testing.T, g *guide) {
	clients := e2bClients(t)
	g.elsewhere("r server start --api-address", "TestMCPOverHTTP")
	g.words["127.0.0.1:8700"] = fmt.Sprintf("127.0.0.1:%d", g.s.api)
	var script strings.Builder
	for range 3 {
		script.WriteString(g.next("export E2B_") + "\n")
	}
	if err := os.Symlink(filepath.Join(clients, "node_modules"), filepath.Join(g.dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	g.file("client.mjs", `import { Sandbox } from 'e2b'
const box = await Sandbox.create({ requestTimeoutMs: 600_000 })
console.log((await box.commands.run('echo by the guide')).stdout)
await box.kill()
`)
	out, err := g.shell(t.Context(), script.String()+"exec node client.mjs").Output()
	if err != nil || strings.TrimSpace(string(out)) != "by the guide" {
		t.Errorf("%v: %s", err, out)
	}
}
