package lsvd

import (
	"context"

	"github.com/spf13/cobra"

	api "miren.dev/runtime/api/lsvd"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/pkg/errs"
)

type resizeOptions struct {
	base
	diskFlags
}

func newResize(e *command.Env) *cobra.Command {
	o := &resizeOptions{base: newBase(e)}
	cmd := &cobra.Command{
		Use:     "resize VOLUME SIZE",
		Short:   "Make a volume larger",
		Example: "  r lsvd resize data 20G",
		Long: `Makes a volume larger; the added space reads as zeros. The volume may be attached: a block device grows at once, NBD
clients see the new size when they reconnect. Grow the file system afterwards with its own tool (resize2fs, xfs_growfs).
A volume cannot shrink: that would lose data.`,
		Args:              command.Args(2, 2, "VOLUME", "SIZE"),
		ValidArgsFunction: o.completeVolumes,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0], args[1]) },
	}
	o.flags(cmd)
	o.diskFlags.add(cmd)
	return cmd
}

func (o *resizeOptions) run(ctx context.Context, arg, to string) error {
	name, _, err := volumeArg(arg, false)
	if err != nil {
		return err
	}
	size, err := sizeArg(to)
	if err != nil {
		return err
	}
	st, _, v, err := o.find(ctx, name)
	if err != nil {
		return err
	}
	if size < v.Size {
		return errs.New(errs.FailedPrecondition, "volume %s has %s and cannot shrink to %s: the data beyond that would be lost", v.Label(), bytesCell(v.Size), bytesCell(size)).
			WithHint("create a smaller volume and copy the files")
	}
	err = o.onDisk(ctx, st, v, &o.diskFlags, func(c *client, n *api.VolumeRequest) error {
		return c.Resize(ctx, &api.ResizeRequest{Volume: n.Volume, SizeBytes: size})
	}, func(d *host.Disk) error { return d.Resize(ctx, size) })
	if err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(map[string]any{"id": v.ID.String(), "name": v.Name, "size_bytes": size, "size_bytes_before": v.Size})
	}
	o.Printf("%s %s has %s now\n", o.Paint(console.Green, "✓"), v.Label(), bytesCell(size))
	return nil
}
