package disk_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/id"
	ctldisk "miren.dev/runtime/controllers/disk"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// makes is a store of volumes that notes what it is asked to make.
type makes struct {
	ctldisk.Volumes
	asked []string
	fails error // of a salvage
}

func (m *makes) Clone(context.Context, string, string, string, string) (string, int64, error) {
	m.asked = append(m.asked, "clone")
	return "cloned", disk.MinSize, nil
}

func (m *makes) Detach(context.Context, string) error {
	m.asked = append(m.asked, "detach")
	return errs.New(errs.NotFound, "not attached")
}

func (m *makes) Salvage(_ context.Context, store, volume, takeover, _ string) (ctldisk.Salvaged, error) {
	m.asked = append(m.asked, "salvage "+strings.Join([]string{store, volume, takeover}, " "))
	bytes, damaged := int64(4096), true
	return ctldisk.Salvaged{Volume: "salvaged", SizeBytes: disk.MinSize, Bytes: &bytes, Damaged: &damaged}, m.fails
}

func (m *makes) EndSalvage(_ context.Context, store, volume, takeover string) error {
	m.asked = append(m.asked, "end "+strings.Join([]string{store, volume, takeover}, " "))
	return nil
}

func (m *makes) Delete(context.Context, string, string, bool) error {
	m.asked = append(m.asked, "delete")
	return errs.New(errs.NotFound, "there is no volume")
}

// TestDiskOfAnother: of two nodes the one that has the log salvages a disk, and the same one
// removes what is half made when the disk is deleted meanwhile. Any node may have a disk
// next that was salvaged or cloned in a store of all nodes.
func TestDiskOfAnother(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	var nodes []id.Node
	for _, name := range []string{"a", "b"} {
		n := core.NewNode()
		n.Name, n.Spec.Arch, n.Spec.CPUMillis, n.Spec.MemoryBytes = name, "amd64", 1000, 1<<30
		if err := entity.Create(ctx, w.store, n); err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, n.GetID())
	}
	source, err := entity.ModifySpec(ctx, w.store, w.disk.GetID(), func(d *disk.Disk) error { d.Spec.Store = "/shared"; return nil })
	if err != nil {
		t.Fatal(err)
	}
	create := func(name string, set func(*disk.DiskSpec)) *disk.Disk {
		d := disk.NewDisk()
		d.Project, d.Name = source.Project, name
		d.Spec.SizeBytes, d.Spec.Store, d.Spec.SourceDisk = disk.MinSize, "/shared", string(source.ID)
		set(&d.Spec)
		if err := entity.Create(ctx, w.store, d); err != nil {
			t.Fatal(err)
		}
		return d
	}
	volumes := &makes{}
	reconcile := func(node id.Node, d *disk.Disk, want ...string) *disk.Disk {
		t.Helper()
		volumes.asked = nil
		ctl := &ctldisk.Reconciler{Store: w.store, Volumes: volumes, Node: node, MountDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)}
		if _, err := ctl.Reconcile(ctx, d.ID); err != nil && !errs.Is(err, errs.Unavailable) {
			t.Error(err)
		}
		if !slices.Equal(volumes.asked, want) {
			t.Errorf("node %s asked for %q, want %q", node, volumes.asked, want)
		}
		got, err := entity.Get[disk.Disk](ctx, w.store, d.ID)
		if errs.Is(err, errs.NotFound) {
			return nil
		}
		if err != nil {
			t.Fatal(err)
		}
		return got
	}

	cloned := create("cloned", func(s *disk.DiskSpec) { s.SourceSnapshot = "snapshot" })
	if got := reconcile(nodes[1], cloned, "clone"); got.Status.Phase != disk.DiskPhaseReady || got.Status.Home != "" {
		t.Errorf("a clone in a shared store: %+v", got.Status)
	}

	salvages := func(s *disk.DiskSpec) { s.SalvageNode, s.SalvageTakeover = string(nodes[0]), "takeover-1-7" }
	const made, ended = "salvage /shared volume takeover-1-7", "end /shared "
	rescued := create("rescued", salvages)
	reconcile(nodes[1], rescued)
	volumes.fails = errs.New(errs.Unavailable, "the store does not answer")
	if got := reconcile(nodes[0], rescued, "detach", made); got.Status.Phase != disk.DiskPhasePending || !strings.Contains(got.Status.Message, "does not answer") || got.Status.Home != string(nodes[0]) {
		t.Errorf("while the store does not answer: %+v", got.Status)
	}
	volumes.fails = nil
	reconcile(nodes[1], rescued)
	got := reconcile(nodes[0], rescued, "detach", made)
	if s := got.Status; s.Phase != disk.DiskPhaseReady || s.Volume != "salvaged" || !s.Formatted || s.Home != "" || s.SalvagedBytes == nil || s.SalvageDamaged == nil || !*s.SalvageDamaged {
		t.Errorf("a salvaged disk: %+v", s)
	}

	dropped := create("dropped", salvages)
	volumes.fails = errs.New(errs.Unavailable, "the store does not answer")
	reconcile(nodes[0], dropped, "detach", made)
	if _, err := entity.ModifySpec(ctx, w.store, dropped.GetID(), func(d *disk.Disk) error { d.Spec.Deleted = true; return nil }); err != nil {
		t.Fatal(err)
	}
	if reconcile(nodes[1], dropped) == nil {
		t.Error("another node has erased a disk that is being salvaged")
	}
	if got := reconcile(nodes[0], dropped, ended+string(source.ID)+" takeover-1-7", "delete"); got != nil {
		t.Errorf("after the deletion: %+v", got)
	}
}

// TestSalvageIsRefused: a disk that was not taken over, and one whose node was deleted, have
// nothing to salvage.
func TestSalvageIsRefused(t *testing.T) {
	w := newWorld(t)
	s := &disks.Service{Store: w.store}
	for _, x := range []struct {
		from, node, reason string
		class              errs.Class
	}{
		{"", "", "not_taken_over", errs.FailedPrecondition},
		{"node-gone", "", "not_taken_over", errs.FailedPrecondition},
		{"", "nowhere", "", errs.NotFound},
	} {
		if _, err := entity.ModifyStatus(t.Context(), w.store, w.disk.GetID(), func(d *disk.Disk) error { d.Status.TakenOverFrom = x.from; return nil }); err != nil {
			t.Fatal(err)
		}
		_, err := s.Salvage(t.Context(), disks.SalvageRequest{Source: "data", Node: x.node, Name: "rescued"})
		if !errs.Is(err, x.class) || errs.Detail(err, "reason") != x.reason {
			t.Errorf("taken over from %q, --node %q: %v (%s)", x.from, x.node, err, errs.Detail(err, "reason"))
		}
	}
}
