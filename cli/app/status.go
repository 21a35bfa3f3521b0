package app

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/pkg/schema"
)

// NewStatus makes `r app status`, which is `r status` too.
func NewStatus(e *command.Env) *cobra.Command {
	o := &appOptions{Env: e}
	cmd := &cobra.Command{
		Use:               "status [APP]",
		Short:             "Show the active version and its health",
		Args:              command.Args(0, 1, "APP"),
		ValidArgsFunction: completeApps(e),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.status(cmd.Context(), args) },
	}
	o.addApp(cmd)
	command.WatchFlag(cmd, &o.watch)
	return cmd
}

func (o *appOptions) status(ctx context.Context, args []string) error {
	name, err := command.AppArg(args, o.app)
	if err != nil {
		return err
	}
	kinds := []string{app.KindApp, app.KindDeployment, sandbox.KindSandboxPool, sandbox.KindSandbox}
	load := func(ctx context.Context) (*detail, error) { return load(ctx, o.Env, name) }
	return command.Show(ctx, o.Env, o.watch, kinds, load, func(_ context.Context, d *detail) error {
		d.printStatus(o.Env)
		return nil
	})
}

func (d *detail) printStatus(e *command.Env) {
	line := func(name, format string, args ...any) {
		e.Printf("%s %s\n", e.Paint(console.Dim, fmt.Sprintf("%-11s", name)), fmt.Sprintf(format, args...))
	}
	line("app", "%s  %s", e.Paint(console.Bold, d.App.Name), e.Paint(console.Dim, string(d.App.ID)))
	switch {
	case d.App.Status.Active() == "":
		line("version", "none is active yet")
	case d.Version != nil:
		line("version", "v%d", d.Version.Spec.Number)
	default:
		line("version", "%s", d.App.Status.Active())
	}
	if len(d.shares) > 0 {
		line("traffic", "%s", strings.Join(d.shares, ", "))
	}
	if d.URL != "" && d.App.Status.Active() != "" {
		line("url", "%s", e.Paint(console.Cyan, d.URL))
	}
	for _, p := range d.App.Status.Previews() {
		text := p.Preview + " at " + e.Paint(console.Cyan, p.Host)
		if p.ExpiresAt != nil {
			text += ", ends in " + schema.CellAge(now(), *p.ExpiresAt)
		}
		line("preview", "%s", text)
	}
	for _, r := range d.Routes {
		if r.Spec.Preview != "" {
			continue
		}
		line("route", "%s%s → %s", r.Spec.Host, r.Spec.Path, r.Spec.Service)
	}
	if dep := d.Deployment; dep != nil && !dep.Status.Phase.Ended() {
		line("deploying", "%s %s %s", dep.ID, paintPhase(e.Console, string(dep.Status.Phase)), stepText(dep))
	}
	if dep := d.Last; dep != nil {
		text := paintPhase(e.Console, string(dep.Status.Phase))
		if dep.Status.EndedAt != nil {
			text += " " + schema.CellAge(*dep.Status.EndedAt, now()) + " ago"
		}
		if f := dep.Status.Failure; f != nil {
			text += fmt.Sprintf(": %s: %s", f.Reason, f.Message)
		}
		line("last", "%s", text)
	}
	d.printSandboxes(e)
}

// stepText returns the current step of a deployment.
func stepText(d *app.Deployment) string {
	for i := range d.Status.Steps {
		if s := &d.Status.Steps[i]; s.State == app.StepStateRunning {
			return strings.TrimSpace(s.Name + " " + s.Message)
		}
	}
	return ""
}

// shown returns the sandboxes of services that live, and the last one that failed
// of a service, if no other one is in its place. Of old versions it returns those
// that live.
func (d *detail) shown() []*sandbox.Sandbox {
	type place struct {
		service string
		version id.AppVersion
	}
	of := func(s *sandbox.Sandbox) place { return place{s.Spec.Service, s.Spec.AppVersion} }
	current := d.App.Status.Versions()
	if newest := cmp.Or(d.Deployment, d.Last); newest != nil {
		current = append(current, newest.Status.Version)
	}
	last := map[place]*sandbox.Sandbox{}
	list := slices.DeleteFunc(slices.Clone(d.Sandboxes), func(s *sandbox.Sandbox) bool {
		asked := slices.Contains([]sandbox.EndReason{sandbox.EndReasonUser, sandbox.EndReasonIdle, sandbox.EndReasonTTL}, s.Status.Reason)
		if s.Spec.Pool == "" || s.Status.Phase.Ended() && (asked || !slices.Contains(current, s.Spec.AppVersion)) {
			return true // a command run with the app's image, or of no use any more
		}
		if l := last[of(s)]; l == nil || s.CreatedAt.After(l.CreatedAt) {
			last[of(s)] = s
		}
		return false
	})
	return slices.DeleteFunc(list, func(s *sandbox.Sandbox) bool { return s.Status.Phase.Ended() && last[of(s)] != s })
}

func (d *detail) printSandboxes(e *command.Env) {
	var rows [][]string
	list := d.shown()
	slices.SortFunc(list, func(a, b *sandbox.Sandbox) int {
		return cmp.Or(cmp.Compare(a.Spec.Service, b.Spec.Service), a.CreatedAt.Compare(b.CreatedAt))
	})
	for _, s := range list {
		state := string(s.Status.Phase)
		if s.Status.Phase == sandbox.SandboxPhaseRunning && s.Status.Ready {
			state = "ready"
		}
		version := versionName(d.numbers[s.Spec.AppVersion])
		rows = append(rows, []string{
			command.ShortID(s.ID), s.Spec.Service, version, paintPhase(e.Console, state), s.Status.Address,
			reason(s), schema.CellAge(s.CreatedAt, now()),
		})
	}
	if len(rows) > 0 {
		e.Printf("\n")
		e.Table([]string{"SANDBOX", "SERVICE", "VERSION", "STATE", "ADDRESS", "REASON", "AGE"}, rows)
	}
	for _, p := range d.Pools {
		if p.Status.Message != "" {
			e.Printf("%s %s: %s\n", e.Paint(console.Yellow, "!"), p.Spec.Service, p.Status.Message)
		}
	}
}

// reason returns the reason of the end of a sandbox: "exit 3", "oom".
func reason(s *sandbox.Sandbox) string {
	if s.Status.Reason == sandbox.EndReasonExit && s.Status.ExitCode != nil {
		return fmt.Sprintf("%s %d", s.Status.Reason, *s.Status.ExitCode)
	}
	return string(s.Status.Reason)
}

func (d *detail) printVersion(c *console.Console) {
	v := d.Version
	c.Printf("\n%s\n", c.Paint(console.Dim, "version v"+fmt.Sprint(v.Spec.Number)))
	c.Printf("  image    %s\n", v.Spec.Image)
	if g := v.Spec.Git; g != nil && g.Commit != "" {
		c.Printf("  git      %s\n", gitText(g))
	}
	for _, s := range v.Spec.Services {
		c.Printf("  service  %s", c.Paint(console.Bold, s.Name))
		if s.Port != nil && *s.Port > 0 {
			c.Printf("  port %d", *s.Port)
		}
		if a := s.Autoscale; a != nil {
			c.Printf("  scale %d..%d", a.Min, a.Max)
		} else {
			c.Printf("  replicas %d", s.Replicas)
		}
		c.Printf("  cpu %s  memory %s", schema.CellMillis(s.CPUMillis), schema.CellBytes(s.MemoryBytes))
		if s.HealthPath != "" {
			c.Printf("  health %s", s.HealthPath)
		}
		c.Printf("\n")
		if len(s.Command) > 0 {
			c.Printf("           %s\n", c.Paint(console.Dim, strings.Join(s.Command, " ")))
		}
		for _, v := range s.Volumes {
			mode := ""
			if v.ReadOnly {
				mode = " (read-only)"
			}
			c.Printf("           disk %s at %s%s\n", v.Disk, v.Path, mode)
		}
	}
	env := maps.Clone(v.Spec.SourceEnv)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, v.Spec.Env)
	for k := range v.Spec.Secrets {
		env[k] = "[secret]"
	}
	for _, k := range slices.Sorted(maps.Keys(env)) {
		c.Printf("  env      %s=%s\n", k, env[k])
	}
}

func gitText(g *app.GitInfo) string {
	if g == nil || g.Commit == "" {
		return ""
	}
	text := g.Commit[:min(10, len(g.Commit))]
	if g.Branch != "" {
		text += " " + g.Branch
	}
	if g.Dirty {
		text += " +changes"
	}
	return text
}
