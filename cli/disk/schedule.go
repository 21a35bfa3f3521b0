package disk

import (
	"cmp"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/exit"
)

func newSchedule(e *command.Env) *cobra.Command {
	var every, keepFor time.Duration
	var times, zone string
	var keep, copyKeep int64
	var off, copyOff bool
	var copyTo string
	cmd := &cobra.Command{
		Use:   "schedule DISK --every TIME|--cron TIMES|--off",
		Short: "Take snapshots of a disk regularly, and copy them to another store",
		Long: `Takes a snapshot of a disk every so often, or at times as cron has them (five fields, or @daily and the like), named
auto-YYYYMMDD-HHMMSS in UTC. --off takes no more; those that exist stay. For times at which no server ran, one is taken later.

Of these snapshots it keeps the newest --keep that are younger than --keep-for, and deletes the others. The newest stays
whatever its age, and so do snapshots that were taken by hand. --keep-for alone keeps as many as there may be (1000).

With --copy-to each snapshot is copied to another store as well, as by "r disk copy", and the oldest of these copies beyond
--copy-keep are deleted. --copy-off makes no more copies; those that exist stay.`,
		Example: "  r disk schedule data --every 24h --keep 14\n" +
			"  r disk schedule data --cron '30 3 * * *' --time-zone Europe/Berlin --keep-for 720h\n" +
			"  r disk schedule data --every 1h --keep 24 --copy-to 's3://backups/prod?region=eu-central-1' --copy-keep 100\n  r disk schedule data --off",
		Args:              command.Args(1, 1, "DISK"),
		ValidArgsFunction: command.CompleteFirst(e, disk.DiskKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case !exactlyOne(off, every > 0, times != ""):
				return exit.Usagef("state one of --every, --cron and --off")
			case zone != "" && times == "":
				return exit.Usagef("--time-zone is for --cron")
			case copyOff && copyTo != "":
				return exit.Usagef("state either --copy-to or --copy-off")
			}
			req := &disk.ScheduleDiskRequest{Project: e.Project(), Disk: args[0], CopyTo: copyTo, Times: times, TimeZone: zone}
			if every > 0 {
				req.Every = &every
			}
			if keep > 0 {
				req.Keep = &keep
			}
			if keepFor > 0 {
				req.KeepFor = &keepFor
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
	cmd.Flags().StringVar(&times, "cron", "", "times of snapshots, as cron has them")
	cmd.Flags().StringVar(&zone, "time-zone", "", "time zone of --cron, such as Europe/Berlin; default UTC")
	cmd.Flags().DurationVar(&keepFor, "keep-for", 0, "age from which snapshots are deleted, at least 1m")
	cmd.Flags().BoolVar(&off, "off", false, "take no more snapshots")
	cmd.Flags().StringVar(&copyTo, "copy-to", "", "URL of the store to copy each snapshot to")
	cmd.Flags().Int64Var(&copyKeep, "copy-keep", 0, "copies to keep; 7 unless stated once")
	cmd.Flags().BoolVar(&copyOff, "copy-off", false, "make no more copies")
	return cmd
}

func exactlyOne(list ...bool) bool {
	n := 0
	for _, x := range list {
		if x {
			n++
		}
	}
	return n == 1
}

// scheduleCell says when snapshots of a disk are taken and which are kept; "":
// none are taken.
func scheduleCell(x *disk.DiskSpec) string {
	var when string
	switch {
	case x.SnapshotSchedule != "":
		when = fmt.Sprintf("at %q %s", x.SnapshotSchedule, cmp.Or(x.SnapshotTimeZone, "UTC"))
	case x.SnapshotEvery != nil:
		when = "every " + x.SnapshotEvery.String()
	default:
		return ""
	}
	when += fmt.Sprintf(", the newest %d are kept", x.SnapshotKeep)
	if x.SnapshotKeepFor != nil {
		when += fmt.Sprintf(" for %s", *x.SnapshotKeepFor)
	}
	return when
}

// timeFlag parses the value of a flag that is a time; nil if it is empty.
func timeFlag(flag, text string) (*time.Time, error) {
	if text == "" {
		return nil, nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return nil, exit.Usagef("%s: %q is no time: write it as 2026-05-04T12:00:00Z", flag, text)
	}
	return &t, nil
}
