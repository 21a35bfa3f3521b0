package rollout

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/console"
)

// plainView prints a line for every change.
type plainView struct {
	c     *console.Console
	now   func() time.Time
	steps []app.Step
	begun bool // the upload has started
}

func (v *plainView) printf(format string, args ...any) {
	v.c.Printf("%s\n", console.Cut(fmt.Sprintf(format, args...), 0))
}

func (v *plainView) Message(text string) {
	for line := range strings.SplitSeq(text, "\n") {
		v.printf("%s", line)
	}
}

func (v *plainView) Upload(u Upload) {
	switch {
	case u.Missing == 0:
		if u.Done {
			v.printf("source: %s", u)
		}
	case u.Done:
		v.printf("source: uploaded %s", u)
	case !v.begun:
		v.printf("source: uploading %s", u)
	}
	v.begun = true
}

func (v *plainView) Deployment(d *app.Deployment) {
	for i := range d.Status.Steps {
		s := &d.Status.Steps[i]
		var old app.Step
		if i < len(v.steps) {
			old = v.steps[i]
		}
		if s.State == old.State && s.Message == old.Message {
			continue
		}
		suffix := ""
		if s.Message != "" {
			suffix = ": " + s.Message
		}
		switch s.State {
		case app.StepStateRunning:
			v.printf("%s%s", s.Name, suffix)
		case app.StepStateDone:
			v.printf("%s: done in %s", s.Name, short(took(s, v.now())))
		case app.StepStateFailed:
			v.printf("%s: failed after %s%s", s.Name, short(took(s, v.now())), suffix)
		}
	}
	v.steps = append(v.steps[:0], d.Status.Steps...)
}

func (v *plainView) Build(e *app.BuildEvent) {
	if val(e.Internal) && e.Kind != "failed" {
		return
	}
	switch e.Kind {
	case "started":
		v.printf("#%d %s", val(e.Step), e.Name)
	case "log":
		v.printf("#%d | %s", val(e.Step), e.Text)
	case "cached":
		v.printf("#%d cached", val(e.Step))
	case "done":
		v.printf("#%d done in %s", val(e.Step), short(val(e.Took)))
	case "failed":
		v.printf("#%d failed: %s", val(e.Step), e.Text)
	case "canceled":
		v.printf("#%d canceled", val(e.Step))
	case "warning":
		v.printf("warning: %s", e.Text)
	}
}

func (v *plainView) Log(l *sandbox.LogLine) { v.printf("%s | %s", cmp.Or(l.Service, "app"), l.Text) }

func (*plainView) Tick()  {}
func (*plainView) Close() {}
