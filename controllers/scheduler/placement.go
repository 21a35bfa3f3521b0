package scheduler

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"miren.dev/runtime/pkg/errs"
)

// Resources are amounts that sandboxes reserve and nodes have.
type Resources struct {
	CPUMillis   int64
	MemoryBytes int64
}

// Node is a machine.
type Node struct {
	ID       string
	Name     string // for messages; empty: ID
	Arch     string
	Ready    bool
	Cordoned bool
	Capacity Resources // resources that sandboxes may reserve in total
	DiskFull bool
	DiskFree int64 // free disk space in bytes; for messages
	Runner   bool
	Apps     []string // of a runner: the apps whose services may run there
}

// Sandbox is a sandbox that holds, or asks for, a reservation.
type Sandbox struct {
	ID      string
	Group   string // sandboxes of one group are spread; empty: no group
	Arch    string // architecture; empty: any
	Only    string // id of the one node on which it can run; empty: any
	Extra   bool   // the sandbox leaves room for rollouts
	App     string // its app; empty: none
	Home    string // what a runner does not do that it needs, such as "has no disks"; empty: it can run on one
	Reserve Resources
}

// Plan is the state that decisions are made on; it includes the decisions made
// already. It is for one goroutine.
type Plan struct {
	nodes  []*node // nodes by id
	byID   map[string]*node
	placed map[string]placement
}

type node struct {
	Node
	used   Resources
	groups map[string]int
	// members are the reservations of the sandboxes of groups, by sandbox.
	members map[string]Resources
}

// rollout is the room that a rollout of any group needs: the reservation of the
// largest member.
func (n *node) rollout() (r Resources) {
	for _, m := range n.members {
		r.CPUMillis, r.MemoryBytes = max(r.CPUMillis, m.CPUMillis), max(r.MemoryBytes, m.MemoryBytes)
	}
	return r
}

type placement struct {
	node *node
	Sandbox
}

// NewPlan returns a plan without placements. Of nodes with the same id the last
// counts.
func NewPlan(nodes []Node) *Plan {
	p := &Plan{byID: map[string]*node{}, placed: map[string]placement{}}
	for _, n := range nodes {
		p.byID[n.ID] = &node{Node: n, groups: map[string]int{}, members: map[string]Resources{}}
	}
	for _, n := range p.byID {
		p.nodes = append(p.nodes, n)
	}
	slices.SortFunc(p.nodes, func(a, b *node) int { return strings.Compare(a.ID, b.ID) })
	return p
}

// Add counts a sandbox that is placed on a node, whether it fits or not. An
// unknown node is ignored.
func (p *Plan) Add(nodeID string, s Sandbox) {
	n := p.byID[nodeID]
	if n == nil {
		return
	}
	p.Remove(s.ID)
	n.used.CPUMillis += s.Reserve.CPUMillis
	n.used.MemoryBytes += s.Reserve.MemoryBytes
	n.groups[s.Group]++
	if s.Group != "" {
		n.members[s.ID] = s.Reserve
	}
	p.placed[s.ID] = placement{n, s}
}

// Remove releases the reservation of a sandbox.
func (p *Plan) Remove(id string) {
	pl, ok := p.placed[id]
	if !ok {
		return
	}
	delete(p.placed, id)
	pl.node.used.CPUMillis -= pl.Reserve.CPUMillis
	pl.node.used.MemoryBytes -= pl.Reserve.MemoryBytes
	pl.node.groups[pl.Group]--
	delete(pl.node.members, id)
}

// Place chooses a node for s, counts s there, and returns the node's id. A
// sandbox that is placed already stays where it is. ResourceExhausted if no
// node fits; the message gives the reason for each node.
func (p *Plan) Place(s Sandbox) (string, error) {
	if pl, ok := p.placed[s.ID]; ok {
		return pl.node.ID, nil
	}
	var best *node
	for _, n := range p.nodes {
		if n.refuses(s) == "" && (best == nil || n.compare(best, s) < 0) {
			best = n
		}
	}
	if best == nil {
		return "", p.noRoom(s)
	}
	p.Add(best.ID, s)
	return best.ID, nil
}

func (n *node) free() Resources {
	return Resources{CPUMillis: n.Capacity.CPUMillis - n.used.CPUMillis, MemoryBytes: n.Capacity.MemoryBytes - n.used.MemoryBytes}
}

// compare orders nodes that fit, the better one first.
func (n *node) compare(o *node, s Sandbox) int {
	if s.Group != "" {
		if c := cmp.Compare(n.groups[s.Group], o.groups[s.Group]); c != 0 {
			return c
		}
	}
	return cmp.Compare(n.room(s), o.room(s)) // ids are in order
}

// room returns the free share of the scarcer resource that s would leave on n.
func (n *node) room(s Sandbox) float64 {
	f := n.free()
	return min(share(f.CPUMillis-s.Reserve.CPUMillis, n.Capacity.CPUMillis), share(f.MemoryBytes-s.Reserve.MemoryBytes, n.Capacity.MemoryBytes))
}

func share(part, whole int64) float64 {
	if whole <= 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

// refuses returns why s cannot run on n, or "".
func (n *node) refuses(s Sandbox) string {
	switch {
	case !n.Ready:
		return "not ready"
	case n.Cordoned:
		return "cordoned"
	case s.Only != "" && s.Only != n.ID:
		return "does not have its snapshot"
	case s.Arch != "" && s.Arch != n.Arch:
		return fmt.Sprintf("is %s, not %s", n.Arch, s.Arch)
	case n.Runner && s.Home != "":
		return "is a runner, which " + s.Home
	case n.Runner && s.App != "" && !slices.Contains(n.Apps, s.App):
		return "is a runner that may not run this app (`r runner allow`)"
	case n.DiskFull:
		return fmt.Sprintf("its disk is nearly full, %s free", bytes(n.DiskFree))
	}
	var short []string
	f := n.free()
	if s.Extra {
		r := n.rollout()
		f.CPUMillis, f.MemoryBytes = f.CPUMillis-r.CPUMillis, f.MemoryBytes-r.MemoryBytes
	}
	if s.Reserve.CPUMillis > f.CPUMillis {
		short = append(short, fmt.Sprintf("%s of %s CPU free", cpus(max(f.CPUMillis, 0)), cpus(n.Capacity.CPUMillis)))
	}
	if s.Reserve.MemoryBytes > f.MemoryBytes {
		short = append(short, fmt.Sprintf("%s of %s memory free", bytes(max(f.MemoryBytes, 0)), bytes(n.Capacity.MemoryBytes)))
	}
	why := strings.Join(short, " and ")
	if r := n.rollout(); why != "" && s.Extra && r.MemoryBytes > 0 {
		why += fmt.Sprintf(", with %s CPU and %s kept for rollouts", cpus(r.CPUMillis), bytes(r.MemoryBytes))
	}
	return why
}

// maxExplained bounds the nodes that a message lists.
const maxExplained = 8

func (p *Plan) noRoom(s Sandbox) error {
	if len(p.nodes) == 0 {
		return errs.New(errs.ResourceExhausted, "there is no node to run on").WithHint("look at `r node list` and the server's log")
	}
	var reasons []string
	room := false // whether some node lacks only room
	for i, n := range p.nodes {
		why := n.refuses(s)
		room = room || n.Ready && !n.Cordoned
		if i == maxExplained {
			reasons = append(reasons, fmt.Sprintf("and %d more", len(p.nodes)-i))
		}
		if i < maxExplained {
			reasons = append(reasons, cmp.Or(n.Name, n.ID)+": "+why)
		}
	}
	e := errs.New(errs.ResourceExhausted, "no node has room for %s CPU and %s memory (%s)",
		cpus(s.Reserve.CPUMillis), bytes(s.Reserve.MemoryBytes), strings.Join(reasons, "; "))
	for i, n := range p.nodes {
		if i == maxExplained {
			break
		}
		e = e.With("node."+n.ID, n.refuses(s))
	}
	if room {
		return e.WithHint("ask for less (--cpu, --memory; cpu and memory of a service in app.toml), stop something (`r node list` shows what is reserved), or raise what the node gives out (node.cpu_millis, node.memory_bytes and node.keep_disk_bytes of the server's configuration)")
	}
	return e.WithHint("look at `r node list`")
}

func cpus(millis int64) string {
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.3f", float64(millis)/1000), "0"), ".")
}

func bytes(n int64) string {
	switch {
	case n >= 1<<30:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(n)/(1<<30)), ".0") + " GiB"
	case n >= 1<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d bytes", n)
}
