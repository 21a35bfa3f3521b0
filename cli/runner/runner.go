// Package runner has `r runner` as far as a client can run it: tokens with which
// machines join, and the runners of a server. Start and stop are in package
// serverctl.
package runner

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/runner"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/cli/node"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/rpc"
)

// New makes the commands.
func New(e *command.Env) *cobra.Command {
	return command.Group("runner", "Machines that dial out to run sandboxes",
		command.Group("token", "Tokens with which machines become runners", newCreateToken(e)), newList(e),
		newAllow(e, "allow", "Permit that an app runs on a runner", allowLong, runner.RunnersClient.Allow),
		newAllow(e, "deny", "Place an app on a runner no more", denyLong, runner.RunnersClient.Deny), newDelete(e))
}

type createOptions struct {
	*command.Env
	ttl time.Duration
}

func newCreateToken(e *command.Env) *cobra.Command {
	o := &createOptions{Env: e}
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make a token with which one machine becomes a runner",
		Long: `Makes a token and prints it. It is shown this once, works once, and says which server is the right one. In a pipe it is
printed alone. The server must listen for runners: r server start --runners-address HOST:PORT.`,
		Example: "  r runner token create\n  r runner token create --ttl 24h",
		Args:    command.Args(0, 0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	cmd.Flags().DurationVar(&o.ttl, "ttl", time.Hour, "validity, at most a week")
	return cmd
}

func (o *createOptions) run(ctx context.Context) error {
	req := &runner.CreateTokenRequest{TTL: &o.ttl}
	if err := req.Validate(); err != nil {
		return exit.With(exit.Usage, err)
	}
	c, err := o.Connect(ctx)
	if err != nil {
		return err
	}
	resp, err := runner.NewRunnersClient(c).CreateToken(ctx, req)
	if err != nil {
		return err
	}
	t, err := entity.Decode[core.RunnerToken](&resp.Token)
	if err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(map[string]any{"id": t.ID, "token": resp.Secret, "expires_at": t.Spec.ExpiresAt, "addresses": resp.Addresses})
	}
	o.Notef("%s made a token, valid until %s; it is not shown again. On the machine:\n  r runner start --server %s --token TOKEN\n",
		o.Paint(console.Green, "✓"), t.Spec.ExpiresAt.Format(time.DateTime), strings.Join(resp.Addresses, " or "))
	o.Printf("%s\n", resp.Secret)
	return nil
}

func newList(e *command.Env) *cobra.Command {
	load := func(ctx context.Context) ([]*core.Node, error) {
		all, _, err := command.All[core.Node](ctx, e, entity.Query{})
		var out []*core.Node
		for _, n := range all {
			if n.Spec.Runner {
				out = append(out, n)
			}
		}
		return out, err
	}
	return command.List(e, "List the runners, what is reserved on each, and which apps they may run", []string{core.KindNode}, load, func(ctx context.Context, all []*core.Node) error {
		if len(all) == 0 && e.Terminal {
			e.Notef("there are no runners: r runner token create begins with one\n")
			return nil
		}
		sandboxes, _, err := command.All[sandbox.Sandbox](ctx, e, entity.Query{})
		if err != nil {
			return err
		}
		apps, _, err := command.All[app.App](ctx, e, entity.Query{})
		if err != nil {
			return err
		}
		names := map[string]string{}
		for _, a := range apps {
			names[string(a.ID)] = a.Name
		}
		node.Table(e, all, sandboxes, node.Column{Name: "APPS", Cell: func(n *core.Node) string {
			var allowed []string
			for _, a := range n.Spec.Apps {
				allowed = append(allowed, cmp.Or(names[a], a))
			}
			return strings.Join(allowed, ", ")
		}})
		return nil
	})
}

const (
	allowLong = `Permits that sandboxes of an app's services are placed on a runner. The machine so gets the app's code and variables, and
the ingress sends it requests through its connection. So do the other apps of its project (APP.internal), and it reaches
those that permit it, and its addons. Services with disks stay on the server.`
	denyLong = `Places no more sandboxes of an app on a runner. Its sandboxes there go on until they are replaced: r app restart.`
)

type allowOptions struct {
	*command.Env
	verb string
	call func(runner.RunnersClient, context.Context, *runner.AllowRequest) error
}

func newAllow(e *command.Env, verb, short, long string, call func(runner.RunnersClient, context.Context, *runner.AllowRequest) error) *cobra.Command {
	o := &allowOptions{e, verb, call}
	return &cobra.Command{
		Use: verb + " RUNNER APP", Short: short, Long: long,
		Example:           "  r runner " + verb + " edge-1 shop",
		Args:              command.Args(2, 2, "RUNNER", "APP"),
		ValidArgsFunction: command.CompleteFirst(e, core.NodeKind),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0], args[1]) },
	}
}

func (o *allowOptions) run(ctx context.Context, name, app string) error {
	c, err := o.Connect(ctx)
	if err != nil {
		return err
	}
	if err := o.call(runner.NewRunnersClient(c), ctx, &runner.AllowRequest{Runner: name, Project: o.Project(), App: app}); err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(map[string]any{"runner": name, "app": app, "allowed": o.verb == "allow"})
	}
	if o.verb == "allow" {
		o.Notef("%s services of %s may run on %s\n", o.Paint(console.Green, "✓"), app, name)
		return nil
	}
	o.Notef("%s no more sandboxes of %s are placed on %s\n", o.Paint(console.Green, "✓"), app, name)
	return nil
}

func newDelete(e *command.Env) *cobra.Command {
	return command.Delete(e, core.NodeKind, "runner", "Delete a runner",
		`Deletes a runner. The server refuses its certificate at once. Its sandboxes end with reason node, and its snapshots are
forgotten. What runs on the machine goes on until it is stopped there: r runner stop.`,
		func(ctx context.Context, c *rpc.Client, name string) error {
			return runner.NewRunnersClient(c).Delete(ctx, &runner.RunnerRequest{Runner: name})
		})
}
