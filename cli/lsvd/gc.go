package lsvd

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	api "miren.dev/runtime/api/lsvd"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/catalog"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/lsvd/store"
)

type gcOptions struct {
	base
	diskFlags
	ratio float64
}

func newGC(e *command.Env) *cobra.Command {
	o := &gcOptions{base: newBase(e)}
	cmd := &cobra.Command{
		Use:   "gc [VOLUME...]",
		Short: "Free space in the store",
		Long: `Deletes objects that no volume and no snapshot uses, as crashes and deleted volumes leave them. With VOLUME it first
compacts the volume: it copies live data out of segments that are mostly unused, until the segments have at most --ratio
times the live bytes. It copies no data that a snapshot or another volume uses: what clones share takes the space that
it took when they were made, until only one of them uses it.

An open disk compacts itself to a ratio of 1.43; a lower ratio costs more writes.`,
		Args:              command.Args(0, -1, "VOLUME"),
		ValidArgsFunction: o.completeVolumes,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args) },
	}
	o.flags(cmd)
	o.diskFlags.add(cmd)
	cmd.Flags().Float64Var(&o.ratio, "ratio", 1.05, "bytes in segments per live byte, at most")
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
	var volumes []*catalog.Volume
	for _, arg := range args {
		name, _, err := volumeArg(arg, false)
		if err != nil {
			return err
		}
		v, err := catalog.Find(ctx, st, name)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(volumes, func(o *catalog.Volume) bool { return o.ID == v.ID }) {
			volumes = append(volumes, v)
		}
	}
	segments := 0
	for _, v := range volumes {
		n, err := o.collect(ctx, st, v)
		if segments += n; err != nil {
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
		o.Printf("%s emptied %d segments of %s\n", o.Paint(console.Green, "✓"), segments, strings.Join(args, ", "))
	}
	o.Printf("%s deleted %d unused objects, %s freed\n", o.Paint(console.Green, "✓"), objects, bytesCell(freed))
	return nil
}

// collect compacts a volume and returns how many segments it emptied.
func (o *gcOptions) collect(ctx context.Context, st store.Store, v *catalog.Volume) (segments int, err error) {
	o.Notef("compacting %s\n", v.Label())
	err = o.onDisk(ctx, st, v, &o.diskFlags, func(c *client, n *api.VolumeRequest) error {
		r, err := c.Collect(ctx, &api.CollectRequest{Volume: n.Volume, Ratio: o.ratio})
		if err != nil {
			return err
		}
		segments = int(r.Segments)
		return nil
	}, func(d *host.Disk) (err error) {
		segments, err = d.GC(ctx, o.ratio)
		return err
	})
	return segments, err
}
