package sandbox_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/id"
	api_sandbox "miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/entity"
)

// noMounts is Disks without a block device.
type noMounts struct{}

func (noMounts) Mounts(context.Context, *Sandbox, []disks.Volume) ([]execution.Mount, error) {
	return nil, nil
}

func (noMounts) Release(context.Context, id.Sandbox) error { return nil }

// TestLostDisk: a sandbox ends as soon as the block device of one of its disks is known to be lost, and says so.
func TestLostDisk(t *testing.T) {
	e := newEnv(t)
	e.disks = noMounts{}
	d := disk.NewDisk()
	d.Project, d.Name, d.Spec.SizeBytes = e.project, "data", disk.MinSize
	e.must(entity.Create(t.Context(), e.store.Store, d))
	e.control(e.store)
	var mounts []*disk.DiskMount
	var all []*Sandbox
	for _, path := range []string{"/data", "/kept"} {
		sb := e.add(func(sb *Sandbox) {
			sb.Spec.Template.Volumes = []api_sandbox.Volume{{Disk: d.GetID(), Path: path, ReadOnly: true}}
		}, "sleep")
		m := disk.NewDiskMount()
		m.Project = e.project
		m.Spec = disk.DiskMountSpec{Disk: d.GetID(), Sandbox: sb.GetID(), Node: e.node, Path: path, ReadOnly: true}
		e.must(entity.Create(t.Context(), e.store.Store, m))
		e.phase(sb, api_sandbox.SandboxPhaseRunning)
		all, mounts = append(all, sb), append(mounts, m)
	}
	now := time.Now()
	mounts[0].Status.LostAt = &now
	e.must(entity.UpdateStatus(t.Context(), e.store.Store, mounts[0]))
	got := e.phase(all[0], api_sandbox.SandboxPhaseStopped)
	if got.Status.Reason != api_sandbox.EndReasonDisk || !strings.Contains(got.Status.Message, "its disk at /data was lost") {
		t.Errorf("it ended by %s: %s", got.Status.Reason, got.Status.Message)
	}
	if got := e.get(all[1]); got.Status.Phase != api_sandbox.SandboxPhaseRunning {
		t.Errorf("the other one: %+v", got.Status)
	}
}
