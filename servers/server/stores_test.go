package server

import (
	"testing"

	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
)

// TestProjectsNameNoStores: the server reads and writes stores as itself.
func TestProjectsNameNoStores(t *testing.T) {
	e := newFrontEnv(t)
	e.newTenant("own")
	cl := disk.NewDisksClient(e.holder(e.issue(e.root(), "holder", rpc.RoleAdmin+"@own")))
	for what, call := range map[string]func() error{
		"create": func() error {
			_, err := cl.Create(t.Context(), &disk.CreateDiskRequest{Project: "own", Disk: "d", Store: "/etc"})
			return err
		},
		"copy": func() error {
			_, err := cl.Copy(t.Context(), &disk.CopyDiskRequest{Project: "own", Disk: "d", Store: "/none/../etc"})
			return err
		},
		"schedule": func() error {
			_, err := cl.Schedule(t.Context(), &disk.ScheduleDiskRequest{Project: "own", Disk: "d", CopyTo: "s3://bucket"})
			return err
		},
		"restore": func() error {
			_, err := cl.Restore(t.Context(), &disk.RestoreDiskRequest{Project: "own", Copy: "c", Disk: "d", Store: "/etc"})
			return err
		},
	} {
		if err := call(); !errs.Is(err, errs.PermissionDenied) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
