package audit

import (
	"cmp"
	"context"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
)

func newPolicy(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "policy",
		Short: "Report what violates the policies of projects",
		Long: `Reports the sandboxes, templates, previews and API keys that violate the policy of their project (` + "`r policy`" + `), and what else
deserves a look: public previews, and keys that do not expire, were not used for 90 days or have the role admin.
Administrators see all projects, others those in which they have a role; --project names one. The exit code is 1 if
something violates a policy, and 0 if something only deserves a look.`,
		Example: "  r audit policy\n  r audit policy --project research --json",
		Args:    command.Args(0, 0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return runPolicy(cmd.Context(), e) },
	}
}

func runPolicy(ctx context.Context, e *command.Env) error {
	c, err := e.Connect(ctx)
	if err != nil {
		return err
	}
	report, err := core.NewPoliciesClient(c).Report(ctx, &core.PolicyReportRequest{Project: e.GivenProject()})
	if err != nil {
		return err
	}
	if e.JSON {
		err = e.PrintJSON(report)
	} else {
		printReport(e, report)
	}
	if err == nil && report.Violations > 0 {
		err = exit.With(exit.Failed, nil)
	}
	return err
}

func printReport(e *command.Env, report *core.PolicyReport) {
	var rows [][]string
	for _, f := range report.Findings {
		rule := "-"
		if f.Rule != "" {
			rule = e.Paint(console.Red, string(f.Rule))
		}
		rows = append(rows, []string{f.Project, f.Kind, cmp.Or(f.Name, f.ID), rule, f.Message})
	}
	if len(rows) > 0 {
		e.Table([]string{"PROJECT", "KIND", "NAME", "RULE", "FINDING"}, rows)
	}
	e.Notef("%d violations and %d other findings in %d projects\n", report.Violations, int64(len(report.Findings))-report.Violations, report.Projects)
}
