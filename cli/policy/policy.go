// Package policy has `r policy`: what sandboxes, previews and keys of projects
// must be like.
package policy

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/pkg/schema"
)

// New makes the commands.
func New(e *command.Env) *cobra.Command {
	return command.Group("policy", "What sandboxes, previews and keys of projects must be like", newShow(e), newSet(e), newClear(e))
}

// rule is how commands show a rule.
type rule struct {
	name core.PolicyRule
	flag string
	cell func(*core.Policy) string // "": the policy does not have it
}

var rules = []rule{
	{core.PolicyRuleTemplates, "template", func(p *core.Policy) string { return strings.Join(p.Templates, ", ") }},
	{core.PolicyRuleMaxEgress, "max-egress", func(p *core.Policy) string { return string(p.MaxEgress) }},
	{core.PolicyRuleNetworks, "network", func(p *core.Policy) string { return strings.Join(p.Networks, ", ") }},
	{core.PolicyRuleMaxTTL, "max-ttl", func(p *core.Policy) string { return duration(p.MaxTTL) }},
	{core.PolicyRuleConfine, "confine", func(p *core.Policy) string { return yes(p.Confine) }},
	{core.PolicyRuleMaxCPUMillis, "max-cpu", func(p *core.Policy) string { return number(p.MaxCPUMillis, schema.CellMillis) }},
	{core.PolicyRuleMaxMemoryBytes, "max-memory", func(p *core.Policy) string { return number(p.MaxMemoryBytes, schema.CellBytes) }},
	{core.PolicyRuleMaxDiskBytes, "max-disk", func(p *core.Policy) string { return number(p.MaxDiskBytes, schema.CellBytes) }},
	{core.PolicyRuleMaxPIDs, "max-pids", func(p *core.Policy) string {
		return number(p.MaxPIDs, func(n int64) string { return strconv.FormatInt(n, 10) })
	}},
	{core.PolicyRulePrivatePreviews, "private-previews", func(p *core.Policy) string { return yes(p.PrivatePreviews) }},
	{core.PolicyRuleMaxKeyTTL, "max-key-ttl", func(p *core.Policy) string { return duration(p.MaxKeyTTL) }},
}

func duration(d *time.Duration) string {
	if d == nil {
		return ""
	}
	return d.String()
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return ""
}

func number(n *int64, show func(int64) string) string {
	if n == nil {
		return ""
	}
	return show(*n)
}

func client(ctx context.Context, e *command.Env) (core.PoliciesClient, error) {
	c, err := e.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return core.NewPoliciesClient(c), nil
}

func newShow(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:     "show",
		Short:   "Show the policy of a project",
		Long:    "Shows the rules of the policy of the project. A rule that it does not have permits everything.",
		Example: "  r policy show\n  r policy show --project research",
		Args:    command.Args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := client(cmd.Context(), e)
			if err != nil {
				return err
			}
			resp, err := c.Show(cmd.Context(), &core.PolicyRequest{Project: e.Project()})
			if err != nil {
				return err
			}
			return show(e, resp)
		},
	}
}

func show(e *command.Env, resp *core.PolicyResponse) error {
	if e.JSON {
		return e.PrintJSON(resp)
	}
	var rows [][]string
	for _, r := range rules {
		rows = append(rows, []string{r.flag, cmp.Or(r.cell(&resp.Policy), "-")})
	}
	e.Table([]string{"RULE", "VALUE"}, rows)
	return nil
}

// changed reports a change, and shows the policy.
func changed(e *command.Env, resp *core.PolicyResponse) error {
	if !e.JSON {
		e.Notef("%s changed the policy of project %s\n", e.Paint(console.Green, "✓"), resp.Project)
		e.Notef("it holds for what is made from now on; `r audit policy` lists what violates it\n")
	}
	return show(e, resp)
}

func newSet(e *command.Env) *cobra.Command {
	req := &core.SetPolicyRequest{}
	p := &req.Policy
	var egress string
	var ttl, keyTTL time.Duration
	var cpu command.CPU
	var memory, disk command.Bytes
	var pids int64
	cmd := &cobra.Command{
		Use:   "set",
		Short: "Set rules of the policy of a project",
		Long: `Sets rules of the policy of the project; those that are not named stay. They hold for sandboxes, previews, templates and
keys that are made from then on, by whatever way; what exists stays, and ` + "`r audit policy`" + ` lists it. A sandbox for which no time
to live or network is asked for gets that of the policy. Only administrators of the installation may do this.`,
		Example: `  r policy set --project research --template python --template base --max-ttl 1h --max-egress none
  r policy set --max-egress listed --network pypi.org --network '*.pythonhosted.org'
  r policy set --confine --max-cpu 2 --max-memory 4G --private-previews --max-key-ttl 720h`,
		Args: command.Args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			p.MaxEgress = core.PolicyEgress(egress)
			if egress != "" && !p.MaxEgress.Valid() {
				return exit.Usagef("--max-egress %s: want %s", egress, strings.Join(p.MaxEgress.Choices(), ", "))
			}
			p.MaxTTL, p.MaxKeyTTL = given(ttl), given(keyTTL)
			p.MaxCPUMillis, p.MaxMemoryBytes, p.MaxDiskBytes, p.MaxPIDs = given(int64(cpu)), given(int64(memory)), given(int64(disk)), given(pids)
			if !slices.ContainsFunc(rules, func(r rule) bool { return r.cell(p) != "" }) {
				return exit.Usagef("no rule is named: `r policy set --help` lists them, and `r policy clear` removes some")
			}
			if err := req.Validate(); err != nil {
				return exit.With(exit.Usage, err)
			}
			c, err := client(cmd.Context(), e)
			if err != nil {
				return err
			}
			req.Project = e.Project()
			resp, err := c.Set(cmd.Context(), req)
			if err != nil {
				return err
			}
			return changed(e, resp)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&p.Templates, "template", nil, "sandboxes are made of this template; repeat for several")
	f.StringVar(&egress, "max-egress", "", "widest network of a sandbox: none, listed (what it lists) or all")
	f.StringSliceVar(&p.Networks, "network", nil, "with listed: network, address or domain that sandboxes may list; repeat for several")
	f.DurationVar(&ttl, "max-ttl", 0, "longest time to live of a sandbox, as 1h")
	f.BoolVar(&p.Confine, "confine", false, "programs run in the second layer inside the sandbox only")
	f.Var(&cpu, "max-cpu", "most CPUs of a sandbox, as 2 or 500m")
	f.Var(&memory, "max-memory", "most memory of a sandbox, as 4G")
	f.Var(&disk, "max-disk", "largest root disk of a sandbox, as 20G")
	f.Int64Var(&pids, "max-pids", 0, "most processes of a sandbox")
	f.BoolVar(&p.PrivatePreviews, "private-previews", false, "previews answer with a token only")
	f.DurationVar(&keyTTL, "max-key-ttl", 0, "longest validity of an API key, as 720h")
	_ = cmd.RegisterFlagCompletionFunc("max-egress", func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return core.PolicyEgress("").Choices(), cobra.ShellCompDirectiveNoFileComp
	}) // fails only for flags that do not exist
	return cmd
}

// given returns nil for a flag that was not given.
func given[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func newClear(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "clear [RULE...]",
		Short: "Remove rules of the policy of a project, or all of them",
		Long: `Removes rules of the policy of the project, which have the names of the flags of ` + "`r policy set`" + `; all of them if none is
named. Only administrators of the installation may do this.`,
		Example: "  r policy clear max-ttl confine\n  r policy clear --project research",
		Args:    command.Args(0, len(rules), "RULE"),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return names(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &core.ClearPolicyRequest{}
			for _, name := range args {
				i := slices.IndexFunc(rules, func(r rule) bool { return r.flag == name || string(r.name) == name })
				if i < 0 {
					return exit.Usagef("there is no rule %q; rules are %s", name, strings.Join(names(), ", "))
				}
				req.Rules = append(req.Rules, rules[i].name)
			}
			c, err := client(cmd.Context(), e)
			if err != nil {
				return err
			}
			req.Project = e.Project()
			resp, err := c.Clear(cmd.Context(), req)
			if err != nil {
				return err
			}
			return changed(e, resp)
		},
	}
}

func names() []string {
	out := make([]string, len(rules))
	for i, r := range rules {
		out[i] = r.flag
	}
	return out
}
