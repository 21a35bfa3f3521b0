package command

import (
	"context"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/entity"
)

// List makes the command "list", which prints a list once or, with -w, again
// after every change of an entity of kinds.
func List[T any](e *Env, short string, kinds []string, load func(context.Context) ([]T, error), draw func(context.Context, []T) error) *cobra.Command {
	var watch bool
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   short,
		Args:    Args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return Show(cmd.Context(), e, watch, kinds, func(ctx context.Context) ([]T, error) {
				list, err := load(ctx)
				if list == nil {
					list = []T{} // as JSON, [] and not null
				}
				return list, err
			}, draw)
		},
	}
	WatchFlag(cmd, &watch)
	return cmd
}

// WatchFlag adds -w.
func WatchFlag(cmd *cobra.Command, watch *bool) {
	cmd.Flags().BoolVarP(watch, "watch", "w", false, "print again after every change")
}

// Show loads and prints, as JSON or for people, and with watch again after
// every change.
func Show[T any](ctx context.Context, e *Env, watch bool, kinds []string, load func(context.Context) (T, error), draw func(context.Context, T) error) error {
	return e.Watch(ctx, watch, kinds, func(ctx context.Context) error {
		v, err := load(ctx)
		switch {
		case err != nil:
			return err
		case e.JSON && watch:
			return e.PrintJSONLine(v)
		case e.JSON:
			return e.PrintJSON(v)
		}
		if err := draw(ctx, v); err != nil {
			return err
		}
		return e.TableError()
	})
}

// FilterLists gives each command below root that is named list the flags --filter and --sort, which say what of its table it
// prints. Errors name these commands.
func FilterLists(e *Env, root *cobra.Command) {
	for _, cmd := range root.Commands() {
		FilterLists(e, cmd)
	}
	if run := root.RunE; run != nil && root.Name() == "list" {
		e.lists = append(e.lists, root.CommandPath())
		root.Flags().Func("filter", "only rows for which `COLUMN=TEXT` holds, or COLUMN!=TEXT, or COLUMN~TEXT (contains); repeatable", e.AddFilter)
		root.Flags().Func("sort", "order the rows by a `COLUMN`, descending with a minus before it", func(column string) error {
			e.SortBy(column)
			return nil
		})
		root.RunE = func(cmd *cobra.Command, args []string) error {
			if e.JSON && e.Filtered() {
				return exit.Usagef("--filter and --sort choose rows of a table, which is not printed as JSON; --jq chooses from JSON, as --jq '.[] | select(.name == \"shop\")'")
			}
			if err := run(cmd, args); err != nil {
				return err
			}
			return e.TableError()
		}
	}
}

// AppNames returns the names of the apps of the project.
func AppNames(ctx context.Context, e *Env) (map[id.App]string, error) {
	apps, _, err := All[app.App](ctx, e, entity.Query{})
	names := make(map[id.App]string, len(apps))
	for _, a := range apps {
		names[a.GetID()] = a.Name
	}
	return names, err
}
