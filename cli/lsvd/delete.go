package lsvd

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/catalog"
	"miren.dev/runtime/pkg/errs"
)

type deleteOptions struct {
	base
	yes, force, keep bool
}

func newDelete(e *command.Env) *cobra.Command {
	o := &deleteOptions{base: newBase(e)}
	cmd := &cobra.Command{
		Use:     "delete VOLUME",
		Aliases: []string{"rm"},
		Short:   "Delete a volume and what only it uses",
		Long: `Deletes a volume for good, and the objects in the store that nothing else uses. Clones of its snapshots are volumes of their own: they
stay, and keep what they need. It refuses while the volume is open or has snapshots.`,
		Args:              command.Args(1, 1, "VOLUME"),
		ValidArgsFunction: o.completeVolumes,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	o.flags(cmd)
	cmd.Flags().BoolVarP(&o.yes, "yes", "y", false, "do not ask")
	cmd.Flags().BoolVar(&o.force, "force", false, "also if it is open elsewhere; whoever has it open gets errors")
	cmd.Flags().BoolVar(&o.keep, "no-sweep", false, "do not free the space yet; `r lsvd gc` does later")
	return cmd
}

func (o *deleteOptions) run(ctx context.Context, arg string) error {
	name, _, err := volumeArg(arg, false)
	if err != nil {
		return err
	}
	st, url, v, err := o.find(ctx, name)
	if err != nil {
		return err
	}
	if !o.yes {
		ok, err := o.Confirm("delete volume " + v.Label() + " (" + bytesCell(v.Size) + ") in " + url + " for good")
		if err != nil {
			return err
		}
		if !ok {
			return errs.New(errs.Canceled, "nothing was deleted")
		}
	}
	if err := catalog.Delete(ctx, st, v, o.force); err != nil {
		var e *errs.Error
		if errs.Detail(err, "reason") == "open" && errors.As(err, &e) {
			return e.WithHint("`r lsvd detach %s` closes it; if its machine is gone for good, --force deletes the volume all the same", v.Label())
		}
		return err
	}
	state, err := o.state()
	if err == nil {
		err = state.Forget(v.ID)
	}
	if err != nil {
		return errs.Wrap(err, "volume %s is deleted, its local log is not", v.Label())
	}
	var objects int
	var freed int64
	if !o.keep {
		if objects, freed, err = lsvd.Sweep(ctx, st); err != nil {
			e := errs.New(errs.ClassOf(err), "volume %s is deleted, but its space is not free yet: %w", v.Label(), err)
			return e.WithHint("`r lsvd gc` tries again")
		}
	}
	if o.JSON {
		return o.PrintJSON(map[string]any{"id": v.ID.String(), "name": v.Name, "objects_deleted": objects, "bytes_freed": freed})
	}
	o.Printf("%s deleted %s, %s freed\n", o.Paint(console.Green, "✓"), v.Label(), bytesCell(freed))
	return nil
}
