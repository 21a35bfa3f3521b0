package app

import (
	"fmt"
	"slices"
	"time"

	"miren.dev/runtime/pkg/opt"
	"miren.dev/runtime/pkg/schema"
)

// Lines renders what happens to a deployment as lines of text, one for each change. The
// text of builds and sandboxes is as they wrote it: what prints it removes control
// characters.
type Lines struct{ steps []Step }

// Deployment returns the lines for the changes since the last state.
func (l *Lines) Deployment(d *Deployment, now time.Time) (out []string) {
	for i := range d.Status.Steps {
		s := &d.Status.Steps[i]
		var old Step
		if i < len(l.steps) {
			old = l.steps[i]
		}
		if s.State == old.State && s.Message == old.Message {
			continue
		}
		suffix := ""
		if s.Message != "" {
			suffix = ": " + s.Message
		}
		switch s.State {
		case StepStateRunning:
			out = append(out, s.Name+suffix)
		case StepStateDone:
			out = append(out, fmt.Sprintf("%s: done in %s", s.Name, ShortDuration(s.Took(now))))
		case StepStateFailed:
			out = append(out, fmt.Sprintf("%s: failed after %s%s", s.Name, ShortDuration(s.Took(now)), suffix))
		}
	}
	l.steps = slices.Clone(d.Status.Steps)
	return out
}

// Line returns the line for an event of a build; "" if it needs none.
func (e *BuildEvent) Line() string {
	if opt.Value(e.Internal) && e.Kind != "failed" {
		return ""
	}
	switch e.Kind {
	case "started":
		return fmt.Sprintf("#%d %s", opt.Value(e.Step), e.Name)
	case "log":
		return fmt.Sprintf("#%d | %s", opt.Value(e.Step), e.Text)
	case "cached":
		return fmt.Sprintf("#%d cached", opt.Value(e.Step))
	case "done":
		return fmt.Sprintf("#%d done in %s", opt.Value(e.Step), ShortDuration(opt.Value(e.Took)))
	case "failed":
		return fmt.Sprintf("#%d failed: %s", opt.Value(e.Step), e.Text)
	case "canceled":
		return fmt.Sprintf("#%d canceled", opt.Value(e.Step))
	case "warning":
		return "warning: " + e.Text
	}
	return ""
}

// Took returns the duration of a step, until now if it has not ended.
func (s *Step) Took(now time.Time) time.Duration {
	if s.StartedAt == nil {
		return 0
	}
	if s.EndedAt != nil {
		now = *s.EndedAt
	}
	return max(0, now.Sub(*s.StartedAt))
}

// Facts returns the details of a failure besides its message, by name.
func (f *Failure) Facts() (out [][2]string) {
	if f.Service != "" {
		out = append(out, [2]string{"service", f.Service})
	}
	if f.ExitCode != nil {
		out = append(out, [2]string{"exited", fmt.Sprintf("with exit code %d%s", *f.ExitCode, signalName(*f.ExitCode))})
	}
	if f.ExpectedPort != nil {
		out = append(out, [2]string{"expected", fmt.Sprintf("port %d", *f.ExpectedPort)})
		if len(f.Listening) == 0 {
			out = append(out, [2]string{"listening", "on no port"})
		}
	}
	if len(f.Listening) > 0 {
		out = append(out, [2]string{"listening", "on port " + schema.Cell(f.Listening)})
	}
	return out
}

// signalName returns the name of the signal of an exit code above 128.
func signalName(code int64) string {
	names := map[int64]string{130: "SIGINT", 134: "SIGABRT", 137: "SIGKILL", 139: "SIGSEGV", 143: "SIGTERM"}
	if n, ok := names[code]; ok {
		return " (" + n + ")"
	}
	return ""
}

// ShortDuration renders a duration for people: 850ms, 12.3s, 2m05s.
func ShortDuration(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
}
