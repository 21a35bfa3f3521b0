package lsvd

import (
	"context"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/lsvd/node/daemon"
)

type attachOptions struct {
	base
	diskFlags
}

func newAttach(e *command.Env) *cobra.Command {
	o := &attachOptions{base: newBase(e)}
	cmd := &cobra.Command{
		Use:     "attach VOLUME",
		Short:   "Attach a volume as a block device of this machine",
		Example: "  dev=$(r lsvd attach data -q)\n  mkfs.ext4 $dev && mount $dev /mnt",
		Long: `Attaches the volume as a block device and prints the path of the device. The disk daemon serves the device until
` + "`r lsvd detach`" + `, also after a restart of the daemon. Needs root.

I/O of the device waits while the daemon is replaced (` + "`r lsvd daemon --restart`" + `), or restarts after a crash.`,
		Args:              command.Args(1, 1, "VOLUME"),
		ValidArgsFunction: o.completeVolumes,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	o.flags(cmd)
	o.diskFlags.add(cmd)
	o.addTuning(cmd)
	return cmd
}

func (o *attachOptions) run(ctx context.Context, arg string) error {
	volume, _, err := volumeArg(arg, false)
	if err != nil {
		return err
	}
	req, err := o.request(volume, &o.diskFlags)
	if err != nil {
		return err
	}
	req.Block = true
	disk, err := o.attachDisk(ctx, req)
	if err != nil || disk == nil {
		return err
	}
	for _, f := range disk.Frontends {
		switch {
		case f.Kind != daemon.KindBlock:
		case o.Terminal && !o.Quiet:
			o.Printf("%s %s is %s\n", o.Paint(console.Green, "✓"), label(disk), f.Address)
		default:
			o.Printf("%s\n", f.Address) // for scripts
		}
	}
	return nil
}
