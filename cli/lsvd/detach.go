package lsvd

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	api "miren.dev/runtime/api/lsvd"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/pkg/errs"
)

type detachOptions struct {
	base
	all     bool
	force   bool
	timeout time.Duration
}

func newDetach(e *command.Env) *cobra.Command {
	o := &detachOptions{base: newBase(e)}
	cmd := &cobra.Command{
		Use:   "detach VOLUME",
		Short: "Detach an attached or served volume",
		Long: `Removes the block device and the NBD export of a volume, sends unsent data to the store, and closes the disk. Then any
machine can open it. It refuses while the block device is mounted or otherwise in use. If the store does not take all
data in time, the disk is closed, the command fails, and the log on this machine keeps the rest.`,
		Args: command.Args(0, 1, "VOLUME"),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args) },
	}
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		var out []string
		if disks, err := o.allAttached(cmd.Context()); err == nil && len(args) == 0 {
			for _, d := range disks {
				out = append(out, label(d))
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
	cmd.Flags().StringVar(&o.storeURL, "store", "", "store of the volume, if volumes of that name from several stores are attached")
	cmd.Flags().BoolVar(&o.all, "all", false, "detach every attached volume")
	cmd.Flags().BoolVar(&o.force, "force", false, "detach a block device that is in use; its users get I/O errors")
	cmd.Flags().DurationVar(&o.timeout, "timeout", time.Minute, "how long to wait until unsent data is in the store")
	return cmd
}

func (o *detachOptions) run(ctx context.Context, args []string) error {
	if o.all == (len(args) == 1) {
		return exit.Usagef("give a VOLUME, or --all")
	}
	c, err := o.connect(ctx)
	if errs.Is(err, errs.NotFound) && o.all {
		o.Notef("%v\n", err)
		return nil
	}
	if err != nil {
		return err
	}
	defer c.Close()
	var volumes []api.DetachRequest
	if o.all {
		r, err := c.List(ctx)
		if err != nil {
			return err
		}
		for _, d := range r.Disks {
			volumes = append(volumes, api.DetachRequest{Volume: d.ID, Timeout: &o.timeout, Force: o.force})
		}
	} else {
		name, _, err := volumeArg(args[0], false)
		if err != nil {
			return err
		}
		volumes = append(volumes, api.DetachRequest{Volume: name, Store: o.storeURL, Timeout: &o.timeout, Force: o.force})
	}
	out := []api.Disk{}
	var failed error
	for i := range volumes {
		r, err := c.Detach(ctx, &volumes[i])
		switch {
		case err != nil && failed == nil:
			failed = err
		case err != nil:
			o.Notef("also: %v\n", err)
		default:
			out = append(out, r.Disk)
			o.Printf("%s detached %s\n", o.Paint(console.Green, "✓"), label(&r.Disk))
		}
	}
	if o.JSON {
		if err := o.PrintJSON(out); err != nil {
			return err
		}
	}
	return failed
}
