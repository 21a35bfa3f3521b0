package sandboxes

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
)

// OfApp lists the sandboxes of an app.
func OfApp(ctx context.Context, r entity.Reader, a *app.App) ([]*sandbox.Sandbox, error) {
	list, _, err := entity.List[sandbox.Sandbox](ctx, r, entity.Where(sandbox.SandboxAttrApp, a.ID))
	if err != nil {
		return nil, fmt.Errorf("list the sandboxes of %s: %w", a.Name, err)
	}
	return list, nil
}

// InPool lists the sandboxes of a pool.
func InPool(ctx context.Context, r entity.Reader, p id.SandboxPool) ([]*sandbox.Sandbox, error) {
	list, _, err := entity.List[sandbox.Sandbox](ctx, r, entity.Where(sandbox.SandboxAttrPool, p))
	return list, err
}

// OnNode lists the sandboxes that are placed on a node.
func OnNode(ctx context.Context, r entity.Reader, n id.Node) ([]*sandbox.Sandbox, error) {
	list, _, err := entity.List[sandbox.Sandbox](ctx, r, entity.Where(sandbox.SandboxAttrNode, n))
	return list, err
}

// Pending lists the sandboxes that wait for a node, oldest first.
func Pending(ctx context.Context, r entity.Reader) ([]*sandbox.Sandbox, error) {
	list, _, err := entity.List[sandbox.Sandbox](ctx, r, entity.Where(sandbox.SandboxAttrPhase, sandbox.SandboxPhasePending))
	list = slices.DeleteFunc(list, func(s *sandbox.Sandbox) bool { return !AwaitsPlacement(s) })
	slices.SortFunc(list, ByAge)
	return list, err
}

// AwaitsPlacement reports whether a sandbox waits for a node.
func AwaitsPlacement(s *sandbox.Sandbox) bool {
	return s.Spec.Node == "" && !s.Status.Phase.Ended()
}

// ByAge orders sandboxes oldest first; those of one transaction by their ids.
func ByAge(a, b *sandbox.Sandbox) int {
	return cmp.Or(cmp.Compare(a.CreateRevision, b.CreateRevision), cmp.Compare(a.ID, b.ID))
}
