package scheduler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
)

func ready(id string, cpu, mem int64) Node {
	return Node{ID: id, Arch: "amd64", Ready: true, Capacity: Resources{cpu, mem}}
}

func TestPlace(t *testing.T) {
	small := Resources{500, gib}
	for _, tt := range []struct {
		name   string
		nodes  []Node
		placed map[string]Sandbox // by node
		s      Sandbox
		want   string
		why    []string
	}{
		{name: "none", why: []string{"no node"}},
		{name: "one", nodes: []Node{ready("a", 1000, gib)}, s: Sandbox{Reserve: small}, want: "a"},
		{name: "exactly", nodes: []Node{ready("a", 500, gib)}, s: Sandbox{Reserve: small}, want: "a"},
		{name: "cpu", nodes: []Node{ready("a", 499, 4*gib)}, s: Sandbox{Reserve: small}, why: []string{"a: 0.499 of 0.499 CPU free"}},
		{name: "memory", nodes: []Node{ready("a", 4000, gib-1)}, s: Sandbox{Reserve: small}, why: []string{"a: 1023 MiB of 1023 MiB memory free"}},
		{name: "both", nodes: []Node{{ID: "a", Name: "host", Ready: true}}, s: Sandbox{Reserve: small}, why: []string{"host: 0 of 0 CPU free and 0 bytes of 0 bytes memory free"}},
		{name: "states", nodes: []Node{{ID: "a", Ready: true, Cordoned: true, Capacity: small}, {ID: "b", Capacity: small}, ready("c", 500, gib)},
			s: Sandbox{Arch: "arm64", Reserve: small}, why: []string{"a: cordoned", "b: not ready", "c: is amd64, not arm64"}},
		{name: "disk", nodes: []Node{{ID: "a", Ready: true, Capacity: small, DiskFull: true, DiskFree: 300 << 20}},
			s: Sandbox{Reserve: small}, why: []string{"a: its disk is nearly full, 300 MiB free"}},
		{name: "room for rollouts", nodes: []Node{ready("a", 4000, 3*gib)}, placed: map[string]Sandbox{"a": {ID: "x", Group: "p", Reserve: small}},
			s: Sandbox{ID: "y", Extra: true, Reserve: Resources{500, gib + 1}}, why: []string{"a: 1 GiB of 3 GiB memory free, with 0.5 CPU and 1 GiB kept for rollouts"}},
		{name: "a rollout", nodes: []Node{ready("a", 4000, 3*gib)}, placed: map[string]Sandbox{"a": {ID: "x", Group: "p", Reserve: small}},
			s: Sandbox{ID: "y", Group: "p", Reserve: Resources{500, 2 * gib}}, want: "a"},
		{name: "fullest", nodes: []Node{ready("a", 4000, 8*gib), ready("b", 4000, 8*gib)},
			placed: map[string]Sandbox{"b": {ID: "x", Reserve: small}}, s: Sandbox{ID: "y", Reserve: small}, want: "b"},
		{name: "spread", nodes: []Node{ready("a", 4000, 8*gib), ready("b", 4000, 8*gib)},
			placed: map[string]Sandbox{"b": {ID: "x", Group: "p", Reserve: small}}, s: Sandbox{ID: "y", Group: "p", Reserve: small}, want: "a"},
		{name: "smallest id", nodes: []Node{ready("b", 4000, 8*gib), ready("a", 4000, 8*gib)}, s: Sandbox{Reserve: small}, want: "a"},
		{name: "stays", nodes: []Node{ready("a", 4000, 8*gib), ready("b", 100, gib)},
			placed: map[string]Sandbox{"b": {ID: "x", Reserve: small}}, s: Sandbox{ID: "x", Reserve: small}, want: "b"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := NewPlan(tt.nodes)
			for n, s := range tt.placed {
				p.Add(n, s)
			}
			got, err := p.Place(tt.s)
			if got != tt.want || (err != nil) != (tt.want == "") {
				t.Fatalf("%q, %v; want %q", got, err, tt.want)
			}
			if err == nil {
				return
			}
			if !errs.Is(err, errs.ResourceExhausted) || errs.HintOf(err) == "" {
				t.Errorf("%v (%s), hint %q", err, errs.ClassOf(err), errs.HintOf(err))
			}
			for _, w := range tt.why {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not say %q", err, w)
				}
			}
		})
	}
}

// TestProperty places and removes at random and compares with a plain sum.
func TestProperty(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var nodes []Node
		for i := range 1 + rnd.IntN(6) {
			n := ready(fmt.Sprint("n", i), 1000+rnd.Int64N(8000), gib+rnd.Int64N(16*gib))
			n.Ready, n.Cordoned = rnd.IntN(8) > 0, rnd.IntN(8) == 0
			if rnd.IntN(3) == 0 {
				n.Arch = "arm64"
			}
			nodes = append(nodes, n)
		}
		p := NewPlan(nodes)
		at := map[string]string{}
		all := map[string]Sandbox{}
		used := func(node string) (r Resources) {
			for id, n := range at {
				if n == node {
					r.CPUMillis += all[id].Reserve.CPUMillis
					r.MemoryBytes += all[id].Reserve.MemoryBytes
				}
			}
			return r
		}
		fits := func(n Node, s Sandbox) bool {
			u := used(n.ID)
			if s.Extra {
				var r Resources
				for id, at := range at {
					if m := all[id]; at == n.ID && m.Group != "" {
						r.CPUMillis, r.MemoryBytes = max(r.CPUMillis, m.Reserve.CPUMillis), max(r.MemoryBytes, m.Reserve.MemoryBytes)
					}
				}
				u.CPUMillis, u.MemoryBytes = u.CPUMillis+r.CPUMillis, u.MemoryBytes+r.MemoryBytes
			}
			return n.Ready && !n.Cordoned && (s.Arch == "" || s.Arch == n.Arch) &&
				u.CPUMillis+s.Reserve.CPUMillis <= n.Capacity.CPUMillis && u.MemoryBytes+s.Reserve.MemoryBytes <= n.Capacity.MemoryBytes
		}
		for step := range 100 {
			if len(at) > 0 && rnd.IntN(3) == 0 {
				ids := make([]string, 0, len(at))
				for id := range at {
					ids = append(ids, id)
				}
				slices.Sort(ids)
				id := ids[rnd.IntN(len(ids))]
				p.Remove(id)
				p.Remove(id) // once more: no change
				delete(at, id)
				continue
			}
			s := Sandbox{ID: fmt.Sprint("s", step), Group: fmt.Sprint("g", rnd.IntN(3)), Reserve: Resources{rnd.Int64N(2000), rnd.Int64N(4 * gib)}}
			if rnd.IntN(4) == 0 {
				s.Arch = "arm64"
			}
			if rnd.IntN(3) == 0 {
				s.Group, s.Extra = "", true
			}
			// The same state, given in another order, leads to the same
			// decision.
			shuffled := slices.Clone(nodes)
			rnd.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
			other := NewPlan(shuffled)
			for id, n := range at {
				other.Add(n, all[id])
			}
			got, err := p.Place(s)
			if twin, terr := other.Place(s); twin != got || fmt.Sprint(err) != fmt.Sprint(terr) {
				t.Fatalf("seed %d: %q, %v but in another order %q, %v", seed, got, err, twin, terr)
			}
			possible := slices.ContainsFunc(nodes, func(n Node) bool { return fits(n, s) })
			if (err == nil) != possible {
				t.Fatalf("seed %d: placed %q, %v; possible %v", seed, got, err, possible)
			}
			if err != nil {
				continue
			}
			i := slices.IndexFunc(nodes, func(n Node) bool { return n.ID == got })
			if !fits(nodes[i], s) {
				t.Fatalf("seed %d: %s does not fit on %s", seed, s.ID, got)
			}
			all[s.ID], at[s.ID] = s, got
			u := used(got)
			if f := p.byID[got].free(); f.CPUMillis != nodes[i].Capacity.CPUMillis-u.CPUMillis || f.MemoryBytes != nodes[i].Capacity.MemoryBytes-u.MemoryBytes {
				t.Fatalf("seed %d: free %+v, used %+v of %+v", seed, f, u, nodes[i].Capacity)
			}
		}
	}
}

// TestRunners: what a runner cannot do is not placed on one.
func TestRunners(t *testing.T) {
	nodes := []Node{{ID: "r", Ready: true, Runner: true, Capacity: Resources{1000, 1000}}}
	if n, err := NewPlan(nodes).Place(Sandbox{ID: "a"}); err != nil || n != "r" {
		t.Errorf("%s, %v", n, err)
	}
	_, err := NewPlan(nodes).Place(Sandbox{ID: "b", Home: "has no disks"})
	if !errs.Is(err, errs.ResourceExhausted) || !strings.Contains(err.Error(), "r: is a runner, which has no disks") {
		t.Error(err)
	}
	service := Sandbox{ID: "c", App: "app-1"}
	_, err = NewPlan(nodes).Place(service)
	if !errs.Is(err, errs.ResourceExhausted) || !strings.Contains(err.Error(), "r: is a runner that may not run this app") {
		t.Error(err)
	}
	nodes[0].Apps = []string{"app-2", "app-1"}
	if n, err := NewPlan(nodes).Place(service); err != nil || n != "r" {
		t.Errorf("%s, %v", n, err)
	}
	for want, change := range map[string]func(*sandbox.Sandbox){
		"": func(s *sandbox.Sandbox) { s.Spec.App, s.Spec.Pool = "app-1", "pool-1" },
		"runs nothing of apps but their services": func(s *sandbox.Sandbox) { s.Spec.App = "app-1" },
		"has no disks": func(s *sandbox.Sandbox) { s.Spec.Template.Volumes = make([]sandbox.Volume, 1) },
		"adds no secrets to requests": func(s *sandbox.Sandbox) {
			s.Spec.Template.Egress = &sandbox.Egress{Inject: make([]sandbox.Injection, 1)}
		},
		"fetches no copies of snapshots": func(s *sandbox.Sandbox) { s.Spec.Restore = "snap-1" },
	} {
		s := sandbox.NewSandbox()
		change(s)
		if got := reservation(s).Home; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
