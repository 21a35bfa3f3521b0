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
		Short:   "Delete a volume and the data that no other volume uses",
		Long: `Deletes a volume permanently, with the objects in the store that no other volume uses. Clones of the volume stay, with the
objects that they share with it. The command refuses while the volume is open or has snapshots.`,
		Args:              command.Args(1, 1, "VOLUME"),
		ValidArgsFunction: o.completeVolumes,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	o.flags(cmd)
	cmd.Flags().BoolVarP(&o.yes, "yes", "y", false, "delete without asking")
	cmd.Flags().BoolVar(&o.force, "force", false, "delete a volume that is open elsewhere; its users get I/O errors")
	cmd.Flags().BoolVar(&o.keep, "no-sweep", false, "do not free the space now; r lsvd gc does")
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
		ok, err := o.Confirm("delete volume " + v.Label() + " (" + bytesCell(v.Size) + ") in " + url + " permanently")
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
			return e.WithHint("`r lsvd detach %s` closes it; if its machine no longer exists, --force deletes the volume", v.Label())
		}
		return err
	}
	state, err := o.state()
	if err == nil {
		err = state.Forget(v.ID)
	}
	if err != nil {
		return errs.Wrap(err, "volume %s is deleted, but not its local log", v.Label())
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
