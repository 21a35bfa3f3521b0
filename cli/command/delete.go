package command

import (
	"context"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/schema"
)

// Delete makes a command that deletes one entity of the project by its name.
// what names it in the command's messages, remove asks the server.
func Delete(e *Env, kind *schema.Kind, what, short, long string, remove func(ctx context.Context, c *rpc.Client, name string) error) *cobra.Command {
	return &cobra.Command{
		Use:               "delete NAME",
		Aliases:           []string{"rm"},
		Short:             short,
		Long:              long,
		Args:              Args(1, 1, "NAME"),
		ValidArgsFunction: CompleteFirst(e, kind),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := e.Connect(cmd.Context())
			if err != nil {
				return err
			}
			if err := remove(cmd.Context(), c, args[0]); err != nil {
				return err
			}
			if e.JSON {
				return e.PrintJSON(map[string]string{"deleted": args[0]})
			}
			e.Printf("%s deleted the %s %s\n", e.Paint(console.Green, "✓"), what, args[0])
			return nil
		},
	}
}
