package template

import (
	"context"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/software"
)

func newSBOM(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "sbom NAME",
		Short: "List the software in the image of a template",
		Long: `Lists the software in the image of a template: packages of the distribution and of languages, and the modules of Go
programs. --json prints the list as CycloneDX. The image of a base that was never used is made first.`,
		Example: "  r template sbom python\n  r template sbom python:2 --json",
		Args:    command.Args(1, 1, "NAME"),
		RunE:    func(cmd *cobra.Command, args []string) error { return printSoftware(cmd.Context(), e, args[0]) },
	}
}

func printSoftware(ctx context.Context, e *command.Env, name string) error {
	c, err := client(ctx, e)
	if err != nil {
		return err
	}
	st, err := c.Software(ctx, &sandbox.TemplateRequest{Project: e.Project(), Template: name})
	if err != nil {
		return err
	}
	defer st.Close()
	return software.Print(e, st.Reader())
}
