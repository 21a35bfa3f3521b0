package cli_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// fakeDisks notes the calls, and answers with a disk or a copy.
type fakeDisks struct {
	disk.Disks
	f *fake
}

func (d fakeDisks) disk(name string) *disk.DiskResponse {
	x := disk.NewDisk()
	x.ID, x.Name, x.Project = "disk-1", name, d.f.project
	x.Spec.SizeBytes, x.Status.SizeBytes, x.Status.Phase = 1<<30, 1<<30, disk.DiskPhaseReady
	return &disk.DiskResponse{Disk: *record(x)}
}

func (d fakeDisks) Copy(_ context.Context, req *disk.CopyDiskRequest) (*disk.CopyResponse, error) {
	d.f.note(fmt.Sprintf("copy %s@%s to %s", req.Disk, req.Snapshot, req.Store))
	if req.Disk == "none" {
		return nil, errs.New(errs.NotFound, "there is no disk %q", req.Disk)
	}
	return &disk.CopyResponse{Copy: *record(aCopy(d.f, "dcopy-1", 10))}, nil
}

func (d fakeDisks) DeleteCopy(_ context.Context, req *disk.DeleteCopyRequest) error {
	d.f.note("delete " + req.Copy)
	return nil
}

func (d fakeDisks) Restore(_ context.Context, req *disk.RestoreDiskRequest) (*disk.DiskResponse, error) {
	at := ""
	if req.At != nil {
		at = req.At.UTC().Format(time.RFC3339)
	}
	d.f.note(fmt.Sprintf("restore %s of %s as %s in %s", req.Copy, at, req.Disk, req.Store))
	return d.disk(req.Disk), nil
}

func (d fakeDisks) Salvage(_ context.Context, req *disk.SalvageDiskRequest) (*disk.DiskResponse, error) {
	d.f.note(fmt.Sprintf("salvage %s@%s on %s as %s", req.Source, req.Takeover, req.Node, req.Disk))
	x := disk.NewDisk()
	x.ID, x.Name, x.Project = "disk-2", req.Disk, d.f.project
	bytes, damaged := int64(48<<20), req.Node != ""
	x.Spec.SizeBytes = 1 << 30
	x.Status = disk.DiskStatus{Phase: disk.DiskPhaseReady, SizeBytes: 1 << 30, SalvagedBytes: &bytes, SalvageDamaged: &damaged}
	return &disk.DiskResponse{Disk: *record(x)}, nil
}

func (d fakeDisks) Schedule(_ context.Context, req *disk.ScheduleDiskRequest) (*disk.DiskResponse, error) {
	keep := int64(0)
	if req.CopyKeep != nil {
		keep = *req.CopyKeep
	}
	d.f.note(fmt.Sprintf("schedule %s, copies to %s, keep %d, off %t", req.Disk, req.CopyTo, keep, req.CopyOff != nil && *req.CopyOff))
	return d.disk(req.Disk), nil
}

// aCopy is a complete copy of the state that a disk had at an hour.
func aCopy(f *fake, id string, hour int) *disk.DiskCopy {
	c := disk.NewDiskCopy()
	taken := time.Date(2026, 5, 4, hour, 0, 0, 0, time.UTC)
	data, sent := int64(3<<30), int64(5<<20)
	c.ID, c.Project = schema.ID(id), f.project
	c.Spec.DiskName, c.Spec.Store, c.Spec.FileSystem = "data", "s3://backups/prod", disk.FileSystemExt4
	c.Status = disk.DiskCopyStatus{Phase: disk.DiskPhaseReady, TakenAt: &taken, CopiedAt: &taken, DataBytes: &data, SentBytes: &sent}
	return c
}

func TestDiskSalvage(t *testing.T) {
	f := newFake(t)
	whole := run(t, false, "", "disk", "salvage", "data", "rescued")
	contains(t, whole.out, "salvaged data to rescued (1 GiB, ext4)")
	contains(t, whole.err, "it has 48 MiB of writes from the log\n")
	contains(t, run(t, false, "", "disk", "salvage", "data@takeover-1-7", "rescued", "--node", "edge-2").err, "48 MiB of writes from the log, which is damaged after them")
	contains(t, ok(t, "disk", "salvage", "data", "rescued", "--json"), `"salvaged_bytes": 50331648`)
	if got, want := strings.Join(f.calls, "\n"), "salvage data@ on  as rescued\nsalvage data@takeover-1-7 on edge-2 as rescued\nsalvage data@ on  as rescued"; got != want {
		t.Errorf("calls:\n%s", got)
	}
	for _, args := range [][]string{{"data"}, {"data@", "rescued"}} {
		if r := run(t, false, "", append([]string{"disk", "salvage"}, args...)...); r.code != exit.Usage {
			t.Errorf("%q: code %d, %s", args, r.code, r.err)
		}
	}
}

func TestDiskCopies(t *testing.T) {
	f := newFake(t)
	pending := disk.NewDiskCopy()
	pending.ID = "dcopy-3"
	pending.Spec.DiskName, pending.Spec.Store, pending.Spec.FileSystem = "logs", "/mnt/backup", disk.FileSystemXfs
	pending.Status.Message = "store /mnt/backup: no answer"
	f.create(aCopy(f, "dcopy-2", 12), aCopy(f, "dcopy-1", 10), pending)
	golden(t, "disk-copies.plain", ok(t, "disk", "copies"))
	golden(t, "disk-copies.terminal", run(t, true, "", "disk", "copies").out)
	if out := ok(t, "disk", "copies", "--json"); !json.Valid([]byte(out)) {
		t.Errorf("not JSON: %s", out)
	} else {
		golden(t, "disk-copies.json", out)
	}

	contains(t, ok(t, "disk", "copy", "data@monday", "--to", "/mnt/backup"), "copied data@monday as dcopy-1 (3 GiB, 5 MiB of it sent)")
	contains(t, ok(t, "disk", "copy", "data", "--to", "s3://b", "--json"), `"store": "s3://backups/prod"`)
	contains(t, ok(t, "disk", "restore", "data", "--as", "data2", "--at", "2026-05-04T12:00:00+02:00", "--store", "/x"), "restored data to data2 (1 GiB, ext4)")
	contains(t, ok(t, "disk", "restore", "dcopy-1", "--as", "data3"), "restored dcopy-1 to data3")
	contains(t, ok(t, "disk", "delete-copy", "dcopy-1"), "deleted dcopy-1")
	ok(t, "disk", "schedule", "data", "--every", "1h", "--copy-to", "/mnt/backup", "--copy-keep", "3")
	ok(t, "disk", "schedule", "data", "--every", "1h", "--copy-off")
	want := []string{
		"copy data@monday to /mnt/backup", "copy data@ to s3://b", "restore data of 2026-05-04T10:00:00Z as data2 in /x",
		"restore dcopy-1 of  as data3 in ", "delete dcopy-1", "schedule data, copies to /mnt/backup, keep 3, off false", "schedule data, copies to , keep 0, off true",
	}
	if got := strings.Join(f.calls, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("calls:\n%s", got)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"copy", "data"}, exit.Usage, "--to"},
		{[]string{"copy", "none", "--to", "/x"}, exit.Failed, `no disk "none"`},
		{[]string{"restore", "data"}, exit.Usage, "--as"},
		{[]string{"restore", "data", "--as", "x", "--at", "yesterday"}, exit.Usage, "2026-05-04T12:00:00Z"},
		{[]string{"delete-copy"}, exit.Usage, "COPY is missing"},
		{[]string{"schedule", "data", "--every", "1h", "--copy-to", "/x", "--copy-off"}, exit.Usage, "--copy-off"},
	} {
		if r := run(t, false, "", append([]string{"disk"}, c.args...)...); r.code != c.code || !strings.Contains(r.err, c.want) {
			t.Errorf("%v: code %d, %s", c.args, r.code, r.err)
		}
	}
}
