package lsvd

import (
	"context"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/pkg/errs"
)

type fenceOptions struct {
	base
	keyFile string
	yes     bool
}

func newFence(e *command.Env) *cobra.Command {
	o := &fenceOptions{base: newBase(e)}
	cmd := &cobra.Command{
		Use:   "fence VOLUME",
		Short: "Stop the process that has a volume open from writing it",
		Example: "  r lsvd fence data\n" +
			"  r lsvd fence secret --key-file secret.key --yes",
		Long: `Ends the right of the process that has the volume open, on any machine, to send writes to the store: its users get I/O
errors. This machine needs no log of the volume, and does not open it. A command that was interrupted may be repeated.

No acknowledged write is lost by that: the machine with the log opens the volume again with all of them, as long as no
other one has opened it. How many writes only that log has, the store cannot say.`,
		Args:              command.Args(1, 1, "VOLUME"),
		ValidArgsFunction: o.completeVolumes,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	o.flags(cmd)
	cmd.Flags().StringVar(&o.keyFile, "key-file", "", "file with the key of an encrypted volume")
	cmd.Flags().BoolVarP(&o.yes, "yes", "y", false, "fence without asking")
	return cmd
}

func (o *fenceOptions) run(ctx context.Context, arg string) error {
	volume, _, err := volumeArg(arg, false)
	if err != nil {
		return err
	}
	st, _, v, err := o.find(ctx, volume)
	if err != nil {
		return err
	}
	key, err := host.ReadKey(o.keyFile)
	if err != nil {
		return err
	}
	if err := host.CheckKey(v, key); err != nil {
		return err
	}
	if !o.yes {
		ok, err := o.Confirm("give I/O errors to the users of volume " + v.Label())
		if err != nil {
			return err
		}
		if !ok {
			return errs.New(errs.Canceled, "nothing was fenced")
		}
	}
	f, err := lsvd.Fence(ctx, st, v.ID, key)
	if err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(map[string]any{"id": v.ID.String(), "name": v.Name, "closed": f.Clean, "epoch": f.Epoch, "segments_after_manifest": f.Segments})
	}
	if f.Clean {
		o.Printf("volume %s is closed: the store has all of its writes\n", v.Label())
		return nil
	}
	o.Printf("%s fenced %s (epoch %d)\n", o.Paint(console.Green, "✓"), v.Label(), f.Epoch)
	o.Notef("writes that had not been sent are in the log of the machine that had it open: `r lsvd attach %s` there has them; "+
		"--take-over elsewhere loses them\n", v.Label())
	return nil
}
