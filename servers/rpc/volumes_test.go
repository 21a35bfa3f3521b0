package rpcserver_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/wait"
)

// nodeDisks are the disks of a simulated node.
type nodeDisks struct {
	store entity.Store
	mu    sync.Mutex
	away  atomic.Int64 // so many next calls find that the store of the disk does not answer
}

func (n *nodeDisks) Mounts(ctx context.Context, sb *sandbox.Sandbox, volumes []disks.Volume) ([]execution.Mount, error) {
	var out []execution.Mount
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, v := range volumes {
		if _, err := disks.Claim(ctx, n.store, sb, v); err != nil {
			return nil, err
		}
		if n.away.Add(-1) >= 0 {
			return nil, errAway
		}
		out = append(out, execution.Mount{Source: "/disks/" + string(v.Disk), Target: v.Path, ReadOnly: v.ReadOnly})
	}
	return out, nil
}

func (n *nodeDisks) Release(ctx context.Context, sb id.Sandbox) error {
	return disks.Release(ctx, n.store, sb)
}

// disk makes a disk that is ready.
func (e *env) disk(name string) *disk.Disk {
	e.Helper()
	d := disk.NewDisk()
	d.Project, d.Name, d.Spec.SizeBytes, d.Status.Phase = e.project, name, 64<<20, disk.DiskPhaseReady
	e.create(d)
	return d
}

func (e *env) mountsOf(d *disk.Disk) []*disk.DiskMount {
	e.Helper()
	list, err := disks.Mounts(e.ctx(), e.store.Store, d.GetID())
	e.must(err)
	return list
}

// TestClaimBringsVolumes: a warm sandbox gets the volumes of its claim. One that cannot have
// them is left for the next claim.
func TestClaimBringsVolumes(t *testing.T) {
	e := newEnv(t)
	_, warm := e.pool(2)
	d := e.disk("data")
	volumes := []sandbox.VolumeRequest{{Disk: "data", Path: "/data"}}
	sb := e.claim(sandbox.RunRequest{Volumes: volumes})
	if sb.Spec.Origin != sandbox.SandboxOriginPool {
		t.Fatalf("%+v", sb.Spec)
	}
	want := execution.Mount{Source: "/disks/" + string(d.ID), Target: "/data"}
	if c := e.machine.Claim(string(sb.ID)); !slices.Equal(c.Mounts, []execution.Mount{want}) {
		t.Errorf("configured with %+v", c)
	}
	if m := e.mountsOf(d); len(m) != 1 || m[0].Spec.Sandbox != sb.GetID() {
		t.Errorf("mounts: %+v", m)
	}
	// The disk has a writer. No warm sandbox is taken for a request that fails.
	if next := e.claim(sandbox.RunRequest{Volumes: volumes}); next.Spec.Origin != sandbox.SandboxOriginCold {
		t.Errorf("a second writer: %+v", next.Spec)
	}
	// A reader shares its node.
	volumes[0].ReadOnly = ptr(true)
	reader := e.claim(sandbox.RunRequest{Volumes: volumes})
	if reader.Spec.Origin != sandbox.SandboxOriginPool || !slices.ContainsFunc(warm, func(w *sandbox.Sandbox) bool { return w.ID == reader.ID }) {
		t.Errorf("a reader: %+v", reader.Spec)
	}
	_, err := e.sandboxes.Stop(e.ctx(), &sandbox.StopRequest{Sandbox: sb.GetID(), Wait: ptr(true)})
	e.must(err)
	wait.For(t, "the disk of the stopped sandbox is released", func() bool {
		m := e.mountsOf(d)
		return len(m) == 1 && m[0].Spec.Sandbox == reader.GetID()
	})
}

// claimPassesOverRunners: what runners cannot do is not given to a warm sandbox
// on one. TestThroughARunner runs it.
func claimPassesOverRunners(t *testing.T) {
	e := newEnv(t)
	e.pool(1)
	e.disk("data")
	_, err := entity.ModifySpec(e.ctx(), e.store.Store, e.node, func(n *core.Node) error { n.Spec.Runner = true; return nil })
	e.must(err)
	if sb := e.claim(sandbox.RunRequest{Volumes: []sandbox.VolumeRequest{{Disk: "data", Path: "/data"}}}); sb.Spec.Origin != sandbox.SandboxOriginCold {
		t.Errorf("with a disk: %+v", sb.Spec)
	}
	if sb := e.claim(sandbox.RunRequest{}); sb.Spec.Origin != sandbox.SandboxOriginPool {
		t.Errorf("without one: %+v", sb.Spec)
	}
}

// TestVolumesThatAWarmSandboxCannotHave: while a disk cannot be attached, warm sandboxes are
// discarded, and a cold one gets the disk.
func TestVolumesThatAWarmSandboxCannotHave(t *testing.T) {
	e := newEnv(t)
	_, warm := e.pool(1)
	d := e.disk("data")
	e.disks.away.Store(1 << 20)
	sb := e.claim(sandbox.RunRequest{Volumes: []sandbox.VolumeRequest{{Disk: "data", Path: "/data"}}})
	if sb.Spec.Origin != sandbox.SandboxOriginCold {
		t.Fatalf("%+v", sb.Spec)
	}
	e.disks.away.Store(0)
	wait.For(t, "the warm sandbox is discarded, and its mount", func() bool {
		_, err := entity.Get[sandbox.Sandbox](e.ctx(), e.store.Store, warm[0].ID)
		return errs.Is(err, errs.NotFound) && len(e.mountsOf(d)) == 0
	})
	e.place(sb)
	if sb = e.until(sb, sandbox.WaitUntilReady); len(e.mountsOf(d)) != 1 {
		t.Errorf("%+v, mounts %+v", sb.Status, e.mountsOf(d))
	}
}

// A server that is killed between the transaction and the call to the node leaves a claim,
// whose volumes the node's controller mounts.
func TestControllerCompletesAClaimOfVolumes(t *testing.T) {
	e := newEnv(t)
	_, warm := e.pool(1)
	d, sb, now := e.disk("data"), warm[0], time.Now().Add(-time.Minute)
	sb.Spec.WarmPool, sb.Spec.Claim, sb.Spec.ClaimedAt = "", "claim-1", &now
	sb.Project, sb.Spec.Template.Volumes = e.project, []sandbox.Volume{{Disk: d.GetID(), Path: "/data"}}
	e.disks.away.Store(1)
	e.must(entity.UpdateSpec(e.ctx(), e.store.Store, sb))
	wait.For(t, "the sandbox is configured", func() bool { return len(e.machine.Claim(string(sb.ID)).Mounts) == 1 })
	if m := e.mountsOf(d); len(m) != 1 || schema.ID(m[0].Spec.Sandbox) != sb.ID {
		t.Errorf("mounts: %+v", m)
	}
}
