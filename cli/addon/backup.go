package addon

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/addon"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/schema"
)

func newBackup(e *command.Env) *cobra.Command {
	var name, copyTo string
	var every time.Duration
	var keep int64
	var off bool
	cmd := &cobra.Command{
		Use:   "backup NAME",
		Short: "Keep the present state of an addon, now or regularly",
		Long: `Keeps the present state of an addon under a name, and returns when that is durable: it has every write that the addon
acknowledged. It is a snapshot of the addon's disk, made while the addon works, and takes space only for what changes later.

With --every one is made regularly instead, the newest --keep of them are kept, and with --copy-to each is also copied to
another store, which does not share the fate of this one; r disk copies lists the copies.`,
		Example:           "  r addon backup db\n  r addon backup db --name before-migration\n  r addon backup db --every 6h --keep 28 --copy-to s3://backups/prod",
		Args:              command.Args(1, 1, "NAME"),
		ValidArgsFunction: command.CompleteFirst(e, addon.AddonKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			if every > 0 && off || name != "" && (every > 0 || off) {
				return exit.Usagef("--name, --every and --off exclude each other")
			}
			if every == 0 && (keep > 0 || copyTo != "") {
				return exit.Usagef("--keep and --copy-to belong to --every")
			}
			if every > 0 || off {
				return schedule(cmd.Context(), e, args[0], every, keep, copyTo)
			}
			return backup(cmd.Context(), e, args[0], name)
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "name of the backup; default: the time")
	cmd.Flags().DurationVar(&every, "every", 0, "time between backups, such as 6h")
	cmd.Flags().Int64Var(&keep, "keep", 0, "with --every: backups that are kept")
	cmd.Flags().StringVar(&copyTo, "copy-to", "", "with --every: URL of the store that each is copied to")
	cmd.Flags().BoolVar(&off, "off", false, "make none regularly any more")
	return cmd
}

func backup(ctx context.Context, e *command.Env, name, backup string) error {
	c, err := client(ctx, e)
	if err != nil {
		return err
	}
	resp, err := c.Backup(ctx, &addon.BackupAddonRequest{Project: e.Project(), Addon: name, Backup: backup})
	if err != nil {
		return err
	}
	b, err := entity.Decode[disk.DiskSnapshot](&resp.Backup)
	if err != nil {
		return err
	}
	if e.JSON {
		return e.PrintJSON(b)
	}
	e.Printf("%s made the backup %s of %s\n", e.Paint(console.Green, "✓"), b.Spec.Name, name)
	return nil
}

func schedule(ctx context.Context, e *command.Env, name string, every time.Duration, keep int64, copyTo string) error {
	c, err := client(ctx, e)
	if err != nil {
		return err
	}
	req := &addon.ScheduleAddonRequest{Project: e.Project(), Addon: name, CopyTo: copyTo}
	line := fmt.Sprintf("%s is not backed up regularly any more; the backups stay", name)
	if every > 0 {
		req.Every, line = &every, fmt.Sprintf("%s is backed up every %s", name, every)
	}
	if keep > 0 {
		req.Keep = &keep
	}
	resp, err := c.Schedule(ctx, req)
	if err != nil {
		return err
	}
	a, err := entity.Decode[addon.Addon](&resp.Addon)
	if err != nil {
		return err
	}
	if e.JSON {
		return e.PrintJSON(a)
	}
	e.Printf("%s %s\n", e.Paint(console.Green, "✓"), line)
	return nil
}

func newBackups(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:               "backups NAME",
		Short:             "List the backups of an addon",
		Args:              command.Args(1, 1, "NAME"),
		ValidArgsFunction: command.CompleteFirst(e, addon.AddonKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			x, err := load(cmd.Context(), e, args[0])
			if err != nil {
				return err
			}
			if e.JSON {
				return e.PrintJSON(x.Backups)
			}
			var rows [][]string
			for _, b := range x.Backups {
				made := "by hand"
				if b.Spec.Scheduled {
					made = "by the schedule"
				}
				rows = append(rows, []string{b.Spec.Name, string(b.Status.Phase), made, schema.CellAge(b.CreatedAt, time.Now())})
			}
			e.Table([]string{"BACKUP", "STATE", "MADE", "AGE"}, rows)
			return nil
		},
	}
}

func newDeleteBackup(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:               "delete-backup NAME BACKUP",
		Short:             "Delete a backup of an addon",
		Args:              command.Args(2, 2, "NAME", "BACKUP"),
		ValidArgsFunction: command.CompleteFirst(e, addon.AddonKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := client(cmd.Context(), e)
			if err != nil {
				return err
			}
			if err := c.DeleteBackup(cmd.Context(), &addon.AddonBackupRequest{Project: e.Project(), Addon: args[0], Backup: args[1]}); err != nil {
				return err
			}
			if e.JSON {
				return e.PrintJSON(map[string]string{"deleted": args[1]})
			}
			e.Printf("%s deleted the backup %s of %s\n", e.Paint(console.Green, "✓"), args[1], args[0])
			return nil
		},
	}
}

func newRestore(e *command.Env) *cobra.Command {
	var as string
	var inPlace, yes bool
	cmd := &cobra.Command{
		Use:   "restore NAME BACKUP (--as NEW | --in-place)",
		Short: "Bring back the state of a backup, as a new addon or in place",
		Long: `With --as makes a new addon with the content of the backup; the addon itself goes on. With --in-place the addon gets a new disk
with that content, and the apps that use it find the earlier data. The disk that it had until then is kept: r addon show names it.`,
		Example:           "  r addon restore db before-migration --as db-check\n  r addon restore db before-migration --in-place",
		Args:              command.Args(2, 2, "NAME", "BACKUP"),
		ValidArgsFunction: command.CompleteFirst(e, addon.AddonKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (as == "") == !inPlace {
				return exit.Usagef("say where: --as NEW for a new addon, or --in-place")
			}
			c, err := client(cmd.Context(), e)
			if err != nil {
				return err
			}
			if as != "" {
				_, err := c.Create(cmd.Context(), &addon.CreateAddonRequest{Project: e.Project(), Addon: as, Source: args[0], Backup: args[1]})
				if err != nil {
					return err
				}
				return await(cmd.Context(), e, c, as, "", "restored "+args[1]+" of "+args[0]+" as "+as)
			}
			if !yes {
				ok, err := e.Confirm("bring addon " + args[0] + " back to backup " + args[1])
				if err != nil {
					return err
				}
				if !ok {
					return notAsked()
				}
			}
			if _, err := c.Restore(cmd.Context(), &addon.AddonBackupRequest{Project: e.Project(), Addon: args[0], Backup: args[1]}); err != nil {
				return err
			}
			return await(cmd.Context(), e, c, args[0], "", args[0]+" has the data of "+args[1]+" again")
		},
	}
	cmd.Flags().StringVar(&as, "as", "", "name of a new addon")
	cmd.Flags().BoolVar(&inPlace, "in-place", false, "the addon itself")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "with --in-place: without asking")
	return cmd
}
