package app

import (
	"context"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/entity"
)

// newMaintenance makes `r app maintenance`.
func newMaintenance(e *command.Env) *cobra.Command {
	o := &appOptions{Env: e}
	var message string
	cmd := &cobra.Command{
		Use:     "maintenance on|off",
		Short:   "Have the ingress answer for an app with a page",
		Long:    `Has the ingress answer every request for an app with a page (503), until it is turned off. The sandboxes of the app go on.`,
		Example: "  r app maintenance on --message \"Back at noon.\"\n  r app maintenance off",
		Args:    command.Args(1, 1, "on or off"),
		RunE:    func(cmd *cobra.Command, args []string) error { return o.maintain(cmd.Context(), args[0], message) },
	}
	o.addApp(cmd)
	cmd.Flags().StringVarP(&message, "message", "m", "", "what visitors read")
	return cmd
}

func (o *appOptions) maintain(ctx context.Context, state, message string) error {
	if state != "on" && state != "off" || state == "off" && message != "" {
		return exit.Usagef("it is on, with --message if you like, or off")
	}
	name, err := command.AppArg(nil, o.app)
	if err != nil {
		return err
	}
	c, err := client(ctx, o.Env)
	if err != nil {
		return err
	}
	resp, err := c.Maintain(ctx, &app.MaintainRequest{Project: o.Project(), App: name, On: state == "on", Message: message})
	if err != nil {
		return err
	}
	a, err := entity.Decode[app.App](&resp.App)
	if err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(a)
	}
	o.Printf("%s maintenance of %s is %s\n", o.Paint(console.Green, "✓"), name, state)
	return nil
}
