package app

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
)

// scaleDefault is the word in SERVICE=default: the replicas of app.toml.
const scaleDefault = "default"

// NewScale makes `r app scale`, which is `r scale` too.
func NewScale(e *command.Env) *cobra.Command {
	o := &appOptions{Env: e}
	cmd := &cobra.Command{
		Use:   "scale [SERVICE=NUMBER...]",
		Short: "Show or set how many sandboxes services have",
		Long: `Sets how many sandboxes services of an app have, from now on and in every version to come. SERVICE=default brings back
what the source asks for. If a deployment is under way, it applies the change when it ends. Without arguments, shows
the numbers.`,
		Example: "  r app scale web=3 worker=1\n  r app scale web=default\n  r app scale",
		Args:    command.Args(0, -1, "SERVICE=NUMBER"),
		RunE:    func(cmd *cobra.Command, args []string) error { return o.scale(cmd.Context(), args) },
	}
	o.addApp(cmd)
	return cmd
}

func (o *appOptions) scale(ctx context.Context, args []string) error {
	set, reset, err := parseScale(args)
	if err != nil {
		return err
	}
	name, err := command.AppArg(nil, o.app)
	if err != nil {
		return err
	}
	deferred := false
	if len(args) > 0 {
		c, err := client(ctx, o.Env)
		if err != nil {
			return err
		}
		resp, err := c.Scale(ctx, &app.ScaleRequest{Project: o.Project(), App: name, Set: set, Reset: reset})
		if err != nil {
			return err
		}
		deferred = resp.Deferred
	}
	d, err := load(ctx, o.Env, name)
	if err != nil {
		return err
	}
	list := d.scale()
	if o.JSON {
		return o.PrintJSON(map[string]any{"services": list, "deferred": deferred})
	}
	var rows [][]string
	for _, s := range list {
		rows = append(rows, []string{s.Service, strconv.FormatInt(s.Wanted, 10), strconv.FormatInt(s.Ready, 10), s.From})
	}
	o.Table([]string{"SERVICE", "WANTED", "READY", "FROM"}, rows)
	if deferred {
		o.Printf("%s a deployment is under way, and applies this when it ends\n", o.Paint(console.Yellow, "!"))
	}
	return nil
}

// parseScale reads SERVICE=NUMBER and SERVICE=default.
func parseScale(args []string) (set map[string]int64, reset []string, err error) {
	set = map[string]int64{}
	for _, a := range args {
		service, value, ok := strings.Cut(a, "=")
		if !ok || service == "" {
			return nil, nil, exit.Usagef("%q is not SERVICE=NUMBER", a)
		}
		if _, twice := set[service]; twice || slices.Contains(reset, service) {
			return nil, nil, exit.Usagef("service %s is given twice", service)
		}
		if value == scaleDefault {
			reset = append(reset, service)
			continue
		}
		n, err := strconv.ParseInt(value, 10, 32)
		if err != nil || n < 0 {
			return nil, nil, exit.Usagef("%q is not a number of sandboxes; SERVICE=%s brings back what the source asks for", value, scaleDefault)
		}
		set[service] = n
	}
	return set, reset, nil
}

// serviceScale is the number of sandboxes of a service.
type serviceScale struct {
	Service string `json:"service"`
	Wanted  int64  `json:"wanted"`
	Ready   int64  `json:"ready"`
	From    string `json:"from"` // scale or source
}

// scale returns the scale of the services of the active version, by name.
func (d *detail) scale() []serviceScale {
	list := []serviceScale{}
	if d.Version == nil {
		return list
	}
	for _, svc := range d.Version.Spec.Services {
		s := serviceScale{Service: svc.Name, Wanted: svc.Replicas, From: "source"}
		if n, ok := d.App.Spec.Scale[svc.Name]; ok {
			s.Wanted, s.From = n, "scale"
		}
		i := slices.IndexFunc(d.Pools, func(p *sandbox.SandboxPool) bool {
			return p.Spec.AppVersion == d.Version.GetID() && p.Spec.Service == svc.Name
		})
		if i >= 0 {
			s.Ready = d.Pools[i].Status.Ready
		}
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b serviceScale) int { return cmp.Compare(a.Service, b.Service) })
	return list
}
