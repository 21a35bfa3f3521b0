package app

import (
	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/pkg/appconfig"
)

func newSchema(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of app.toml",
		Long: `Prints the JSON Schema of app.toml, for editors that complete and check it, without a server. Editors with Taplo (VS Code's
Even Better TOML, Zed, Neovim) read the line "#:schema ./app.schema.json" at the top of app.toml.`,
		Example: "  r app schema > .runtime/app.schema.json",
		Args:    command.Args(0, 0),
		RunE: func(*cobra.Command, []string) error {
			b, err := appconfig.Schema()
			if err != nil {
				return err
			}
			_, err = e.Out.Write(b)
			return err
		},
	}
}
