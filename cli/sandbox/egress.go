package sandbox

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/pkg/schema"
)

func newEgress(e *command.Env) *cobra.Command {
	return command.Group("egress", "What a sandbox may reach on the network", newEgressSet(e), newEgressLog(e))
}

func newEgressSet(e *command.Env) *cobra.Command {
	f := &command.EgressFlags{}
	cmd := &cobra.Command{
		Use:   "set ID",
		Short: "Change what a sandbox may reach",
		Long: `Changes what a sandbox may reach, at once, connections that are open included. A rule is a network, an address, a domain
or the subdomains of one (*.example.com). A domain opens the ports 80 and 443. --deny wins over --allow. What was set before, secrets that
are injected included, is replaced by what the flags say.`,
		Example:           "  r sandbox egress set sb-4k2j --allow pypi.org --allow '*.pythonhosted.org'\n  r sandbox egress set sb-4k2j --egress none\n  r sandbox egress set sb-4k2j --egress list --inject-secret openai --host api.openai.com",
		Args:              command.Args(1, 1, "ID"),
		ValidArgsFunction: command.CompleteFirst(e, sandbox.SandboxKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			policy, err := f.Policy()
			if err != nil {
				return err
			}
			if policy == nil {
				return exit.Usagef("say what it may reach: --egress, --allow, --deny or --inject-secret")
			}
			return change(cmd.Context(), e, args[0], "changed what is reached by", func(ctx context.Context, c sandbox.SandboxesClient, s *sandbox.Sandbox) (*sandbox.SandboxResponse, error) {
				return c.SetEgress(ctx, &sandbox.EgressRequest{Sandbox: s.GetID(), Egress: *policy})
			})
		},
	}
	f.AddFlags(cmd)
	return cmd
}

func newEgressLog(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "log ID",
		Short: "List the names that a sandbox asked for and its connections",
		Long: `Lists the names that a sandbox asked for and its connections, the oldest first: the last ones of a sandbox whose policy
has rules. The sandbox chose the names.`,
		Args:              command.Args(1, 1, "ID"),
		ValidArgsFunction: command.CompleteFirst(e, sandbox.SandboxKind),
		RunE:              func(cmd *cobra.Command, args []string) error { return egressLog(cmd.Context(), e, args[0]) },
	}
}

func egressLog(ctx context.Context, e *command.Env, name string) error {
	c, err := client(ctx, e)
	if err != nil {
		return err
	}
	s, err := find(ctx, e, name)
	if err != nil {
		return err
	}
	resp, err := c.EgressLog(ctx, &sandbox.SandboxRequest{Sandbox: s.GetID()})
	if err != nil {
		return err
	}
	if e.JSON {
		return e.PrintJSON(resp.Records)
	}
	var rows [][]string
	for _, r := range resp.Records {
		verdict := e.Paint(console.Red, "refused")
		if r.Permitted {
			verdict = e.Paint(console.Green, "permitted")
		}
		port := ""
		if r.Port != nil {
			port = schema.Cell(*r.Port)
		}
		rows = append(rows, []string{r.At.Local().Format(time.TimeOnly), r.Protocol, r.Name, r.Address, port, verdict, r.Secret, r.Why})
	}
	e.Table([]string{"TIME", "PROTOCOL", "NAME", "ADDRESS", "PORT", "VERDICT", "SECRET", "WHY"}, rows)
	return nil
}
