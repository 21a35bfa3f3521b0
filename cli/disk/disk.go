// Package disk has `r disk`: disks that sandboxes mount.
package disk

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// New makes the commands.
func New(e *command.Env) *cobra.Command {
	return command.Group("disk", "Create and manage disks that sandboxes mount",
		newCreate(e), newList(e), newShow(e), newClone(e), newSalvage(e), newSnapshot(e), newDeleteSnapshot(e), newResize(e), newSchedule(e), newCopy(e), newCopies(e), newDeleteCopy(e),
		newRestore(e), newDelete(e))
}

func client(ctx context.Context, e *command.Env) (disk.DisksClient, error) {
	c, err := e.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return disk.NewDisksClient(c), nil
}

// done prints the disk of a response, or a line about the change.
func done(e *command.Env, resp *disk.DiskResponse, err error, verb string) error {
	if err != nil {
		return err
	}
	d, err := entity.Decode[disk.Disk](&resp.Disk)
	if err != nil {
		return err
	}
	if e.JSON {
		return e.PrintJSON(d)
	}
	e.Printf("%s %s %s (%s, %s)\n", e.Paint(console.Green, "✓"), verb, d.Name, schema.CellBytes(d.Status.SizeBytes), d.Spec.FileSystem)
	return nil
}

func newCreate(e *command.Env) *cobra.Command {
	var size command.Bytes
	var store, fs string
	cmd := &cobra.Command{
		Use:     "create DISK --size SIZE",
		Short:   "Create an empty disk",
		Long:    "Creates a disk with an empty file system. It takes space only for the data that is written to it.",
		Example: "  r disk create data --size 10G\n  r disk create media --size 1T --fs xfs --store 's3://disks/prod?region=eu-central-1'",
		Args:    command.Args(1, 1, "DISK"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if size == 0 {
				return exit.Usagef("--size is missing: give the size of the disk, as 10G")
			}
			c, err := client(cmd.Context(), e)
			if err != nil {
				return err
			}
			resp, err := c.Create(cmd.Context(), &disk.CreateDiskRequest{
				Project: e.Project(), Disk: args[0], SizeBytes: int64(size), Store: store, FileSystem: disk.FileSystem(fs),
			})
			return done(e, resp, err, "created")
		},
	}
	cmd.Flags().VarP(&size, "size", "s", "size, as 10G")
	cmd.Flags().StringVar(&store, "store", "", "URL of the store that has its data; default: a directory of the server")
	cmd.Flags().StringVar(&fs, "fs", "", "file system: ext4 or xfs; default ext4")
	return cmd
}

func newClone(e *command.Env) *cobra.Command {
	var at string
	cmd := &cobra.Command{
		Use:   "clone DISK[@SNAPSHOT] NEW",
		Short: "Make a disk with the content of another one, without copying",
		Long: `Makes a disk with the present content of a disk, or that of a snapshot, or with --at that of the newest snapshot that is not
after a time. Both share their data in the store; each adds its own writes.`,
		Example: "  r disk clone data test\n  r disk clone data@monday restored\n  r disk clone data --at 2026-05-04T12:00:00Z before",
		Args:    command.Args(2, 2, "DISK", "NEW"),
		RunE: func(cmd *cobra.Command, args []string) error {
			source, snapshot, named := strings.Cut(args[0], "@")
			if named && at != "" {
				return exit.Usagef("state either DISK@SNAPSHOT or --at")
			}
			when, err := timeFlag("--at", at)
			if err != nil {
				return err
			}
			c, err := client(cmd.Context(), e)
			if err != nil {
				return err
			}
			resp, err := c.Clone(cmd.Context(), &disk.CloneDiskRequest{Project: e.Project(), Source: source, Snapshot: snapshot, At: when, Disk: args[1]})
			return done(e, resp, err, "cloned "+args[0]+" to")
		},
		ValidArgsFunction: command.CompleteFirst(e, disk.DiskKind),
	}
	cmd.Flags().StringVar(&at, "at", "", "time: the newest snapshot that is not after it")
	return cmd
}

// snapshotArg splits DISK@SNAPSHOT.
func snapshotArg(e *command.Env, arg string) (*disk.SnapshotDiskRequest, error) {
	name, snapshot, ok := strings.Cut(arg, "@")
	if !ok || name == "" || snapshot == "" {
		return nil, exit.Usagef("%q does not name a snapshot: write DISK@NAME", arg)
	}
	return &disk.SnapshotDiskRequest{Project: e.Project(), Disk: name, Snapshot: snapshot}, nil
}

// onSnapshot calls the server about the snapshot that an argument names.
func onSnapshot(ctx context.Context, e *command.Env, arg string, call func(disk.DisksClient, *disk.SnapshotDiskRequest) error) error {
	req, err := snapshotArg(e, arg)
	if err != nil {
		return err
	}
	c, err := client(ctx, e)
	if err != nil {
		return err
	}
	return call(c, req)
}

func newSnapshot(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:     "snapshot DISK@SNAPSHOT",
		Short:   "Take a snapshot of a disk",
		Long:    "Keeps the present state of a disk, without copying. The disk may be in use: the snapshot has every write so far, as after a power loss.",
		Example: "  r disk snapshot data@monday",
		Args:    command.Args(1, 1, "DISK@SNAPSHOT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return onSnapshot(cmd.Context(), e, args[0], func(c disk.DisksClient, req *disk.SnapshotDiskRequest) error {
				resp, err := c.Snapshot(cmd.Context(), req)
				if err != nil {
					return err
				}
				s, err := entity.Decode[disk.DiskSnapshot](&resp.Snapshot)
				if err != nil {
					return err
				}
				if e.JSON {
					return e.PrintJSON(s)
				}
				e.Printf("%s took %s\n", e.Paint(console.Green, "✓"), args[0])
				return nil
			})
		},
	}
}

func newDeleteSnapshot(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "delete-snapshot DISK@SNAPSHOT",
		Short: "Delete a snapshot of a disk",
		Long:  "Deletes a snapshot, and the data that only it uses. Clones of it stay.",
		Args:  command.Args(1, 1, "DISK@SNAPSHOT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return onSnapshot(cmd.Context(), e, args[0], func(c disk.DisksClient, req *disk.SnapshotDiskRequest) error {
				if err := c.DeleteSnapshot(cmd.Context(), req); err != nil {
					return err
				}
				return deleted(e, args[0])
			})
		},
	}
}

func deleted(e *command.Env, what string) error {
	if e.JSON {
		return e.PrintJSON(map[string]string{"deleted": what})
	}
	e.Printf("%s deleted %s\n", e.Paint(console.Green, "✓"), what)
	return nil
}

func newResize(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:               "resize DISK SIZE",
		Short:             "Make a disk and its file system larger",
		Long:              "Makes a disk and its file system larger, also while sandboxes use it if the machine can do so. A disk cannot shrink.",
		Example:           "  r disk resize data 20G",
		Args:              command.Args(2, 2, "DISK", "SIZE"),
		ValidArgsFunction: command.CompleteFirst(e, disk.DiskKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			var size command.Bytes
			if err := size.Set(args[1]); err != nil {
				return exit.Usagef("SIZE: %v", err)
			}
			c, err := client(cmd.Context(), e)
			if err != nil {
				return err
			}
			resp, err := c.Resize(cmd.Context(), &disk.ResizeDiskRequest{Project: e.Project(), Disk: args[0], SizeBytes: int64(size)})
			return done(e, resp, err, "resized")
		},
	}
}

func newDelete(e *command.Env) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:               "delete DISK",
		Aliases:           []string{"rm"},
		Short:             "Delete a disk with its data",
		Long:              "Deletes a disk permanently. It refuses while a sandbox has the disk mounted, an app uses it, or snapshots of it exist. Clones and copies stay.",
		Args:              command.Args(1, 1, "DISK"),
		ValidArgsFunction: command.CompleteFirst(e, disk.DiskKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !yes {
				ok, err := e.Confirm("delete disk " + args[0] + " with its data permanently")
				if err != nil {
					return err
				}
				if !ok {
					return errs.New(errs.Canceled, "nothing was deleted")
				}
			}
			c, err := client(cmd.Context(), e)
			if err != nil {
				return err
			}
			if err := c.Delete(cmd.Context(), &disk.DiskRequest{Project: e.Project(), Disk: args[0]}); err != nil {
				return err
			}
			return deleted(e, args[0])
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "delete without asking")
	return cmd
}

func newList(e *command.Env) *cobra.Command {
	load := func(ctx context.Context) ([]*disk.Disk, error) {
		all, _, err := command.All[disk.Disk](ctx, e, entity.Query{})
		slices.SortFunc(all, func(a, b *disk.Disk) int { return cmp.Compare(a.Name, b.Name) })
		return all, err
	}
	return command.List(e, "List the disks", []string{disk.KindDisk}, load, func(ctx context.Context, all []*disk.Disk) error {
		names, err := nodeNames(ctx, e)
		if err != nil {
			return err
		}
		users, err := Users(ctx, e, all)
		if err != nil {
			return err
		}
		var rows [][]string
		for _, d := range all {
			rows = append(rows, []string{d.Name, phase(e, d), schema.CellBytes(d.Spec.SizeBytes), used(d), strings.Join(users[d.GetID()], ", "), names[d.Status.Node],
				string(d.Spec.FileSystem), d.Status.Message, schema.CellAge(d.CreatedAt, time.Now())})
		}
		e.Table([]string{"DISK", "STATE", "SIZE", "USED", "APPS", "NODE", "FILE SYSTEM", "MESSAGE", "AGE"}, rows)
		return nil
	})
}

// Users returns the names of the apps that use disks, by disk.
func Users(ctx context.Context, e *command.Env, disks []*disk.Disk) (map[id.Disk][]string, error) {
	apps, _, err := command.All[app.App](ctx, e, entity.Query{})
	if err != nil {
		return nil, err
	}
	pools, _, err := command.All[sandbox.SandboxPool](ctx, e, entity.Query{})
	if err != nil {
		return nil, err
	}
	users := map[id.Disk][]string{}
	for _, d := range disks {
		users[d.GetID()] = app.DiskUsers(d.GetID(), apps, pools)
	}
	return users, nil
}

// nodeNames returns the names of the nodes by id.
func nodeNames(ctx context.Context, e *command.Env) (map[id.Node]string, error) {
	nodes, _, err := command.All[core.Node](ctx, e, entity.Query{})
	names := map[id.Node]string{}
	for _, n := range nodes {
		names[n.GetID()] = cmp.Or(n.Name, string(n.ID))
	}
	return names, err
}

func phase(e *command.Env, d *disk.Disk) string {
	switch {
	case d.Status.Phase == disk.DiskPhaseReady && d.Status.Node != "":
		return e.Paint(console.Green, "attached")
	case d.Status.Phase == disk.DiskPhaseReady:
		return e.Paint(console.Green, "ready")
	}
	return e.Paint(console.Yellow, string(d.Status.Phase))
}

func used(d *disk.Disk) string {
	if d.Status.UsedBytes == nil {
		return ""
	}
	return schema.CellBytes(*d.Status.UsedBytes)
}

// lost says how many bytes of writes were lost when a disk was taken over.
func lost(s *disk.DiskStatus) string {
	if s.LostBytes == nil {
		return "the last ones on the node that was down may be"
	}
	if s.LostMostBytes != nil && *s.LostMostBytes == 0 {
		return "none"
	}
	if s.LostReportedAt == nil {
		return "unknown, the node that was down had not reported"
	}
	most := "unknown"
	if s.LostMostBytes != nil {
		most = schema.CellBytes(*s.LostMostBytes)
	}
	return "at least " + schema.CellBytes(*s.LostBytes) + ", at most " + most + " (reported at " + timeCell(s.LostReportedAt) + ")"
}

// detail is a disk as `r disk show --json` prints it.
type detail struct {
	Disk      *disk.Disk           `json:"disk"`
	Snapshots []*disk.DiskSnapshot `json:"snapshots"`
	Mounts    []*disk.DiskMount    `json:"mounts"`
	Copies    []*disk.DiskCopy     `json:"copies"`
	Apps      []string             `json:"apps"` // names of those that use it
}

func newShow(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:               "show DISK",
		Short:             "Show a disk, its snapshots, and the apps and sandboxes that use it",
		Args:              command.Args(1, 1, "DISK"),
		ValidArgsFunction: command.CompleteFirst(e, disk.DiskKind),
		RunE:              func(cmd *cobra.Command, args []string) error { return show(cmd.Context(), e, args[0]) },
	}
}

func show(ctx context.Context, e *command.Env, name string) error {
	d, err := command.Find[disk.Disk](ctx, e, name)
	if err != nil {
		return err
	}
	x := detail{Disk: d, Snapshots: []*disk.DiskSnapshot{}, Mounts: []*disk.DiskMount{}, Copies: []*disk.DiskCopy{}, Apps: []string{}}
	snaps, _, err := command.All[disk.DiskSnapshot](ctx, e, entity.Where(disk.DiskSnapshotAttrDisk, d.GetID()))
	if err != nil {
		return err
	}
	mounts, _, err := command.All[disk.DiskMount](ctx, e, entity.Where(disk.DiskMountAttrDisk, d.GetID()))
	if err != nil {
		return err
	}
	copies, _, err := command.All[disk.DiskCopy](ctx, e, entity.Where(disk.DiskCopyAttrDisk, d.GetID()))
	if err != nil {
		return err
	}
	x.Copies = append(x.Copies, copies...)
	users, err := Users(ctx, e, []*disk.Disk{d})
	if err != nil {
		return err
	}
	x.Snapshots, x.Mounts, x.Apps = append(x.Snapshots, snaps...), append(x.Mounts, mounts...), append(x.Apps, users[d.GetID()]...)
	if e.JSON {
		return e.PrintJSON(x)
	}
	names, err := nodeNames(ctx, e)
	if err != nil {
		return err
	}
	rows := [][]string{{"disk", d.Name}, {"id", string(d.ID)}, {"state", phase(e, d)}, {"size", schema.CellBytes(d.Status.SizeBytes)}, {"used", used(d)},
		{"file system", string(d.Spec.FileSystem)}, {"store", cmp.Or(d.Spec.Store, "of the server")}, {"volume", d.Status.Volume}}
	if d.Status.Node != "" {
		rows = append(rows, []string{"node", names[d.Status.Node]}, []string{"device", d.Status.Device})
	}
	if home := id.Node(d.Status.Home); home != "" && home != d.Status.Node {
		rows = append(rows, []string{"home", cmp.Or(names[home], d.Status.Home)})
	}
	if d.Status.TakenOverAt != nil {
		rows = append(rows, []string{"taken over", takenOver(&d.Status, names)}, []string{"lost writes", lost(&d.Status)})
	}
	if d.Status.SalvagedBytes != nil {
		rows = append(rows, []string{"salvaged", salvaged(&d.Status)})
	}
	if cell := scheduleCell(&d.Spec); cell != "" {
		rows = append(rows, []string{"snapshots", cell})
		if d.Spec.CopyTo != "" {
			rows = append(rows, []string{"copies", fmt.Sprintf("each snapshot to %s, the newest %d are kept", d.Spec.CopyTo, d.Spec.CopyKeep)})
		}
	}
	if d.Status.Message != "" {
		rows = append(rows, []string{"message", d.Status.Message})
	}
	for _, a := range x.Apps {
		rows = append(rows, []string{"app", a})
	}
	for _, m := range x.Mounts {
		mode := "read-write"
		if m.Spec.ReadOnly {
			mode = "read-only"
		}
		rows = append(rows, []string{"mount", string(m.Spec.Sandbox) + " at " + m.Spec.Path + " (" + mode + ")"})
	}
	for _, s := range x.Snapshots {
		rows = append(rows, []string{"snapshot", d.Name + "@" + s.Spec.Name + " (" + string(s.Status.Phase) + ", " + schema.CellAge(s.CreatedAt, time.Now()) + " ago)"})
	}
	for _, c := range x.Copies {
		rows = append(rows, []string{"copy", string(c.ID) + " in " + c.Spec.Store + " (" + string(c.Status.Phase) + ")"})
	}
	e.Table([]string{"", ""}, rows)
	return nil
}
