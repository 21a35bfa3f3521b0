package sandbox

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/history"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
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

// logOptions of `r sandbox egress log`.
type logOptions struct {
	*command.Env
	all   bool
	limit int64
}

func newEgressLog(e *command.Env) *cobra.Command {
	o := &logOptions{Env: e}
	cmd := &cobra.Command{
		Use:   "log ID",
		Short: "List the names that a sandbox asked for and its connections",
		Long: `Lists the names that a sandbox asked for and its connections, the oldest first: the last ones of a sandbox whose policy
has rules. The sandbox chose the names. With --all, or by the id of a sandbox that is gone, it lists what the history has;
history.egress in the configuration says how long that is kept.`,
		Example:           "  r sandbox egress log sb-4k2j\n  r sandbox egress log sb-4k2j --all --limit 1000",
		Args:              command.Args(1, 1, "ID"),
		ValidArgsFunction: command.CompleteFirst(e, sandbox.SandboxKind),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	cmd.Flags().BoolVar(&o.all, "all", false, "what the history has, not only the last ones that the node keeps in memory")
	cmd.Flags().Int64Var(&o.limit, "limit", 100, "with --all: at most so many, the last ones; up to 1000")
	return cmd
}

func (o *logOptions) run(ctx context.Context, name string) error {
	s, err := find(ctx, o.Env, name)
	gone := errs.Is(err, errs.NotFound) && strings.HasPrefix(name, sandbox.SandboxKind.Prefix+"-")
	if err != nil && !gone {
		return err
	}
	var records []sandbox.EgressRecord
	if gone || o.all {
		id := name
		if !gone {
			id = string(s.ID)
		}
		records, err = o.history(ctx, id)
		if err == nil && gone && len(records) == 0 {
			return errs.New(errs.NotFound, "there is no sandbox %s, and the history has nothing of it", name).
				WithHint("a sandbox whose policy has no rules leaves no records")
		}
	} else {
		records, err = o.recent(ctx, s)
	}
	if err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(records)
	}
	o.print(records)
	return nil
}

// recent returns what the node keeps in memory.
func (o *logOptions) recent(ctx context.Context, s *sandbox.Sandbox) ([]sandbox.EgressRecord, error) {
	c, err := client(ctx, o.Env)
	if err != nil {
		return nil, err
	}
	resp, err := c.EgressLog(ctx, &sandbox.SandboxRequest{Sandbox: s.GetID()})
	if err != nil {
		return nil, err
	}
	return resp.Records, nil
}

// history returns what the store keeps of a sandbox that may be gone.
func (o *logOptions) history(ctx context.Context, id string) ([]sandbox.EgressRecord, error) {
	c, err := o.Connect(ctx)
	if err != nil {
		return nil, err
	}
	req := &history.ListRequest{Stream: history.StreamEgress, Project: o.GivenProject(), SubjectKind: sandbox.KindSandbox, Subject: id, Limit: o.limit}
	if err := req.Validate(); err != nil {
		return nil, exit.With(exit.Usage, err)
	}
	resp, err := history.NewHistoryClient(c).List(ctx, req)
	if err != nil {
		return nil, err
	}
	var out []sandbox.EgressRecord
	for _, h := range slices.Backward(resp.Records) { // newest first
		var r egress.Record
		if err := json.Unmarshal([]byte(h.Detail), &r); err != nil {
			return nil, errs.New(errs.Corrupt, "record %s of the history: %w", h.ID, err)
		}
		port := int64(r.Port)
		e := sandbox.EgressRecord{At: r.Time, Protocol: r.Protocol, Name: r.Name, Permitted: r.Allowed, Why: r.Reason, Secret: r.Secret}
		if r.Address.IsValid() {
			e.Address, e.Port = r.Address.String(), &port
		}
		out = append(out, e)
	}
	return out, nil
}

func (o *logOptions) print(records []sandbox.EgressRecord) {
	e := o.Env
	var rows [][]string
	for _, r := range records {
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
}
