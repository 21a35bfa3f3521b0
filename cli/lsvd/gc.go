package lsvd

import (
	"context"

	"github.com/spf13/cobra"

	api "miren.dev/runtime/api/lsvd"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/catalog"
	"miren.dev/runtime/lsvd/host"
)

type gcOptions struct {
	base
	diskFlags
	ratio float64
}

func newGC(e *command.Env) *cobra.Command {
	o := &gcOptions{base: newBase(e)}
	cmd := &cobra.Command{
		Use:   "gc [VOLUME]",
		Short: "Free space in the store",
		Long: `Deletes objects that no volume and no snapshot uses: leftovers of crashes, of deleted volumes and snapshots. With a VOLUME it first moves what
that uses out of segments that are mostly unused, until the segments hold at most --ratio times what is in use.

An open disk does the latter by itself, to 1.43; a lower ratio costs more writing.`,
		Args:              command.Args(0, 1, "VOLUME"),
		ValidArgsFunction: o.completeVolumes,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args) },
	}
	o.flags(cmd)
	o.diskFlags.add(cmd)
	cmd.Flags().Float64Var(&o.ratio, "ratio", 1.05, "bytes that segments may hold for each that is in use")
	return cmd
}

func (o *gcOptions) run(ctx context.Context, args []string) error {
	if o.ratio < 1 || o.ratio > 100 {
		return exit.Usagef("--ratio must be from 1 to 100")
	}
	st, _, err := o.open(ctx)
	if err != nil {
		return err
	}
	segments := 0
	if len(args) > 0 {
		name, _, err := volumeArg(args[0], false)
		if err != nil {
			return err
		}
		v, err := catalog.Find(ctx, st, name)
		if err != nil {
			return err
		}
		o.Notef("compacting %s\n", v.Label())
		err = o.onDisk(ctx, st, v, &o.diskFlags, func(c *client, n *api.VolumeRequest) error {
			r, err := c.Collect(ctx, &api.CollectRequest{Volume: n.Volume, Ratio: o.ratio})
			if err == nil {
				segments = int(r.Segments)
			}
			return err
		}, func(d *host.Disk) (err error) {
			if err = d.Drain(ctx); err == nil {
				segments, err = d.GC(ctx, o.ratio)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	objects, freed, err := lsvd.Sweep(ctx, st)
	if err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(map[string]any{"segments_emptied": segments, "objects_deleted": objects, "bytes_freed": freed})
	}
	if len(args) > 0 {
		o.Printf("%s emptied %d segments of %s\n", o.Paint(console.Green, "✓"), segments, args[0])
	}
	o.Printf("%s deleted %d unused objects, %s freed\n", o.Paint(console.Green, "✓"), objects, bytesCell(freed))
	return nil
}
