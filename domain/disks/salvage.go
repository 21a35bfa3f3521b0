package disks

import (
	"cmp"
	"context"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/domain/nodes"
	"miren.dev/runtime/pkg/errs"
)

// SalvageRequest describes a disk that is made of the writes that a takeover of another
// disk has left out.
type SalvageRequest struct {
	Project  string
	Source   string // name of the disk that was taken over
	Takeover string // takeover-EPOCH-SEQUENCE; "": the node has the log of one
	Node     string // name or id of the node that has the log; "": the one that the disk was last taken over from
	Name     string // of the new disk
}

// Salvage makes a disk as another one was on a node that it was taken over from, with
// every write that the log there has, and returns when it can be used. The source
// does not change, and the log stays. FailedPrecondition: there is nothing to salvage,
// or its node is down.
func (s *Service) Salvage(ctx context.Context, req SalvageRequest) (*disk.Disk, error) {
	from, err := s.ready(ctx, req.Project, req.Source)
	if err != nil {
		return nil, err
	}
	node, err := s.strandedOn(ctx, from, req.Node)
	if err != nil {
		return nil, err
	}
	d := disk.NewDisk()
	d.Project, d.Name = from.Project, req.Name
	d.Spec.SizeBytes, d.Spec.Store, d.Spec.FileSystem = from.Status.SizeBytes, from.Spec.Store, from.Spec.FileSystem
	d.Spec.SourceDisk, d.Spec.SalvageNode, d.Spec.SalvageTakeover = string(from.ID), string(node.ID), req.Takeover
	return s.create(ctx, d)
}

// strandedOn returns the node, which is not down, whose log of a disk is salvaged.
func (s *Service) strandedOn(ctx context.Context, d *disk.Disk, name string) (*core.Node, error) {
	if name == "" && d.Status.TakenOverFrom == "" {
		return nil, refuse("not_taken_over", "disk %s has every write that is known: no node has taken it over from another", d.Name).
			WithHint("if a node has a log of it all the same, name that with --node")
	}
	n, err := nodes.Find(ctx, s.Store, cmp.Or(name, d.Status.TakenOverFrom))
	if errs.Is(err, errs.NotFound) && name == "" {
		return nil, refuse("not_taken_over", "the node that disk %s was taken over from (%s) was deleted", d.Name, d.Status.TakenOverFrom).
			WithHint("if its machine is a node again, name that with --node: the log stays in its state directory")
	}
	if err != nil {
		return nil, err
	}
	down, err := nodes.Down(ctx, s.Store, n.GetID())
	if err == nil && down {
		err = refuse("node_down", "node %s, whose log has the writes of disk %s, is down", cmp.Or(n.Name, string(n.ID)), d.Name).
			WithHint("start the node; the log stays there")
	}
	return n, err
}
