package rpcserver_test

import (
	"io"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/controllers/kit/kittest"
	controller "miren.dev/runtime/controllers/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/executiontest"
	"miren.dev/runtime/testsupport/executiontest/fake"
	"miren.dev/runtime/testsupport/wait"
)

// copiesOf are the copies that a node makes.
func (e *env) copiesOf(m *fake.Machine) controller.Copies {
	return controller.Copies{SnapshotCopier: m.Driver(), Objects: func(store, snapshot string) (execution.Objects, error) {
		if store != "/copies" {
			return nil, errs.New(errs.InvalidArgument, "there is no store %s", store)
		}
		return executiontest.Objects{Store: &e.objects, Prefix: snapshot + "/"}, nil
	}}
}

func (e *env) copied() (keys []string) {
	e.Helper()
	for i, err := range e.objects.List(e.ctx(), "") {
		e.must(err)
		keys = append(keys, i.Key)
	}
	return keys
}

// otherNode is a second node, with its own machine.
func (e *env) otherNode() (*core.Node, *fake.Machine) {
	e.Helper()
	n := core.NewNode()
	n.Name, n.Spec.Arch, n.Spec.CPUMillis, n.Spec.MemoryBytes, n.Status.Phase = "other", "amd64", 1000_000, 1<<40, core.NodePhaseReady
	e.create(n)
	m, log := fake.NewMachine(), slog.New(slog.NewTextHandler(io.Discard, nil))
	rec := &controller.Reconciler{Driver: m.Driver(), Node: n.GetID(), Logger: log, Copies: e.copiesOf(m)}
	rec.Store = kittest.Hold(e, e.store.Store, rec.Controller())
	snapshotRec := &controller.Reconciler{Driver: m.Driver(), Node: n.GetID(), Logger: log, Copies: rec.Copies}
	snapshots := (&controller.Snapshots{Sandboxes: snapshotRec, Logger: log}).Controller()
	snapshotRec.Store = kittest.Hold(e, e.store.Store, snapshots)
	_, stop := kittest.Run(e, informer.New(informer.Config{Reader: e.store.Store}), kit.Config{StopGrace: time.Millisecond, Logger: log}, rec.Controller(), snapshots)
	e.Cleanup(func() {
		stop()
		for _, sid := range m.IDs() {
			m.Vanish(sid)
		}
	})
	return n, m
}

// TestForkOnAnotherNode: a snapshot with a copy is forked on another node while its own takes no sandboxes. Its
// deletion deletes the copy, and what the other node has of it.
func TestForkOnAnotherNode(t *testing.T) {
	e := newEnv(t)
	other, machine := e.otherNode()
	sb := e.run("sleep")
	resp, err := e.sandboxes.Snapshot(e.ctx(), &sandbox.SnapshotRequest{Sandbox: sb.GetID(), Name: "copied", Store: "/copies"})
	e.must(err)
	snap, err := entity.Decode[sandbox.Snapshot](&resp.Snapshot)
	e.must(err)
	if snap.Status.CopySum == "" || snap.Status.CopyBytes == 0 || snap.Status.Message != "" || len(e.copied()) != 2 {
		t.Fatalf("%+v, objects %v", snap.Status, e.copied())
	}
	_, err = entity.ModifySpec(e.ctx(), e.store.Store, e.node, func(n *core.Node) error { n.Spec.Cordoned = true; return nil })
	e.must(err)
	placed := make(chan struct{})
	go func() {
		defer close(placed)
		wait.For(e.T, "the fork may be placed anywhere", func() bool {
			list, _, err := entity.List[sandbox.Sandbox](e.ctx(), e.store.Store, entity.Query{})
			for _, f := range list {
				if f.Spec.Restore == string(snap.ID) && f.Spec.OnlyNode == "" {
					f.Spec.Node = other.GetID()
					return err == nil && entity.UpdateSpec(e.ctx(), e.store.Store, f) == nil
				}
			}
			return false
		})
	}()
	forks, err := e.sandboxes.Fork(e.ctx(), &sandbox.ForkRequest{Snapshot: snap.GetID()})
	e.must(err)
	<-placed
	f, err := entity.Decode[sandbox.Sandbox](&forks.Sandboxes[0])
	e.must(err)
	if spec, ok := machine.Spec(string(f.ID)); !ok || spec.Restore != string(snap.ID) {
		t.Errorf("on the other node: %+v", spec)
	}
	e.must(e.sandboxes.DeleteSnapshot(e.ctx(), &sandbox.DeleteSnapshotRequest{Snapshot: snap.GetID()}))
	wait.For(t, "the snapshot, its copy and what its node has are gone", func() bool {
		_, err := entity.Get[sandbox.Snapshot](e.ctx(), e.store.Store, snap.ID)
		return errs.Is(err, errs.NotFound) && len(e.copied()) == 0 && !slices.Contains(e.snapshotNames(), string(snap.ID))
	})
	_, err = e.sandboxes.Fork(e.ctx(), &sandbox.ForkRequest{Snapshot: snap.GetID()})
	e.class("a deleted snapshot", err, errs.NotFound)
}

// TestNoCopyOfASnapshotOnARunner: it has no credentials of object stores.
func TestNoCopyOfASnapshotOnARunner(t *testing.T) {
	e := newEnv(t)
	sb := e.run("sleep")
	_, err := entity.ModifySpec(e.ctx(), e.store.Store, e.node, func(n *core.Node) error { n.Spec.Runner = true; return nil })
	e.must(err)
	_, err = e.sandboxes.Snapshot(e.ctx(), &sandbox.SnapshotRequest{Sandbox: sb.GetID(), Store: "/copies"})
	e.class("a copy", err, errs.FailedPrecondition)
	if n := len(e.snapshotNames()) + len(e.copied()); n != 0 {
		t.Errorf("%d snapshots and objects are left", n)
	}
	_, err = e.sandboxes.Snapshot(e.ctx(), &sandbox.SnapshotRequest{Sandbox: sb.GetID()})
	e.must(err)
}

// TestSnapshotCopyFails: a snapshot whose copy fails is none. While the store does not answer, the copy is tried again.
func TestSnapshotCopyFails(t *testing.T) {
	e := newEnv(t)
	sb := e.run("sleep")
	_, err := e.sandboxes.Snapshot(e.ctx(), &sandbox.SnapshotRequest{Sandbox: sb.GetID(), Store: "/elsewhere"})
	e.class("a store that does not exist", err, errs.FailedPrecondition)
	wait.For(t, "the failed one is gone", func() bool {
		list, _, err := entity.List[sandbox.Snapshot](e.ctx(), e.store.Store, entity.Query{})
		return err == nil && len(list) == 0 && len(e.snapshotNames()) == 0
	})
	var n atomic.Int64
	e.machine.SetHook(func(op, _ string, after bool) error {
		if op == "CopySnapshot" && !after && n.Add(1) <= 2 {
			return errAway
		}
		return nil
	})
	resp, err := e.sandboxes.Snapshot(e.ctx(), &sandbox.SnapshotRequest{Sandbox: sb.GetID(), Store: "/copies"})
	e.must(err)
	snap, err := entity.Decode[sandbox.Snapshot](&resp.Snapshot)
	e.must(err)
	if n.Load() != 3 || snap.Status.Phase != sandbox.SnapshotPhaseReady || snap.Status.Message != "" {
		t.Errorf("after %d attempts: %+v", n.Load(), snap.Status)
	}
}
