package app

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	clidisk "miren.dev/runtime/cli/disk"
	"miren.dev/runtime/entity"
)

// changeOptions are the options of commands that start a rollout.
type changeOptions struct {
	appOptions
	message string
	detach  bool
	to      string
	preview string
	yes     bool
}

func (o *changeOptions) addRollout(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&o.message, "message", "m", "", "reason for the change, shown in the history")
	cmd.Flags().BoolVar(&o.detach, "detach", false, "return without waiting for the end of the rollout")
}

func newRollback(e *command.Env) *cobra.Command {
	o := &changeOptions{appOptions: appOptions{Env: e}}
	cmd := &cobra.Command{
		Use:               "rollback [APP]",
		Short:             "Serve an earlier version again, without a build",
		Long:              "Serves an earlier version again, with its image and configuration, without a build.",
		Example:           "  r app rollback\n  r app rollback shop --to v12",
		Args:              command.Args(0, 1, "APP"),
		ValidArgsFunction: completeApps(e),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.roll(cmd.Context(), args, func(ctx context.Context, c app.AppsClient, name string) (*app.DeploymentResponse, error) {
				return c.Rollback(ctx, &app.RollbackRequest{Project: o.Project(), App: name, To: o.to, Message: o.message})
			})
		},
	}
	o.addApp(cmd)
	o.addRollout(cmd)
	cmd.Flags().StringVar(&o.to, "to", "", "version, as v3; default: the previous active version")
	return cmd
}

func newPromote(e *command.Env) *cobra.Command {
	o := &changeOptions{appOptions: appOptions{Env: e}}
	cmd := &cobra.Command{
		Use:   "promote [APP]",
		Short: "Give all requests to the version that was deployed with --canary, or as a preview",
		Long: `Gives all requests to the version that a deployment with --canary gave a share of them. Until then r app rollback takes
that share from it again.

With --preview it rolls out the version of a preview, without a build: with the app's disks, environment and scale, and
after its release command. The preview stays until it ends.`,
		Example:           "  r app promote\n  r app promote shop --preview pr-12",
		Args:              command.Args(0, 1, "APP"),
		ValidArgsFunction: completeApps(e),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.roll(cmd.Context(), args, func(ctx context.Context, c app.AppsClient, name string) (*app.DeploymentResponse, error) {
				return c.Promote(ctx, &app.PromoteRequest{Project: o.Project(), App: name, Message: o.message, Preview: o.preview})
			})
		},
	}
	o.addApp(cmd)
	o.addRollout(cmd)
	cmd.Flags().StringVar(&o.preview, "preview", "", "preview whose version becomes the active one; default: the version with a share")
	return cmd
}

func newRestart(e *command.Env) *cobra.Command {
	o := &changeOptions{appOptions: appOptions{Env: e}}
	cmd := &cobra.Command{
		Use:               "restart [APP]",
		Short:             "Replace the sandboxes of the active version by new ones",
		Args:              command.Args(0, 1, "APP"),
		ValidArgsFunction: completeApps(e),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.roll(cmd.Context(), args, func(ctx context.Context, c app.AppsClient, name string) (*app.DeploymentResponse, error) {
				return c.Restart(ctx, &app.RestartRequest{Project: o.Project(), App: name, Message: o.message})
			})
		},
	}
	o.addApp(cmd)
	o.addRollout(cmd)
	return cmd
}

func (o *changeOptions) roll(ctx context.Context, args []string, call func(context.Context, app.AppsClient, string) (*app.DeploymentResponse, error)) error {
	name, err := command.AppArg(args, o.app)
	if err != nil {
		return err
	}
	c, err := client(ctx, o.Env)
	if err != nil {
		return err
	}
	resp, err := call(ctx, c, name)
	return follow(ctx, o.Env, name, resp, err, o.detach)
}

func newCancel(e *command.Env) *cobra.Command {
	o := &changeOptions{appOptions: appOptions{Env: e}}
	cmd := &cobra.Command{
		Use:               "cancel [APP]",
		Short:             "Cancel the running deployment; the active version keeps serving",
		Args:              command.Args(0, 1, "APP"),
		ValidArgsFunction: completeApps(e),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.cancel(cmd.Context(), args) },
	}
	o.addApp(cmd)
	return cmd
}

func (o *changeOptions) cancel(ctx context.Context, args []string) error {
	name, err := command.AppArg(args, o.app)
	if err != nil {
		return err
	}
	c, err := client(ctx, o.Env)
	if err != nil {
		return err
	}
	resp, err := c.Cancel(ctx, &app.AppRequest{Project: o.Project(), App: name})
	if err != nil {
		return err
	}
	var d *app.Deployment
	if resp.Deployment != nil {
		if d, err = entity.Decode[app.Deployment](resp.Deployment); err != nil {
			return err
		}
	}
	if o.JSON {
		return o.PrintJSON(map[string]any{"canceling": d})
	}
	if d != nil {
		o.Printf("%s canceling deployment %s of %s\n", o.Paint(console.Yellow, "✓"), d.ID, name)
	}
	return nil
}

func newDelete(e *command.Env) *cobra.Command {
	o := &changeOptions{appOptions: appOptions{Env: e}}
	cmd := &cobra.Command{
		Use:               "delete APP",
		Short:             "Delete an app with its versions, routes and history; its disks stay",
		Args:              command.Args(1, 1, "APP"),
		ValidArgsFunction: completeApps(e),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.delete(cmd.Context(), args[0]) },
	}
	cmd.Flags().BoolVarP(&o.yes, "yes", "y", false, "delete without asking")
	return cmd
}

func (o *changeOptions) delete(ctx context.Context, name string) error {
	if _, err := find(ctx, o.Env, name); err != nil {
		return err
	}
	kept, err := disksOf(ctx, o.Env, name)
	if err != nil {
		return err
	}
	if !o.yes {
		sure, err := o.Confirm("delete the app " + name + " with its versions, routes and history")
		if err != nil {
			return err
		}
		if !sure {
			o.Notef("nothing was deleted\n")
			return nil
		}
	}
	c, err := client(ctx, o.Env)
	if err != nil {
		return err
	}
	if err := c.Delete(ctx, &app.AppRequest{Project: o.Project(), App: name}); err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(map[string]any{"deleted": name, "kept_disks": kept})
	}
	o.Printf("%s deleted %s\n", o.Paint(console.Green, "✓"), name)
	for _, d := range kept {
		o.Printf("  its disk %s stays, with its data: `r disk delete %s` deletes it\n", d, d)
	}
	return nil
}

// disksOf returns the names of the disks that an app uses.
func disksOf(ctx context.Context, e *command.Env, name string) ([]string, error) {
	all, _, err := command.All[disk.Disk](ctx, e, entity.Query{})
	if err != nil {
		return nil, err
	}
	users, err := clidisk.Users(ctx, e, all)
	if err != nil {
		return nil, err
	}
	names := []string{}
	for _, d := range all {
		if slices.Contains(users[d.GetID()], name) {
			names = append(names, d.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}
