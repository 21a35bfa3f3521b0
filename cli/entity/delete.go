package entity

import (
	"context"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

type deleteOptions struct {
	*command.Env
	ignoreMissing bool
}

func newDelete(e *command.Env) *cobra.Command {
	o := &deleteOptions{Env: e}
	cmd := &cobra.Command{
		Use:               "delete KIND NAME|ID...",
		Short:             "Delete entities, with those that the schema deletes along with them",
		Args:              command.Args(2, -1, "KIND", "NAME or ID"),
		ValidArgsFunction: completeKinds,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0], args[1:]) },
	}
	cmd.Flags().BoolVar(&o.ignoreMissing, "ignore-missing", false, "do not fail for entities that do not exist")
	return cmd
}

func (o *deleteOptions) run(ctx context.Context, kind string, names []string) error {
	k, err := api.Kind(kind)
	if err != nil {
		return err
	}
	store, err := o.Store(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		var id string
		// Controllers may change the entity meanwhile.
		err := entity.Retry(ctx, func() error {
			rec, err := o.FindRecord(ctx, k, name)
			if err != nil {
				return err
			}
			id = string(rec.ID)
			_, err = store.Txn(ctx, entity.TxnRequest{Ops: []entity.Op{{Type: entity.OpDelete, Record: rec, If: rec.Revision}}})
			return err
		})
		if errs.Is(err, errs.NotFound) && o.ignoreMissing {
			continue
		}
		if err != nil {
			return err
		}
		if o.JSON {
			if err := o.PrintJSONLine(map[string]string{"event": "deleted", "kind": k.Name, "id": id}); err != nil {
				return err
			}
		}
		o.Printf("deleted %s %s\n", k.Name, name)
	}
	return nil
}
