package app

import (
	"cmp"
	"context"
	"fmt"
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
		Use:   "scale [SERVICE=NUMBER|MIN..MAX...]",
		Short: "Show or set how many sandboxes services have",
		Long: `Sets how many sandboxes services of an app have, from now on and in every version to come. With SERVICE=MIN..MAX the
number follows the load within these bounds; with 0 as the least number the service sleeps without requests.
SERVICE=default brings back what the source asks for. If a deployment is under way, it applies the change when it ends.
Without arguments, shows the numbers.`,
		Example: "  r app scale web=3 worker=1\n  r app scale web=2..6\n  r app scale web=default\n  r app scale",
		Args:    command.Args(0, -1, "SERVICE=NUMBER or SERVICE=MIN..MAX"),
		RunE:    func(cmd *cobra.Command, args []string) error { return o.scale(cmd.Context(), args) },
	}
	o.addApp(cmd)
	return cmd
}

func (o *appOptions) scale(ctx context.Context, args []string) error {
	req, err := parseScale(args)
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
		req.Project, req.App = o.Project(), name
		resp, err := c.Scale(ctx, req)
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
		bounds := "fixed"
		if s.Max != nil {
			bounds = fmt.Sprintf("%d..%d", *s.Min, *s.Max)
		}
		rows = append(rows, []string{s.Service, strconv.FormatInt(s.Wanted, 10), strconv.FormatInt(s.Ready, 10), bounds, s.From})
	}
	o.Table([]string{"SERVICE", "WANTED", "READY", "BOUNDS", "FROM"}, rows)
	if deferred {
		o.Printf("%s a deployment is under way, and applies this when it ends\n", o.Paint(console.Yellow, "!"))
	}
	return nil
}

// parseScale reads SERVICE=NUMBER, SERVICE=MIN..MAX and SERVICE=default.
func parseScale(args []string) (*app.ScaleRequest, error) {
	req, seen := &app.ScaleRequest{Set: map[string]int64{}}, map[string]bool{}
	for _, a := range args {
		service, value, ok := strings.Cut(a, "=")
		if !ok || service == "" {
			return nil, exit.Usagef("%q is not SERVICE=NUMBER or SERVICE=MIN..MAX", a)
		}
		if seen[service] {
			return nil, exit.Usagef("service %s is given twice", service)
		}
		seen[service] = true
		if value == scaleDefault {
			req.Reset = append(req.Reset, service)
			continue
		}
		low, high, isRange := strings.Cut(value, "..")
		n, err := strconv.ParseUint(low, 10, 31)
		most, merr := n, error(nil)
		if isRange {
			most, merr = strconv.ParseUint(high, 10, 31)
		}
		switch {
		case err != nil || merr != nil:
			return nil, exit.Usagef("%q is not a number of sandboxes, nor bounds as 2..6; SERVICE=%s brings back what the source asks for", value, scaleDefault)
		case most < n || isRange && most == 0:
			return nil, exit.Usagef("%s leaves service %s no sandbox: the most must be at least 1 and not below the least", value, service)
		case isRange:
			req.Bounds = append(req.Bounds, app.ScaleBounds{Service: service, Min: int64(n), Max: int64(most)})
		default:
			req.Set[service] = int64(n)
		}
	}
	return req, nil
}

// serviceScale is the number of sandboxes of a service.
type serviceScale struct {
	Service string `json:"service"`
	Wanted  int64  `json:"wanted"`
	Ready   int64  `json:"ready"`
	Min     *int64 `json:"min,omitempty"` // with Max: the number follows the load
	Max     *int64 `json:"max,omitempty"`
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
		if slices.ContainsFunc(d.App.Spec.Bounds, func(b app.ScaleBounds) bool { return b.Service == svc.Name }) {
			s.From = "scale"
		}
		i := slices.IndexFunc(d.Pools, func(p *sandbox.SandboxPool) bool {
			return p.Spec.AppVersion == d.Version.GetID() && p.Spec.Service == svc.Name
		})
		if i >= 0 {
			p := d.Pools[i]
			s.Ready = p.Status.Ready
			if a := p.Spec.Autoscale; a != nil {
				s.Wanted, s.Min, s.Max = p.Wanted(), &a.Min, &a.Max
			}
		}
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b serviceScale) int { return cmp.Compare(a.Service, b.Service) })
	return list
}
