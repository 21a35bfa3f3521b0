package deployment_test

import (
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/schema"
)

// writer returns the sandbox that writes to the only disk, and nil if none does.
func (e *env) writer() *sandbox.Sandbox {
	e.Helper()
	mounts := list(e, func(m *disk.DiskMount) bool { return !m.Spec.ReadOnly })
	if len(mounts) == 0 {
		return nil
	}
	sb, err := entity.Get[sandbox.Sandbox](e.Context(), e.store, mounts[0].Spec.Sandbox)
	if err != nil {
		e.Fatal(err)
	}
	return sb
}

// served checks that a version serves, and that its sandbox has the disk.
func (e *env) served(v schema.ID) {
	e.Helper()
	a := e.settled("shop")
	if schema.ID(a.Status.Active()) != v {
		e.Errorf("%s serves, want %s", a.Status.Active(), v)
	}
	if w := e.writer(); w == nil || schema.ID(w.Spec.AppVersion) != v {
		e.Errorf("the disk is of %+v, want version %s", w, v)
	}
}

// TestDiskIsHandedOver: the first deployment creates the disk. Later ones, a restart
// and a rollback stop the sandbox that writes to it before they make the next one.
func TestDiskIsHandedOver(t *testing.T) {
	e := newEnv(t)
	e.control(e.store)
	first := e.succeed(e.deploy("shop", e.source("ok", "web@data=ok", "reader<data=ok")))
	e.served(schema.ID(first.Status.Version))
	all := list(e, func(*disk.Disk) bool { return true })
	if len(all) != 1 || all[0].Name != "data" || all[0].Spec.SizeBytes != 64<<20 {
		t.Fatalf("disks %+v", all)
	}
	if n := len(list(e, func(m *disk.DiskMount) bool { return m.Spec.ReadOnly && m.Spec.Path == "/data" })); n != 1 {
		t.Errorf("%d readers", n)
	}
	for _, begin := range []func() (*app.Deployment, error){
		func() (*app.Deployment, error) {
			return e.deploy("shop", e.source("ok", "web@data=ok", "reader<data=ok")), nil
		},
		func() (*app.Deployment, error) {
			return e.apps.Restart(t.Context(), "", "shop", apps.DeployRequest{})
		},
		func() (*app.Deployment, error) {
			return e.apps.Rollback(t.Context(), "", "shop", "v1", apps.DeployRequest{})
		},
	} {
		before := e.writer()
		d, err := begin()
		if err != nil {
			t.Fatal(err)
		}
		d = e.succeed(d)
		e.served(schema.ID(d.Status.Version))
		if len(d.Status.Yielded) != 1 || d.Status.Yielded[0].Disk != "data" {
			t.Errorf("yielded %+v", d.Status.Yielded)
		}
		old, err := entity.Get[sandbox.Sandbox](t.Context(), e.store, before.ID)
		if err != nil {
			t.Fatal(err)
		}
		if w := e.writer(); old.Status.EndedAt == nil || w.CreatedAt.Before(*old.Status.EndedAt) {
			t.Errorf("a sandbox was created at %s, the one before ended at %v", w.CreatedAt, old.Status.EndedAt)
		}
	}
	if n := len(list(e, func(*disk.Disk) bool { return true })); n != 1 {
		t.Errorf("%d disks", n)
	}
}

// TestDeclaredSnapshots: a disk has the schedule that the version that serves
// declares. A version that fails and one that declares none change nothing.
func TestDeclaredSnapshots(t *testing.T) {
	e := newEnv(t)
	e.control(e.store)
	schedule := func(times string, keep int64) *disk.Disk {
		t.Helper()
		all := list(e, func(*disk.Disk) bool { return true })
		if len(all) != 1 || all[0].Spec.SnapshotSchedule != times || all[0].Spec.SnapshotKeep != keep || all[0].Spec.SnapshotSince == nil {
			t.Fatalf("disks %+v", all)
		}
		return all[0]
	}
	e.succeed(e.deploy("shop", e.source("ok", "web@kept=ok")))
	since := *schedule("@daily", 1).Spec.SnapshotSince
	e.phase(e.deploy("shop", e.source("ok", "web@kept=crash", "worker=ok")), app.DeploymentPhaseFailed)
	schedule("@daily", 1)
	e.succeed(e.deploy("shop", e.source("ok", "web@kept=ok", "worker=ok")))
	d := schedule("@daily", 2)
	if !d.Spec.SnapshotSince.Equal(since) {
		t.Errorf("the times count from %s, before from %s", d.Spec.SnapshotSince, since)
	}
	e.succeed(e.deploy("shop", e.source("ok", "web@kept=ok", "worker=ok")))
	if again := schedule("@daily", 2); again.Revision != d.Revision {
		t.Errorf("the same schedule was written again")
	}
	if _, err := entity.ModifySpec(t.Context(), e.store, d.GetID(), func(d *disk.Disk) error {
		d.Spec.SnapshotSchedule = "@hourly"
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	e.succeed(e.deploy("shop", e.source("ok", "web=ok")))
	schedule("@hourly", 2)
	back, err := e.apps.Rollback(t.Context(), "", "shop", "v1", apps.DeployRequest{})
	if err != nil {
		t.Fatal(err)
	}
	e.succeed(back)
	schedule("@daily", 1)
}

// TestFailedVersionGivesDiskBack: a version that fails or is cancelled after the old
// one has stopped gives back the disk.
func TestFailedVersionGivesDiskBack(t *testing.T) {
	e := newEnv(t)
	e.control(e.store)
	first := e.succeed(e.deploy("shop", e.source("ok", "web@data=ok")))
	e.phase(e.deploy("shop", e.source("ok", "web@data=crash")), app.DeploymentPhaseFailed)
	e.served(schema.ID(first.Status.Version))

	d := e.deploy("shop", e.source("ok", "web@data=gate"))
	e.eventually("the new version has the disk", func() bool {
		w := e.writer()
		return w != nil && w.Spec.AppVersion == e.get(d).Status.Version
	})
	if _, err := e.apps.Cancel(t.Context(), "", "shop"); err != nil {
		t.Fatal(err)
	}
	e.phase(d, app.DeploymentPhaseCanceled)
	e.served(schema.ID(first.Status.Version))
}

// TestDiskIsTakenLast: the old version keeps its disk until the services without one
// are ready.
func TestDiskIsTakenLast(t *testing.T) {
	e := newEnv(t)
	e.control(e.store)
	first := e.succeed(e.deploy("shop", e.source("ok", "web=ok", "db@data=ok")))
	d := e.deploy("shop", e.source("ok", "web=gate", "db@data=ok"))
	e.eventually("the new web service runs", func() bool {
		v := e.get(d).Status.Version
		return len(list(e, func(sb *sandbox.Sandbox) bool {
			return sb.Spec.AppVersion == v && sb.Status.Phase == sandbox.SandboxPhaseRunning
		})) > 0
	})
	if w := e.writer(); w == nil || w.Spec.AppVersion != first.Status.Version || w.Spec.Desired != sandbox.DesiredStateRunning {
		t.Errorf("the disk is of %+v", w)
	}
	e.gate.Store(true)
	d = e.succeed(d)
	e.served(schema.ID(d.Status.Version))
}

// TestUnusableDisks: a deployment whose disk does not exist, cannot be made, or is
// written to by another sandbox fails before the old version stops.
func TestUnusableDisks(t *testing.T) {
	e := newEnv(t)
	e.control(e.store)
	first := e.succeed(e.deploy("shop", e.source("ok", "web@data=ok")))
	fails := func(d *app.Deployment, message, hint string) {
		t.Helper()
		d = e.phase(d, app.DeploymentPhaseFailed)
		if f := d.Status.Failure; f.Reason != app.FailureReasonVolume || f.Service != "web" || !strings.Contains(f.Message, message) || !strings.Contains(f.Hint, hint) {
			t.Errorf("failure %+v", f)
		}
		if len(d.Status.Yielded) > 0 {
			t.Errorf("yielded %+v", d.Status.Yielded)
		}
	}
	fails(e.deploy("shop", e.source("ok", "web@absent=ok")), "there is no disk absent", "r disk create absent")
	fails(e.deploy("shop", e.source("ok", "web@bad=ok")), "the store refuses the volume", "r disk delete bad")
	e.served(schema.ID(first.Status.Version))

	fails(e.deploy("blog", e.source("ok", "web@data=ok")), "app shop writes to disk data (sandbox "+string(e.writer().ID), "read_only = true")
	e.succeed(e.deploy("blog", e.source("ok", "web<data=ok")))

	service := &disks.Service{Store: e.store}
	if err := service.Delete(t.Context(), "", "data"); err == nil || !strings.Contains(err.Error(), "used by app blog, shop") {
		t.Errorf("deletion of a disk that apps use: %v", err)
	}
}

// TestDiskIsNotReleased: a deployment waits for the sandbox that has the disk as long
// as that may take to stop, and then fails. The old version serves again.
func TestDiskIsNotReleased(t *testing.T) {
	e := newEnv(t)
	e.control(e.store)
	first := e.succeed(e.deploy("shop", e.source("ok", "web@data=stuck")))
	d := e.deploy("shop", e.source("ok", "web@data=ok"))
	e.eventually("the old version was told to stop", func() bool { return len(e.get(d).Status.Yielded) == 1 })
	if n := len(list(e, func(p *sandbox.SandboxPool) bool { return p.Spec.AppVersion == e.get(d).Status.Version })); n > 0 {
		t.Errorf("the new version has %d pools", n)
	}
	e.advance(2 * time.Minute)
	d = e.phase(d, app.DeploymentPhaseFailed)
	if f := d.Status.Failure; f.Reason != app.FailureReasonTimeout || !strings.Contains(f.Message, "has not released disk data") || f.Hint == "" {
		t.Errorf("failure %+v", f)
	}
	e.gate.Store(true)
	e.served(schema.ID(first.Status.Version))
}

// TestDeploymentThatTookOverGivesDiskBack: a deployment that stopped the old version
// loses its lease to another one; that one fails and restores the old version.
func TestDeploymentThatTookOverGivesDiskBack(t *testing.T) {
	e := newEnv(t)
	stop := e.control(e.store)
	first := e.succeed(e.deploy("shop", e.source("ok", "web@data=ok")))
	d := e.deploy("shop", e.source("ok", "web@data=gate"))
	e.eventually("the old version was told to stop", func() bool { return len(e.get(d).Status.Yielded) == 1 })
	stop()
	lease, err := apps.LeaseOf(t.Context(), e.store, e.app("shop").GetID())
	if err != nil {
		t.Fatal(err)
	}
	if err := e.store.Revoke(t.Context(), lease.Lease); err != nil {
		t.Fatal(err)
	}
	next := e.deploy("shop", e.source("fail", "web@data=ok"))
	e.control(e.store)
	e.phase(next, app.DeploymentPhaseFailed)
	if d = e.phase(d, app.DeploymentPhaseFailed); d.Status.Failure.Reason != app.FailureReasonLease {
		t.Errorf("failure %+v", d.Status.Failure)
	}
	e.served(schema.ID(first.Status.Version))
}
