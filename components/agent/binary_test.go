package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/components/agent"
	"miren.dev/runtime/components/execution"
)

// An upgrade replaces the agent's program. Sandboxes keep theirs, and it is removed with the last of them.
func TestUpgradeLeavesRunningAgents(t *testing.T) {
	e := inGvisor
	e.need(t)
	program, err := os.ReadFile(built.agent)
	if err != nil {
		t.Fatal(err)
	}
	config := agent.HubConfig{
		Dir: filepath.Join(t.TempDir(), "agents"), LogDir: filepath.Join(t.TempDir(), "logs"),
		AgentPath: filepath.Join(t.TempDir(), "runtime-agent"), AgentDir: filepath.Join(t.TempDir(), "programs"),
	}
	install := func(content []byte) {
		t.Helper()
		err := os.WriteFile(config.AgentPath+".new", content, 0o755)
		if err == nil {
			err = os.Rename(config.AgentPath+".new", config.AgentPath)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	files := func() []string {
		t.Helper()
		entries, err := os.ReadDir(config.AgentDir)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range entries {
			names = append(names, strings.TrimPrefix(e.Name(), "agent-"))
		}
		return names
	}
	hub := agent.NewHub(config)
	defer func() { hub.Close() }()
	start := func(id string) *guest {
		t.Helper()
		g, err := hub.Prepare(id, agent.GuestConfig{})
		if err != nil {
			t.Fatal(err)
		}
		return e.start(t, g)
	}
	// sum returns the checksum of the agent that a sandbox has.
	sum := func(id string) string {
		t.Helper()
		c, err := hub.Conn(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		r, err := execute(t.Context(), c, execution.ExecSpec{Command: []string{"sha256sum", agentPath}}, "")
		if err != nil || r.code != 0 {
			t.Fatalf("%+v %v", r, err)
		}
		return strings.Fields(r.out)[0]
	}
	install(program)
	first := start("old")
	before := sum("old")
	install(append(program, "another build"...))
	hub.Close()
	hub = agent.NewHub(config)
	if err := hub.Attach("old"); err != nil {
		t.Fatal(err)
	}
	start("new")
	if err := hub.SweepBinaries(); err != nil {
		t.Fatal(err)
	}
	after := sum("new")
	if again := sum("old"); again != before || after == before {
		t.Errorf("the old sandbox had the agent %s and has %s, the new one %s", before, again, after)
	}
	if got := files(); len(got) != 2 {
		t.Errorf("kept: %q", got)
	}
	first.kill(t)
	if err := hub.Remove("old"); err != nil {
		t.Fatal(err)
	}
	if got := files(); len(got) != 1 || got[0] != after || sum("new") != after {
		t.Errorf("kept after the end of the old sandbox: %q", got)
	}
	// A configuration that cannot be read may name any program.
	if err := os.WriteFile(filepath.Join(config.Dir, "new", "config"), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	install(program)
	if _, err := hub.Prepare("third", agent.GuestConfig{}); err != nil {
		t.Fatal(err)
	}
	if err := hub.SweepBinaries(); err == nil {
		t.Error("swept although a configuration cannot be read")
	}
	if got := files(); len(got) != 2 || sum("new") != after {
		t.Errorf("kept with a damaged configuration: %q", got)
	}
}

const agentPath = "/run/runtime/bin/agent"
