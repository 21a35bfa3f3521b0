package app

import (
	"github.com/spf13/cobra"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/entity"
)

func newCreate(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "create [APP]",
		Short: "Create an app without a version",
		Long: `Creates an app without a version, so that it has variables, secrets and databases when its first deployment builds and
starts it. r deploy creates an app too.`,
		Example: "  r app create shop\n  r app env import --secret .env --app shop\n  r deploy --app shop",
		Args:    command.Args(0, 1, "APP"),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := command.AppArg(args, "")
			if err != nil {
				return err
			}
			c, err := client(cmd.Context(), e)
			if err != nil {
				return err
			}
			resp, err := c.Create(cmd.Context(), &app.AppRequest{Project: e.Project(), App: name})
			if err != nil {
				return err
			}
			if e.JSON {
				a, err := entity.Decode[app.App](&resp.App)
				if err != nil {
					return err
				}
				return e.PrintJSON(a)
			}
			e.Printf("created %s; `r app env set` gives it variables, `r deploy` its first version\n", name)
			return nil
		},
	}
}
