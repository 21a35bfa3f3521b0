package disk

import (
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/exit"
)

func newSchedule(e *command.Env) *cobra.Command {
	var every time.Duration
	var keep, copyKeep int64
	var off, copyOff bool
	var copyTo string
	cmd := &cobra.Command{
		Use:   "schedule DISK --every TIME|--off",
		Short: "Take snapshots of a disk regularly, and copy them to another store",
		Long: `Takes a snapshot of a disk every so often, named auto-YYYYMMDD-HHMMSS in UTC, and deletes the oldest of these beyond the
number to keep. Snapshots that were taken by hand stay. --off takes no more; those that exist stay.

With --copy-to each snapshot is copied to another store as well, as by "r disk copy", and the oldest of these copies beyond
--copy-keep are deleted. --copy-off makes no more copies; those that exist stay.`,
		Example: "  r disk schedule data --every 24h --keep 14\n" +
			"  r disk schedule data --every 1h --keep 24 --copy-to 's3://backups/prod?region=eu-central-1' --copy-keep 100\n  r disk schedule data --off",
		Args:              command.Args(1, 1, "DISK"),
		ValidArgsFunction: command.CompleteFirst(e, disk.DiskKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case off == (every > 0):
				return exit.Usagef("state either --every or --off")
			case copyOff && copyTo != "":
				return exit.Usagef("state either --copy-to or --copy-off")
			}
			req := &disk.ScheduleDiskRequest{Project: e.Project(), Disk: args[0], CopyTo: copyTo}
			if every > 0 {
				req.Every = &every
			}
			if keep > 0 {
				req.Keep = &keep
			}
			if copyKeep > 0 {
				req.CopyKeep = &copyKeep
			}
			if copyOff {
				req.CopyOff = &copyOff
			}
			if err := req.Validate(); err != nil {
				return exit.With(exit.Usage, err)
			}
			c, err := client(cmd.Context(), e)
			if err != nil {
				return err
			}
			resp, err := c.Schedule(cmd.Context(), req)
			return done(e, resp, err, "scheduled")
		},
	}
	cmd.Flags().DurationVar(&every, "every", 0, "time between snapshots, at least 1m")
	cmd.Flags().Int64Var(&keep, "keep", 0, "snapshots to keep; 7 unless stated once")
	cmd.Flags().BoolVar(&off, "off", false, "take no more snapshots")
	cmd.Flags().StringVar(&copyTo, "copy-to", "", "URL of the store to copy each snapshot to")
	cmd.Flags().Int64Var(&copyKeep, "copy-keep", 0, "copies to keep; 7 unless stated once")
	cmd.Flags().BoolVar(&copyOff, "copy-off", false, "make no more copies")
	return cmd
}
