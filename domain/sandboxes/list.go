package sandboxes

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
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

// Writes reports whether sandboxes of a template write to a disk.
func Writes(t *sandbox.SandboxTemplate, d id.Disk) bool {
	return slices.ContainsFunc(t.Volumes, func(v sandbox.Volume) bool { return v.Disk == d && !v.ReadOnly })
}

// AwaitsPlacement reports whether a sandbox waits for a node.
func AwaitsPlacement(s *sandbox.Sandbox) bool {
	return s.Spec.Node == "" && !s.Status.Phase.Ended()
}

// noRoom begins the message of a paused sandbox for which its node has no room.
const noRoom = "the node has no room to resume it"

// ErrNoRoom returns the error of a node that has no room to resume a sandbox.
func ErrNoRoom(freeCPU, freeMemory, cpu, memory int64) error {
	return errs.New(errs.ResourceExhausted, noRoom+": %d millis of CPU and %d MiB of memory are free, and it needs %d and %d",
		max(0, freeCPU), max(0, freeMemory>>20), cpu, memory>>20).WithHint("stop or pause another sandbox")
}

// Homeless reports whether a sandbox waits for room that no node has.
func Homeless(s *sandbox.Sandbox) bool {
	switch {
	case s.Spec.WarmPool != "":
		return false
	case s.Status.Phase == sandbox.SandboxPhasePaused:
		return s.Spec.Desired == sandbox.DesiredStateRunning && strings.HasPrefix(s.Status.Message, noRoom)
	}
	return AwaitsPlacement(s) && s.Status.Message != ""
}

// ByAge orders sandboxes oldest first; those of one transaction by their ids.
func ByAge(a, b *sandbox.Sandbox) int {
	return cmp.Or(cmp.Compare(a.CreateRevision, b.CreateRevision), cmp.Compare(a.ID, b.ID))
}
