// Package scheduler decides which node runs a sandbox. It is pure: the caller
// brings nodes and what is reserved on them, and writes the decision down.
//
// A node is fit if it is ready, not cordoned, has the architecture, and its
// capacity covers what is reserved plus what is asked for, in CPU and in memory.
// Of the fit ones the node with the largest smaller share of free CPU and
// memory after placement wins (spreading), then the lower id, so that equal
// input gives an equal answer.
package scheduler

import (
	"fmt"
	"slices"
	"strings"

	"miren.dev/runtime/pkg/errs"
)

// Resources is an amount of what is accounted for.
type Resources struct {
	CPUMillis   int64 // thousandths of a CPU
	MemoryBytes int64
}

// Add returns the sum.
func (r Resources) Add(o Resources) Resources {
	return Resources{r.CPUMillis + o.CPUMillis, r.MemoryBytes + o.MemoryBytes}
}

// Node is a machine as the scheduler sees it.
type Node struct {
	ID       string
	Arch     string
	Ready    bool
	Cordoned bool
	Capacity Resources
	Reserved Resources // by the sandboxes placed there that have not ended
}

// Request is a sandbox to be placed.
type Request struct {
	Arch string // empty: any
	Need Resources
}

// Pick returns the id of the best node. If none is fit the error has class
// ResourceExhausted, or Unavailable if there is no node at all, and says for
// each node why not.
func Pick(nodes []Node, req Request) (string, error) {
	if len(nodes) == 0 {
		return "", errs.New(errs.Unavailable, "there is no node")
	}
	nodes = slices.Clone(nodes)
	slices.SortFunc(nodes, func(a, b Node) int { return strings.Compare(a.ID, b.ID) })
	best, bestScore := "", -1.0
	var reasons []string
	for _, n := range nodes {
		if why := unfit(n, req); why != "" {
			reasons = append(reasons, n.ID+": "+why)
			continue
		}
		after := n.Reserved.Add(req.Need)
		score := min(free(n.Capacity.CPUMillis, after.CPUMillis), free(n.Capacity.MemoryBytes, after.MemoryBytes))
		if score > bestScore {
			best, bestScore = n.ID, score
		}
	}
	if best == "" {
		return "", errs.New(errs.ResourceExhausted, "no node has room: %s", strings.Join(reasons, "; "))
	}
	return best, nil
}

// free returns the share of capacity that is left.
func free(capacity, used int64) float64 {
	return float64(capacity-used) / float64(capacity)
}

func unfit(n Node, req Request) string {
	left := Resources{n.Capacity.CPUMillis - n.Reserved.CPUMillis, n.Capacity.MemoryBytes - n.Reserved.MemoryBytes}
	switch {
	case !n.Ready:
		return "not ready"
	case n.Cordoned:
		return "cordoned"
	case req.Arch != "" && req.Arch != n.Arch:
		return fmt.Sprintf("is %s, not %s", n.Arch, req.Arch)
	case n.Capacity.CPUMillis <= 0 || n.Capacity.MemoryBytes <= 0:
		return "has no capacity"
	case req.Need.CPUMillis > left.CPUMillis:
		return fmt.Sprintf("needs %dm CPU, %dm of %dm free", req.Need.CPUMillis, max(0, left.CPUMillis), n.Capacity.CPUMillis)
	case req.Need.MemoryBytes > left.MemoryBytes:
		return fmt.Sprintf("needs %d MiB memory, %d of %d MiB free", req.Need.MemoryBytes>>20, max(0, left.MemoryBytes)>>20, n.Capacity.MemoryBytes>>20)
	}
	return ""
}
