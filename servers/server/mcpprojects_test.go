package server

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/schema"
)

// mcpValues are valid values of arguments that a tool may require.
var mcpValues = map[string]any{
	"language": "shell", "code": "1", "command": "true", "process": "x", "packages": []string{"jq"}, "path": "/etc/passwd", "content": "x", "network": "all",
}

// mcpReads are the tools with which a viewer may look at what its project has.
var mcpReads = []string{"list_sandboxes", "describe_sandbox", "list_snapshots"}

// TestEveryMCPToolNeedsItsProject calls each tool of the list with what another
// project has, by id and by name, and with the tools that name nothing looks for it.
// Those that change something refuse a viewer.
func TestEveryMCPToolNeedsItsProject(t *testing.T) {
	e := newMCPEnv(t)
	own, foreign := e.newTenant("own"), e.newTenant("foreign")
	mine, other := e.running(own, "box-own"), e.running(foreign, "box-foreign")
	named, err := entity.ModifySpec(t.Context(), e.c.store, foreign.snapshot.ID, func(s *sandbox.Snapshot) error {
		s.Name = "snap-foreign"
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	hidden := []string{string(other.ID), other.Name, string(foreign.snapshot.ID), named.Name, string(foreign.sandbox.ID)}
	agent, viewer := e.mcp(e.key("own", "agent"), nil), e.mcp(e.key("own", "viewer"), nil)
	list, err := agent.ListTools(t.Context(), nil)
	if err != nil || len(list.Tools) < 20 {
		t.Fatalf("%d tools, %v", len(list.Tools), err)
	}
	call := func(cs *sdk.ClientSession, name string, args map[string]any) (refused bool, text string) {
		t.Helper()
		res, err := cs.CallTool(t.Context(), &sdk.CallToolParams{Name: name, Arguments: args})
		if err != nil {
			t.Errorf("%s with %v: %v", name, args, err)
			return true, ""
		}
		b, err := json.Marshal(res)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), "validating") {
			t.Errorf("%s with %v: the arguments are not valid: %s", name, args, b)
		}
		return res.IsError, string(b)
	}
	naming := 0
	for _, tool := range list.Tools {
		var schema struct {
			Properties map[string]json.RawMessage
			Required   []string
		}
		b, err := json.Marshal(tool.InputSchema)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(b, &schema); err != nil {
			t.Fatal(err)
		}
		args := func(reference, to string) map[string]any {
			all := map[string]any{}
			for _, name := range schema.Required {
				if name == reference || name == "sandbox" || name == "snapshot" {
					continue
				}
				v, ok := mcpValues[name]
				if !ok {
					t.Fatalf("%s requires %s: say in mcpValues what it can be", tool.Name, name)
				}
				all[name] = v
			}
			if reference != "" {
				all[reference] = to
			}
			return all
		}
		names := false
		for _, reference := range []string{"sandbox", "snapshot"} {
			if schema.Properties[reference] == nil {
				continue
			}
			names = true
			naming++
			for _, to := range hidden {
				refused, text := call(agent, tool.Name, args(reference, to))
				for _, h := range hidden {
					if h != to && strings.Contains(text, h) {
						t.Errorf("%s with %s %s tells of %s: %s", tool.Name, reference, to, h, text)
					}
				}
				if !refused {
					t.Errorf("%s with %s %s of another project: %s", tool.Name, reference, to, text)
				}
			}
			if reference == "sandbox" && !slices.Contains(mcpReads, tool.Name) {
				if refused, text := call(viewer, tool.Name, args(reference, string(mine.ID))); !refused {
					t.Errorf("%s by a viewer: %s", tool.Name, text)
				}
			}
		}
		if names {
			continue
		}
		if _, text := call(agent, tool.Name, args("", "")); slices.ContainsFunc(hidden, func(h string) bool { return strings.Contains(text, h) }) {
			t.Errorf("%s: %s", tool.Name, text)
		}
	}
	if naming < 18 {
		t.Errorf("only %d tools name something", naming)
	}
	for _, h := range hidden {
		for _, uri := range []string{"sandboxes:///" + h, "sandboxes:///" + h + "/files/etc/passwd"} {
			if res, err := agent.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: uri}); err == nil {
				t.Errorf("%s: %+v", uri, res)
			}
		}
	}
	res, err := agent.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "sandboxes:///"})
	if err != nil || !strings.Contains(res.Contents[0].Text, string(mine.ID)) || strings.Contains(res.Contents[0].Text, string(other.ID)) {
		t.Errorf("the list: %+v, %v", res, err)
	}
	// A refused call has changed nothing.
	for _, id := range []schema.ID{other.ID, foreign.sandbox.ID} {
		if _, err := entity.Get[sandbox.Sandbox](t.Context(), e.c.store, id); err != nil {
			t.Errorf("sandbox %s: %v", id, err)
		}
	}
	if _, err := entity.Get[sandbox.Snapshot](t.Context(), e.c.store, foreign.snapshot.ID); err != nil {
		t.Errorf("the snapshot: %v", err)
	}
}
