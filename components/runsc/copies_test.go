package runsc_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/lsvd/store"
	dirstore "miren.dev/runtime/lsvd/store/dir"
	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/executiontest"
	"miren.dev/runtime/testsupport/runsctest"
)

// objects are the objects of a copy.
type objects struct{ executiontest.Objects }

func (o *objects) keys(t *testing.T) (keys []string) {
	t.Helper()
	for i, err := range o.List(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, i.Key)
	}
	return keys
}

// change replaces an object of a store.
func change(t *testing.T, s store.Store, key string, f func([]byte) []byte) (undo func()) {
	t.Helper()
	old, version, err := s.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if version, err = s.Replace(t.Context(), key, f(bytes.Clone(old)), version); err != nil {
		t.Fatal(err)
	}
	return func() {
		if _, err := s.Replace(t.Context(), key, old, version); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSnapshotCopies copies a snapshot to a store and makes sandboxes of it on another node, which has
// neither the snapshot nor its agent. A copy that is damaged, or is not of this snapshot, or of another
// version of runsc or CPU, becomes no snapshot.
func TestSnapshotCopies(t *testing.T) {
	m, other := machine{runsctest.New(t)}, machine{runsctest.New(t)}
	s := m.spec("counter", "count", "/tmp/count")
	m.ensure(t, s)
	m.counts(t, s.ID, 5)
	before, _ := m.counted(t, s.ID) // the forks go on from the snapshot
	m.snapshot(t, s.ID, "image", true)
	m.delete(t, s.ID)

	o := &objects{executiontest.Objects{Store: new(storesim.Mem)}}
	if err := other.Driver.FetchSnapshot(t.Context(), "image", "", o); !errs.Is(err, errs.NotFound) {
		t.Errorf("before there is a copy: %v", err)
	}
	copied, err := m.Driver.CopySnapshot(t.Context(), "image", o)
	if err != nil {
		t.Fatal(err)
	}
	again, err := m.Driver.CopySnapshot(t.Context(), "image", o)
	if err != nil || again != copied || copied.Bytes <= 0 {
		t.Errorf("copied %+v, then %+v, %v", copied, again, err)
	}
	if _, err := m.Driver.CopySnapshot(t.Context(), "unknown", o); !errs.Is(err, errs.NotFound) {
		t.Errorf("a copy of no snapshot: %v", err)
	}
	keys := o.keys(t)

	refused := func(what, sum string, class errs.Class) {
		t.Helper()
		if err := other.Driver.FetchSnapshot(t.Context(), "image", sum, o); !errs.Is(err, class) {
			t.Errorf("%s: %v", what, err)
		}
		if left, err := os.ReadDir(other.Instance.State("snapshots")); err != nil || len(left) > 0 {
			t.Errorf("%s: left %v, %v", what, left, err)
		}
	}
	refused("another sum", strings.Repeat("0", 64), errs.Corrupt)
	chunk := keys[0]
	undo := change(t, o.Store, chunk, func(b []byte) []byte { return append(b[:len(b)-1], b[len(b)-1]^1) })
	refused("a damaged chunk", copied.Sum, errs.Corrupt)
	undo()
	for field, value := range map[string]any{"RunscVersion": "another", "CPUFeatures": []string{"tea"}} {
		sum := ""
		undo := change(t, o.Store, "manifest", func(b []byte) []byte {
			var m map[string]any
			if err := json.Unmarshal(b, &m); err != nil {
				t.Fatal(err)
			}
			m["Record"].(map[string]any)[field] = value
			b, err := json.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			h := sha256.Sum256(b)
			sum = hex.EncodeToString(h[:])
			return b
		})
		// It is refused before anything else of the copy is read.
		hidden := change(t, o.Store, chunk, func([]byte) []byte { return nil })
		refused(field, sum, errs.FailedPrecondition)
		hidden()
		undo()
	}

	for range 2 {
		if err := other.Driver.FetchSnapshot(t.Context(), "image", copied.Sum, o); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Driver.DeleteSnapshotCopy(t.Context(), o); err != nil || len(o.keys(t)) > 0 {
		t.Errorf("after the deletion of the copy: %v, %v", o.keys(t), err)
	}
	other.Restart(t)
	fork := other.spec("fork", "count", "/tmp/count")
	fork.Restore = "image"
	other.ensure(t, fork)
	if now, host := other.counted(t, "fork"); now < before || host == "" {
		t.Errorf("the count went from %d to %d on %s", before, now, host)
	}
	other.counts(t, "fork", before)
	other.delete(t, "fork")
	other.deleteSnapshots(t)
	m.deleteSnapshots(t)
}

// sweeping sweeps the agents of a machine after each object that is read.
type sweeping struct {
	execution.Objects
	t *testing.T
	m machine
}

func (s sweeping) Get(ctx context.Context, key string) ([]byte, error) {
	b, err := s.Objects.Get(ctx, key)
	if err := s.m.Driver.SweepAgents(); err != nil {
		s.t.Error(err)
	}
	return b, err
}

// TestAgentOfAFetchedSnapshot: a fetched snapshot has its agent, also if agents that nothing uses are removed
// meanwhile; an attempt that was interrupted before it had the agent is completed.
func TestAgentOfAFetchedSnapshot(t *testing.T) {
	m, other := machine{runsctest.New(t)}, machine{runsctest.New(t)}
	s := m.spec("counter", "count", "/tmp/count")
	m.ensure(t, s)
	m.counts(t, s.ID, 3)
	m.snapshot(t, s.ID, "image", true)
	m.delete(t, s.ID)
	o := executiontest.Objects{Store: new(storesim.Mem)}
	copied, err := m.Driver.CopySnapshot(t.Context(), "image", o)
	if err != nil {
		t.Fatal(err)
	}
	agents := other.Instance.State("agents")
	for range 2 {
		if err := other.Driver.FetchSnapshot(t.Context(), "image", copied.Sum, sweeping{o, t, other}); err != nil {
			t.Fatal(err)
		}
		if have, err := os.ReadDir(agents); err != nil || len(have) != 1 {
			t.Fatalf("agents %v, %v", have, err)
		}
		if err := os.RemoveAll(agents); err != nil {
			t.Fatal(err)
		}
	}
	if err := other.Driver.FetchSnapshot(t.Context(), "image", copied.Sum, o); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(other.Instance.State("snapshots")); err != nil || len(left) != 1 {
		t.Errorf("left %v, %v", left, err)
	}
	fork := other.spec("fork", "count", "/tmp/count")
	fork.Restore = "image"
	other.ensure(t, fork)
	other.counts(t, "fork", 3)
	other.delete(t, "fork")
	other.deleteSnapshots(t)
	m.deleteSnapshots(t)
}

// TestServerKilledInCopies kills the server at every point of a copy, a fetch and a deletion. There is a whole copy
// or none, a whole snapshot or none, and the next attempt completes the work.
func TestServerKilledInCopies(t *testing.T) {
	m := machine{runsctest.New(t)}
	a := newActor(t, m)
	s := m.spec("counter", "count", "/tmp/count")
	m.ensure(t, s)
	m.counts(t, s.ID, 3)
	m.snapshot(t, s.ID, "image", true)
	m.delete(t, s.ID)
	dir := t.TempDir()
	dirStore, err := dirstore.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	o := executiontest.Objects{Store: dirStore}
	copied, err := m.Driver.CopySnapshot(t.Context(), "image", o)
	if err != nil {
		t.Fatal(err)
	}
	removed := func(t *testing.T) {
		t.Helper()
		if err := m.Driver.DeleteSnapshotCopy(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	hasCopy := func() bool {
		_, err := o.Get(t.Context(), "manifest")
		return err == nil
	}
	hasSnapshot := func(t *testing.T) bool {
		t.Helper()
		list, err := m.Driver.ListSnapshots(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(list) == 1
	}
	for _, c := range []struct {
		name  string
		args  []string
		begin func(t *testing.T)
		check func(t *testing.T)
	}{
		{"copy", []string{"copy", "image", dir}, removed, func(t *testing.T) {
			again, err := m.Driver.CopySnapshot(t.Context(), "image", o)
			if err != nil || again != copied {
				t.Errorf("the next copy is %+v, not %+v: %v", again, copied, err)
			}
		}},
		{"fetch", []string{"fetch", "image", dir, copied.Sum}, func(t *testing.T) {
			if _, err := m.Driver.CopySnapshot(t.Context(), "image", o); err != nil && hasSnapshot(t) {
				t.Fatal(err)
			}
			if err := m.Driver.DeleteSnapshot(t.Context(), "image"); err != nil {
				t.Fatal(err)
			}
		}, func(t *testing.T) {
			if err := m.Driver.FetchSnapshot(t.Context(), "image", copied.Sum, o); err != nil || !hasSnapshot(t) {
				t.Errorf("the next fetch: %v", err)
			}
			entries, err := os.ReadDir(m.Instance.State("snapshots"))
			if err != nil || len(entries) != 1 {
				t.Errorf("left %v, %v", entries, err)
			}
			fork := m.spec("fork", "count", "/tmp/count")
			fork.Restore = "image"
			m.ensure(t, fork)
			m.counts(t, "fork", 3)
			m.delete(t, "fork")
		}},
		{"delete", []string{"delete-copy", "image", dir}, func(t *testing.T) {
			if _, err := m.Driver.CopySnapshot(t.Context(), "image", o); err != nil && hasSnapshot(t) {
				t.Fatal(err)
			}
		}, func(t *testing.T) {
			if hasCopy() {
				t.Error("it has a copy")
			}
			removed(t)
			if left := (&objects{o}).keys(t); len(left) > 0 {
				t.Errorf("left %v", left)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.begin(t)
			points := a.points(t, c.args...)
			c.check(t)
			if len(points) == 0 {
				t.Fatal("no points")
			}
			for _, p := range points {
				t.Run(strings.ReplaceAll(p, "/", "-"), func(t *testing.T) {
					c.begin(t)
					if !a.run(t, p, c.args...) {
						t.Fatal("not killed")
					}
					c.check(t)
				})
			}
		})
	}
	m.deleteSnapshots(t)
}
