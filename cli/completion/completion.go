// Package completion has `r completion`: scripts for shells.
package completion

import (
	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/exit"
)

// New makes the command.
func New(*command.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "Print a completion script for bash, zsh or fish",
		Example: `  r completion bash > /etc/bash_completion.d/r
  r completion zsh > "${fpath[1]}/_r"
  r completion fish > ~/.config/fish/completions/r.fish`,
		ValidArgs: []string{"bash", "zsh", "fish"},
		Args:      command.Args(1, 1, "SHELL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			root, out := cmd.Root(), cmd.OutOrStdout()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(out, true)
			case "zsh":
				return root.GenZshCompletion(out)
			case "fish":
				return root.GenFishCompletion(out, true)
			}
			return exit.Usagef("there is no completion for %q: bash, zsh or fish", args[0])
		},
	}
}
