package template

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/rollout"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

func newLogs(e *command.Env) *cobra.Command {
	follow := false
	cmd := &cobra.Command{
		Use:     "logs NAME[:NUMBER]",
		Short:   "Print the log of the build of a template",
		Long:    "Prints the log of the build of a version of a template; without a number or tag that of the newest version.",
		Example: "  r template logs shop\n  r template logs -f shop:3",
		Args:    command.Args(1, 1, "NAME"),
		RunE:    func(cmd *cobra.Command, args []string) error { return logs(cmd.Context(), e, args[0], follow) },
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "keep printing until the build has ended")
	return cmd
}

func logs(ctx context.Context, e *command.Env, name string, follow bool) error {
	resp, err := get(ctx, e, name)
	if err != nil {
		return err
	}
	versions, err := decode[sandbox.TemplateVersion](resp.Versions)
	if err != nil {
		return err
	}
	of := resp.Selected
	if !named(name) && len(versions) > 0 {
		of = &resp.Versions[0]
	}
	if of == nil {
		return errs.New(errs.NotFound, "template %s has no version", name)
	}
	v, err := entity.Decode[sandbox.TemplateVersion](of)
	if err != nil {
		return err
	}
	b := buildOf(resp, v)
	if b == nil {
		return errs.New(errs.NotFound, "version %d of template %s has no build", v.Spec.Number, name).
			WithHint("the images of templates that come with the system are made on the first use")
	}
	return rollout.BuildLog(ctx, e, rollout.NewLines(e.Console, time.Now), b.GetID(), follow)
}

func newTag(e *command.Env) *cobra.Command {
	remove := false
	cmd := &cobra.Command{
		Use:   "tag NAME:VERSION TAG",
		Short: "Set or remove a tag of a template",
		Long: `Gives a tag to a version of a template, named by its number or by another tag. NAME:TAG then selects it. The tag latest
is what NAME alone selects: setting it goes back to an earlier version, or on to one that was built with another tag.`,
		Example: "  r template tag shop:3 latest\n  r template tag shop:beta stable\n  r template tag --remove shop beta",
		Args:    command.Args(2, 2, "NAME:VERSION", "TAG"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := client(cmd.Context(), e)
			if err != nil {
				return err
			}
			resp, err := c.Tag(cmd.Context(), &sandbox.TagTemplateRequest{Project: e.Project(), Template: args[0], Tag: args[1], Remove: &remove})
			return changed(e, resp, err)
		},
	}
	cmd.Flags().BoolVar(&remove, "remove", false, "remove the tag of NAME")
	return cmd
}

func newAlias(e *command.Env) *cobra.Command {
	remove := false
	cmd := &cobra.Command{
		Use:     "alias NAME ALIAS",
		Short:   "Set or remove another name of a template",
		Example: "  r template alias shop store\n  r template alias --remove shop store",
		Args:    command.Args(2, 2, "NAME", "ALIAS"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := client(cmd.Context(), e)
			if err != nil {
				return err
			}
			resp, err := c.Alias(cmd.Context(), &sandbox.AliasTemplateRequest{Project: e.Project(), Template: args[0], Alias: args[1], Remove: &remove})
			return changed(e, resp, err)
		},
	}
	cmd.Flags().BoolVar(&remove, "remove", false, "remove the alias")
	return cmd
}

// changed prints a template after a change.
func changed(e *command.Env, resp *sandbox.TemplateResponse, err error) error {
	if err != nil {
		return err
	}
	return print(e, resp)
}

func newDelete(e *command.Env) *cobra.Command {
	yes := false
	cmd := &cobra.Command{
		Use:     "delete NAME[:VERSION]",
		Aliases: []string{"rm"},
		Short:   "Delete a template or a version of it",
		Long: `Deletes a template with its versions, tags and warm pools, or one version with its tags. Builds of it end. Sandboxes that were
made of it go on; its image is removed when no sandbox or snapshot needs it.`,
		Example: "  r template delete shop:2\n  r template delete shop --yes",
		Args:    command.Args(1, 1, "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !named(args[0]) && !yes {
				ok, err := e.Confirm("delete template " + args[0] + " with all of its versions?")
				if err != nil || !ok {
					return err
				}
			}
			c, err := client(cmd.Context(), e)
			if err != nil {
				return err
			}
			if err := c.Delete(cmd.Context(), &sandbox.TemplateRequest{Project: e.Project(), Template: args[0]}); err != nil {
				return err
			}
			e.Printf("%s %s is deleted\n", e.Paint(console.Green, "✓"), args[0])
			return nil
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}
