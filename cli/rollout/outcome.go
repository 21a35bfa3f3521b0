package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
)

// Outcome is the outcome of a deployment, with names for its ids.
type Outcome struct {
	App      string   `json:"app"`
	Version  string   `json:"version,omitempty"`  // v3
	Previous string   `json:"previous,omitempty"` // the version that was active before
	URLs     []string `json:"urls,omitempty"`
	Warnings []string `json:"warnings,omitempty"` // warnings of its build
	*app.Deployment
}

// Report prints the outcome of a deployment and returns an error with the exit code.
func Report(c *console.Console, o Outcome) error {
	d := o.Deployment
	code := o.code()
	if c.JSON {
		if err := c.PrintJSONLine(map[string]any{
			"event": "result", "outcome": d.Status.Phase, "exit_code": code, "app": o.App, "version": o.Version,
			"previous": o.Previous, "urls": o.URLs, "warnings": o.Warnings, "failure": d.Status.Failure, "steps": d.Status.Steps, "deployment": d.ID,
		}); err != nil {
			return err
		}
		return exitWith(code)
	}
	if d.Status.Phase == app.DeploymentPhaseSucceeded {
		o.success(c)
		return nil
	}
	out := *c
	out.Quiet = false
	if d.Status.Phase == app.DeploymentPhaseCanceled {
		out.Notef("%s the deployment of %s was canceled%s\n", c.Paint(console.Yellow, "canceled:"), o.App, o.kept())
		o.keptChange(&out)
		return exitWith(code)
	}
	o.warn(&out)
	for _, text := range o.explain(c) {
		for l := range strings.SplitSeq(text, "\n") {
			out.Notef("%s\n", console.Cut(l, 0))
		}
	}
	o.keptChange(&out)
	return exitWith(code)
}

// keptChange says that a change of the environment stays although its rollout
// has failed: as on other platforms, it belongs to the app.
func (o Outcome) keptChange(c *console.Console) {
	if o.Deployment.Spec.Kind == app.RolloutKindConfig {
		c.Notef("the environment of %s stays changed, and the next deployment applies it; `r app env set` and `unset` change it back\n", o.App)
	}
}

func exitWith(code int) error {
	if code == exit.OK {
		return nil
	}
	return exit.With(code, nil)
}

func (o Outcome) code() int {
	d := o.Deployment
	if d.Status.Phase == app.DeploymentPhaseSucceeded {
		return exit.OK
	}
	f := d.Status.Failure
	if d.Status.Phase != app.DeploymentPhaseFailed || f == nil {
		return exit.Failed
	}
	building := slices.ContainsFunc(d.Status.Steps, func(s app.Step) bool { return s.Name == "build" && s.State == app.StepStateFailed })
	switch f.Reason {
	case app.FailureReasonLease:
		return exit.LeaseHeld
	case app.FailureReasonInternal:
		return exit.Failed
	case app.FailureReasonSource, app.FailureReasonPlan, app.FailureReasonBuild:
		return exit.BuildFailed
	}
	if building {
		return exit.BuildFailed
	}
	return exit.Unhealthy
}

// kept names the version that keeps serving.
func (o Outcome) kept() string {
	if o.Previous == "" {
		return ""
	}
	return "; " + o.Previous + " keeps serving"
}

func (o Outcome) success(c *console.Console) {
	d := o.Deployment
	var times []string
	for i := range d.Status.Steps {
		if s := &d.Status.Steps[i]; s.State == app.StepStateDone {
			times = append(times, s.Name+" "+app.ShortDuration(s.Took(time.Now())))
		}
	}
	total := ""
	if d.Status.StartedAt != nil && d.Status.EndedAt != nil {
		total = " in " + app.ShortDuration(d.Status.EndedAt.Sub(*d.Status.StartedAt))
	}
	what := ""
	if p := d.Spec.Preview; p != nil {
		what = " as preview " + p.Name
	}
	c.Printf("%s %s serves%s%s", c.Paint(console.Bold, o.App), cmp.Or(o.Version, string(d.Status.Version)), what, total)
	if len(times) > 0 && !c.Quiet {
		c.Printf(" %s", c.Paint(console.Dim, "("+strings.Join(times, ", ")+")"))
	}
	c.Printf("\n")
	for _, u := range o.URLs {
		c.Printf("  %s\n", c.Paint(console.Cyan, u))
	}
	o.warn(c)
}

// warn repeats the warnings that the build plan printed long before.
func (o Outcome) warn(c *console.Console) {
	for _, w := range o.Warnings {
		c.Notef("%s %s\n", c.Paint(console.Yellow, "warning:"), w)
	}
}

// explain returns all details of the failure of a deployment.
func (o Outcome) explain(c *console.Console) []string {
	d := o.Deployment
	f := d.Status.Failure
	if f == nil {
		f = &app.Failure{Reason: app.FailureReasonInternal, Message: "the server gave no reason"}
	}
	what := "the deployment of " + o.App
	if o.Version != "" {
		what += " " + o.Version
	}
	lines := []string{fmt.Sprintf("%s %s failed (%s): %s", c.Paint(console.Red, "error:"), what, f.Reason, f.Message)}
	for _, fact := range f.Facts() {
		lines = append(lines, fmt.Sprintf("  %-10s %s", fact[0], fact[1]))
	}
	if len(f.LogTail) > 0 {
		lines = append(lines, "  last lines:")
		for _, l := range f.LogTail {
			lines = append(lines, "    "+c.Paint(console.Dim, "| ")+l)
		}
	}
	if f.Hint != "" {
		lines = append(lines, c.Paint(console.Yellow, "hint:")+" "+strings.ReplaceAll(f.Hint, "\n", "\n  "))
	}
	switch {
	case o.Previous != "":
		lines = append(lines, o.Previous+" keeps serving")
	case d.Spec.Preview != nil:
		lines = append(lines, "the app's hosts get what they got before")
	default:
		lines = append(lines, o.App+" has no active version")
	}
	return lines
}
