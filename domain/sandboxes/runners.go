package sandboxes

import (
	"context"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
)

// NotOnRunners returns what a sandbox needs that runners do not do, such as "has
// no disks"; "": it can run on one. The ingress reaches no addresses on runners, and
// values of secrets for requests and credentials of object stores stay on the
// server.
func NotOnRunners(sb *sandbox.Sandbox) string {
	switch t := &sb.Spec.Template; {
	case sb.Spec.App != "" || sb.Spec.Pool != "":
		return "runs no apps"
	case len(t.Volumes) > 0:
		return "has no disks"
	case t.Egress != nil && len(t.Egress.Inject) > 0:
		return "adds no secrets to requests"
	case sb.Spec.Restore != "" && sb.Spec.OnlyNode == "":
		return "fetches no copies of snapshots"
	}
	return ""
}

// unfit returns the nodes whose warm sandboxes cannot be what sb describes.
func (s *Service) unfit(ctx context.Context, sb *sandbox.Sandbox) (map[id.Node]bool, error) {
	if NotOnRunners(sb) == "" {
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
