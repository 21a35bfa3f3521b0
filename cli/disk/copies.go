package disk

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/schema"
)

func newCopy(e *command.Env) *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use:   "copy DISK[@SNAPSHOT] --to URL",
		Short: "Copy a disk to another store",
		Long: `Copies the present state of a disk, or a snapshot of it, to another store, and returns when that has it. It sends only what
earlier copies in that store do not have, and checks what arrived. The disk may be in use. Copies outlive the disk.

The server goes on if the command is killed, and completes the copy after a restart.`,
		Example: "  r disk copy data --to /mnt/backup\n  r disk copy data@monday --to 's3://backups/prod?region=eu-central-1'",
		Args:    command.Args(1, 1, "DISK"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if to == "" {
				return exit.Usagef("--to is missing: give the URL of the store, as s3://BUCKET/PREFIX or /DIRECTORY")
			}
			name, snapshot, _ := strings.Cut(args[0], "@")
			c, err := client(cmd.Context(), e)
			if err != nil {
				return err
			}
			resp, err := c.Copy(cmd.Context(), &disk.CopyDiskRequest{Project: e.Project(), Disk: name, Snapshot: snapshot, Store: to})
			if err != nil {
				return err
			}
			x, err := entity.Decode[disk.DiskCopy](&resp.Copy)
			if err != nil {
				return err
			}
			if e.JSON {
				return e.PrintJSON(x)
			}
			e.Printf("%s copied %s as %s (%s, %s of it sent)\n", e.Paint(console.Green, "✓"), args[0], x.ID, sizeCell(x.Status.DataBytes), sizeCell(x.Status.SentBytes))
			return nil
		},
		ValidArgsFunction: command.CompleteFirst(e, disk.DiskKind),
	}
	cmd.Flags().StringVar(&to, "to", "", "URL of the store of the copy")
	return cmd
}

func sizeCell(n *int64) string {
	if n == nil {
		return ""
	}
	return schema.CellBytes(*n)
}

func timeCell(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

func newCopies(e *command.Env) *cobra.Command {
	load := func(ctx context.Context) ([]*disk.DiskCopy, error) {
		all, _, err := command.All[disk.DiskCopy](ctx, e, entity.Query{})
		slices.SortFunc(all, func(a, b *disk.DiskCopy) int {
			return cmp.Or(cmp.Compare(a.Spec.DiskName, b.Spec.DiskName), a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
		})
		return all, err
	}
	cmd := command.List(e, "List the copies of disks in other stores, also of disks that are deleted", []string{disk.KindDiskCopy}, load,
		func(_ context.Context, all []*disk.DiskCopy) error {
			var rows [][]string
			for _, c := range all {
				color := console.Yellow
				if c.Status.Phase == disk.DiskPhaseReady {
					color = console.Green
				}
				rows = append(rows, []string{string(c.ID), c.Spec.DiskName, e.Paint(color, string(c.Status.Phase)), timeCell(c.Status.TakenAt),
					sizeCell(c.Status.DataBytes), sizeCell(c.Status.SentBytes), c.Spec.Store, c.Status.Message})
			}
			e.Table([]string{"COPY", "DISK", "STATE", "TAKEN", "DATA", "SENT", "STORE", "MESSAGE"}, rows)
			return nil
		})
	cmd.Use, cmd.Aliases = "copies", nil
	return cmd
}

func newDeleteCopy(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:               "delete-copy COPY",
		Short:             "Delete a copy of a disk",
		Long:              "Deletes a copy, complete or not, and the data in its store that no other copy or disk needs. Disks that were restored from it stay.",
		Args:              command.Args(1, 1, "COPY"),
		ValidArgsFunction: command.CompleteFirst(e, disk.DiskCopyKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := client(cmd.Context(), e)
			if err != nil {
				return err
			}
			if err := c.DeleteCopy(cmd.Context(), &disk.DeleteCopyRequest{Project: e.Project(), Copy: args[0]}); err != nil {
				return err
			}
			return deleted(e, args[0])
		},
	}
}

func newRestore(e *command.Env) *cobra.Command {
	var as, at, store string
	cmd := &cobra.Command{
		Use:   "restore COPY|DISK --as NAME",
		Short: "Make a disk with the content of a copy",
		Long: `Makes a new disk with the content of a copy, which it names by id, or by the disk: the newest copy, or with --at the newest
one that is not after a time. The disk may be deleted. The copy stays.

The data is written to the store of the new disk. If that is the store of the copy, both share the data and nothing is
written.`,
		Example: "  r disk restore data --as data2\n  r disk restore data --at 2026-05-04T12:00:00Z --as before\n  r disk restore dcopy-3f5k... --as data2",
		Args:    command.Args(1, 1, "COPY|DISK"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if as == "" {
				return exit.Usagef("--as is missing: give the name of the new disk")
			}
			when, err := timeFlag("--at", at)
			if err != nil {
				return err
			}
			req := &disk.RestoreDiskRequest{Project: e.Project(), Copy: args[0], Disk: as, Store: store, At: when}
			c, err := client(cmd.Context(), e)
			if err != nil {
				return err
			}
			resp, err := c.Restore(cmd.Context(), req)
			return done(e, resp, err, "restored "+args[0]+" to")
		},
		ValidArgsFunction: command.CompleteFirst(e, disk.DiskCopyKind),
	}
	cmd.Flags().StringVar(&as, "as", "", "name of the new disk")
	cmd.Flags().StringVar(&at, "at", "", "time: the newest copy that is not after it")
	cmd.Flags().StringVar(&store, "store", "", "URL of the store that has the data of the new disk; default: a directory of the server")
	return cmd
}
