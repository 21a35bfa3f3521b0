package disk

import (
	"cmp"
	"context"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/components/filesystem"
	"miren.dev/runtime/domain/nodes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// local reports whether the data of a disk is in a directory of its home.
func local(d *disk.Disk) bool { return d.Spec.Store == "" }

// holder is another node that has a disk, or the newest writes of it.
type holder struct {
	name string
	gone bool // it does not exist any more
	down bool // or it is gone
}

func (r *Reconciler) holder(ctx context.Context, d *disk.Disk) (*holder, error) {
	return holderOf(ctx, r.Store, d, r.Node)
}

// holderOf returns the node that has a disk, nil if that is this node or none.
func holderOf(ctx context.Context, s entity.Reader, d *disk.Disk, this id.Node) (*holder, error) {
	node := cmp.Or(d.Status.Node, id.Node(d.Status.Home))
	if node == "" || node == this {
		return nil, nil
	}
	n, err := entity.Get[core.Node](ctx, s, node)
	if errs.Is(err, errs.NotFound) {
		return &holder{name: string(node), gone: true, down: true}, nil
	}
	if err != nil {
		return nil, err
	}
	h := &holder{name: cmp.Or(n.Name, string(n.ID))}
	switch _, err := nodes.LeaseOf(ctx, s, n.GetID()); {
	case errs.Is(err, errs.NotFound):
		h.down = n.Status.Phase == core.NodePhaseDown
	case err != nil:
		return nil, err
	}
	return h, nil
}

// elsewhere reports whether what no sandbox of this node needs is done by
// another node: it is not down, or only it has the data.
func (h *holder) elsewhere(d *disk.Disk) bool {
	return h != nil && (!h.down || local(d) && !h.gone)
}

// adopt makes this node the home of a disk that is to be made, so that no two
// nodes make it. It reports whether it is.
func (r *Reconciler) adopt(ctx context.Context, d *disk.Disk) (bool, error) {
	if d.Spec.SalvageNode != "" && d.Spec.SalvageNode != string(r.Node) {
		return false, nil
	}
	h, err := r.holder(ctx, d)
	if err != nil || h != nil && !h.down {
		return false, err
	}
	if d.Status.Home == string(r.Node) {
		return true, nil
	}
	d.Status.Home = string(r.Node)
	return true, entity.UpdateStatus(ctx, r.Store, d)
}

// lease makes a disk this node's. It reports whether another node had it, which
// is down: then the volume is to be taken over. Unavailable: another node has it.
// FailedPrecondition: only another node can have it.
func (r *Reconciler) lease(ctx context.Context, d *disk.Disk) (takeOver bool, err error) {
	h, err := r.holder(ctx, d)
	switch {
	case err != nil:
		return false, err
	case h == nil && d.Status.Node == r.Node && d.Status.Home == string(r.Node):
		return false, nil
	case h == nil:
		d.Status.Node, d.Status.Home = r.Node, string(r.Node)
		return false, entity.UpdateStatus(ctx, r.Store, d)
	case local(d) && !h.gone:
		return false, errs.New(errs.FailedPrecondition, "the data of disk %s is in a directory of node %s", d.Name, h.name).With("reason", "other_node").
			WithHint("use it there, or restore a copy of it (`r disk copies`); a disk whose --store all nodes reach is not bound to a node")
	case !h.down:
		return false, errs.New(errs.Unavailable, "disk %s is still attached to node %s", d.Name, h.name).With("reason", "attached_elsewhere").
			WithHint("it is detached when no sandbox there has it; if that node is gone for good, it counts as down after a while")
	}
	return true, nil
}

// leave unmounts and detaches a disk that another node has taken over from this
// one, which was down. What this one had not sent is lost.
func (r *Reconciler) leave(ctx context.Context, d *disk.Disk) error {
	mounted, err := filesystem.Device(r.dir(d.ID))
	if err != nil || mounted == "" {
		return err
	}
	r.Logger.Warn("another node has taken over a disk", "volume", string(d.ID), "node", string(d.Status.Node))
	if err := r.discard(ctx, d); !errs.Is(err, errs.FailedPrecondition) {
		return err
	}
	return nil // the next attachment here detaches it
}

// discard unmounts and detaches a volume that has failed here. FailedPrecondition:
// a process uses it. It does nothing about one that is not attached here.
func (r *Reconciler) discard(ctx context.Context, d *disk.Disk) error {
	dir := r.dir(d.ID)
	mounted, err := filesystem.Device(dir)
	if err == nil && mounted != "" {
		err = filesystem.Abandon(dir)
	}
	if err != nil {
		return err
	}
	err = r.Volumes.Detach(ctx, d.Status.Volume)
	switch {
	case errs.Is(err, errs.NotFound):
		return nil
	case errs.Is(err, errs.FailedPrecondition):
		return errs.Wrap(err, "detach a volume that has failed")
	}
	// Any other error says that its writes were not sent.
	r.Logger.Warn("a volume that has failed is detached", "volume", string(d.ID), "error", err)
	return nil
}

// same reports whether an attachment changed nothing of a status.
func same(a, b disk.DiskStatus) bool {
	return a.Node == b.Node && a.AttachedAt == b.AttachedAt && a.Device == b.Device && a.SizeBytes == b.SizeBytes && a.Formatted == b.Formatted &&
		a.Phase == b.Phase && a.Message == b.Message && a.Home == b.Home && a.TakenOverAt == b.TakenOverAt
}
