package host_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/catalog"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/pkg/errs"
)

var smallLogs = lsvd.Options{LogFile: 64 << 10}

// strandedEnv is a machine whose volume another one has taken over.
type strandedEnv struct {
	st       store.Store
	url      string
	mine, by *host.State
	id       lsvd.ID
}

func newStrandedEnv(t *testing.T) *strandedEnv {
	t.Helper()
	ctx, dir := t.Context(), t.TempDir()
	e := &strandedEnv{st: &storesim.Mem{}, url: "file:///store"}
	var err error
	for name, s := range map[string]**host.State{"mine": &e.mine, "by": &e.by} {
		if *s, err = host.Open(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if e.id, err = catalog.Create(ctx, e.st, "x", 1<<20, nil); err != nil {
		t.Fatal(err)
	}
	e.strand(t, 0)
	return e
}

// strand has the machine write and die, and the other one take the volume over.
func (e *strandedEnv) strand(t *testing.T, n byte) {
	t.Helper()
	crash(t, e.mine, e.st, e.spec())
	taking := e.spec()
	taking.TakeOver = true
	d, err := e.by.Open(t.Context(), e.st, taking)
	if err == nil {
		err = d.WriteAt(t.Context(), bytes.Repeat([]byte{n}, 4096), 0, 0)
	}
	if err == nil {
		err = d.Close(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (e *strandedEnv) spec() host.Spec {
	return host.Spec{Store: e.url, Volume: "x", Options: smallLogs}
}

func (e *strandedEnv) salvage(ctx context.Context, st store.Store, snapshot, as string) error {
	_, _, _, err := e.mine.Salvage(ctx, st, host.SalvageSpec{Spec: e.spec(), Snapshot: snapshot, As: as})
	return err
}

// first returns the first byte of a volume.
func (e *strandedEnv) first(t *testing.T, volume string) byte {
	t.Helper()
	d, err := e.by.Open(t.Context(), e.st, host.Spec{Store: e.url, Volume: volume, Options: smallLogs})
	if err != nil {
		t.Fatalf("open %s: %v", volume, err)
	}
	p := make([]byte, 4096)
	if err := d.ReadAt(t.Context(), p, 0); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p[0]
}

// TestSalvageIsKilled kills a salvage at each operation of the store, before or after the
// store does it. A volume with a name is whole, and the next salvage, or the end of this one,
// removes the rest.
func TestSalvageIsKilled(t *testing.T) {
	for at, ended := 1, false; !ended; at++ {
		e, killed := newStrandedEnv(t), errs.New(errs.Internal, "killed")
		var count atomic.Int64
		st := &storesim.Fault{Store: e.st, Hook: func(storesim.Op, string) (a storesim.Action) {
			switch n := int(count.Add(1)); {
			case n == at && at%2 == 0:
				a.After = killed
			case n >= at:
				a.Before = killed
			}
			return a
		}}
		ended = e.salvage(t.Context(), st, "", "killed") == nil
		next, what := func() error { return e.salvage(t.Context(), e.st, "", "again") }, "again"
		if at/2%2 == 0 {
			next, what = func() error { return e.mine.EndSalvage(t.Context(), e.st, host.SalvageSpec{Spec: e.spec()}) }, "end"
		}
		if err := next(); err != nil {
			t.Fatalf("killed at %d, then %s: %v", at, what, err)
		}
		all, err := catalog.List(t.Context(), e.st)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range all {
			if want := map[bool]byte{true: 0, false: 7}[v.Name == "x"]; v.Name == "" || e.first(t, v.Name) != want {
				t.Errorf("killed at %d: volume %q (%s) is not whole, or was left", at, v.Name, v.ID)
			}
		}
		dirs, err := os.ReadDir(filepath.Join(e.mine.Dir(), "volumes"))
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range dirs {
			if !slices.ContainsFunc(all, func(v *catalog.Volume) bool { return v.ID.String() == d.Name() }) {
				t.Errorf("killed at %d: the log of a volume was left: %s", at, d.Name())
			}
		}
	}
}

// TestStrandedLogs: of several stranded logs one is named, each has its own writes, and
// they keep the volume bound to its store.
func TestStrandedLogs(t *testing.T) {
	ctx, e := t.Context(), newStrandedEnv(t)
	e.strand(t, 1) // opening it moves the first one aside
	err := e.salvage(ctx, e.st, "", "a")
	names, lerr := e.mine.Stranded(e.id)
	if lerr != nil || len(names) != 2 || !errs.Is(err, errs.FailedPrecondition) || !strings.Contains(errs.HintOf(err), "x@"+names[1]) {
		t.Fatalf("stranded logs %q, %v; salvage without a name: %v (%s)", names, lerr, err, errs.HintOf(err))
	}
	for i, n := range names {
		as := fmt.Sprint("of-", i)
		if err := e.salvage(ctx, e.st, n, as); err != nil {
			t.Fatal(err)
		}
		if got := e.first(t, as); got != 7 {
			t.Errorf("%s has %d", as, got)
		}
	}
	moved := e.spec()
	moved.Store = "file:///elsewhere"
	if _, err := e.mine.Open(ctx, e.st, moved); !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("opened with another store: %v", err)
	}
	if err := lsvd.DeleteSnapshot(ctx, e.st, e.id, names[0]); err != nil {
		t.Fatal(err)
	}
	if err := e.salvage(ctx, e.st, names[0], "b"); !errs.Is(err, errs.NotFound) || !strings.Contains(err.Error(), "was deleted") {
		t.Errorf("salvage without the snapshot: %v", err)
	}
	for _, n := range names {
		if _, err := e.mine.DiscardStranded(ctx, e.st, host.SalvageSpec{Spec: e.spec(), Snapshot: n}); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(e.mine.VolumeDir(e.id))
	if err != nil || slices.ContainsFunc(entries, func(x os.DirEntry) bool { return strings.HasPrefix(x.Name(), "takeover-") }) {
		t.Errorf("after they were discarded: %v %v", entries, err)
	}
	if got := e.first(t, "x"); got != 1 {
		t.Errorf("the volume has %d", got)
	}
}
