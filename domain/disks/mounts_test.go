package disks_test

import (
	"sync"
	"testing"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
)

// env is a store with a ready disk.
type env struct {
	t       *testing.T
	store   entity.Store
	project schema.ID
	disk    *disk.Disk
}

func newEnv(t *testing.T) *env {
	t.Helper()
	e := &env{t: t, store: pgtest.Store(t, api.Kinds()...)}
	if err := projects.Ensure(t.Context(), e.store, projects.Default); err != nil {
		t.Fatal(err)
	}
	var err error
	if e.project, err = projects.Find(t.Context(), e.store, ""); err != nil {
		t.Fatal(err)
	}
	e.disk = disk.NewDisk()
	e.disk.Project, e.disk.Name, e.disk.Spec.SizeBytes = e.project, "data", disk.MinSize
	e.create(e.disk)
	e.disk.Status.Volume, e.disk.Status.Phase = "v", disk.DiskPhaseReady
	if err := entity.UpdateStatus(t.Context(), e.store, e.disk); err != nil {
		t.Fatal(err)
	}
	return e
}

func (e *env) create(o schema.Object) {
	e.t.Helper()
	if err := entity.Create(e.t.Context(), e.store, o); err != nil {
		e.t.Fatal(err)
	}
}

func (e *env) node(name string) id.Node {
	e.t.Helper()
	n := core.NewNode()
	n.Name, n.Spec.Arch, n.Spec.CPUMillis, n.Spec.MemoryBytes = name, "amd64", 1000, 1<<30
	e.create(n)
	return n.GetID()
}

func (e *env) sandbox(n id.Node) *sandbox.Sandbox {
	e.t.Helper()
	sb := sandbox.NewSandbox()
	sb.Project, sb.Spec.Node, sb.Spec.Template.Image = e.project, n, "image"
	e.create(sb)
	return sb
}

func (e *env) claim(sb *sandbox.Sandbox, readOnly bool) error {
	_, err := disks.Claim(e.t.Context(), e.store, sb, disks.Volume{Disk: e.disk.GetID(), Path: "/data", ReadOnly: readOnly})
	return err
}

func (e *env) refused(what string, err error, reason string) {
	e.t.Helper()
	if !errs.Is(err, errs.FailedPrecondition) || errs.Detail(err, "reason") != reason {
		e.t.Errorf("%s: %v (%s), want a refusal with reason %s", what, err, errs.Detail(err, "reason"), reason)
	}
}

// TestOneSandboxWrites has many sandboxes claim a disk at the same moment: one
// may write, all others are refused, and readers come in beside it.
func TestOneSandboxWrites(t *testing.T) {
	e := newEnv(t)
	n := e.node("n")
	var all []*sandbox.Sandbox
	for range 8 {
		all = append(all, e.sandbox(n))
	}
	got := make([]error, len(all))
	var wg sync.WaitGroup
	for i, sb := range all {
		wg.Go(func() { got[i] = e.claim(sb, false) })
	}
	wg.Wait()
	writer := -1
	for i, err := range got {
		switch {
		case err == nil && writer >= 0:
			t.Errorf("sandboxes %d and %d may both write", writer, i)
		case err == nil:
			writer = i
		default:
			e.refused("another writer", err, "has_writer")
		}
	}
	if writer < 0 {
		t.Fatal("no sandbox may write")
	}
	for i, sb := range all {
		if err := e.claim(sb, i != writer); err != nil { // repeated, or as a reader
			t.Errorf("sandbox %d: %v", i, err)
		}
	}
	mounts, err := disks.Mounts(t.Context(), e.store, e.disk.GetID())
	if err != nil || len(mounts) != len(all) {
		t.Fatalf("%d mounts, %v", len(mounts), err)
	}
	if err := disks.Release(t.Context(), e.store, all[writer].GetID()); err != nil {
		t.Fatal(err)
	}
	if err := e.claim(all[(writer+1)%len(all)], false); err != nil {
		t.Errorf("a writer after the first one: %v", err)
	}
}

// TestClaimRefused: a disk of another node, one that is being deleted, and one of
// another project cannot be mounted.
func TestClaimRefused(t *testing.T) {
	e := newEnv(t)
	one, two := e.node("one"), e.node("two")
	if err := e.claim(e.sandbox(one), true); err != nil {
		t.Fatal(err)
	}
	e.refused("a reader on another node", e.claim(e.sandbox(two), true), "attached_elsewhere")
	p := core.NewProject()
	p.Name = "other"
	e.create(p)
	foreign := sandbox.NewSandbox()
	foreign.Project, foreign.Spec.Node, foreign.Spec.Template.Image = p.ID, one, "image"
	e.create(foreign)
	if err := e.claim(foreign, true); !errs.Is(err, errs.NotFound) {
		t.Errorf("a sandbox of another project: %v", err)
	}
	s := &disks.Service{Store: e.store}
	e.refused("delete a mounted disk", s.Delete(t.Context(), "", "data"), "in_use")
	_, err := entity.ModifySpec(t.Context(), e.store, e.disk.GetID(), func(d *disk.Disk) error { d.Spec.Deleted = true; return nil })
	if err != nil {
		t.Fatal(err)
	}
	e.refused("a disk that is being deleted", e.claim(e.sandbox(one), true), "deleted")
	_, err = s.Clone(t.Context(), disks.CloneRequest{Source: "data", Name: "copy"})
	e.refused("clone of a disk that is being deleted", err, "deleted")
}
