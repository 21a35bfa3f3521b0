package scheduler

import (
	"math/rand/v2"
	"strings"
	"testing"

	"miren.dev/runtime/pkg/errs"
)

const gib = 1 << 30

func node(id string, cpu, mem, usedCPU, usedMem int64) Node {
	return Node{ID: id, Arch: "amd64", Ready: true, Capacity: Resources{cpu, mem}, Reserved: Resources{usedCPU, usedMem}}
}

func TestPick(t *testing.T) {
	small := Request{Need: Resources{500, gib}}
	cordoned, down := node("c", 4000, 8*gib, 0, 0), node("d", 4000, 8*gib, 0, 0)
	cordoned.Cordoned, down.Ready = true, false
	for _, c := range []struct {
		name  string
		nodes []Node
		req   Request
		want  string
		class errs.Class
		say   string
	}{
		{"the emptier", []Node{node("a", 4000, 8*gib, 2000, gib), node("b", 4000, 8*gib, 1000, gib)}, small, "b", "", ""},
		{"the scarcer resource decides", []Node{node("a", 4000, 8*gib, 0, 7*gib), node("b", 4000, 8*gib, 2000, 4*gib)}, small, "b", "", ""},
		{"the lower id of equals", []Node{node("b", 4000, 8*gib, 0, 0), node("a", 4000, 8*gib, 0, 0)}, small, "a", "", ""},
		{"exactly full is fit", []Node{node("a", 500, gib, 0, 0)}, small, "a", "", ""},
		{"no node", nil, small, "", errs.Unavailable, "no node"},
		{"full", []Node{node("a", 1000, 8*gib, 600, 0)}, small, "", errs.ResourceExhausted, "400m of 1000m"},
		{"memory", []Node{node("a", 4000, gib, 0, 1)}, small, "", errs.ResourceExhausted, "MiB"},
		{"cordoned and down", []Node{cordoned, down}, small, "", errs.ResourceExhausted, "cordoned; d: not ready"},
		{"architecture", []Node{node("a", 4000, 8*gib, 0, 0)}, Request{Arch: "arm64"}, "", errs.ResourceExhausted, "is amd64"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Pick(c.nodes, c.req)
			if got != c.want || errs.ClassOf(err) != c.class {
				t.Fatalf("got %q, %v; want %q, class %q", got, err, c.want, c.class)
			}
			if err != nil && !strings.Contains(err.Error(), c.say) {
				t.Errorf("%v does not say %q", err, c.say)
			}
		})
	}
}

// TestNeverOvercommits places random requests until nothing fits.
func TestNeverOvercommits(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var nodes []Node
		for i := range 1 + rng.IntN(5) {
			nodes = append(nodes, node(string(rune('a'+i)), 1+rng.Int64N(8000), 1+rng.Int64N(16*gib), 0, 0))
		}
		for range 100 {
			req := Request{Need: Resources{rng.Int64N(2000), rng.Int64N(4 * gib)}}
			id, err := Pick(nodes, req)
			if err != nil {
				for _, n := range nodes {
					if unfit(n, req) == "" {
						t.Fatalf("%v, but %+v fits %+v", err, n, req)
					}
				}
				continue
			}
			for i := range nodes {
				if nodes[i].ID == id {
					nodes[i].Reserved = nodes[i].Reserved.Add(req.Need)
					if nodes[i].Reserved.CPUMillis > nodes[i].Capacity.CPUMillis || nodes[i].Reserved.MemoryBytes > nodes[i].Capacity.MemoryBytes {
						t.Fatalf("overcommitted %+v", nodes[i])
					}
				}
			}
		}
	}
}
