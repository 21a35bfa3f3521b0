package disk_test

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"testing"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	ctldisk "miren.dev/runtime/controllers/disk"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// attaches is a store of volumes that refuses to attach one, and notes how it was
// asked to.
type attaches struct {
	ctldisk.Volumes
	asked []string
}

func (a *attaches) Attach(_ context.Context, store, _ string, takeOver bool) (ctldisk.Volume, error) {
	how := "open " + store
	if takeOver {
		how = "take over " + store
	}
	a.asked = append(a.asked, how)
	return ctldisk.Volume{}, errs.New(errs.Unavailable, "this test attaches nothing")
}

// reopened is a store of volumes that has one open which has failed.
type reopened struct {
	ctldisk.Volumes
	failed bool
	inUse  bool
	asked  []string
}

func (r *reopened) Attach(context.Context, string, string, bool) (ctldisk.Volume, error) {
	r.asked = append(r.asked, "attach")
	if r.failed {
		return ctldisk.Volume{Device: "/dev/none", SizeBytes: disk.MinSize, Failed: true}, nil
	}
	return ctldisk.Volume{}, errs.New(errs.Unavailable, "this test attaches nothing")
}

func (r *reopened) Detach(context.Context, string) error {
	r.asked = append(r.asked, "detach")
	if r.inUse {
		return errs.New(errs.FailedPrecondition, "in use")
	}
	r.failed = false
	return errs.New(errs.Conflict, "another node has opened it")
}

// TestFailedVolumeIsOpenedAgain: a node that comes back, and kept a volume open that
// another node has had since, opens it again instead of mounting what has failed.
func TestFailedVolumeIsOpenedAgain(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	n := core.NewNode()
	n.Name, n.Spec.Arch, n.Spec.CPUMillis, n.Spec.MemoryBytes = "a", "amd64", 1000, 1<<30
	if err := entity.Create(ctx, w.store, n); err != nil {
		t.Fatal(err)
	}
	d := disk.NewDisk()
	d.Project, d.Name, d.Spec.SizeBytes, d.Spec.Store = w.disk.Project, "d", disk.MinSize, "/shared"
	if err := entity.Create(ctx, w.store, d); err != nil {
		t.Fatal(err)
	}
	d.Status.Phase, d.Status.Volume = disk.DiskPhaseReady, "volume"
	if err := entity.UpdateStatus(ctx, w.store, d); err != nil {
		t.Fatal(err)
	}
	sb := sandbox.NewSandbox()
	sb.Project, sb.Spec.Node, sb.Spec.Template.Image = w.disk.Project, n.GetID(), "img@sha256:0"
	if err := entity.Create(ctx, w.store, sb); err != nil {
		t.Fatal(err)
	}
	for _, inUse := range []bool{true, false} {
		volumes := &reopened{failed: true, inUse: inUse}
		ctl := &ctldisk.Reconciler{Store: w.store, Volumes: volumes, Node: n.GetID(), MountDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)}
		_, err := ctl.Mounts(ctx, sb, []disks.Volume{{Disk: d.GetID(), Path: "/data"}})
		want, class := []string{"attach", "detach", "attach"}, errs.Unavailable
		if inUse {
			want, class = want[:2], errs.FailedPrecondition
		}
		if !errs.Is(err, class) || !slices.Equal(volumes.asked, want) {
			t.Errorf("in use %v: asked to %v, %v", inUse, volumes.asked, err)
		}
	}
}

// TestHomeOfADisk: a node opens a disk that no other node has, takes it over from
// one that is down or gone, and is refused otherwise; a disk in a directory of
// another node is refused as long as that node exists.
func TestHomeOfADisk(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	node := func(name string) *core.Node {
		n := core.NewNode()
		n.Name, n.Spec.Arch, n.Spec.CPUMillis, n.Spec.MemoryBytes = name, "amd64", 1000, 1<<30
		if err := entity.Create(ctx, w.store, n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	phase := func(n *core.Node, p core.NodePhase) {
		_, err := entity.ModifyStatus(ctx, w.store, n.GetID(), func(n *core.Node) error { n.Status.Phase = p; return nil })
		if err != nil {
			t.Fatal(err)
		}
	}
	a, b := node("a"), node("b")
	gone := id.Node("node-gone")
	for _, tc := range []struct {
		name, store  string
		leased       bool // status.node is a
		home         id.Node
		phase        core.NodePhase // of a
		want, reason string
		class        errs.Class
	}{
		{name: "free", store: "/shared", want: "open /shared", class: errs.Unavailable},
		{name: "of a ready node", store: "/shared", leased: true, home: a.GetID(), phase: core.NodePhaseReady, class: errs.Unavailable, reason: "attached_elsewhere"},
		{name: "of a node that is down", store: "/shared", leased: true, home: a.GetID(), phase: core.NodePhaseDown, want: "take over /shared", class: errs.Unavailable},
		{name: "of a node that is gone", store: "/shared", home: gone, want: "take over /shared", class: errs.Unavailable},
		{name: "in a directory here", home: b.GetID(), want: "open /default", class: errs.Unavailable},
		{name: "in a directory of a ready node", home: a.GetID(), phase: core.NodePhaseReady, class: errs.FailedPrecondition, reason: "other_node"},
		{name: "in a directory of a node that is down", leased: true, home: a.GetID(), phase: core.NodePhaseDown, class: errs.FailedPrecondition, reason: "other_node"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			phase(a, cmp.Or(tc.phase, core.NodePhaseReady))
			d := disk.NewDisk()
			d.Project, d.Name, d.Spec.SizeBytes, d.Spec.Store = w.disk.Project, "d", disk.MinSize, tc.store
			if err := entity.Create(ctx, w.store, d); err != nil {
				t.Fatal(err)
			}
			d.Status.Phase, d.Status.Volume, d.Status.Home = disk.DiskPhaseReady, "volume", string(tc.home)
			if tc.leased {
				d.Status.Node = a.GetID()
			}
			if err := entity.UpdateStatus(ctx, w.store, d); err != nil {
				t.Fatal(err)
			}
			sb := sandbox.NewSandbox()
			sb.Project, sb.Spec.Node, sb.Spec.Template.Image = w.disk.Project, b.GetID(), "img@sha256:0"
			if err := entity.Create(ctx, w.store, sb); err != nil {
				t.Fatal(err)
			}
			volumes := &attaches{}
			ctl := &ctldisk.Reconciler{Store: w.store, Volumes: volumes, Node: b.GetID(), MountDir: t.TempDir(), DefaultStore: "/default", Logger: slog.New(slog.DiscardHandler)}
			_, err := ctl.Mounts(ctx, sb, []disks.Volume{{Disk: d.GetID(), Path: "/data"}})
			if !errs.Is(err, tc.class) || errs.Detail(err, "reason") != tc.reason {
				t.Errorf("%v (%s)", err, errs.Detail(err, "reason"))
			}
			if got := len(volumes.asked) > 0; got != (tc.want != "") || got && volumes.asked[0] != tc.want {
				t.Errorf("asked to %v, want %q", volumes.asked, tc.want)
			}
			if err := disks.Release(ctx, w.store, sb.GetID()); err != nil {
				t.Fatal(err)
			}
			if err := entity.Delete(ctx, w.store, sb); err != nil {
				t.Fatal(err)
			}
			got, err := entity.Get[disk.Disk](ctx, w.store, d.ID)
			if err != nil {
				t.Fatal(err)
			}
			if tc.want[:min(4, len(tc.want))] == "open" && got.Status.Home != string(b.ID) {
				t.Errorf("its home is %q", got.Status.Home)
			}
			if err := entity.Delete(ctx, w.store, got); err != nil {
				t.Fatal(err)
			}
		})
	}
}
