package disk_test

import (
	"strings"
	"testing"
	"time"

	api_disk "miren.dev/runtime/api/disk"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/entity"
	dirstore "miren.dev/runtime/lsvd/store/dir"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

// restored returns what a file of a disk that is restored has.
func (n *node) restored(req disks.RestoreRequest, file string) string {
	n.t.Helper()
	d, err := n.disks.Restore(n.t.Context(), req)
	if err != nil {
		n.t.Fatal(err)
	}
	sb := n.run(disks.Volume{Disk: d.GetID(), Path: "/data"})
	got := n.guest(sb, "read", file)
	n.guest(sb, "put", "/data/own", "a write of its own")
	n.end(sb)
	n.detached(req.Name)
	return got
}

// TestCopiesOutliveTheirDisk: a disk that is in use is copied twice and deleted.
// Disks that are restored from the copies, by time, into another store and into
// that of the copies, have its files. The deletion of all frees the store.
func TestCopiesOutliveTheirDisk(t *testing.T) {
	n := newNode(t)
	ctx, dir := t.Context(), t.TempDir()
	d := n.create("data")
	sb := n.run(disks.Volume{Disk: d.GetID(), Path: "/data"})
	n.guest(sb, "put", "/data/file", "first")
	first, err := n.disks.Copy(ctx, "", "data", "", dir)
	if err != nil {
		t.Fatal(err)
	}
	n.guest(sb, "put", "/data/file", "second")
	second, err := n.disks.Copy(ctx, "", "data", "", dir)
	if err != nil {
		t.Fatal(err)
	}
	if *first.Status.SentBytes == 0 || *second.Status.SentBytes >= *first.Status.SentBytes {
		t.Errorf("the first copy sent %d bytes, the second %d", *first.Status.SentBytes, *second.Status.SentBytes)
	}
	_, err = n.disks.Copy(ctx, "", "data", "", n.get("data").Spec.Store)
	if !errs.Is(err, errs.InvalidArgument) {
		t.Errorf("a copy without a store: %v", err)
	}
	_, err = n.disks.Copy(ctx, "", "data", "", n.Instance.State("lsvd", "store"))
	if refused(t, "a copy into the store of the disk", err, "not_ready"); err != nil && !strings.Contains(err.Error(), "itself") {
		t.Error(err)
	}
	n.end(sb)
	n.detached("data")
	wait.For(t, "the snapshots of the copies are deleted", func() bool {
		all, _, err := entity.List[api_disk.DiskSnapshot](ctx, n.store, entity.Query{})
		return err == nil && len(all) == 0
	})
	n.delete("data")

	if got := n.restored(disks.RestoreRequest{Copy: "data", Name: "newest"}, "/data/file"); got != "second" {
		t.Errorf("the newest copy has %q", got)
	}
	if got := n.restored(disks.RestoreRequest{Copy: "data", At: first.Status.TakenAt, Name: "before", Store: dir}, "/data/file"); got != "first" {
		t.Errorf("the copy of %s has %q", first.Status.TakenAt, got)
	}
	if got := n.restored(disks.RestoreRequest{Copy: string(first.ID), Name: "byid"}, "/data/file"); got != "first" {
		t.Errorf("the first copy has %q", got)
	}
	early := first.Status.TakenAt.Add(-time.Second)
	if _, err := n.disks.Restore(ctx, disks.RestoreRequest{Copy: "data", At: &early, Name: "none"}); !errs.Is(err, errs.NotFound) {
		t.Errorf("a copy before the first one: %v", err)
	}
	for _, c := range []*api_disk.DiskCopy{first, second} {
		if err := n.disks.DeleteCopy(ctx, "", string(c.ID)); err != nil {
			t.Fatal(err)
		}
	}
	if got := n.restoredAgain("before", "/data/file"); got != "first" {
		t.Errorf("a disk whose copy is deleted has %q", got)
	}
	for _, name := range []string{"newest", "before", "byid"} {
		n.delete(name)
	}
	st, err := dirstore.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	for i, err := range st.List(ctx, "") {
		t.Errorf("%s is left in the store of the copies: %v", i.Key, err)
	}
}

// restoredAgain returns what a file of a disk has.
func (n *node) restoredAgain(disk, file string) string {
	n.t.Helper()
	sb := n.run(disks.Volume{Disk: n.get(disk).GetID(), Path: "/data"})
	defer func() {
		n.end(sb)
		n.detached(disk)
	}()
	return n.guest(sb, "read", file)
}
