package disk_test

import (
	"os"
	"path/filepath"
	"testing"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/machine"
	"miren.dev/runtime/components/filesystem"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/leakcheck"
	"miren.dev/runtime/testsupport/wait"
)

// TestDiskIsTakenOver: a second node is refused a disk that a sandbox of the first
// one has, and takes it over when the first is down. It has what the store had,
// and the disk says how much may be lost.
func TestDiskIsTakenOver(t *testing.T) {
	n := newNode(t)
	ctx := t.Context()
	if _, err := n.disks.Create(ctx, disks.CreateRequest{Name: "data", SizeBytes: size, Store: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	d := n.detached("data")
	if d.Status.Home != "" {
		t.Errorf("the home of a disk that is detached is %s", d.Status.Home)
	}
	volume := disks.Volume{Disk: d.GetID(), Path: "/data"}
	first := n.run(volume)
	n.guest(first, "put", "/data/file", "of the first node")
	if _, err := n.disks.Snapshot(ctx, "", "data", "sent"); err != nil { // the store has every write
		t.Fatal(err)
	}
	n.stop()

	other := core.NewNode()
	other.Name, other.Spec.Arch, other.Spec.CPUMillis, other.Spec.MemoryBytes = "other", "amd64", 1000, 1<<30
	if err := entity.Create(ctx, n.store, other); err != nil {
		t.Fatal(err)
	}
	in := leakcheck.Installation(t)
	ctl, _, _, err := control(n.store, in, other.GetID(), n.Logger)
	if err != nil {
		t.Fatal(err)
	}
	sb := sandbox.NewSandbox()
	sb.Project, sb.Spec.Node, sb.Spec.Template.Image = n.project, other.GetID(), n.Image
	if err := entity.Create(ctx, n.store, sb); err != nil {
		t.Fatal(err)
	}
	refusal := func(what string) {
		t.Helper()
		if _, err := ctl.Mounts(ctx, sb, []disks.Volume{volume}); errs.Detail(err, "reason") != "attached_elsewhere" {
			t.Errorf("%s: %v", what, err)
		}
	}
	refusal("its sandbox runs")
	_, err = entity.ModifyStatus(ctx, n.store, first.GetID(), func(s *sandbox.Sandbox) error { s.Status.Phase = sandbox.SandboxPhaseFailed; return nil })
	if err != nil {
		t.Fatal(err)
	}
	refusal("its node is not down")
	_, err = entity.ModifyStatus(ctx, n.store, n.id, func(n *core.Node) error { n.Status.Phase = core.NodePhaseDown; return nil })
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := ctl.Mounts(ctx, sb, []disks.Volume{volume})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(mounts[0].Source, "file")); err != nil || string(got) != "of the first node" {
		t.Errorf("the other node reads %q, %v", got, err)
	}
	if d = n.get("data"); d.Status.Node != other.GetID() || d.Status.Home != string(other.ID) || d.Status.TakenOverAt == nil {
		t.Errorf("after the takeover: %+v", d.Status)
	}
	if s := d.Status; s.LostBytes == nil || s.LostMostBytes == nil || *s.LostMostBytes < 1<<30 || s.LostReportedAt == nil || s.ReportedAt == nil || !s.ReportedAt.After(*s.LostReportedAt) {
		t.Errorf("what the takeover lost: %+v", d.Status)
	}

	// The first node comes back: its sandbox ends, and it gives up the disk.
	if err := n.Driver.Delete(ctx, string(first.ID)); err != nil {
		t.Error(err)
	}
	if err := n.Driver.DeleteLogs(ctx, string(first.ID)); err != nil {
		t.Error(err)
	}
	n.start()
	wait.For(t, "the first node has no mount of the disk", func() bool {
		device, err := filesystem.Device(filepath.Join(n.Instance.DiskMounts(), string(d.ID)))
		return err == nil && device == ""
	})
	if got, err := os.ReadFile(filepath.Join(mounts[0].Source, "file")); err != nil || string(got) != "of the first node" {
		t.Errorf("then the other node reads %q, %v", got, err)
	}

	if err := ctl.Release(ctx, sb.GetID()); err != nil {
		t.Fatal(err)
	}
	if _, err := ctl.Reconcile(ctx, d.ID); err != nil {
		t.Fatal(err)
	}
	if d = n.get("data"); d.Status.Node != "" || d.Status.Home != "" {
		t.Errorf("after the other node has detached it: %+v", d.Status)
	}
	args := []string{"lsvd", "daemon", "--stop", "--state-dir", in.StateDir, "--run-dir", filepath.Dir(in.RunDir)}
	if code := cli.Main(args, console.Std(), machine.Commands); code != 0 {
		t.Errorf("stop the other disk daemon: code %d", code)
	}
}
