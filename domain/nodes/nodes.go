// Package nodes has the operations and queries on nodes, the machines that run
// sandboxes.
//
//	Find               a node by name or id
//	Drain              ends what runs on it
//	List               with what sandboxes reserve on each
//	Summary            how many there are and are ready
//	Cordon, Uncordon   whether new sandboxes are placed on it
//	LeaseOf, LeaseName the sign of life that a node renews
package nodes

import (
	"cmp"
	"context"
	"slices"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// Service is the operations on the nodes of one store. It is safe for concurrent
// use.
type Service struct {
	Store entity.Store
}

// Find returns the node with a name or id. NotFound if there is none.
func Find(ctx context.Context, r entity.Reader, name string) (*core.Node, error) {
	n, err := entity.ByName[core.Node](ctx, r, "", name)
	if errs.Is(err, errs.NotFound) {
		return entity.Get[core.Node](ctx, r, id.Node(name))
	}
	return n, err
}

// State is a node, and what sandboxes reserve on it.
type State struct {
	*core.Node
	sandbox.Reservation
}

// List returns the nodes that were not deleted, by name.
func (s *Service) List(ctx context.Context) ([]State, error) {
	all, _, err := entity.List[core.Node](ctx, s.Store, entity.Query{})
	if err != nil {
		return nil, err
	}
	running, _, err := entity.List[sandbox.Sandbox](ctx, s.Store, entity.Query{})
	if err != nil {
		return nil, err
	}
	by := sandbox.ReservedByNode(running)
	var list []State
	for _, n := range all {
		if !n.Spec.Removed {
			list = append(list, State{n, by[n.GetID()]})
		}
	}
	slices.SortFunc(list, func(a, b State) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

// Summary is numbers of nodes.
type Summary struct {
	Nodes    int64 // those that were not deleted
	Ready    int64 // of these
	Cordoned int64 // of these
	Full     int64 // of these: their disk is nearly full
}

// Summary counts the nodes.
func (s *Service) Summary(ctx context.Context) (Summary, error) {
	var n Summary
	all, _, err := entity.List[core.Node](ctx, s.Store, entity.Query{})
	for _, x := range all {
		if x.Spec.Removed {
			continue
		}
		n.Nodes++
		if x.Status.Phase == core.NodePhaseReady {
			n.Ready++
		}
		if x.Spec.Cordoned {
			n.Cordoned++
		}
		if x.Status.DiskFull {
			n.Full++
		}
	}
	return n, err
}

// Cordon keeps new sandboxes off the named node. Running sandboxes stay.
func (s *Service) Cordon(ctx context.Context, name string) (*core.Node, error) {
	return s.setCordoned(ctx, name, true)
}

// Uncordon lets new sandboxes be placed on the named node again.
func (s *Service) Uncordon(ctx context.Context, name string) (*core.Node, error) {
	return s.setCordoned(ctx, name, false)
}

// Drain is Cordon, and tells every sandbox on the node to stop. It returns how many have
// not ended yet; it may be repeated to see them go.
func (s *Service) Drain(ctx context.Context, name string) (*core.Node, int, error) {
	n, err := s.setCordoned(ctx, name, true)
	if err != nil {
		return nil, 0, err
	}
	all, _, err := entity.List[sandbox.Sandbox](ctx, s.Store, entity.Where(sandbox.SandboxAttrNode, n.GetID()))
	if err != nil {
		return nil, 0, err
	}
	left := 0
	for _, sb := range all {
		if sb.Status.Phase.Ended() {
			continue
		}
		left++
		_, err := entity.ModifySpec(ctx, s.Store, sb.GetID(), func(sb *sandbox.Sandbox) error {
			if sb.Spec.Desired != sandbox.DesiredStateStopped {
				sb.Spec.Desired, sb.Spec.StopReason = sandbox.DesiredStateStopped, sandbox.EndReasonNode
			}
			return nil
		})
		if err != nil && !errs.Is(err, errs.NotFound) {
			return nil, 0, err
		}
	}
	return n, left, nil
}

func (s *Service) setCordoned(ctx context.Context, name string, cordoned bool) (*core.Node, error) {
	n, err := Find(ctx, s.Store, name)
	if err != nil {
		return nil, err
	}
	return entity.ModifySpec(ctx, s.Store, n.GetID(), func(n *core.Node) error {
		n.Spec.Cordoned = cordoned
		return nil
	})
}

// LeaseName is the name of a node's node_lease.
func LeaseName(n id.Node) string { return "alive-" + string(n) }

// LeaseOf returns the node_lease of a node. NotFound if it has none: it has
// shown no sign of life for the lease's time.
func LeaseOf(ctx context.Context, r entity.Reader, n id.Node) (*core.NodeLease, error) {
	return entity.ByName[core.NodeLease](ctx, r, "", LeaseName(n))
}

// Down reports whether a node is down, or does not exist: it shows no sign of
// life, and the servers have noticed.
func Down(ctx context.Context, r entity.Reader, node id.Node) (bool, error) {
	n, err := entity.Get[core.Node](ctx, r, node)
	if errs.Is(err, errs.NotFound) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	if _, err = LeaseOf(ctx, r, node); errs.Is(err, errs.NotFound) {
		return n.Status.Phase == core.NodePhaseDown, nil
	}
	return false, err
}
