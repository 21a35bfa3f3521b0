// Package man has `r man`: manual pages.
package man

import (
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/version"
)

// New makes the command.
func New(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:     "man DIR",
		Short:   "Write manual pages of all commands",
		Long:    "Writes a manual page of each command into a folder, which is made if it does not exist: r.1, r-app-deploy.1 and so on.",
		Example: "  r man ~/.local/share/man/man1 && man r-app-deploy",
		Args:    command.Args(1, 1, "DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return errs.New(errs.Unavailable, "make the folder: %w", err)
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true
			header := &doc.GenManHeader{Section: "1", Source: "runtime " + version.Version, Manual: "Miren Runtime"}
			if err := doc.GenManTree(root, header, args[0]); err != nil {
				return errs.New(errs.Unavailable, "write manual pages: %w", err)
			}
			e.Notef("the manual pages are in %s\n", args[0])
			return nil
		},
	}
}
