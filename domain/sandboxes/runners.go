package sandboxes

import (
	"context"
	"slices"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// NotOnRunners returns what a sandbox needs that runners do not do, such as "has
// no disks"; "": it can run on one, that of an app if the runner is allowed to. Values of
// secrets for requests and credentials of object stores stay on the server.
func NotOnRunners(sb *sandbox.Sandbox) string {
	switch t := &sb.Spec.Template; {
	case sb.Spec.App != "" && sb.Spec.Pool == "":
		return "runs nothing of apps but their services"
	case len(t.Volumes) > 0:
		return "has no disks"
	case t.Egress != nil && len(t.Egress.Inject) > 0:
		return "adds no secrets to requests"
	case sb.Spec.Restore != "" && sb.Spec.OnlyNode == "":
		return "fetches no copies of snapshots"
	}
	return ""
}

// OnOtherServer is the detail of an error that says which server reaches a node: the id of that server's node. This server
// does not reach it.
const OnOtherServer = "other_server"

// reach fails if calls for the sandboxes of a node do not arrive there: Unavailable, with the detail OnOtherServer if another
// server reaches the node.
func (s *Service) reach(node id.Node) error {
	if n, ok := s.Node.(interface{ Reach(id.Node) error }); ok {
		return n.Reach(node)
	}
	return nil
}

// DialService connects to a port of a service of an app whose sandbox is on a runner. It
// waits for no runner: the ingress tries another sandbox. FailedPrecondition for any other sandbox
// or port, and if no process listens or the sandbox does not run. Unavailable if the runner is not
// connected to this server, with the detail OnOtherServer if it is connected to another.
func (s *Service) DialService(ctx context.Context, sid id.Sandbox, port int) (Conn, error) {
	sb, err := entity.Get[sandbox.Sandbox](ctx, s.Store, sid)
	if err != nil {
		return nil, err
	}
	has := slices.ContainsFunc(sb.Spec.Template.Ports, func(p sandbox.Port) bool { return p.Number == int64(port) })
	switch {
	case sb.Spec.App == "" || !sb.Spec.Runner || !has:
		return nil, errs.New(errs.FailedPrecondition, "port %d of sandbox %s is not that of a service on a runner", port, sid)
	case sb.Status.Phase != sandbox.SandboxPhaseRunning:
		return nil, errs.New(errs.FailedPrecondition, "sandbox %s is %s", sid, sb.Status.Phase)
	}
	if err := s.reach(sb.Spec.Node); err != nil {
		return nil, err
	}
	return s.Node.Dial(ctx, sid, port)
}

// unfit returns the nodes whose warm sandboxes cannot be what sb describes.
func (s *Service) unfit(ctx context.Context, sb *sandbox.Sandbox) (map[id.Node]bool, error) {
	if NotOnRunners(sb) == "" && sb.Spec.App == "" {
		return nil, nil
	}
	all, _, err := entity.List[core.Node](ctx, s.Store, entity.Query{})
	if err != nil {
		return nil, err
	}
	runners := map[id.Node]bool{}
	for _, n := range all {
		if n.Spec.Runner {
			runners[n.GetID()] = true
		}
	}
	return runners, nil
}
