// Package user has `r user`: the people to whom API keys, certificates and SSH keys
// belong.
package user

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/schema"
)

// New makes the commands.
func New(e *command.Env) *cobra.Command {
	return command.Group("user", "People to whom API keys, certificates and SSH keys belong", newCreate(e), newList(e), newSet(e), newSwitch(e, true), newSwitch(e, false))
}

const roleUsage = "role that its API keys may have: agent, viewer, deployer or admin, in all projects, or in one as ROLE@PROJECT; repeat for several"

func newCreate(e *command.Env) *cobra.Command {
	req := &core.CreateUserRequest{}
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Make a user",
		Long: `Makes a user. The certificates (` + "`r auth generate --name`" + `) and SSH keys with its name are its own, and so are API keys that are
made with --user: the audit log names the user, and all of them are refused while it is disabled. --role says which roles
its API keys may have.`,
		Example: "  r user create alice --role deployer@shop --role viewer\n  r key create laptop --user alice --role deployer --project shop",
		Args:    command.Args(1, 1, "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Name = args[0]
			if err := req.Validate(); err != nil {
				return exit.With(exit.Usage, err)
			}
			return change(cmd.Context(), e, "made", func(ctx context.Context, c core.UsersClient) (*core.UserResponse, error) { return c.Create(ctx, req) })
		},
	}
	cmd.Flags().StringVar(&req.DisplayName, "display-name", "", "name for people")
	cmd.Flags().StringSliceVar(&req.Roles, "role", nil, roleUsage)
	return cmd
}

func newSet(e *command.Env) *cobra.Command {
	req := &core.SetUserRequest{}
	cmd := &cobra.Command{
		Use:     "set NAME",
		Short:   "Change the roles that the API keys of a user may have",
		Long:    "Replaces the roles that the API keys of a user may have. A key keeps those of its roles that the user still may have.",
		Example: "  r user set alice --role viewer",
		Args:    command.Args(1, 1, "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(req.Roles) == 0 {
				return exit.Usagef("--role is missing; `r user disable` takes all access away")
			}
			req.Name = args[0]
			return change(cmd.Context(), e, "changed", func(ctx context.Context, c core.UsersClient) (*core.UserResponse, error) { return c.Set(ctx, req) })
		},
	}
	cmd.Flags().StringSliceVar(&req.Roles, "role", nil, roleUsage)
	return cmd
}

// newSwitch makes the commands disable and enable.
func newSwitch(e *command.Env, disabled bool) *cobra.Command {
	cmd := &cobra.Command{
		Use: "enable NAME", Short: "Accept the keys and certificates of a user again", Example: "  r user enable alice",
		Long: "Accepts the API keys, certificates and SSH keys of a disabled user again, unless they were deleted, revoked or have expired.",
		Args: command.Args(1, 1, "NAME"),
	}
	done := "enabled"
	if disabled {
		done, cmd.Use, cmd.Example = "disabled", "disable NAME", "  r user disable alice"
		cmd.Short = "Refuse the keys and certificates of a user"
		cmd.Long = "Refuses the API keys, certificates and SSH keys of a user at once. Calls and connections that are made with them end."
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req := &core.SetUserRequest{Name: args[0], Disabled: &disabled}
		return change(cmd.Context(), e, done, func(ctx context.Context, c core.UsersClient) (*core.UserResponse, error) { return c.Set(ctx, req) })
	}
	return cmd
}

func change(ctx context.Context, e *command.Env, done string, call func(context.Context, core.UsersClient) (*core.UserResponse, error)) error {
	c, err := e.Connect(ctx)
	if err != nil {
		return err
	}
	resp, err := call(ctx, core.NewUsersClient(c))
	if err != nil {
		return err
	}
	u, err := entity.Decode[core.User](&resp.User)
	if err != nil {
		return err
	}
	if e.JSON {
		return e.PrintJSON(u)
	}
	e.Printf("%s %s the user %s\n", e.Paint(console.Green, "✓"), done, u.Name)
	return nil
}

func newList(e *command.Env) *cobra.Command {
	load := func(ctx context.Context) ([]*core.User, error) {
		all, _, err := command.All[core.User](ctx, e, entity.Query{})
		return all, err
	}
	return command.List(e, "List the users", []string{core.KindUser}, load, func(_ context.Context, all []*core.User) error {
		var rows [][]string
		for _, u := range all {
			state := "enabled"
			if u.Spec.Disabled {
				state = e.Paint(console.Red, "disabled")
			}
			rows = append(rows, []string{u.Name, u.Spec.DisplayName, strings.Join(u.Spec.Roles, ", "), state, schema.CellAge(u.CreatedAt, time.Now())})
		}
		e.Table([]string{"NAME", "DISPLAY NAME", "ROLES", "STATE", "AGE"}, rows)
		return nil
	})
}
